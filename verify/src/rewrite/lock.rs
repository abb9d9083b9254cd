//! One run per output folder, by an OS file lock that a killed process cannot leave behind.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::{Class, Error, Result};
use crate::names::Shown;

/// Held as long as the value lives.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock file at `path`, waiting at most `wait`.
    ///
    /// # Errors
    /// Exit 75 naming the process that holds it.
    pub fn take(path: &Path, wait: Duration) -> Result<Self> {
        Self::acquire(path, wait, File::try_lock)
    }

    /// As [`Self::take`], but holders that share do not exclude one another.
    ///
    /// # Errors
    /// Exit 75 where a process holds it alone.
    pub fn share(path: &Path, wait: Duration) -> Result<Self> {
        Self::acquire(path, wait, File::try_lock_shared)
    }

    fn acquire(path: &Path, wait: Duration, how: fn(&File) -> Result<(), TryLockError>) -> Result<Self> {
        let began = Instant::now();
        loop {
            let mut file = OpenOptions::new()
                .create(true)
                .read(true)
                .write(true)
                .truncate(false)
                .open(path)
                .map_err(|e| unopened(path, &e))?;
            match how(&file) {
                Ok(()) if still_there(&file, path) => {
                    let _ = file.set_len(0).and_then(|()| write!(file, "process {}", std::process::id()));
                    return Ok(Lock { _file: file });
                }
                // The run that held it ended and removed the file under us.
                Ok(()) => continue,
                Err(TryLockError::WouldBlock) if began.elapsed() < wait => {
                    std::thread::sleep(Duration::from_millis(100));
                }
                Err(TryLockError::WouldBlock) => return Err(held(&mut file, path)),
                Err(TryLockError::Error(e)) => return Err(Error::io("lock", path, &e)),
            }
        }
    }
}

/// The folder of the lock goes when the run that held it completes: whoever waited starts from the top.
fn unopened(path: &Path, e: &std::io::Error) -> Error {
    match e.kind() {
        std::io::ErrorKind::NotFound => Error::new(Class::Locked, format!("{} is gone", Shown::path(path)))
            .found("another run completed the folder meanwhile")
            .hint("run the command again"),
        _ => Error::io("write", path, e),
    }
}

fn still_there(file: &File, path: &Path) -> bool {
    match (file.metadata(), std::fs::metadata(path)) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}

fn held(file: &mut File, path: &Path) -> Error {
    let mut holder = String::new();
    let _ = file.read_to_string(&mut holder);
    Error::new(Class::Locked, format!("{} is locked by another run", Shown::path(path)))
        .found(Shown(holder.trim()).to_string())
        .hint("wait for it to end, or wait here with --lock-wait SECONDS")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_taker_is_told_who_holds_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let first = Lock::take(&path, Duration::ZERO).unwrap();
        let e = Lock::take(&path, Duration::ZERO).unwrap_err();
        assert_eq!(e.class(), Class::Locked);
        assert!(e.to_string().contains(&std::process::id().to_string()));
        assert!(Lock::share(&path, Duration::ZERO).is_err());
        drop(first);
        let shared =
            [Lock::share(&path, Duration::ZERO).unwrap(), Lock::share(&path, Duration::ZERO).unwrap()];
        assert!(Lock::take(&path, Duration::ZERO).is_err());
        drop(shared);
        Lock::take(&path, Duration::ZERO).unwrap();
    }
}

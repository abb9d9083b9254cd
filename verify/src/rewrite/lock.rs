//! One run per output folder, by an OS file lock that a killed process cannot leave behind.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::{Class, Error, Result};
use crate::names::Shown;

/// Whether runs keep one another out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Locking {
    /// They do.
    #[default]
    Take,
    /// They cannot, on a file system without locks; the user sees to it.
    Skip,
}

impl Locking {
    /// What the user should know.
    pub fn warning(self) -> Option<String> {
        let text = "no lock was taken (--no-lock): another run that writes the same files at the same time spoils them";
        (self == Locking::Skip).then(|| text.to_string())
    }

    /// [`Lock::take`], where locks are taken.
    ///
    /// # Errors
    /// As [`Lock::take`].
    pub fn take(self, path: &Path, wait: Duration) -> Result<Option<Lock>> {
        (self == Locking::Take).then(|| Lock::take(path, wait)).transpose()
    }

    /// [`Lock::share`], where locks are taken.
    ///
    /// # Errors
    /// As [`Lock::share`].
    pub fn share(self, path: &Path, wait: Duration) -> Result<Option<Lock>> {
        (self == Locking::Take).then(|| Lock::share(path, wait)).transpose()
    }
}

/// How the system is asked for a lock.
type How = fn(&File) -> Result<(), TryLockError>;

/// Held as long as the value lives.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock file at `path`, waiting at most `wait`.
    ///
    /// # Errors
    /// Exit 75 naming the process that holds it; exit 5 where the file system has no locks.
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

    fn acquire(path: &Path, wait: Duration, how: How) -> Result<Self> {
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
                Err(TryLockError::Error(e)) => return Err(no_locks(path, &e)),
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

fn no_locks(path: &Path, e: &std::io::Error) -> Error {
    Error::io("lock", path, e)
        .expected("a file system with file locks; some network disks have none")
        .hint("make sure that no other run writes this folder, and add --no-lock")
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

    fn system(code: i32) -> TryLockError {
        TryLockError::Error(std::io::Error::from_raw_os_error(code))
    }

    #[test]
    fn without_locks_the_error_says_how_to_go_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        // ENOLCK of NFS without lockd, EOPNOTSUPP, ENOSYS.
        let refusals: [How; 3] = [|_| Err(system(37)), |_| Err(system(95)), |_| Err(system(38))];
        for how in refusals {
            let e = Lock::acquire(&path, Duration::from_secs(9), how).unwrap_err();
            assert_eq!(e.class(), Class::Disk);
            assert!(e.to_string().contains("--no-lock") && e.what().contains("lock"), "{e}");
        }
        assert!(Locking::Skip.take(&path, Duration::ZERO).unwrap().is_none());
    }

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

//! What lies there already: verified by its digest, never trusted for its name.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use verify::progress::Progress;
use verify::{Digest, Result};

use super::digest::of_file;
use super::source::RemoteFile;

/// A file of the plan, as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// There and right; its sha256.
    Right(Digest),
    /// There, and something else, in one clause.
    Wrong(String),
    /// Not there.
    Missing,
}

/// Looks at every file of `files` where `at` has it, on `threads` threads.
///
/// # Errors
/// When a file cannot be read, or the user asked to stop.
pub fn look<'a, P: AsRef<Path>>(
    files: &'a [RemoteFile],
    at: impl Fn(&'a RemoteFile) -> P + Sync,
    threads: usize,
    progress: &dyn Progress,
) -> Result<Vec<Standing>> {
    let sized = |f: &'a RemoteFile| std::fs::symlink_metadata(at(f)).is_ok_and(|m| m.len() == f.size);
    let total: u64 = files.iter().filter(|f| sized(f)).map(|f| f.size).sum();
    if total > 0 {
        progress.begin("verifying what is there", total);
    }
    let next = AtomicUsize::new(0);
    let results = Mutex::new(vec![None; files.len()]);
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, files.len().max(1)) {
            scope.spawn(|| {
                while let Some((i, file)) =
                    Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|i| Some((i, files.get(i)?)))
                {
                    let standing = one(at(file).as_ref(), file, progress);
                    results.lock().unwrap_or_else(|p| p.into_inner())[i] = Some(standing);
                }
            });
        }
    });
    let results = results.into_inner().unwrap_or_else(|p| p.into_inner());
    results.into_iter().flatten().collect()
}

fn one(path: &Path, file: &RemoteFile, progress: &dyn Progress) -> Result<Standing> {
    let Ok(meta) = std::fs::symlink_metadata(path) else { return Ok(Standing::Missing) };
    if !meta.is_file() {
        return Ok(Standing::Wrong("it is no regular file".into()));
    }
    if meta.len() != file.size {
        return Ok(Standing::Wrong(format!("{} bytes, not {}", meta.len(), file.size)));
    }
    let found = of_file(path, file.size, file.digest, progress)?;
    Ok(match found.as_expected == file.digest {
        true => Standing::Right(found.sha256),
        false => Standing::Wrong(format!(
            "{} {}, not {}",
            found.as_expected.kind(),
            found.as_expected,
            file.digest
        )),
    })
}

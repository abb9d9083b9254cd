//! Small files, replaced in one step.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::names::FileName;

/// Writes `dir/name` so that a reader sees the old file or the new one, never half.
///
/// # Errors
/// Exit 5 when the disk is full or broken.
pub fn write_file(dir: &Path, name: &FileName, bytes: &[u8]) -> Result<()> {
    let part = part_path(dir, name);
    let write = || -> std::io::Result<()> {
        let mut file = create_part(&part)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&part, dir.join(name))
    };
    write().map_err(|e| {
        let _ = std::fs::remove_file(&part);
        Error::io("write", &dir.join(name), &e)
    })?;
    sync_dir(dir)
}

/// Makes renames in `dir` survive a power loss.
///
/// # Errors
/// Exit 5 when the folder cannot be synced.
pub fn sync_dir(dir: &Path) -> Result<()> {
    File::open(dir).and_then(|d| d.sync_all()).map_err(|e| Error::io("write", dir, &e))
}

/// Bytes that may still be written where `dir` lies; `None` where the system does not tell.
pub fn free_space(dir: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(dir).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Removes a folder of ours and all in it; a missing one is fine.
///
/// # Errors
/// Exit 5 when something cannot be removed.
pub fn remove_tree(dir: &Path) -> Result<()> {
    match std::fs::remove_dir_all(dir) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io("remove", dir, &e)),
        _ => Ok(()),
    }
}

/// A new file at `part`. What lies there is removed, never opened: it could be a link to another file, or a pipe.
pub(crate) fn create_part(part: &Path) -> std::io::Result<File> {
    match std::fs::remove_file(part) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    OpenOptions::new().write(true).create_new(true).mode(0o644).open(part)
}

pub(crate) fn part_path(dir: &Path, name: &FileName) -> PathBuf {
    dir.join(format!("{name}.part"))
}

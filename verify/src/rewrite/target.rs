//! The output folder: never in or around an input, never overwritten unless asked, continued where a run of
//! the same plan stopped.
//!
//! With `--force` the new folder is built beside the old one (`OUT.prep-new`) and exchanged with it in one
//! step once it is complete; what was replaced is then removed. A kill at any moment leaves the old folder or
//! the new one in place, whole.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::checkpoint::folder::{REPORT, WORK};
use crate::error::{Error, Result};
use crate::names::Shown;
use crate::write::{remove_tree, sync_dir};

/// Marks a folder that was replaced and only waits to be removed.
const REPLACED: &str = ".prep-replaced";

/// What to do where the output folder is there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Existing {
    /// Continue an unfinished run of the same plan; refuse anything else.
    #[default]
    Continue,
    /// Build beside it and swap at the end.
    Replace,
}

/// The folder that is written, and the one that it becomes.
#[derive(Debug)]
pub struct Target {
    /// The folder that is written: the output itself, or one beside it.
    pub build: PathBuf,
    out: PathBuf,
}

impl Target {
    /// Prepares `out` for writing; `inputs` are the folders that are read.
    ///
    /// # Errors
    /// Exit 2 where `out` is, holds or lies in an input, or holds something else; exit 5 where it cannot be made.
    pub fn prepare(out: &Path, inputs: &[PathBuf], existing: Existing) -> Result<Self> {
        let out = real(out)?;
        if out.exists() && !out.is_dir() {
            return Err(Error::usage(format!("{} is a file", Shown::path(&out))).expected("a folder"));
        }
        let beside = sibling(&out);
        check_apart(&out, inputs)?;
        let occupied = std::fs::symlink_metadata(&out).is_ok() && !continues(&out)?;
        let build = match (occupied, existing) {
            (false, Existing::Continue) => out.clone(),
            (false, Existing::Replace) if !out.exists() && !beside.exists() => out.clone(),
            (_, Existing::Replace) => {
                check_apart(&beside, inputs)?;
                clear_leftover(&beside)?;
                beside
            }
            (true, Existing::Continue) => return Err(refuse(&out)),
        };
        let work = build.join(WORK);
        std::fs::create_dir_all(&work).map_err(|e| Error::io("create", &work, &e))?;
        if let Some(parent) = build.parent() {
            sync_dir(parent)?;
        }
        Ok(Target { build, out })
    }

    /// Removes all that another plan left in a folder that `--force` builds in; the lock stays.
    ///
    /// # Errors
    /// Exit 5 when something cannot be removed.
    pub fn clear(&self) -> Result<()> {
        for dir in [self.build.clone(), self.build.join(WORK)] {
            for entry in std::fs::read_dir(&dir).map_err(|e| Error::io("read", &dir, &e))?.flatten() {
                let name = entry.file_name();
                if name != WORK && !name.to_string_lossy().starts_with("lock") {
                    remove(&entry.path())?;
                }
            }
        }
        Ok(())
    }

    /// The folder that will be replaced, where another run may be working in it.
    pub fn busy(&self) -> Option<PathBuf> {
        let work = self.out.join(WORK);
        (self.replaces() && work.is_dir()).then_some(work)
    }

    /// True where the folder is built beside the one that it becomes.
    pub fn replaces(&self) -> bool {
        self.build != self.out
    }

    /// Ends the run: swaps the new folder in where it was built beside, then drops the journal.
    ///
    /// # Errors
    /// Exit 5 when the folders cannot be exchanged.
    pub fn complete(self) -> Result<()> {
        if self.replaces() {
            let io = |e: std::io::Error| Error::io("replace", &self.out, &e);
            if self.out.exists() {
                // An empty file has no half: unlike `write_file`, nothing but the mark itself can be left by a kill.
                File::create(self.out.join(REPLACED)).and_then(|mark| mark.sync_all()).map_err(io)?;
                sync_dir(&self.out)?;
                renameat_with(CWD, &self.build, CWD, &self.out, RenameFlags::EXCHANGE)
                    .map_err(|e| io(e.into()))?;
            } else {
                std::fs::rename(&self.build, &self.out).map_err(io)?;
            }
            if let Some(parent) = self.out.parent() {
                sync_dir(parent)?;
            }
            remove_replaced(&self.build)?;
        }
        remove_tree(&self.out.join(WORK))
    }
}

/// `out` as an absolute path, a link to a folder resolved.
fn real(out: &Path) -> Result<PathBuf> {
    let absolute = std::path::absolute(out).map_err(|e| Error::io("write", out, &e))?;
    let here =
        absolute.components().any(|c| c == std::path::Component::ParentDir) || absolute.file_name().is_none();
    let resolved = match std::fs::canonicalize(&absolute) {
        Ok(path) => path,
        Err(_) if absolute.is_symlink() => {
            return Err(Error::usage(format!("{} is a link to nothing", Shown::path(out)))
                .hint("remove the link, or name the folder itself"));
        }
        Err(_) if here => parent_real(&absolute)?,
        Err(_) => absolute,
    };
    match resolved.file_name() {
        Some(_) => Ok(resolved),
        None => Err(Error::usage(format!("{} cannot be an output folder", Shown::path(out)))),
    }
}

fn parent_real(path: &Path) -> Result<PathBuf> {
    let existing = path.ancestors().find(|a| a.exists()).unwrap_or(path);
    let real = std::fs::canonicalize(existing).map_err(|e| Error::io("read", existing, &e))?;
    Ok(path.strip_prefix(existing).map_or(real.clone(), |rest| real.join(rest)))
}

/// True for a missing or empty folder and for an unfinished run.
fn continues(out: &Path) -> Result<bool> {
    if !out.is_dir() {
        return Ok(false);
    }
    let mut entries = std::fs::read_dir(out).map_err(|e| Error::io("read", out, &e))?;
    let only_work = entries.all(|e| e.is_ok_and(|e| e.file_name() == WORK));
    Ok(only_work || (has_journal(out) && !out.join(REPORT).exists()))
}

fn has_journal(dir: &Path) -> bool {
    let entries = std::fs::read_dir(dir.join(WORK)).into_iter().flatten().flatten();
    entries.into_iter().any(|e| e.file_name().to_string_lossy().starts_with("journal"))
}

/// A folder at the name that we build under is ours where it has a journal, or was replaced before.
fn clear_leftover(beside: &Path) -> Result<()> {
    let is_ours = has_journal(beside) || continues(beside)?;
    if beside.join(REPLACED).exists() {
        return remove_replaced(beside);
    }
    match is_ours || !beside.exists() {
        true => Ok(()),
        false => Err(Error::usage(format!("{} is in the way", Shown::path(beside)))
            .found("a folder that prep did not make")
            .expected("nothing there: --force builds the new folder under this name")
            .hint("move it, or choose another --out")),
    }
}

/// Removes a replaced folder, its mark last: a kill in between leaves a folder that is still known as replaced.
fn remove_replaced(dir: &Path) -> Result<()> {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_name() != REPLACED {
            remove(&entry.path())?;
        }
    }
    remove_tree(dir)
}

fn remove(path: &Path) -> Result<()> {
    match path.is_dir() && !path.is_symlink() {
        true => remove_tree(path),
        false => std::fs::remove_file(path).map_err(|e| Error::io("remove", path, &e)),
    }
}

fn refuse(out: &Path) -> Error {
    let found = if out.join(REPORT).exists() { "a finished result of prep" } else { "other files" };
    Error::usage(format!("{} exists already", Shown::path(out)))
        .found(found)
        .expected("a new or empty folder, or an unfinished run of the same command")
        .hint("choose another --out, or add --force to replace it once the new one is complete")
}

fn sibling(out: &Path) -> PathBuf {
    let name = out.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    out.with_file_name(format!("{name}.prep-new"))
}

/// Compares by device and inode, so that links cannot lead an output into, or around, an input.
fn check_apart(out: &Path, inputs: &[PathBuf]) -> Result<()> {
    let id = |p: &Path| std::fs::metadata(p).ok().map(|m| (m.dev(), m.ino()));
    let inputs: Vec<PathBuf> = inputs.iter().filter_map(|p| std::fs::canonicalize(p).ok()).collect();
    // A path that does not exist yet is judged by the real folder it will be made in.
    let existing = out.ancestors().find(|a| a.exists()).unwrap_or(out);
    let real = std::fs::canonicalize(existing).map_err(|e| Error::io("read", existing, &e))?;
    let refuse = |what: &str| {
        Err(Error::usage(format!("the output {} {what} an input folder", Shown::path(out)))
            .expected("a folder apart from all inputs")
            .hint("inputs are never changed: choose another --out"))
    };
    for input in &inputs {
        if real.ancestors().filter_map(id).any(|a| Some(a) == id(input)) {
            return refuse("is, or lies in,");
        }
        if out.exists() && input.ancestors().filter_map(id).any(|a| Some(a) == id(out)) {
            return refuse("holds");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Class;

    #[test]
    fn output_in_or_around_an_input_is_refused_also_through_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let input = dir.path().join("all/in");
        std::fs::create_dir_all(&input).unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&input, &link).unwrap();
        for out in [input.clone(), input.join("a/b"), link.clone(), link.join("x"), dir.path().join("all")] {
            let e = Target::prepare(&out, std::slice::from_ref(&input), Existing::Replace).unwrap_err();
            assert_eq!(e.class(), Class::Usage, "{out:?}");
        }
        assert!(Target::prepare(&dir.path().join("out"), &[input], Existing::Continue).is_ok());
    }

    #[test]
    fn input_at_the_name_that_force_builds_under_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (out, beside) = (dir.path().join("out"), dir.path().join("out.prep-new"));
        for d in [&out, &beside] {
            std::fs::create_dir(d).unwrap();
            std::fs::write(d.join("mine.txt"), "x").unwrap();
        }
        for inputs in [vec![beside.clone()], vec![]] {
            let e = Target::prepare(&out, &inputs, Existing::Replace).unwrap_err();
            assert_eq!(e.class(), Class::Usage);
            assert!(beside.join("mine.txt").exists());
        }
    }

    #[test]
    fn other_files_are_never_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        std::fs::create_dir(&out).unwrap();
        std::fs::write(out.join("mine.txt"), "x").unwrap();
        assert_eq!(Target::prepare(&out, &[], Existing::Continue).unwrap_err().class(), Class::Usage);
        let t = Target::prepare(&out, &[], Existing::Replace).unwrap();
        assert_eq!(std::fs::read(out.join("mine.txt")).unwrap(), b"x");
        t.complete().unwrap();
        assert!(!out.join("mine.txt").exists() && !dir.path().join("out.prep-new").exists());
    }

    #[test]
    fn what_a_killed_swap_left_is_cleared_by_the_next_one() {
        let dir = tempfile::tempdir().unwrap();
        let (out, beside) = (dir.path().join("out"), dir.path().join("out.prep-new"));
        for d in [&out, &beside] {
            std::fs::create_dir(d).unwrap();
            std::fs::write(d.join("old.txt"), "x").unwrap();
        }
        std::fs::write(beside.join(REPLACED), "").unwrap();
        let t = Target::prepare(&out, &[], Existing::Replace).unwrap();
        assert!(!beside.join("old.txt").exists() && out.join("old.txt").exists());
        t.complete().unwrap();
        assert!(!beside.exists() && !out.join("old.txt").exists());
    }

    #[test]
    fn link_to_nothing_and_the_root_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path().join("gone"), &link).unwrap();
        for out in [link.as_path(), Path::new("/")] {
            assert_eq!(Target::prepare(out, &[], Existing::Replace).unwrap_err().class(), Class::Usage);
        }
    }
}

//! The output folder: never inside an input, never overwritten unless asked, continued where a run of the
//! same plan stopped.

use std::path::{Path, PathBuf};

use std::os::unix::fs::MetadataExt;

use crate::checkpoint::folder::{REPORT, WORK};
use crate::error::{Class, Error, Result};
use crate::names::Shown;
use crate::write::remove_tree;

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
pub(crate) struct Target {
    pub build: PathBuf,
    out: PathBuf,
}

impl Target {
    /// Prepares `out` for writing; `inputs` are the folders that are read.
    ///
    /// # Errors
    /// Exit 2 where `out` is or lies in an input, or holds something else; exit 5 where it cannot be made.
    pub fn prepare(out: &Path, inputs: &[PathBuf], existing: Existing) -> Result<Self> {
        check_apart(out, inputs)?;
        let occupied = std::fs::symlink_metadata(out).is_ok() && !continues(out)?;
        let build = match (occupied, existing) {
            (false, Existing::Continue) => out.to_path_buf(),
            (false, Existing::Replace) if !out.exists() => out.to_path_buf(),
            (_, Existing::Replace) => sibling(out, "prep-new"),
            (true, Existing::Continue) => return Err(refuse(out)),
        };
        let work = build.join(WORK);
        std::fs::create_dir_all(&work).map_err(|e| Error::io("create", &work, &e))?;
        Ok(Target { build, out: out.to_path_buf() })
    }

    /// Removes what an earlier run of another plan left in a folder that `--force` builds in.
    pub fn clear(&self) -> Result<()> {
        if self.build == self.out {
            return Ok(());
        }
        for entry in std::fs::read_dir(&self.build).map_err(|e| Error::io("read", &self.build, &e))?.flatten()
        {
            if entry.file_name() != WORK {
                std::fs::remove_file(entry.path()).map_err(|e| Error::io("remove", &entry.path(), &e))?;
            }
        }
        let journal = self.build.join(WORK).join("journal.jsonl");
        match std::fs::remove_file(&journal) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io("remove", &journal, &e)),
            _ => Ok(()),
        }
    }

    pub fn replaces(&self) -> bool {
        self.build != self.out
    }

    /// Ends the run: drops the journal and, where built beside it, swaps the new folder in.
    pub fn complete(self) -> Result<PathBuf> {
        remove_tree(&self.build.join(WORK))?;
        if self.replaces() {
            let old = sibling(&self.out, "prep-old");
            remove_tree(&old)?;
            if self.out.exists() {
                std::fs::rename(&self.out, &old).map_err(|e| Error::io("write", &self.out, &e))?;
            }
            std::fs::rename(&self.build, &self.out).map_err(|e| Error::io("write", &self.out, &e))?;
            remove_tree(&old)?;
        }
        Ok(self.out)
    }
}

/// True for a missing or empty folder and for an unfinished run.
fn continues(out: &Path) -> Result<bool> {
    if !out.is_dir() {
        return Ok(false);
    }
    let mut entries = std::fs::read_dir(out).map_err(|e| Error::io("read", out, &e))?;
    let only_work = entries.all(|e| e.is_ok_and(|e| e.file_name() == WORK));
    Ok(only_work || (has_journal(&out.join(WORK)) && !out.join(REPORT).exists()))
}

fn has_journal(work: &Path) -> bool {
    let entries = std::fs::read_dir(work).into_iter().flatten().flatten();
    entries.into_iter().any(|e| e.file_name().to_string_lossy().starts_with("journal"))
}

fn refuse(out: &Path) -> Error {
    let found = if out.join(REPORT).exists() { "a finished result of prep" } else { "other files" };
    Error::usage(format!("{} exists already", Shown::path(out)))
        .found(found)
        .expected("a new or empty folder, or an unfinished run of the same command")
        .hint("choose another --out, or add --force to replace it once the new one is complete")
}

fn sibling(out: &Path, ending: &str) -> PathBuf {
    let name = out.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    out.with_file_name(format!("{name}.{ending}"))
}

/// Compares by device and inode, so that links cannot lead an output into an input.
fn check_apart(out: &Path, inputs: &[PathBuf]) -> Result<()> {
    let absolute = std::path::absolute(out).map_err(|e| Error::io("write", out, &e))?;
    if absolute.file_name().is_none() {
        return Err(Error::new(Class::Usage, format!("{} cannot be an output folder", Shown::path(out))));
    }
    let id = |p: &Path| std::fs::metadata(p).ok().map(|m| (m.dev(), m.ino()));
    let inputs: Vec<_> = inputs.iter().filter_map(|p| id(p)).collect();
    // A path that does not exist yet is judged by the real folder it will be made in.
    let existing = absolute.ancestors().find(|a| a.exists()).unwrap_or(&absolute);
    let real = std::fs::canonicalize(existing).map_err(|e| Error::io("read", existing, &e))?;
    if real.ancestors().filter_map(id).any(|a| inputs.contains(&a)) {
        return Err(Error::usage(format!("the output {} is, or lies in, an input folder", Shown::path(out)))
            .expected("a folder outside all inputs")
            .hint("inputs are never changed: choose another --out"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_inside_an_input_is_refused_also_through_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let input = dir.path().join("in");
        std::fs::create_dir(&input).unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&input, &link).unwrap();
        for out in [input.clone(), input.join("a/b"), link.clone(), link.join("x")] {
            assert!(
                Target::prepare(&out, std::slice::from_ref(&input), Existing::Replace).is_err(),
                "{out:?}"
            );
        }
        assert!(Target::prepare(&dir.path().join("out"), &[input], Existing::Continue).is_ok());
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
        assert!(!out.join("mine.txt").exists() && !dir.path().join("out.prep-old").exists());
    }
}

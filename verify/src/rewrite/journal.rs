//! What an unfinished run has done: first line the plan, then one line per finished shard.
//!
//! A shard counts only if its line is whole and its file is what the line says, so a run that was killed at
//! any moment leaves a state from which the next one continues.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::stage::Note;
use crate::checkpoint::folder::WORK;
use crate::error::{Error, Result};
use crate::names::{Digest, FileName};

/// Name, sha256 and length of a finished shard.
pub type Sums = BTreeMap<FileName, (Digest, u64)>;

/// A finished shard as the journal keeps it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ShardLine {
    pub shard: String,
    pub sha256: String,
    pub len: u64,
    /// Notes of each stage about this shard's tensors: (stage, note).
    pub notes: Vec<(usize, Note)>,
}

/// The journal file of a run, or of one part of it.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
    pub done: BTreeMap<String, ShardLine>,
}

/// The journal's file name: parts have one each.
pub(crate) fn file_name(part: Option<super::Part>) -> String {
    match part {
        None => "journal.jsonl".into(),
        Some(p) => format!("journal-{}-of-{}.jsonl", p.index(), p.count()),
    }
}

impl Journal {
    /// Opens or begins the journal of `out` for the plan `identity`.
    ///
    /// # Errors
    /// Exit 2 where the folder holds a run of another plan, naming what differs.
    pub fn open(out: &Path, identity: &Value, part: Option<super::Part>) -> Result<Self> {
        let path = out.join(WORK).join(file_name(part));
        let old = read(&path)?;
        let done = match &old {
            Some((plan, lines)) if plan == identity => lines.clone(),
            Some((plan, _)) => return Err(other_plan(out, plan, identity)),
            None => BTreeMap::new(),
        };
        let io = |e| Error::io("write", &path, &e);
        let mut file = OpenOptions::new().create(true).append(true).open(&path).map_err(io)?;
        if old.is_none() {
            // A first line that was cut by a kill carries no shard: begin anew.
            file.set_len(0).map_err(io)?;
            let mut line =
                json!({"plan": Digest::of(identity.to_string().as_bytes()), "of": identity}).to_string();
            line.push('\n');
            file.write_all(line.as_bytes()).and_then(|()| file.sync_all()).map_err(io)?;
        } else {
            drop_cut_line(&path, &file)?;
        }
        Ok(Journal { path, file, done })
    }

    /// Records a finished shard; it is on disk when this returns.
    pub fn finished(&mut self, line: ShardLine) -> Result<()> {
        let mut text = serde_json::to_string(&line).map_err(|e| Error::input(e.to_string()))?;
        text.push('\n');
        let io = |e| Error::io("write", &self.path, &e);
        self.file.write_all(text.as_bytes()).and_then(|()| self.file.sync_data()).map_err(io)?;
        self.done.insert(line.shard.clone(), line);
        Ok(())
    }
}

/// All finished shards of all runs of the plan `identity` in `out`; `part` is the one that asks.
///
/// # Errors
/// Exit 2 where a run of another plan, or parts of another count, wrote there.
pub(crate) fn read_all(
    out: &Path,
    identity: &Value,
    part: Option<super::Part>,
) -> Result<BTreeMap<String, ShardLine>> {
    let dir = out.join(WORK);
    let mut done = BTreeMap::new();
    for entry in std::fs::read_dir(&dir).map_err(|e| Error::io("read", &dir, &e))?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("journal") {
            check_count(out, &name, part)?;
            match read(&entry.path())? {
                Some((plan, lines)) if &plan == identity => done.extend(lines),
                Some((plan, _)) => return Err(other_plan(out, &plan, identity)),
                None => {}
            }
        }
    }
    Ok(done)
}

/// Parts of different counts would write the same shard at once.
fn check_count(out: &Path, journal: &str, part: Option<super::Part>) -> Result<()> {
    let count = journal.strip_suffix(".jsonl").and_then(|n| n.rsplit_once("-of-")).map(|(_, n)| n);
    match (count, part) {
        (Some(n), Some(p)) if n != p.count().to_string() => {
            Err(Error::usage(format!("{} is being written in {n} parts", out.display()))
                .found(format!("part {}/{}", p.index(), p.count()))
                .hint("give every part the same count"))
        }
        _ => Ok(()),
    }
}

type Content = (Value, BTreeMap<String, ShardLine>);

fn read(path: &Path) -> Result<Option<Content>> {
    let text = match std::fs::read_to_string(path) {
        Ok(t) => t,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Error::io("read", path, &e)),
    };
    let mut lines = text.split_inclusive('\n').filter(|l| l.ends_with('\n'));
    let Some(first) = lines.next() else { return Ok(None) };
    let plan: Value = serde_json::from_str(first).map_err(|e| Error::io("read", path, &e.into()))?;
    let done = lines.filter_map(|l| serde_json::from_str::<ShardLine>(l).ok());
    Ok(Some((plan["of"].clone(), done.map(|l| (l.shard.clone(), l)).collect())))
}

/// Appending after half a line would spoil the next one.
fn drop_cut_line(path: &Path, file: &File) -> Result<()> {
    let text = std::fs::read(path).map_err(|e| Error::io("read", path, &e))?;
    let whole = text.iter().rposition(|b| *b == b'\n').map_or(0, |p| p + 1);
    file.set_len(whole as u64).map_err(|e| Error::io("write", path, &e))
}

fn other_plan(out: &Path, old: &Value, new: &Value) -> Error {
    let keys = ["prep", "base", "stages", "config", "files", "shards"];
    let differ: Vec<_> = keys.into_iter().filter(|k| old[k] != new[k]).collect();
    Error::usage(format!("{} holds an unfinished run of another plan", out.display()))
        .found(format!("different {}", differ.join(", ")))
        .expected("the same inputs and options as before")
        .hint("repeat the earlier command to finish it, or add --force to begin anew")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(n: usize) -> ShardLine {
        let sha256 = Digest::of(b"").to_string();
        ShardLine { shard: format!("{n}.safetensors"), sha256, len: 3, notes: vec![] }
    }

    #[test]
    fn cut_at_any_byte_the_whole_lines_survive() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(WORK)).unwrap();
        let plan = json!({"prep": "x", "base": [1]});
        let mut j = Journal::open(dir.path(), &plan, None).unwrap();
        j.finished(line(1)).unwrap();
        j.finished(line(2)).unwrap();
        let path = dir.path().join(WORK).join(file_name(None));
        let whole = std::fs::read(&path).unwrap();
        for cut in 0..=whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let mut j = Journal::open(dir.path(), &plan, None).unwrap();
            let lines = whole[..cut].iter().filter(|b| **b == b'\n').count();
            assert_eq!(j.done.len(), lines.saturating_sub(1), "cut at {cut}");
            j.finished(line(3)).unwrap();
            assert!(read_all(dir.path(), &plan, None).unwrap().contains_key("3.safetensors"));
        }
    }

    #[test]
    fn another_plan_is_refused_and_the_difference_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(WORK)).unwrap();
        Journal::open(dir.path(), &json!({"base": [1]}), None).unwrap();
        let e = Journal::open(dir.path(), &json!({"base": [2]}), None).unwrap_err();
        assert!(e.to_string().contains("different base"), "{e}");
    }
}

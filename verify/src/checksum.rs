//! `SHA256SUMS`: made, read and checked; the format is that of `sha256sum`, so any machine can check it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;
use sha2::Digest as _;

use crate::checkpoint::folder::{self, REPORT, SUMS, WORK};
use crate::checkpoint::json;
use crate::error::{Error, Result};
use crate::names::{Digest, FileName, Shown};
use crate::progress::Progress;

/// Digests by file name.
pub type Digests = BTreeMap<FileName, Digest>;

/// A file that is not what `SHA256SUMS` says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// The file.
    pub file: String,
    /// What is wrong with it, in one sentence.
    pub what: String,
}

/// sha256 of a file, read in 1 MiB pieces.
///
/// # Errors
/// When the file cannot be read.
pub fn of_file(path: &Path) -> Result<Digest> {
    of_file_with(path, &crate::progress::Silent)
}

pub(crate) fn of_file_with(path: &Path, progress: &dyn Progress) -> Result<Digest> {
    let mut file = File::open(path).map_err(|e| Error::io("read", path, &e))?;
    let mut sha = sha2::Sha256::new();
    let mut buf = vec![0u8; 1 << 20];
    loop {
        let n = file.read(&mut buf).map_err(|e| Error::io("read", path, &e))?;
        if n == 0 {
            return Ok(Digest(sha.finalize().into()));
        }
        sha.update(&buf[..n]);
        progress.advance(n as u64);
        progress.check()?;
    }
}

/// The text of `SHA256SUMS`, sorted by name.
pub fn encode(digests: &Digests) -> String {
    digests.iter().map(|(name, digest)| format!("{digest}  {name}\n")).collect()
}

/// Reads the `SHA256SUMS` of a folder.
///
/// # Errors
/// Exit 3 where it is missing or has a line that is no checksum of a file of the folder.
pub fn read(dir: &Path) -> Result<Digests> {
    let path = dir.join(SUMS);
    if !path.exists() {
        return Err(Error::input(format!("{} has no {SUMS}", Shown::path(dir)))
            .hint("make it with `prep checksum` while the folder is known to be good"));
    }
    let mut out = Digests::new();
    for (n, line) in json::read_text(&path, json::MAX_CONFIG)?.lines().enumerate() {
        let bad = || {
            Error::input(format!("{}, line {}: not a checksum line", Shown::path(&path), n + 1))
                .found(Shown(line).to_string())
                .expected("64 hex digits, two spaces, a file name")
        };
        let (hex, name) = line.split_once("  ").or_else(|| line.split_once(" *")).ok_or_else(bad)?;
        let digest = Digest::parse(hex).ok_or_else(bad)?;
        if out.insert(FileName::parse(name)?, digest).is_some() {
            return Err(bad().expected("each file once"));
        }
    }
    Ok(out)
}

/// Digests of all plain files of a folder that checksums cover: not the report, the sums, hidden or
/// unfinished files, nor folders.
///
/// # Errors
/// When a file cannot be read.
pub fn of_folder(dir: &Path, threads: usize, progress: &dyn Progress) -> Result<Digests> {
    folder::refuse_unfinished(dir)?;
    let names = covered(dir)?;
    let mut total = 0;
    for name in &names {
        total += std::fs::metadata(dir.join(name)).map_err(|e| Error::io("read", &dir.join(name), &e))?.len();
    }
    progress.begin("hashing", total);
    hash_all(dir, &names, threads, progress)
}

/// As [`read`], without the lines of files in subfolders: a source's own list may hold more than `prep` carries.
///
/// # Errors
/// As [`read`].
pub fn read_source(dir: &Path) -> Result<Digests> {
    let path = dir.join(SUMS);
    let mut out = Digests::new();
    for line in json::read_text(&path, json::MAX_CONFIG)?.lines() {
        let parts = line.split_once("  ").or_else(|| line.split_once(" *"));
        let Some((hex, name)) = parts else { continue };
        let name = name.strip_prefix("./").unwrap_or(name);
        if let (Some(digest), Ok(name)) = (Digest::parse(hex), FileName::parse(name)) {
            out.insert(name, digest);
        }
    }
    Ok(out)
}

/// Compares a folder with its `SHA256SUMS`: wrong, missing and extra files, and a report that was made
/// for other sums. An empty list means all is well.
///
/// # Errors
/// Exit 3 where there is no `SHA256SUMS`; I/O errors.
pub fn check(dir: &Path, threads: usize, progress: &dyn Progress) -> Result<Vec<Fault>> {
    let want = read(dir)?;
    let have = of_folder(dir, threads, progress)?;
    let mut faults = Vec::new();
    let mut fault = |file: &str, what: String| faults.push(Fault { file: file.to_string(), what });
    for (name, digest) in &want {
        match have.get(name) {
            None => fault(name.as_str(), "is missing".into()),
            Some(found) if found != digest => {
                fault(name.as_str(), format!("is damaged: sha256 is {found}, not {digest}"));
            }
            Some(_) => {}
        }
    }
    for name in have.keys().filter(|n| !want.contains_key(n)) {
        fault(name.as_str(), format!("is not in {SUMS}"));
    }
    let report = dir.join(REPORT);
    if report.exists() {
        let said = json::read(&report)?["sums_sha256"].as_str().map(str::to_string);
        let sums = of_file(&dir.join(SUMS))?.to_string();
        if said.is_some_and(|s| s != sums) {
            fault(SUMS, format!("was changed after {REPORT} was written"));
        }
    }
    Ok(faults)
}

fn covered(dir: &Path) -> Result<Vec<FileName>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(|e| Error::io("read", dir, &e))? {
        let entry = entry.map_err(|e| Error::io("read", dir, &e))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let ours = matches!(name.as_str(), REPORT | SUMS | WORK) || name.ends_with(".part");
        if !ours && !name.starts_with('.') && entry.path().is_file() {
            names.push(FileName::parse(&name)?);
        }
    }
    names.sort();
    Ok(names)
}

/// One file per thread at a time: sha256 cannot be split within a file.
fn hash_all(dir: &Path, names: &[FileName], threads: usize, progress: &dyn Progress) -> Result<Digests> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(BTreeMap::new());
    let work = || {
        while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
            let digest = of_file_with(&dir.join(name), progress);
            results.lock().unwrap_or_else(|p| p.into_inner()).insert(name.clone(), digest);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, names.len().max(1)) {
            scope.spawn(work);
        }
    });
    let results = results.into_inner().unwrap_or_else(|p| p.into_inner());
    results.into_iter().map(|(name, digest)| Ok((name, digest?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::Silent;

    fn folder() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a.txt"), "abc").unwrap();
        std::fs::write(dir.path().join("b.txt"), "").unwrap();
        let sums = of_folder(dir.path(), 2, &Silent).unwrap();
        std::fs::write(dir.path().join(SUMS), encode(&sums)).unwrap();
        dir
    }

    fn faults(dir: &tempfile::TempDir) -> Vec<String> {
        check(dir.path(), 2, &Silent).unwrap().into_iter().map(|f| f.file).collect()
    }

    #[test]
    fn good_folder_has_no_fault() {
        assert_eq!(faults(&folder()), Vec::<String>::new());
    }

    #[test]
    fn changed_missing_and_extra_files_are_named() {
        let dir = folder();
        std::fs::write(dir.path().join("a.txt"), "abd").unwrap();
        std::fs::remove_file(dir.path().join("b.txt")).unwrap();
        std::fs::write(dir.path().join("c.txt"), "").unwrap();
        assert_eq!(faults(&dir), ["a.txt", "b.txt", "c.txt"]);
    }

    #[test]
    fn sums_edited_after_the_report_are_noticed() {
        let dir = folder();
        std::fs::write(dir.path().join(REPORT), r#"{"sums_sha256":"00"}"#).unwrap();
        assert_eq!(faults(&dir), [SUMS]);
    }

    #[test]
    fn paths_and_repeats_in_sums_are_refused() {
        let dir = folder();
        let d = Digest::of(b"");
        for text in [format!("{d}  ../x\n"), format!("{d}  a\n{d}  a\n"), "zz  a\n".into(), "a\n".into()] {
            std::fs::write(dir.path().join(SUMS), &text).unwrap();
            assert!(check(dir.path(), 1, &Silent).is_err(), "{text}");
        }
    }
}

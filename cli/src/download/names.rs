//! Names that a hub gives, checked before anything is written.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use serde::{Deserialize, Deserializer, Serialize};
use unicode_normalization::UnicodeNormalization;
use verify::checkpoint::folder::{REPORT, SUMS};
use verify::{Error, FileName, Result, Shown};

/// `OWNER/NAME`, or `NAME` for the few models without an owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct RepoId(String);

impl RepoId {
    /// Checks `text`.
    ///
    /// # Errors
    /// Exit 2 where it cannot be the name of a model.
    pub fn parse(text: &str) -> Result<Self> {
        let word = |w: &str| {
            let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
            !w.is_empty() && w.len() <= 96 && w.bytes().all(plain) && !w.starts_with('.') && !w.contains("..")
        };
        match text.split('/').count() <= 2 && text.split('/').all(word) {
            true => Ok(RepoId(text.to_string())),
            false => Err(Error::usage(format!("`{}` is no model of a hub", Shown(text)))
                .expected("OWNER/NAME, such as Qwen/Qwen3-0.6B")
                .hint("a local folder needs no download: name it where a model is asked for")),
        }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Owner (empty where there is none) and name.
    pub fn split(&self) -> (&str, &str) {
        self.0.split_once('/').unwrap_or(("", &self.0))
    }
}

impl<'de> Deserialize<'de> for RepoId {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        RepoId::parse(&String::deserialize(d)?).map_err(|e| serde::de::Error::custom(e.what()))
    }
}

impl fmt::Display for RepoId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A file's path in a repository: plain names joined by `/`. Joined to a folder it stays in that folder.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct RepoPath(String);

impl RepoPath {
    /// Checks `path`.
    ///
    /// # Errors
    /// Exit 3 where it could leave the folder, or stand for something else than a file in it.
    pub fn parse(path: &str) -> Result<Self> {
        let refuse = |reason: &str| {
            Error::input(format!("the hub lists a file `{}`: refused, nothing was fetched", Shown(path)))
                .found(reason.to_string())
                .expected("plain names inside the model folder")
                .hint("the repository is broken or hostile: tell its owner, or take another mirror")
        };
        if path.len() > 1024 {
            return Err(refuse("a path over 1024 bytes"));
        }
        for name in path.split('/') {
            FileName::parse(name).map_err(|_| {
                refuse("a name that is empty, too long, `.`, `..`, a path, or has control characters")
            })?;
            if name.to_ascii_lowercase().starts_with(".prep") {
                return Err(refuse("a name that prep keeps for itself"));
            }
            if is_device(name) || name.ends_with(['.', ' ']) {
                return Err(refuse("a name that stands for something else on other systems"));
            }
        }
        Ok(RepoPath(path.to_string()))
    }

    /// The path.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name where the file lies at the top.
    pub fn top(&self) -> Option<FileName> {
        FileName::parse(&self.0).ok()
    }
}

impl<'de> Deserialize<'de> for RepoPath {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        RepoPath::parse(&String::deserialize(d)?).map_err(|e| serde::de::Error::custom(e.what()))
    }
}

impl AsRef<Path> for RepoPath {
    fn as_ref(&self) -> &Path {
        Path::new(&self.0)
    }
}

impl fmt::Display for RepoPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Device names of Windows, with or without an extension.
fn is_device(name: &str) -> bool {
    let stem = name.split('.').next().unwrap_or_default().to_ascii_uppercase();
    let numbered = |kind: &str| {
        stem.strip_prefix(kind).is_some_and(|n| n.len() == 1 && n.bytes().all(|b| matches!(b, b'1'..=b'9')))
    };
    matches!(stem.as_str(), "CON" | "PRN" | "AUX" | "NUL") || numbered("COM") || numbered("LPT")
}

/// Refuses names of which a case-blind disk would make one, names listed twice, and files that stand where
/// others need a folder.
///
/// # Errors
/// Exit 3 naming both.
pub fn check_together<'a>(paths: impl IntoIterator<Item = &'a RepoPath>) -> Result<()> {
    let mut seen: HashMap<String, &str> = HashMap::new();
    let fold = |name: &str| name.nfc().collect::<String>().to_lowercase();
    let mut files = Vec::new();
    for path in paths {
        if let Some(other) = seen.insert(fold(path.as_str()), path.as_str()) {
            return Err(clash(other, path.as_str()));
        }
        files.push(path);
    }
    for path in files {
        let parents = path.as_str().match_indices('/').map(|(at, _)| &path.as_str()[..at]);
        if let Some(file) = parents.filter_map(|p| seen.get(&fold(p))).next() {
            return Err(clash(file, path.as_str()));
        }
    }
    Ok(())
}

fn clash(a: &str, b: &str) -> Error {
    Error::input(format!("the hub lists `{}` and `{}`: refused, nothing was fetched", Shown(a), Shown(b)))
        .found("names of which a disk may make one")
        .expected("names that differ also on a disk that is blind to case and Unicode form")
        .hint("tell the owner of the repository")
}

/// True for the two files that `prep` writes about a folder.
pub fn is_ours(path: &RepoPath) -> bool {
    [REPORT, SUMS].iter().any(|own| own.eq_ignore_ascii_case(path.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_leave_the_folder_are_refused() {
        let long = "x".repeat(256);
        for bad in [
            "",
            "/abs",
            "..",
            "../x",
            "a/../../x",
            "a//b",
            "a/",
            "./a",
            "a\\b",
            "C:x",
            "C:/x",
            "a\nb",
            "a\u{1b}[31m",
            &long,
            ".prep",
            ".prep/lock",
            "a/.PREP-new",
            "nul",
            "aux.json",
            "com1.txt",
            "a.",
            "a ",
        ] {
            assert!(RepoPath::parse(bad).is_err(), "{bad:?}");
        }
        for good in [
            "config.json",
            "additional_chat_templates/tool_use.jinja",
            "comb.json",
            "a b.txt",
            ".gitattributes",
        ] {
            assert!(RepoPath::parse(good).is_ok(), "{good:?}");
        }
    }

    #[test]
    fn names_that_meet_on_some_disk_are_refused() {
        let together = |names: &[&str]| {
            check_together(&names.iter().map(|n| RepoPath::parse(n).unwrap()).collect::<Vec<_>>())
        };
        for bad in [["a.json", "A.json"], ["é", "e\u{301}"], ["a", "a"], ["a", "A/b"]] {
            assert!(together(&bad).is_err(), "{bad:?}");
        }
        assert!(together(&["a/b", "a/c", "ab"]).is_ok());
    }

    #[test]
    fn repositories_are_owner_and_name() {
        for bad in ["", "a/b/c", "/b", "a/", "../b", "a/..", "a b", "https://x", "a/b?x", "a/b..c"] {
            assert!(RepoId::parse(bad).is_err(), "{bad:?}");
        }
        assert_eq!(RepoId::parse("Qwen/Qwen3-0.6B").unwrap().split(), ("Qwen", "Qwen3-0.6B"));
        assert_eq!(RepoId::parse("gpt2").unwrap().split(), ("", "gpt2"));
    }
}

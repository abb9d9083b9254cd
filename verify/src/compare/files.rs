//! Side files by their bytes.

use serde::Serialize;

use crate::error::Result;
use crate::names::Digest;
use crate::rewrite::ModelView;

/// A file that is not the same in both folders.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileDifference {
    /// Its name.
    pub name: String,
    /// Digest in the first folder; `None` where it is not there.
    pub a: Option<Digest>,
    /// Digest in the second.
    pub b: Option<Digest>,
}

/// Files that are compared by what they say, not by bytes.
const BY_CONTENT: [&str; 3] = ["generation_config.json", "chat_template.jinja", "chat_template.json"];

pub fn differences(a: &ModelView, b: &ModelView) -> Result<Vec<FileDifference>> {
    let mut names: Vec<&str> = a.files.iter().chain(&b.files).map(|f| f.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let mut found = Vec::new();
    for name in names.into_iter().filter(|n| !BY_CONTENT.contains(n)) {
        let digest = |view: &ModelView| view.file(name).map(|f| f.content.digest()).transpose();
        let (a, b) = (digest(a)?, digest(b)?);
        if a != b {
            found.push(FileDifference { name: name.to_string(), a, b });
        }
    }
    Ok(found)
}

//! What a hub must be able to tell. The bytes are fetched alike from all of them.

use reqwest::Url;
use serde::{Deserialize, Serialize};
use verify::{Error, Result};

use super::digest::Expected;
use super::environment::Environment;
use super::failure::Failure;
use super::http::{Http, Reply};
use super::hub::HuggingFace;
use super::modelscope::ModelScope;
use super::names::{RepoId, RepoPath};
use crate::args::Hub;

/// A file as the hub lists it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteFile {
    /// Its path in the repository.
    pub path: RepoPath,
    /// Its length in bytes.
    pub size: u64,
    /// The digest of its content.
    pub digest: Expected,
}

/// One kind of hub.
pub trait Source: Sync {
    /// The commit that `revision` stands for now: 40 hex digits.
    ///
    /// # Errors
    /// Final where the hub refuses, else worth another try.
    fn commit(&self, http: &Http, repo: &RepoId, revision: &str) -> Result<String, Failure>;

    /// All files of a commit, each with size and digest.
    ///
    /// # Errors
    /// As [`Source::commit`]; final with exit 3 for names that are refused.
    fn list(&self, http: &Http, repo: &RepoId, commit: &str) -> Result<Vec<RemoteFile>, Failure>;

    /// Where the bytes of a file of a commit are; answers requests for ranges.
    ///
    /// # Errors
    /// Exit 2 where the endpoint cannot be extended.
    fn url(&self, repo: &RepoId, commit: &str, path: &RepoPath) -> Result<Url>;
}

/// The source of `hub`.
pub fn source(hub: Hub, environment: &Environment) -> Box<dyn Source> {
    match hub {
        Hub::Hf => Box::new(HuggingFace::new(environment)),
        Hub::Modelscope => Box::new(ModelScope::new(environment)),
    }
}

/// A file that nobody could check is not fetched.
pub fn no_digest(path: &RepoPath) -> Error {
    Error::input(format!("the hub gives no digest of {path}: refused, nothing was fetched"))
        .expected("a sha256, or a git sha1, for every file")
        .hint("nobody could tell whether the file is right: take the hub itself instead of this mirror")
}

/// Checks that `text` is a full commit.
///
/// # Errors
/// Exit 4 where the hub answered something else.
pub fn checked_commit(text: &str) -> Result<String> {
    match text.len() == 40 && text.bytes().all(|b| b.is_ascii_hexdigit()) {
        true => Ok(text.to_ascii_lowercase()),
        false => Err(strange("the commit", "no 40 hex digits")),
    }
}

/// Checks which content the hub says that it sends: that of `commit`, with `digest`.
///
/// # Errors
/// [`Failure::Changed`] where it is another.
pub fn check_named(reply: &Reply, commit: &str, digest: &Expected) -> Result<(), Failure> {
    let other = reply.digest.filter(|d| d.kind() == digest.kind() && d != digest);
    let of = reply.commit.as_ref().filter(|c| !c.eq_ignore_ascii_case(commit));
    match (other, of) {
        (Some(digest), _) => Err(Failure::Changed(format!("{} {digest}", digest.kind()))),
        (_, Some(of)) => Err(Failure::Changed(format!("that of commit {}", verify::Shown(of)))),
        (None, None) => Ok(()),
    }
}

/// The hub answered, but not as its kind does.
pub fn strange(what: &str, found: &str) -> Error {
    Error::new(verify::Class::Network, format!("the hub's answer for {what} is not understood"))
        .found(found.to_string())
        .hint("check the endpoint: it may be no hub of this kind, or a login page in between")
}

//! What is fetched: one commit, asked for once, and its files with sizes and digests.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use verify::checkpoint::LeftOut;
use verify::{Digest, Error, Result, Shown};

use super::environment::Environment;
use super::http::Http;
use super::names::{RepoId, RepoPath, check_together};
use super::select::Selection;
use super::source::{RemoteFile, source};
use crate::args::Hub;
use crate::console::Console;

/// What the user asks for.
#[derive(Debug, Clone)]
pub struct Request {
    /// The hub.
    pub hub: Hub,
    /// The repository.
    pub repo: RepoId,
    /// Branch, tag or commit.
    pub revision: String,
    /// Globs of the files to fetch; none means the default.
    pub include: Vec<String>,
    /// Globs of the files to leave out.
    pub exclude: Vec<String>,
    /// Fetch Python files too.
    pub keep_code: bool,
}

impl Request {
    /// Checks names; `revision` none means the hub's default branch.
    ///
    /// # Errors
    /// Exit 2 for what cannot be a repository or a revision.
    pub fn new(hub: Hub, repo: &str, revision: Option<&str>) -> Result<Self> {
        let revision = revision.unwrap_or_else(|| hub.default_revision());
        // The hub cache keeps a file under this name.
        if RepoPath::parse(revision).is_err() {
            return Err(Error::usage(format!("`{}` is no revision", Shown(revision)))
                .expected("a branch, a tag or a full commit")
                .hint("check --revision, or what follows `@`"));
        }
        let repo = RepoId::parse(repo)?;
        let (include, exclude) = (Vec::new(), Vec::new());
        Ok(Request { hub, repo, revision: revision.to_string(), include, exclude, keep_code: false })
    }

    /// As recipes have it: `hf:OWNER/NAME@REVISION` or `modelscope:...`; `None` for a folder.
    ///
    /// # Errors
    /// As [`Request::new`].
    pub fn of_recipe(text: &str) -> Result<Option<Self>> {
        for hub in [Hub::Hf, Hub::Modelscope] {
            if let Some(rest) = text.strip_prefix(hub.name()).and_then(|t| t.strip_prefix(':')) {
                let (repo, revision) = match rest.split_once('@') {
                    Some((repo, revision)) => (repo, Some(revision)),
                    None => (rest, None),
                };
                return Self::new(hub, repo, revision).map(Some);
            }
        }
        Ok(None)
    }

    /// True where the revision is a full commit, which never stands for anything else.
    pub fn is_pinned(&self) -> bool {
        self.revision.len() == 40 && self.revision.bytes().all(|b| b.is_ascii_hexdigit())
    }
}

/// What is fetched, as it is kept beside an unfinished download and in the report.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Plan {
    /// `hf` or `modelscope`.
    pub source: String,
    /// The hub's address.
    pub endpoint: String,
    /// The repository.
    pub repo: RepoId,
    /// What the user asked for.
    pub revision: String,
    /// What it stood for.
    pub commit: String,
    /// Globs as given.
    pub include: Vec<String>,
    /// Globs as given.
    pub exclude: Vec<String>,
    /// Whether Python files were asked for.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep_code: bool,
    /// The files, small ones before weights.
    pub files: Vec<RemoteFile>,
    /// What is not fetched.
    pub left_out: Vec<LeftOut>,
}

impl Plan {
    /// What `request` stands for at `endpoint`: a commit and its files.
    pub fn of(
        request: &Request,
        endpoint: &str,
        commit: String,
        (files, left_out): (Vec<RemoteFile>, Vec<LeftOut>),
    ) -> Self {
        Plan {
            source: request.hub.name().to_string(),
            endpoint: endpoint.to_string(),
            repo: request.repo.clone(),
            revision: request.revision.clone(),
            commit,
            include: request.include.clone(),
            exclude: request.exclude.clone(),
            keep_code: request.keep_code,
            files,
            left_out,
        }
    }

    /// The hub.
    pub fn hub(&self) -> Hub {
        match self.source == Hub::Modelscope.name() {
            true => Hub::Modelscope,
            false => Hub::Hf,
        }
    }

    /// True where `request` asks for the very same; another mirror of a hub has the same files.
    pub fn answers(&self, request: &Request) -> bool {
        self.source == request.hub.name()
            && self.repo == request.repo
            && self.revision == request.revision
            && self.include == request.include
            && self.exclude == request.exclude
            && self.keep_code == request.keep_code
    }

    /// `hf:OWNER/NAME@COMMIT`: as a recipe names it.
    pub fn pinned(&self) -> String {
        format!("{}:{}@{}", self.source, self.repo, self.commit)
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|f| f.size).sum()
    }

    /// True where the user's own globs left out something, so that the folder may be no whole model.
    pub fn is_partial(&self) -> bool {
        self.left_out
            .iter()
            .any(|l| l.reason.contains("--exclude") || l.reason.contains("asked for by --include"))
            && !(self.include.is_empty() && self.exclude.is_empty())
    }

    /// As it is kept.
    pub fn json(&self) -> Value {
        json!(self)
    }

    /// Digest of all that decides what is fetched.
    pub fn digest(&self) -> Digest {
        Digest::of(self.json().to_string().as_bytes())
    }
}

/// Asks the hub for the commit.
///
/// # Errors
/// Exit 4 where the hub refuses or cannot be reached.
pub fn commit(request: &Request, environment: &Environment, console: &Console) -> Result<String> {
    let names = (request.repo.as_str(), request.revision.as_str());
    let http = Http::new(environment, request.hub, names, console)?;
    let source = source(request.hub, environment);
    http.persist("the commit", || source.commit(&http, &request.repo, &request.revision))
}

/// Asks the hub for the commit and its files, checks all names, and selects.
///
/// # Errors
/// Exit 2 for globs that leave nothing, 3 for names and files that are refused, 4 where the hub refuses or cannot
/// be reached.
pub fn plan(request: &Request, environment: &Environment, console: &Console) -> Result<Plan> {
    let selection = Selection::new(&request.include, &request.exclude, request.keep_code)?;
    let names = (request.repo.as_str(), request.revision.as_str());
    let http = Http::new(environment, request.hub, names, console)?;
    let source = source(request.hub, environment);
    let commit = http.persist("the commit", || source.commit(&http, &request.repo, &request.revision))?;
    let listing = http.persist("the listing", || source.list(&http, &request.repo, &commit))?;
    check_together(listing.iter().map(|f| &f.path))?;
    let (mut files, left_out) = selection.apply(listing, |f| &f.path)?;
    files.sort_by_key(|f| (f.path.as_str().ends_with(".safetensors"), f.path.clone()));
    Ok(Plan::of(request, environment.shown(), commit, (files, left_out)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recipes_name_hub_repository_and_revision() {
        let r = Request::of_recipe("hf:Qwen/Qwen3-0.6B@v1").unwrap().unwrap();
        assert_eq!((r.hub, r.repo.as_str(), r.revision.as_str()), (Hub::Hf, "Qwen/Qwen3-0.6B", "v1"));
        let r = Request::of_recipe("modelscope:Qwen/Qwen3-0.6B").unwrap().unwrap();
        assert_eq!((r.hub, r.revision.as_str()), (Hub::Modelscope, "master"));
        assert!(Request::of_recipe("../base").unwrap().is_none());
        assert!(Request::of_recipe("hf:../base").is_err() && Request::of_recipe("hf:a/b@../x").is_err());
    }
}

//! ModelScope by its own API. It lists a sha256 for every file.

use reqwest::Url;
use serde_json::Value;
use verify::{Error, Result};

use super::digest::Expected;
use super::environment::{Environment, join};
use super::failure::{Answer, Failure};
use super::http::Http;
use super::names::{RepoId, RepoPath};
use super::source::{RemoteFile, Source, checked_commit, no_digest, strange};

/// A listing of so many entries was cut: it has no pages.
const FULL: usize = 3000;
/// Folders that are listed one by one before a listing counts as endless.
const MAX_FOLDERS: usize = 10_000;

/// A hub that speaks ModelScope's API.
pub struct ModelScope {
    environment: Environment,
}

impl ModelScope {
    /// The hub of `environment`.
    pub fn new(environment: &Environment) -> Self {
        ModelScope { environment: environment.clone() }
    }

    fn api(&self, repo: &RepoId, tail: &[&str], query: &[(&str, &str)]) -> Result<Url> {
        let (owner, name) = repo.split();
        let head = ["api", "v1", "models", owner, name].into_iter().filter(|s| !s.is_empty());
        let mut url =
            join(&self.environment.endpoint, &head.chain(tail.iter().copied()).collect::<Vec<_>>())?;
        url.query_pairs_mut().extend_pairs(query);
        Ok(url)
    }

    /// The entries of a folder, or of all folders below it.
    fn entries(
        &self,
        http: &Http,
        (repo, commit): (&RepoId, &str),
        folder: &str,
        recursive: &str,
    ) -> Result<Vec<Value>, Failure> {
        let mut query = vec![("Revision", commit), ("Recursive", recursive)];
        if !folder.is_empty() {
            query.push(("Root", folder));
        }
        let data = ask(http, &self.api(repo, &["repo", "files"], &query)?, "the listing")?;
        let files = data["Files"].as_array().ok_or_else(|| strange("the listing", "no Files"))?;
        Ok(files.clone())
    }
}

impl Source for ModelScope {
    fn commit(&self, http: &Http, repo: &RepoId, revision: &str) -> Result<String, Failure> {
        let query = [("Ref", revision), ("PageNumber", "1"), ("PageSize", "1")];
        let data = ask(http, &self.api(repo, &["commits"], &query)?, "the commit")?;
        match data["Commit"][0]["Id"].as_str() {
            Some(id) => Ok(checked_commit(id)?),
            // A revision without history is answered with an empty list.
            None => {
                Err(Answer { status: 404, code: Some("RevisionNotFound".into()), wait: None, by_hub: true }
                    .failure(http.asked("the commit")))
            }
        }
    }

    fn list(&self, http: &Http, repo: &RepoId, commit: &str) -> Result<Vec<RemoteFile>, Failure> {
        let at = (repo, commit);
        let mut files = Vec::new();
        let mut folders = vec![String::new()];
        for _ in 0..MAX_FOLDERS {
            let Some(folder) = folders.pop() else { return Ok(files) };
            let all = self.entries(http, at, &folder, "True")?;
            if all.len() < FULL {
                files.extend(all.iter().filter(|e| is_file(e)).map(file).collect::<Result<Vec<_>>>()?);
                continue;
            }
            let here = self.entries(http, at, &folder, "False")?;
            if here.len() >= FULL {
                break;
            }
            for entry in &here {
                match is_file(entry) {
                    true => files.push(file(entry)?),
                    false => folders.push(path(entry)?.as_str().to_string()),
                }
            }
        }
        Err(strange("the listing", "more entries in one folder than ModelScope lists").into())
    }

    fn url(&self, repo: &RepoId, commit: &str, path: &RepoPath) -> Result<Url> {
        self.api(repo, &["repo"], &[("Revision", commit), ("FilePath", path.as_str())])
    }
}

/// The `Data` of an answer; refusals come with status 200 too, their code in the body.
fn ask(http: &Http, url: &Url, what: &str) -> Result<Value, Failure> {
    let (mut value, _) = http.json(url, what)?;
    let code = value["Code"].as_u64().unwrap_or(200);
    if code != 200 || value["Success"] == false {
        let status = u16::try_from(code).ok().filter(|c| (400..600).contains(c)).unwrap_or(404);
        return Err(Answer { status, code: None, wait: None, by_hub: true }.failure(http.asked(what)));
    }
    Ok(value["Data"].take())
}

fn is_file(entry: &Value) -> bool {
    entry["Type"] != "tree"
}

fn path(entry: &Value) -> Result<RepoPath> {
    let path = entry["Path"].as_str().ok_or_else(|| strange("the listing", "an entry without Path"))?;
    RepoPath::parse(path)
}

fn file(entry: &Value) -> Result<RemoteFile> {
    let path = path(entry)?;
    let size = entry["Size"].as_u64().ok_or_else(|| strange("the listing", "an entry without Size"))?;
    let digest = entry["Sha256"].as_str().and_then(Expected::parse);
    let digest: Result<Expected, Error> = digest.ok_or_else(|| no_digest(&path));
    Ok(RemoteFile { digest: digest?, path, size })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn entries_need_a_path_a_size_and_a_digest() {
        let good = json!({"Type": "blob", "Path": "a/b", "Size": 3, "Sha256": "0".repeat(64)});
        assert_eq!(file(&good).unwrap().size, 3);
        for bad in [
            json!({"Type": "blob", "Path": "a", "Size": 3, "Sha256": ""}),
            json!({"Type": "blob", "Path": "../a", "Size": 3, "Sha256": "0".repeat(64)}),
            json!({"Type": "blob", "Path": "a", "Sha256": "0".repeat(64)}),
        ] {
            assert!(file(&bad).is_err(), "{bad}");
        }
    }
}

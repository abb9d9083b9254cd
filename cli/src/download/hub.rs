//! Hugging Face and its mirrors.
//!
//! hf-hub looks up the commit. Its byte streams are not used: they hide status, `ETag` and the `Retry-After` of a
//! 503, ask twice for every range, and fetch Xet files past endpoint, proxy and limits of ours. Its listing loses
//! the sha256.

use hf_hub::{HFClient, HFError};
use reqwest::Url;
use reqwest::header::HeaderMap;
use serde_json::Value;
use verify::{Class, Error, Result};

use super::digest::Expected;
use super::environment::{Environment, join};
use super::failure::{Answer, Failure};
use super::http::{Http, describe};
use super::names::{RepoId, RepoPath};
use super::source::{RemoteFile, Source, checked_commit, no_digest, strange};

/// Most files of one repository, and pages of one listing: beyond, the server is making them up.
const MAX_FILES: usize = 200_000;
const MAX_PAGES: usize = 10_000;

/// A hub that speaks Hugging Face's API.
pub struct HuggingFace {
    environment: Environment,
}

impl HuggingFace {
    /// The hub of `environment`.
    pub fn new(environment: &Environment) -> Self {
        HuggingFace { environment: environment.clone() }
    }
}

impl Source for HuggingFace {
    fn commit(&self, http: &Http, repo: &RepoId, revision: &str) -> Result<String, Failure> {
        let mut builder = HFClient::builder()
            .endpoint(self.environment.shown())
            .client(http.following()?)
            .cache_enabled(false)
            // Retries are ours: hf-hub does not wait as the server asks.
            .retry_max_attempts(0);
        if let Some(token) = &self.environment.token {
            builder = builder.token(token.reveal());
        }
        let client = builder.build().map_err(|e| failure(e, http))?;
        let (owner, name) = repo.split();
        let model = client.model(owner, name);
        let info = http.wait(http.limits.stall, model.info().revision(revision).send())?;
        let info = info
            .ok_or_else(|| Failure::connection("the commit", "no answer".into()))?
            .map_err(|e| failure(e, http))?;
        Ok(checked_commit(info.sha.as_deref().unwrap_or_default())?)
    }

    fn list(&self, http: &Http, repo: &RepoId, commit: &str) -> Result<Vec<RemoteFile>, Failure> {
        let (owner, name) = repo.split();
        let segments = ["api", "models", owner, name, "tree", commit];
        let segments: Vec<_> = segments.into_iter().filter(|s| !s.is_empty()).collect();
        let mut url = join(&self.environment.endpoint, &segments)?;
        url.set_query(Some("recursive=true&expand=false"));
        let mut files = Vec::new();
        for _ in 0..MAX_PAGES {
            let (page, headers) = http.json(&url, "the listing")?;
            let entries = page.as_array().ok_or_else(|| strange("the listing", "no list"))?;
            for entry in entries.iter().filter(|e| e["type"] != "directory") {
                files.push(file(entry)?);
            }
            if files.len() > MAX_FILES {
                break;
            }
            match next_page(&headers, &url) {
                Some(next) if next != url => url = next,
                _ => return Ok(files),
            }
        }
        Err(strange("the listing", "no end of it").into())
    }

    fn url(&self, repo: &RepoId, commit: &str, path: &RepoPath) -> Result<Url> {
        let (owner, name) = repo.split();
        let head = [owner, name, "resolve", commit].into_iter().filter(|s| !s.is_empty());
        join(&self.environment.endpoint, &head.chain(path.as_str().split('/')).collect::<Vec<_>>())
    }
}

/// A listing entry. Big files carry the sha256 of their content under `lfs`; then `oid` is that of a pointer.
fn file(entry: &Value) -> Result<RemoteFile> {
    let path = entry["path"].as_str().ok_or_else(|| strange("the listing", "an entry without path"))?;
    let path = RepoPath::parse(path)?;
    let lfs = entry.get("lfs").filter(|l| l.is_object());
    let oid = match lfs {
        Some(lfs) => lfs["oid"].as_str().or_else(|| lfs["sha256"].as_str()),
        None => entry["oid"].as_str(),
    };
    let digest = oid.map(|o| o.trim_start_matches("sha256:")).and_then(Expected::parse);
    let digest = digest.filter(|d| lfs.is_none() || matches!(d, Expected::Sha256(_)));
    let size = lfs.and_then(|l| l["size"].as_u64()).or_else(|| entry["size"].as_u64());
    let size = size.ok_or_else(|| strange("the listing", "an entry without size"))?;
    Ok(RemoteFile { digest: digest.ok_or_else(|| no_digest(&path))?, path, size })
}

/// The address in `Link: <...>; rel="next"`.
fn next_page(headers: &HeaderMap, base: &Url) -> Option<Url> {
    let links = headers.get_all("link").iter().filter_map(|v| v.to_str().ok());
    let next =
        links.flat_map(|l| l.split(',')).find(|l| l.contains("rel=\"next\"") || l.contains("rel=next"))?;
    let address = next.split_once('<')?.1.split_once('>')?.0;
    let url = base.join(address).ok()?;
    matches!((base.scheme(), url.scheme()), ("http", "http") | (_, "https")).then_some(url)
}

fn failure(e: HFError, http: &Http) -> Failure {
    let (context, wait) = match e {
        HFError::RateLimited { context, retry_after } => (Some(context), retry_after),
        HFError::Http { context } | HFError::AuthRequired { context } | HFError::Forbidden { context } => {
            (Some(context), None)
        }
        HFError::RepoNotFound { context, .. } | HFError::RevisionNotFound { context, .. } => (context, None),
        HFError::Request { source, .. } => return transport(source),
        _ => (None, None),
    };
    match context {
        Some(c) => Answer { status: c.status.as_u16(), code: c.error_code.clone(), wait, by_hub: true }
            .failure(http.asked("the commit")),
        None => strange("the commit", "something else than a model").into(),
    }
}

fn transport(e: reqwest::Error) -> Failure {
    if e.is_redirect() {
        let error = Error::new(Class::Network, "the redirect of the commit is refused").found(describe(e));
        return Failure::Final(error.hint("check the endpoint, or try another mirror"));
    }
    if e.is_decode() {
        return strange("the commit", &describe(e)).into();
    }
    Failure::connection("the commit", describe(e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const SHA1: &str = "ce013625030ba8dba906f756967f9e9ca394464a";

    #[test]
    fn digest_of_a_big_file_is_that_under_lfs() {
        let sha256 = "0".repeat(64);
        let entry =
            json!({"type": "file", "path": "a", "size": 9, "oid": SHA1, "lfs": {"oid": sha256, "size": 9}});
        assert_eq!(file(&entry).unwrap().digest, Expected::parse(&sha256).unwrap());
        let entry = json!({"type": "file", "path": "a", "size": 9, "oid": SHA1});
        assert_eq!(file(&entry).unwrap().digest, Expected::parse(SHA1).unwrap());
    }

    #[test]
    fn entries_that_cannot_be_checked_are_refused() {
        for entry in [
            json!({"path": "a", "size": 9}),
            json!({"path": "a", "size": 9, "oid": SHA1, "lfs": {"size": 9}}),
            json!({"path": "a", "oid": SHA1}),
            json!({"path": "../a", "size": 9, "oid": SHA1}),
        ] {
            assert!(file(&entry).is_err(), "{entry}");
        }
    }

    #[test]
    fn next_page_is_followed_but_not_down_to_http() {
        let base = Url::parse("https://hub/api").unwrap();
        let next = |link: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("link", link.parse().unwrap());
            next_page(&headers, &base).map(String::from)
        };
        assert_eq!(
            next("<https://hub/api?cursor=x>; rel=\"next\"").as_deref(),
            Some("https://hub/api?cursor=x")
        );
        assert_eq!(next("</y>; rel=\"prev\", </z>; rel=\"next\"").as_deref(), Some("https://hub/z"));
        assert_eq!(next("<http://hub/api?cursor=x>; rel=\"next\""), None);
    }
}

//! The model that `inspect` and `serve-command` are asked about: a folder here, or a model of a hub, of which only
//! headers and configs are fetched.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use verify::checkpoint::Checkpoint;
use verify::inspect::Inspection;
use verify::names::folder_name;
use verify::rewrite::ModelView;
use verify::{Class, Error, Result, Shown};

use crate::args::{Global, Hub};
use crate::console::{Console, size};
use crate::download::{Environment, RepoId, Request, offline, remote, snapshot_in_cache};
use crate::output::Output;

/// A model that was looked at.
pub struct Model {
    /// What is known without its weights.
    pub view: ModelView,
    /// Where it is.
    pub place: Place,
}

/// Where a model is.
pub enum Place {
    /// In a folder of this machine.
    Folder(PathBuf),
    /// At a hub.
    Hub {
        /// The repository, and the revision that was asked for.
        request: Request,
        /// What that stood for.
        commit: String,
        /// Bytes that were fetched; none where it was read from the cache.
        fetched: u64,
    },
}

impl Model {
    /// Looks at what `named` names. A folder wins over a model of a hub.
    ///
    /// # Errors
    /// Exit 3 for what is no sound model; exit 4 where the hub refuses or cannot be reached.
    pub fn look(named: &Path, global: &Global, output: &Output) -> Result<Self> {
        let Some((request, spelled)) = hub_model(named)? else {
            let view = ModelView::of(&Checkpoint::open(named)?);
            return Ok(Model { view, place: Place::Folder(named.to_path_buf()) });
        };
        if offline() {
            let (commit, dir) = snapshot_in_cache(&request)?;
            let view = ModelView::of(&Checkpoint::open(&dir)?);
            return Ok(Model { view, place: Place::Hub { request, commit, fetched: 0 } });
        }
        let console = Console::new(global.quiet, global.verbose);
        let found = remote(&request, &Environment::read(request.hub)?, &console);
        console.clear();
        let found = found.map_err(|e| match (spelled, e.advice()) {
            (Spelled::Bare, Some(advice)) if e.class() == Class::Network => {
                let hint = format!("{advice}; and no folder {} is here", Shown::path(named));
                e.hint(hint)
            }
            _ => e,
        })?;
        output.remark(&format!(
            "{}: read {} of {}",
            found.plan.pinned(),
            size(found.fetched),
            size(found.plan.bytes())
        ));
        let place = Place::Hub { request, commit: found.plan.commit, fetched: found.fetched };
        Ok(Model { view: found.view, place })
    }

    /// What it is; findings about a folder name it.
    ///
    /// # Errors
    /// Exit 3 for side files that are broken.
    pub fn inspect(&self) -> Result<Inspection> {
        let mut found = Inspection::of(&self.view)?;
        if let Place::Folder(dir) = &self.place {
            found.findings = found.findings.into_iter().map(|f| f.about(dir)).collect();
        }
        Ok(found)
    }
}

impl Place {
    /// The folder as it was named, or `hf:OWNER/NAME@COMMIT`.
    pub fn shown(&self) -> String {
        match self {
            Place::Folder(dir) => Shown::path(dir),
            Place::Hub { request, commit, .. } => format!("{}:{}@{commit}", request.hub.name(), request.repo),
        }
    }

    /// The name that clients would ask for.
    pub fn name(&self) -> String {
        match self {
            Place::Folder(dir) => folder_name(dir),
            Place::Hub { request, .. } => request.repo.split().1.to_string(),
        }
    }

    /// For `--json`: null for a folder.
    pub fn hub(&self) -> Value {
        match self {
            Place::Folder(_) => Value::Null,
            Place::Hub { request, commit, fetched } => json!({
                "source": request.hub.name(), "repo": request.repo, "revision": request.revision,
                "commit": commit, "bytes_fetched": fetched,
            }),
        }
    }
}

/// How a model of a hub was named.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Spelled {
    /// `OWNER/NAME`, which could be a path too.
    Bare,
    /// With `hf:` or `modelscope:`.
    Whole,
}

/// The model of a hub that `named` means: `hf:OWNER/NAME@REVISION`, `modelscope:...`, or `OWNER/NAME` that cannot
/// be a path. `None` for a folder.
fn hub_model(named: &Path) -> Result<Option<(Request, Spelled)>> {
    let Some(text) = named.to_str().filter(|_| !named.exists()) else { return Ok(None) };
    if let Some(request) = Request::of_recipe(text)? {
        return Ok(Some((request, Spelled::Whole)));
    }
    if text.starts_with("https://") || text.starts_with("http://") {
        return Err(Error::usage(format!("{} is an address, not a model", Shown(text)))
            .expected("a folder, or hf:OWNER/NAME or modelscope:OWNER/NAME")
            .hint("name the model alone; another hub is set by HF_ENDPOINT"));
    }
    let (repo, revision) = text.split_once('@').map_or((text, None), |(repo, rev)| (repo, Some(rev)));
    let Some((owner, _)) = repo.split_once('/').filter(|_| RepoId::parse(repo).is_ok()) else {
        return Ok(None);
    };
    if Path::new(owner).is_dir() {
        // A slip in a path must not become a question to the network.
        return Err(Error::input(format!("{} is not a folder", Shown(text)))
            .expected("a model folder, or a model of a hub")
            .hint(format!("check the path; the hub's model is hf:{}", Shown(text))));
    }
    Request::new(Hub::Hf, repo, revision).map(|r| Some((r, Spelled::Bare)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repo(text: &str) -> Option<String> {
        hub_model(Path::new(text))
            .unwrap()
            .map(|(r, _)| format!("{}:{}@{}", r.hub.name(), r.repo, r.revision))
    }

    #[test]
    fn models_of_a_hub_are_told_from_paths() {
        for (text, want) in [
            ("Qwen/Qwen3-30B-A3B", Some("hf:Qwen/Qwen3-30B-A3B@main")),
            ("Qwen/Qwen3-30B-A3B@v1", Some("hf:Qwen/Qwen3-30B-A3B@v1")),
            ("hf:gpt2", Some("hf:gpt2@main")),
            ("modelscope:a/b", Some("modelscope:a/b@master")),
            ("nowhere", None),
            ("./a/b", None),
            ("../a", None),
            ("/a/b", None),
            ("a/b/c", None),
            ("a/", None),
        ] {
            assert_eq!(repo(text).as_deref(), want, "{text}");
        }
        // The tests run in the folder of this crate, which has one of that name.
        assert!(hub_model(Path::new("src/nothing")).is_err() && repo("src").is_none());
        assert!(hub_model(Path::new("hf:a/../b")).is_err());
        let address = hub_model(Path::new("https://huggingface.co/a/b")).unwrap_err();
        assert!(address.to_string().contains("hf:OWNER/NAME"), "{address}");
    }
}

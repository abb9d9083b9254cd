//! What lies in a model folder: weights, side files that belong to the model, and what is never carried over.

use std::borrow::Cow;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::index_json::{INDEX, IndexJson};
use crate::error::{Error, Result};
use crate::names::{FileName, Shown};

/// A file that belongs to the model beside its weights and config.
#[derive(Debug, Clone)]
pub struct SideFile {
    /// Its name.
    pub name: FileName,
    /// The file itself, links resolved.
    pub path: PathBuf,
    /// Length in bytes.
    pub len: u64,
}

/// A file that is not carried over.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LeftOut {
    /// Its name, escaped for printing.
    pub name: String,
    /// Why.
    pub reason: Cow<'static, str>,
}

/// A folder's content, sorted by name.
#[derive(Debug)]
pub struct Listing {
    pub(crate) shards: Vec<FileName>,
    pub(crate) index: Option<IndexJson>,
    pub(crate) files: Vec<SideFile>,
    pub(crate) templates: Vec<SideFile>,
    pub(crate) left_out: Vec<LeftOut>,
}

/// Names of the files that `prep` itself writes about a folder.
pub const REPORT: &str = "prep-report.json";
/// Checksums of all other files, in the format of `sha256sum`.
pub const SUMS: &str = "SHA256SUMS";
/// Journal and lock of an unfinished run.
pub const WORK: &str = ".prep";
/// The folder of named chat templates beside the default.
pub const TEMPLATES: &str = "additional_chat_templates";

/// Lists `dir` without opening weights or anything that could run code.
///
/// # Errors
/// Exit 3 where it is no model folder, is unfinished, or holds only pickles.
pub fn list(dir: &Path) -> Result<Listing> {
    if !dir.is_dir() {
        return Err(Error::input(format!("{} is not a folder", Shown::path(dir)))
            .expected("a model folder with config.json and safetensors files")
            .hint("check the path"));
    }
    refuse_unfinished(dir)?;
    let names = names_in(dir)?;
    let mut safetensors = Vec::new();
    let (mut files, mut left_out) = (Vec::new(), Vec::new());
    for name in names {
        let folder = || dir.join(&name).is_dir().then_some("folder");
        match reason_to_leave_out(&name).or_else(folder) {
            Some(reason) => left_out.push(LeftOut { name: Shown(&name).to_string(), reason: reason.into() }),
            None if matches!(name.as_str(), INDEX | "config.json" | REPORT | SUMS) => {}
            None if name.ends_with(".safetensors") => safetensors.push(FileName::parse(&name)?),
            None => files.push(side_file(dir, &name)?),
        }
    }
    let path = dir.join(INDEX);
    let index = path.exists().then(|| IndexJson::read(&path)).transpose()?;
    let shards = choose_shards(dir, &safetensors, index.as_ref(), &left_out)?;
    left_out.extend(unnamed(&safetensors, &shards));
    Ok(Listing { shards, index, files, templates: named_templates(dir)?, left_out })
}

/// The file `name` of `dir` that is carried over.
pub(crate) fn side_file(dir: &Path, name: &str) -> Result<SideFile> {
    let name = FileName::parse(name)?;
    let path = resolve(dir, &name)?;
    let len = fs::metadata(&path).map_err(|e| Error::io("read", &path, &e))?.len();
    Ok(SideFile { name, path, len })
}

/// The templates of [`TEMPLATES`] in `dir`, sorted by name; none where there is no such folder.
///
/// # Errors
/// As [`resolve`].
pub fn named_templates(dir: &Path) -> Result<Vec<SideFile>> {
    let dir = dir.join(TEMPLATES);
    if !dir.is_dir() {
        return Ok(Vec::new());
    }
    let names = names_in(&dir)?;
    names.iter().filter(|n| n.ends_with(".jinja")).map(|n| side_file(&dir, n)).collect()
}

/// Refuses a folder that a run of `prep` has not finished.
///
/// # Errors
/// Exit 3 where there is a journal and no report.
pub fn refuse_unfinished(dir: &Path) -> Result<()> {
    match dir.join(WORK).is_dir() && !dir.join(REPORT).exists() {
        false => Ok(()),
        true => Err(Error::input(format!("{} is an unfinished result of prep", Shown::path(dir)))
            .found("a journal in .prep and no prep-report.json")
            .hint("run the command that writes it again: it continues where it stopped")),
    }
}

fn names_in(dir: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(|e| Error::io("read", dir, &e))? {
        let entry = entry.map_err(|e| Error::io("read", dir, &e))?;
        let name = entry.file_name().into_string().map_err(|raw| {
            Error::input(format!("a file name in {} is not UTF-8", Shown::path(dir)))
                .found(Shown(&raw.to_string_lossy()).to_string())
        })?;
        names.push(name);
    }
    names.sort();
    Ok(names)
}

const OTHER_WEIGHTS: [&str; 6] = [".gguf", ".h5", ".msgpack", ".onnx", ".ot", ".tflite"];
const PICKLES: [&str; 6] = [".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"];

/// Why a file of this name at the top of a folder is no part of the model; `None` where it is.
pub fn reason_to_leave_out(name: &str) -> Option<&'static str> {
    let ends = |list: &[&str]| list.iter().any(|e| name.to_ascii_lowercase().ends_with(e));
    if name.starts_with('.') {
        Some("hidden file")
    } else if name.starts_with("adapter_") {
        Some("adapter file: a server that finds it applies the adapter a second time")
    } else if ends(&PICKLES) || name.ends_with(".bin.index.json") {
        Some("pickle: may run code when opened, never read")
    } else if ends(&OTHER_WEIGHTS) {
        Some("weights in another format")
    } else if ends(&[".py"]) {
        Some("code: a server would need trust_remote_code")
    } else if ends(&[".part"]) {
        Some("unfinished file")
    } else {
        None
    }
}

/// Which of the safetensors files `found` at `dir` hold the model: those that the index names, or the only one.
///
/// # Errors
/// Exit 3 where nobody can tell, or there is none; `left_out` shows whether pickles lie there instead.
pub fn choose_shards(
    dir: &Path,
    found: &[FileName],
    index: Option<&IndexJson>,
    left_out: &[LeftOut],
) -> Result<Vec<FileName>> {
    let single = found.iter().find(|f| f.as_str() == "model.safetensors");
    if let Some(index) = index {
        if single.is_some_and(|s| !index.shards().contains(s)) {
            return Err(Error::input(format!("{} holds two checkpoints", Shown::path(dir)))
                .found(format!("model.safetensors and {INDEX} that does not name it"))
                .hint("servers choose differently between the two: remove the one that is not meant"));
        }
        return Ok(index.shards().to_vec());
    }
    match (single, found) {
        (Some(single), _) | (None, [single]) => Ok(vec![single.clone()]),
        (None, []) => Err(no_weights(dir, left_out)),
        (None, found) => {
            Err(Error::input(format!("{} has {} shards and no {INDEX}", Shown::path(dir), found.len()))
                .hint("fetch the index file: without it nobody can tell whether all shards are there"))
        }
    }
}

/// The safetensors files of `found` that are none of the `shards`.
pub fn unnamed<'a>(found: &'a [FileName], shards: &'a [FileName]) -> impl Iterator<Item = LeftOut> + 'a {
    found.iter().filter(|f| !shards.contains(f)).map(|f| LeftOut {
        name: f.to_string(),
        reason: "safetensors file that the index does not name".into(),
    })
}

fn no_weights(dir: &Path, left_out: &[LeftOut]) -> Error {
    match left_out.iter().find(|l| l.reason.starts_with("pickle")) {
        Some(p) => Error::input(format!("{} holds weights only as pickles", Shown::path(dir)))
            .found(p.name.clone())
            .expected("safetensors files")
            .hint("pickles can run code and are never opened: convert them with a trusted tool"),
        None => Error::input(format!("{} holds no weights", Shown::path(dir)))
            .expected("model.safetensors, or shards and an index")
            .hint("give the folder that holds the safetensors files"),
    }
}

/// The file behind `name` in `dir`: a regular file there, or a Hub-cache link to `../../blobs/<hex>`.
///
/// # Errors
/// Exit 3 for links that leave the folder and for anything that is not a regular file.
pub fn resolve(dir: &Path, name: &FileName) -> Result<PathBuf> {
    let path = dir.join(name);
    let meta = fs::symlink_metadata(&path).map_err(|e| Error::io("read", &path, &e))?;
    let target = if meta.is_symlink() {
        let target = fs::canonicalize(&path).map_err(|e| Error::io("read", &path, &e))?;
        let home = fs::canonicalize(dir).map_err(|e| Error::io("read", dir, &e))?;
        if target.parent() != Some(home.as_path()) && !is_hub_blob(&path, &target) {
            return Err(Error::input(format!("{} is a link that leaves its folder", Shown::path(&path)))
                .found(Shown::path(&target))
                .hint("replace the link by the file itself"));
        }
        target
    } else {
        path.clone()
    };
    let meta = fs::metadata(&target).map_err(|e| Error::io("read", &target, &e))?;
    match meta.is_file() {
        true => Ok(target),
        false => Err(Error::input(format!("{} is not a regular file", Shown::path(&path)))
            .hint("a model folder holds plain files only")),
    }
}

/// The standard Hub cache stores `snapshots/<commit>/NAME -> ../../blobs/<hex>`.
fn is_hub_blob(link: &Path, target: &Path) -> bool {
    let hex = |s: &str| s.len() >= 40 && s.bytes().all(|b| b.is_ascii_hexdigit());
    let to_blobs = fs::read_link(link).is_ok_and(|l| l.starts_with("../../blobs"));
    to_blobs
        && target.file_name().and_then(|n| n.to_str()).is_some_and(hex)
        && target.parent().and_then(Path::file_name).is_some_and(|d| d == "blobs")
}

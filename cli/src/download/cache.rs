//! The hub cache that transformers, vLLM and others share.
//!
//! ```text
//!   models--OWNER--NAME/refs/REVISION            the commit
//!                       snapshots/COMMIT/PATH -> ../../blobs/DIGEST
//!                       blobs/DIGEST             sha256 of big files, git sha1 of small ones
//!   .locks/models--OWNER--NAME/DIGEST.lock       held while a blob is fetched
//! ```

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use verify::checkpoint::list_some;
use verify::progress::Progress;
use verify::write::sync_dir;
use verify::{Class, Error, FileName, Result, Shown};

use super::check;
use super::digest::Expected;
use super::environment::{Environment, hub_cache};
use super::existing::{Standing, look};
use super::fetch::Fetch;
use super::folder::{Done, Options, check_space, make_parent};
use super::names::{RepoId, RepoPath};
use super::plan::{Plan, Request, plan};
use super::queue::Item;
use super::select::Selection;
use super::source::RemoteFile;
use crate::args::Hub;
use crate::console::Console;

/// Downloads what `request` asks for into the shared cache, or verifies what is there; [`Done::dir`] is the snapshot.
///
/// # Errors
/// As [`super::into_folder`].
pub fn into_cache(request: &Request, options: &Options, console: &Console) -> Result<Done> {
    if request.hub != Hub::Hf {
        return Err(Error::usage("the shared cache is that of Hugging Face")
            .found(format!("--source {}", request.hub.name()))
            .hint("download into a folder: --out DIR"));
    }
    let cache = Cache::of(&request.repo)?;
    match options.environment {
        Some(environment) => {
            let mut done = cache.online(request, options, environment, console)?;
            done.warnings.extend(options.locking.warning());
            Ok(done)
        }
        None => cache.offline(request, options, console),
    }
}

/// The blob of a file of `plan` in the shared cache, where one of its length is there.
pub fn cached(plan: &Plan, file: &RemoteFile) -> Option<PathBuf> {
    let cache = Cache::of(&plan.repo).ok().filter(|_| plan.hub() == Hub::Hf)?;
    let blob = cache.blob(file);
    std::fs::metadata(&blob).ok().filter(|m| m.is_file() && m.len() == file.size).map(|_| blob)
}

/// The commit and the folder that the shared cache has for `request`, as they are: no byte is verified.
///
/// # Errors
/// Exit 3 where it has none.
pub fn snapshot_in_cache(request: &Request) -> Result<(String, PathBuf)> {
    let cache = Cache::of(&request.repo)?;
    let commit = cache.commit(request)?;
    let snapshot = cache.snapshot(&commit);
    match request.hub == Hub::Hf && snapshot.is_dir() {
        true => Ok((commit, snapshot)),
        false => Err(nothing_offline(request)),
    }
}

/// The error of an offline run that finds nothing.
pub fn nothing_offline(request: &Request) -> Error {
    Error::input(format!("{} at {} is not here", request.repo, Shown(&request.revision)))
        .expected("files of an earlier download, as no connection may be opened")
        .hint("run once without --offline and HF_HUB_OFFLINE")
}

struct Cache {
    repo: PathBuf,
    locks: PathBuf,
}

impl Cache {
    fn of(repo: &RepoId) -> Result<Self> {
        let root = hub_cache()?;
        let folder = format!("models--{}", repo.as_str().replace('/', "--"));
        Ok(Cache { repo: root.join(&folder), locks: root.join(".locks").join(&folder) })
    }

    /// The commit that `request` stood for when it was last downloaded.
    fn commit(&self, request: &Request) -> Result<String> {
        let commit = match request.is_pinned() {
            true => request.revision.to_ascii_lowercase(),
            false => std::fs::read_to_string(self.repo.join("refs").join(&request.revision))
                .map(|t| t.trim().to_string())
                .map_err(|_| nothing_offline(request))?,
        };
        super::source::checked_commit(&commit).map_err(|_| nothing_offline(request))
    }

    fn online(
        &self,
        request: &Request,
        options: &Options,
        environment: &Environment,
        console: &Console,
    ) -> Result<Done> {
        let plan = plan(request, environment, console)?;
        for dir in [self.repo.join("blobs"), self.locks.clone(), self.snapshot(&plan.commit)] {
            std::fs::create_dir_all(&dir).map_err(|e| Error::io("create", &dir, &e))?;
        }
        // Files of the same content share a blob.
        let mut seen = BTreeSet::new();
        let unique: Vec<RemoteFile> = plan.files.iter().filter(|f| seen.insert(f.digest)).cloned().collect();
        let (fetched, replaced) = self.fetch(&plan, unique, options, environment, console)?;
        for file in &plan.files {
            self.link(&plan.commit, file)?;
        }
        if !request.is_pinned() {
            self.write_ref(request, &plan.commit)?;
        }
        self.done(plan, &fetched, &replaced)
    }

    fn done(&self, plan: Plan, fetched: &[Expected], replaced: &[Expected]) -> Result<Done> {
        let dir = self.snapshot(&plan.commit);
        let checked = check::open(&dir, &plan)?;
        let names = |which: &dyn Fn(&Expected) -> bool| {
            plan.files.iter().filter(|f| which(&f.digest)).map(|f| f.path.to_string()).collect()
        };
        let (new, old): (Vec<_>, Vec<_>) =
            (names(&|d| fetched.contains(d)), names(&|d| !fetched.contains(d)));
        let replaced = names(&|d| replaced.contains(d));
        Ok(Done { dir, fetched: new, verified: old, replaced, warnings: Vec::new(), checked, plan })
    }

    /// Makes every blob be there and right. Those that another process is fetching are waited for, last.
    fn fetch(
        &self,
        plan: &Plan,
        mut files: Vec<RemoteFile>,
        options: &Options,
        environment: &Environment,
        console: &Console,
    ) -> Result<(Vec<Expected>, Vec<Expected>)> {
        let (mut fetched, mut replaced) = (Vec::new(), Vec::new());
        let mut waiting = false;
        while !files.is_empty() {
            let mut mine = Vec::new();
            let mut locks = Vec::new();
            let mut others = Vec::new();
            for file in files {
                let path = self.locks.join(format!("{}.lock", file.digest));
                match options.locking.take(&path, Duration::ZERO) {
                    Ok(lock) => {
                        locks.push(lock);
                        mine.push(file);
                    }
                    Err(e) if e.class() == Class::Locked => others.push(file),
                    Err(e) => return Err(e),
                }
            }
            let standing = look(&mine, |f| self.blob(f), options.threads, console)?;
            let mut items = Vec::new();
            for (file, standing) in mine.iter().zip(standing) {
                if let Standing::Wrong(how) = &standing {
                    console.say(&format!(
                        "{} in the cache is not the hub's ({how}): fetching it again",
                        file.path
                    ));
                    replaced.push(file.digest);
                }
                if !matches!(standing, Standing::Right(_)) {
                    fetched.push(file.digest);
                    items.push(self.item(file));
                }
            }
            check_space(&items, &self.repo)?;
            Fetch::new(plan, environment, console).all(&items, options.streams)?;
            drop(locks);
            if mine.is_empty() {
                if !std::mem::replace(&mut waiting, true) {
                    console.say(&format!("waiting for another download of {}", plan.repo));
                }
                console.check()?;
                std::thread::sleep(Duration::from_millis(200));
            }
            files = others;
        }
        Ok((fetched, replaced))
    }

    fn item(&self, file: &RemoteFile) -> Item {
        let name = self.blob(file);
        let part = name.with_extension("part");
        Item { path: file.path.clone(), size: file.size, digest: file.digest, part, name }
    }

    /// Makes `snapshots/COMMIT/PATH` a link to its blob, in one step.
    fn link(&self, commit: &str, file: &RemoteFile) -> Result<()> {
        let snapshot = self.snapshot(commit);
        make_parent(&snapshot, &file.path)?;
        let path = snapshot.join(&file.path);
        let up = "../".repeat(2 + file.path.as_str().matches('/').count());
        let target = PathBuf::from(format!("{up}blobs/{}", file.digest));
        if std::fs::read_link(&path).is_ok_and(|t| t == target) {
            return Ok(());
        }
        let new = snapshot.join(format!("{}.part", file.path));
        let io = |e| Error::io("write", &path, &e);
        let _ = std::fs::remove_file(&new);
        std::os::unix::fs::symlink(&target, &new).and_then(|()| std::fs::rename(&new, &path)).map_err(io)?;
        path.parent().map_or(Ok(()), sync_dir)
    }

    fn write_ref(&self, request: &Request, commit: &str) -> Result<()> {
        let path = self.repo.join("refs").join(&request.revision);
        let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
        std::fs::create_dir_all(dir).map_err(|e| Error::io("create", dir, &e))?;
        verify::write::write_file(dir, &FileName::parse(&name.to_string_lossy())?, commit.as_bytes())
    }

    /// What an earlier download left, verified blob by blob: their names are their digests.
    fn offline(&self, request: &Request, options: &Options, console: &Console) -> Result<Done> {
        let commit = self.commit(request)?;
        let snapshot = self.snapshot(&commit);
        let mut listing = Vec::new();
        self.walk(&snapshot, "", &mut listing)?;
        if listing.is_empty() {
            return Err(nothing_offline(request));
        }
        let selection = Selection::new(&request.include, &request.exclude, request.keep_code)?;
        let (mut files, left_out) = selection.apply(listing, |f| &f.path)?;
        files.sort_by(|a, b| a.path.cmp(&b.path));
        let standing = look(&files, |f| self.blob(f), options.threads, console)?;
        let bad = files.iter().zip(&standing).filter_map(|(f, s)| match s {
            Standing::Right(_) => None,
            Standing::Missing => Some(format!("{} is missing", f.path)),
            Standing::Wrong(how) => Some(format!("{}: {how}", f.path)),
        });
        let bad: Vec<_> = bad.collect();
        if !bad.is_empty() {
            return Err(Error::input(format!("{} is damaged", Shown::path(&snapshot)))
                .found(list_some(&bad))
                .expected("every blob of the digest in its name")
                .hint("run again without --offline and HF_HUB_OFFLINE: only what is wrong is fetched"));
        }
        let plan = Plan::of(request, "the cache", commit, (files, left_out));
        self.done(plan, &[], &[])
    }

    /// The links of a snapshot.
    fn walk(&self, dir: &Path, below: &str, out: &mut Vec<RemoteFile>) -> Result<()> {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            let name = format!("{below}{}", entry.file_name().to_string_lossy());
            let path = entry.path();
            if entry.file_type().is_ok_and(|t| t.is_dir()) {
                self.walk(&path, &format!("{name}/"), out)?;
                continue;
            }
            let target = std::fs::read_link(&path).unwrap_or_default();
            let digest = target.file_name().and_then(|n| Expected::parse(n.to_str()?));
            let digest = digest.ok_or_else(|| {
                Error::input(format!("{} cannot be verified", Shown::path(&path)))
                    .found("no link to a blob that is named by its digest")
                    .hint("run again without --offline, or remove the file")
            })?;
            let size = std::fs::metadata(&path).map_or(0, |m| m.len());
            out.push(RemoteFile { path: RepoPath::parse(&name)?, size, digest });
        }
        Ok(())
    }

    fn blob(&self, file: &RemoteFile) -> PathBuf {
        self.repo.join("blobs").join(file.digest.to_string())
    }

    fn snapshot(&self, commit: &str) -> PathBuf {
        self.repo.join("snapshots").join(commit)
    }
}

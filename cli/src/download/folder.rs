//! A download into a folder of its own: plain files, `SHA256SUMS`, `prep-report.json` last.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use verify::checkpoint::folder::{REPORT, SUMS, WORK};
use verify::checkpoint::list_some;
use verify::private::Paths;
use verify::report::{FileLine, Report, StageReport};
use verify::rewrite::{Lock, Locking};
use verify::write::{free_space, remove_tree, write_file};
use verify::{Class, Digest, Error, FileName, Result, Shown, checksum};

use super::check::{self, Checked};
use super::environment::Environment;
use super::existing::{Standing, look};
use super::fetch::Fetch;
use super::limits::Limits;
use super::part::Part;
use super::place::{Found, JOURNAL, Place};
use super::plan::{Plan, Request, commit, plan};
use super::queue::Item;
use crate::console::{Console, size};

/// How a download is run.
#[derive(Debug)]
pub struct Options<'a> {
    /// The hub; none where no connection may be opened.
    pub environment: Option<&'a Environment>,
    /// Connections at a time.
    pub streams: usize,
    /// Threads that hash what is there.
    pub threads: usize,
    /// Replace what is there, whatever it is.
    pub force: bool,
    /// What becomes of the machine's paths in the report.
    pub paths: Paths,
    /// How long to wait for another run on the same folder.
    pub lock_wait: Duration,
    /// Whether runs on the same folder keep one another out.
    pub locking: Locking,
}

/// What a download did.
#[derive(Debug)]
pub struct Done {
    /// The folder, to be opened as a checkpoint.
    pub dir: PathBuf,
    /// What was asked of the hub.
    pub plan: Plan,
    /// Files that came over the network.
    pub fetched: Vec<String>,
    /// Files that were there and right.
    pub verified: Vec<String>,
    /// Files that were there and wrong, and were fetched again.
    pub replaced: Vec<String>,
    /// Things to act on.
    pub warnings: Vec<String>,
    /// What was checked beyond digests.
    pub checked: Checked,
}

impl Done {
    /// For `--json`.
    pub fn json(&self) -> Value {
        json!({
            "folder": self.dir, "source": self.plan.source, "endpoint": self.plan.endpoint, "repo": self.plan.repo,
            "revision": self.plan.revision, "commit": self.plan.commit, "bytes": self.plan.bytes(),
            "files": self.plan.files, "fetched": self.fetched, "verified": self.verified, "replaced": self.replaced,
            "left_out": self.plan.left_out, "warnings": self.warnings, "checked": self.checked.name(),
        })
    }
}

/// Downloads what `request` asks for into `out`, or continues; files that are there and right stay.
///
/// # Errors
/// Exit 2 where `out` holds something else, 3 where the hub's files are refused or, offline, missing; 4 for the
/// network, 5 for the disk, 75 when locked, 130 when stopped.
pub fn into_folder(request: &Request, out: &Path, options: &Options, console: &Console) -> Result<Done> {
    let began = Instant::now();
    loop {
        let found = Found::at(out);
        let plan = plan_for(request, out, &found, options, console)?;
        let target = Place::prepare(out, &found, &plan, options)?;
        let wait = options.lock_wait.saturating_sub(began.elapsed());
        let lock = match options.locking.take(&target.build().join(WORK).join("lock"), wait) {
            // The lock goes with the work folder when its holder completes: look again.
            Err(e) if e.class() == Class::Locked && began.elapsed() < options.lock_wait => continue,
            other => other?,
        };
        if target.build() == target.out() && Found::at(out).kind() != found.kind() {
            drop(lock);
            continue;
        }
        return Run { request, out, options, console, plan, began }.complete(&found, target, lock);
    }
}

/// The plan of a folder that was downloaded before, or is being.
pub fn recorded(out: &Path) -> Option<Plan> {
    match Found::at(out) {
        Found::Unfinished(plan) | Found::Finished(plan, _) => Some(*plan),
        _ => None,
    }
}

/// The plan that was recorded where it answers the request, so that one download stays with one commit; else that
/// of the hub now.
fn plan_for(
    request: &Request,
    out: &Path,
    found: &Found,
    options: &Options,
    console: &Console,
) -> Result<Plan> {
    let ask = || match options.environment {
        Some(environment) => plan(request, environment, console),
        None => Err(Error::input(format!("{} holds no download of {}", Shown::path(out), request.repo))
            .expected("a folder that `prep download` wrote, to be verified without the network")
            .hint("run once without --offline and HF_HUB_OFFLINE")),
    };
    match found {
        Found::Unfinished(plan) if plan.answers(request) => Ok(Plan::clone(plan)),
        Found::Finished(plan, _) if plan.answers(request) => match options.environment {
            Some(environment) if !request.is_pinned() => {
                let now = commit(request, environment, console)?;
                match (now == plan.commit, options.force) {
                    (true, _) => Ok(Plan::clone(plan)),
                    (false, true) => ask(),
                    (false, false) => Err(moved(out, plan, &now)),
                }
            }
            _ => Ok(Plan::clone(plan)),
        },
        Found::Unfinished(plan) | Found::Finished(plan, _) if !options.force => {
            Err(Error::usage(format!("{} holds another download", Shown::path(out)))
                .found(format!(
                    "{}:{} at {}{}",
                    plan.source,
                    plan.repo,
                    plan.revision,
                    globs(&plan.include, &plan.exclude)
                ))
                .expected(format!(
                    "{}:{} at {}{}",
                    request.hub.name(),
                    request.repo,
                    request.revision,
                    globs(&request.include, &request.exclude)
                ))
                .hint("choose another --out, or add --force to replace it"))
        }
        _ => ask(),
    }
}

fn moved(out: &Path, plan: &Plan, now: &str) -> Error {
    Error::usage(format!("{} holds {} of another commit", Shown::path(out), plan.repo))
        .found(plan.commit.clone())
        .expected(format!("{now}, which {} stands for now", plan.revision))
        .hint(format!("keep it with --revision {}, or add --force to bring it up to date", plan.commit))
}

fn globs(include: &[String], exclude: &[String]) -> String {
    let part = |flag: &str, list: &[String]| {
        list.iter().map(|g| format!(" {flag} {}", Shown(g))).collect::<String>()
    };
    part("--include", include) + &part("--exclude", exclude)
}

struct Run<'a> {
    request: &'a Request,
    out: &'a Path,
    options: &'a Options<'a>,
    console: &'a Console,
    plan: Plan,
    began: Instant,
}

impl Run<'_> {
    fn complete(self, found: &Found, place: Place, lock: Option<Lock>) -> Result<Done> {
        let build = place.build().to_path_buf();
        let plan = &self.plan;
        let standing = look(&plan.files, |f| build.join(&f.path), self.options.threads, self.console)?;
        self.refuse_strangers(found, &standing, place.old().is_some())?;
        let wrong: Vec<_> = named(plan, &standing, |s| matches!(s, Standing::Wrong(_)));
        let missing = named(plan, &standing, |s| !matches!(s, Standing::Right(_)));
        if self.options.environment.is_none() && !missing.is_empty() {
            return Err(self.offline(&standing));
        }
        let kept = match found {
            Found::Finished(_, report) if missing.is_empty() => self.unchanged(report, &standing),
            _ => false,
        };
        let mut digests: Vec<Option<Digest>> = standing.iter().map(right).collect();
        let mut fetched = Vec::new();
        if !kept {
            self.begin(&build, &standing)?;
            self.reuse(place.old(), &build, &mut digests)?;
            fetched = self.fetch(&build, &mut digests)?;
            self.finish(&build, &digests, (&fetched, &wrong))?;
        }
        let extra = extra_files(&build, plan);
        place.complete()?;
        drop(lock);
        let checked = check::open(self.out, plan)?;
        let verified =
            plan.files.iter().map(|f| f.path.to_string()).filter(|n| !fetched.contains(n)).collect();
        let dir = self.out.to_path_buf();
        let warnings = extra
            .map(|e| format!("{} holds files that are not of this download: {e}", Shown::path(self.out)));
        let warnings = warnings.into_iter().chain(self.options.locking.warning()).collect();
        Ok(Done { dir, plan: self.plan, fetched, verified, replaced: wrong, warnings, checked })
    }

    /// Files that are not ours are not overwritten.
    fn refuse_strangers(&self, found: &Found, standing: &[Standing], replaces: bool) -> Result<()> {
        let wrong = named(&self.plan, standing, |s| matches!(s, Standing::Wrong(_)));
        if wrong.is_empty() || replaces || !matches!(found, Found::Files) {
            return Ok(());
        }
        // The folder was not ours and stays so.
        remove_tree(&self.out.join(WORK))?;
        Err(Error::usage(format!(
            "{} holds other files under the names of {}",
            Shown::path(self.out),
            self.plan.repo
        ))
        .found(list_some(&wrong))
        .expected("a new folder, or one whose files are those of the hub")
        .hint("choose another --out, or add --force to replace the folder once the new one is complete"))
    }

    fn offline(&self, standing: &[Standing]) -> Error {
        let bad = self.plan.files.iter().zip(standing).filter_map(|(f, s)| match s {
            Standing::Right(_) => None,
            Standing::Missing => Some(format!("{} is missing", f.path)),
            Standing::Wrong(how) => Some(format!("{}: {how}", f.path)),
        });
        Error::input(format!("{} is not what {} is", Shown::path(self.out), self.plan.pinned()))
            .found(list_some(&bad.collect::<Vec<_>>()))
            .expected("every file there and right, as no connection may be opened")
            .hint("run again without --offline and HF_HUB_OFFLINE: only what is missing or wrong is fetched")
    }

    /// True where the folder is as its report says, to the byte.
    fn unchanged(&self, report: &Report, standing: &[Standing]) -> bool {
        let digests: Vec<_> = standing.iter().map(right).collect();
        let sums = checksum::encode(&sums(&self.plan, &digests));
        let same = std::fs::read_to_string(self.out.join(SUMS)).is_ok_and(|t| t == sums);
        same && report.sums_sha256 == Some(Digest::of(sums.as_bytes()).to_string())
    }

    /// From here on the folder counts as unfinished.
    fn begin(&self, build: &Path, standing: &[Standing]) -> Result<()> {
        for (file, standing) in self.plan.files.iter().zip(standing) {
            if let Standing::Wrong(how) = standing {
                self.console.say(&format!("{} is not the hub's ({how}): fetching it again", file.path));
            }
        }
        write_file(
            &build.join(WORK),
            &FileName::parse(JOURNAL)?,
            format!("{:#}\n", self.plan.json()).as_bytes(),
        )?;
        let report = build.join(REPORT);
        match std::fs::remove_file(&report) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io("remove", &report, &e)),
            _ => Ok(()),
        }
    }

    /// Takes files over from the folder that is replaced, where they are right.
    fn reuse(&self, old: Option<&Path>, build: &Path, digests: &mut [Option<Digest>]) -> Result<()> {
        let Some(old) = old else { return Ok(()) };
        let there = look(&self.plan.files, |f| old.join(&f.path), self.options.threads, self.console)?;
        for ((file, standing), digest) in self.plan.files.iter().zip(there).zip(digests) {
            if let (Standing::Right(sha256), None) = (standing, &digest) {
                make_parent(build, &file.path)?;
                let to = build.join(&file.path);
                let _ = std::fs::remove_file(&to);
                // Where links are not possible it is fetched.
                *digest = std::fs::hard_link(old.join(&file.path), &to).is_ok().then_some(sha256);
            }
        }
        Ok(())
    }

    fn fetch(&self, build: &Path, digests: &mut [Option<Digest>]) -> Result<Vec<String>> {
        let files = self.plan.files.iter().enumerate().filter(|(i, _)| digests[*i].is_none());
        let (places, files): (Vec<_>, Vec<_>) = files.unzip();
        let items = files.iter().map(|f| {
            make_parent(build, &f.path)?;
            let name = build.join(&f.path);
            let part = build.join(format!("{}.part", f.path));
            Ok(Item { path: f.path.clone(), size: f.size, digest: f.digest, part, name })
        });
        let items = items.collect::<Result<Vec<_>>>()?;
        if let Some(environment) = self.options.environment {
            check_space(&items, build)?;
            let fetch = Fetch::new(&self.plan, environment, self.console);
            for (place, digest) in places.iter().zip(fetch.all(&items, self.options.streams)?) {
                digests[*place] = Some(digest);
            }
        }
        Ok(items.iter().map(|i| i.path.to_string()).collect())
    }

    /// `SHA256SUMS`, then the report.
    fn finish(
        &self,
        build: &Path,
        digests: &[Option<Digest>],
        (fetched, replaced): (&[String], &[String]),
    ) -> Result<()> {
        let plan = &self.plan;
        let text = checksum::encode(&sums(plan, digests));
        write_file(build, &FileName::parse(SUMS)?, text.as_bytes())?;
        let mut report = Report::new(&crate::commands::command_line());
        report.seconds = self.began.elapsed().as_secs_f64();
        report.plan_sha256 = plan.digest().to_string();
        report.sums_sha256 = Some(Digest::of(text.as_bytes()).to_string());
        let lines = plan.files.iter().zip(digests).filter_map(|(f, d)| Some((f, (*d)?)));
        report.outputs =
            lines.map(|(f, d)| FileLine::new(f.path.as_str(), d, f.size, &plan.pinned())).collect();
        report.left_out = plan.left_out.clone();
        report.stages = vec![StageReport {
            name: "download".into(),
            options: json!({
                "source": plan.source, "repo": plan.repo, "revision": self.request.revision,
                "include": plan.include, "exclude": plan.exclude,
            }),
            dropped: Vec::new(),
            decisions: Vec::new(),
            details: json!({"plan": plan.json(), "fetched": fetched, "replaced": replaced}),
        }];
        report.hide(&self.options.paths.hiding([self.out]));
        report.write(build)
    }
}

fn right(standing: &Standing) -> Option<Digest> {
    match standing {
        Standing::Right(digest) => Some(*digest),
        Standing::Wrong(_) | Standing::Missing => None,
    }
}

fn named(plan: &Plan, standing: &[Standing], which: impl Fn(&Standing) -> bool) -> Vec<String> {
    let pairs = plan.files.iter().zip(standing);
    pairs.filter(|(_, s)| which(s)).map(|(f, _)| f.path.to_string()).collect()
}

/// `SHA256SUMS` covers the top of the folder, as it does everywhere in `prep`.
fn sums(plan: &Plan, digests: &[Option<Digest>]) -> checksum::Digests {
    let pairs = plan.files.iter().zip(digests);
    pairs.filter_map(|(f, d)| Some((f.path.top()?, (*d)?))).collect()
}

fn extra_files(build: &Path, plan: &Plan) -> Option<String> {
    let entries = std::fs::read_dir(build).into_iter().flatten().flatten();
    let names = entries.map(|e| e.file_name().to_string_lossy().into_owned());
    let ours = |n: &str| matches!(n, REPORT | SUMS) || n.starts_with('.');
    let known = |n: &str| plan.files.iter().any(|f| f.path.as_str().split('/').next() == Some(n));
    let mut extra: Vec<_> = names.filter(|n| !ours(n) && !known(n)).map(|n| Shown(&n).to_string()).collect();
    extra.sort();
    (!extra.is_empty()).then(|| list_some(&extra))
}

/// The folders of a nested file; a link in their place is refused, as it could lead anywhere.
pub fn make_parent(root: &Path, path: &super::names::RepoPath) -> Result<()> {
    let mut at = root.to_path_buf();
    let Some((folders, _)) = path.as_str().rsplit_once('/') else { return Ok(()) };
    for folder in folders.split('/') {
        at.push(folder);
        match std::fs::symlink_metadata(&at) {
            Ok(m) if m.is_dir() => {}
            Ok(_) => {
                return Err(Error::usage(format!("{} is in the way", Shown::path(&at)))
                    .found("a file or a link")
                    .expected("a folder, or nothing")
                    .hint("move it away, or choose another --out"));
            }
            Err(_) => std::fs::create_dir(&at).map_err(|e| Error::io("create", &at, &e))?,
        }
    }
    Ok(())
}

/// Refuses to begin what cannot fit.
///
/// # Errors
/// Exit 5 with what is free and what is needed.
pub fn check_space(items: &[Item], dir: &Path) -> Result<()> {
    let range = Limits::read().range;
    let left = |i: &Item| i.size - Part::left_by_earlier_run(&i.part, i.size, i.digest, range);
    let need: u64 = items.iter().map(left).sum();
    let need = need + need / 50;
    let Some(have) = free_space(dir) else { return Ok(()) };
    match have >= need {
        true => Ok(()),
        false => Err(Error::new(Class::Disk, format!("not enough space for {}", Shown::path(dir)))
            .found(format!("{} free", size(have)))
            .expected(size(need))
            .hint("free some space, or choose an --out on another disk")),
    }
}

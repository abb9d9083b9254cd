//! What an output folder holds, and where the files of a download go.

use std::path::{Path, PathBuf};

use verify::checkpoint::folder::{REPORT, WORK};
use verify::report::Report;
use verify::rewrite::{Existing, Target};
use verify::write::remove_tree;
use verify::{Error, Result};

use super::folder::Options;
use super::plan::Plan;

/// The plan of an unfinished download; its name starts as that of every journal of `prep`.
pub const JOURNAL: &str = "journal-download.json";

/// What a folder holds.
pub enum Found {
    /// Nothing.
    Nothing,
    /// A download that did not come to its end.
    Unfinished(Box<Plan>),
    /// A finished download.
    Finished(Box<Plan>, Box<Report>),
    /// Files that no run of `prep` made.
    Files,
    /// The work of another command.
    OtherWork,
}

impl Found {
    /// What `out` holds.
    pub fn at(out: &Path) -> Self {
        if let Some(report) = Report::read(out) {
            let plan =
                report.stages.first().filter(|s| s.name == "download").map(|s| s.details["plan"].clone());
            return match plan.and_then(|p| serde_json::from_value(p).ok()) {
                Some(plan) => Found::Finished(Box::new(plan), Box::new(report)),
                None => Found::OtherWork,
            };
        }
        if let Some(plan) = journal(out) {
            return Found::Unfinished(Box::new(plan));
        }
        let mut names = std::fs::read_dir(out).into_iter().flatten().flatten().map(|e| e.file_name());
        let work = std::fs::read_dir(out.join(WORK)).into_iter().flatten().flatten();
        if out.join(REPORT).exists() || work.into_iter().any(|e| e.file_name() != "lock") {
            return Found::OtherWork;
        }
        match names.any(|n| n != WORK) {
            true => Found::Files,
            false => Found::Nothing,
        }
    }

    /// What tells two states apart.
    pub fn kind(&self) -> (u8, Option<&str>) {
        match self {
            Found::Nothing => (0, None),
            Found::Unfinished(plan) => (1, Some(&plan.commit)),
            Found::Finished(plan, _) => (2, Some(&plan.commit)),
            Found::Files => (3, None),
            Found::OtherWork => (4, None),
        }
    }
}

fn journal(dir: &Path) -> Option<Plan> {
    let value = verify::checkpoint::json::read(&dir.join(WORK).join(JOURNAL)).ok()?;
    serde_json::from_value(value).ok()
}

/// Where the files go.
pub enum Place {
    /// Into the folder itself, which is ours or holds only files of the plan.
    Here(PathBuf),
    /// Into a new folder, perhaps beside the one that it replaces.
    Target(Target, PathBuf),
}

impl Place {
    /// Decides, and makes the folder; refuses one that holds something else.
    ///
    /// # Errors
    /// Exit 2 where it does, 5 where it cannot be made.
    pub fn prepare(out: &Path, found: &Found, plan: &Plan, options: &Options) -> Result<Self> {
        let same = |p: &Plan| {
            p.commit == plan.commit
                && p.include == plan.include
                && p.exclude == plan.exclude
                && p.repo == plan.repo
                && p.source == plan.source
        };
        let here = match found {
            Found::Unfinished(p) | Found::Finished(p, _) => same(p),
            Found::Files => !options.force,
            Found::Nothing | Found::OtherWork => false,
        };
        if here {
            let work = out.join(WORK);
            std::fs::create_dir_all(&work).map_err(|e| Error::io("create", &work, &e))?;
            return Ok(Place::Here(out.to_path_buf()));
        }
        let existing = if options.force { Existing::Replace } else { Existing::Continue };
        let target = Target::prepare(out, &[], existing)?;
        if target.replaces() && journal(&target.build).is_none_or(|p| !same(&p)) {
            target.clear()?;
        }
        Ok(Place::Target(target, out.to_path_buf()))
    }

    /// The folder that is written.
    pub fn build(&self) -> &Path {
        match self {
            Place::Here(out) => out,
            Place::Target(target, _) => &target.build,
        }
    }

    /// The folder that it becomes.
    pub fn out(&self) -> &Path {
        match self {
            Place::Here(out) | Place::Target(_, out) => out,
        }
    }

    /// The folder that is replaced, whose files may be of use.
    pub fn old(&self) -> Option<&Path> {
        match self {
            Place::Target(target, out) if target.replaces() => Some(out),
            _ => None,
        }
    }

    /// Ends the work.
    ///
    /// # Errors
    /// Exit 5 where folders cannot be exchanged or removed.
    pub fn complete(self) -> Result<()> {
        match self {
            Place::Here(out) => remove_tree(&out.join(WORK)),
            Place::Target(target, _) => target.complete(),
        }
    }
}

//! Inputs of a recipe that lie on a hub: found and verified, or downloaded, before the job begins.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use verify::private::Paths;
use verify::report::Report;
use verify::rewrite::Locking;
use verify::{Class, Result};

use super::download::{print_plan, say};
use crate::args::{Global, Hub};
use crate::console::Console;
use crate::download::{Done, Environment, Options, Request, into_cache, into_folder, offline, plan};
use crate::output::Output;
use crate::recipe::Model;

/// Where the inputs of a job with this output folder go.
pub struct Inputs<'a> {
    /// Folder of the result.
    pub out: &'a Path,
    /// With `--dry-run` nothing is downloaded.
    pub dry_run: bool,
    /// What becomes of the machine's paths in the report of what is fetched.
    pub paths: Paths,
    /// Fetch Python files too.
    pub keep_code: bool,
    /// How long to wait for another run that writes the same folder.
    pub lock_wait: Duration,
    /// Whether runs on the same folder keep one another out.
    pub locking: Locking,
    /// Options of every command.
    pub global: &'a Global,
    /// Where is told what was downloaded.
    pub output: &'a Output,
}

/// An input that can be opened.
pub struct Local {
    /// Its folder.
    pub dir: PathBuf,
    /// `hf:OWNER/NAME@COMMIT` where it came from a hub.
    pub pinned: Option<String>,
}

impl Inputs<'_> {
    /// The folder of `model`; `None` where a dry run would have to download it first, which it has printed then.
    ///
    /// # Errors
    /// As `prep download`.
    pub fn local(&self, model: &Model) -> Result<Option<Local>> {
        let request = match model {
            Model::Folder(dir) => return Ok(Some(Local { dir: dir.clone(), pinned: None })),
            Model::Hub(request) => &Request { keep_code: self.keep_code, ..request.clone() },
        };
        let console = Console::new(self.global.quiet, self.global.verbose);
        let environment = Environment::read(request.hub)?;
        let began = Instant::now();
        let done = match self.dry_run || offline() {
            false => self.fetch(request, Some(&environment), &console),
            true => match self.fetch(request, None, &console) {
                Err(e) if self.dry_run && !offline() && e.class() == Class::Input => {
                    print_plan(&plan(request, &environment, &console)?, self.output);
                    return Ok(None);
                }
                other => other,
            },
        };
        console.clear();
        let done = done?;
        if !request.is_pinned() {
            self.output.warning(&format!(
                "`{}` may stand for another commit tomorrow: for the same bytes again, write {}",
                request.revision,
                done.plan.pinned()
            ));
        }
        say(&done, began.elapsed().as_secs_f64(), self.output);
        Ok(Some(Local { pinned: Some(done.plan.pinned()), dir: done.dir }))
    }

    /// Into the cache that other tools share; ModelScope has none, so beside the output.
    fn fetch(&self, request: &Request, environment: Option<&Environment>, console: &Console) -> Result<Done> {
        let options = Options {
            environment,
            streams: 8,
            threads: self.global.threads(),
            force: false,
            paths: self.paths,
            lock_wait: self.lock_wait,
            locking: self.locking,
        };
        match request.hub {
            Hub::Hf => into_cache(request, &options, console),
            Hub::Modelscope => {
                let out = self.out.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
                let name = format!("{out}.{}", request.repo.as_str().replace('/', "--"));
                into_folder(request, &self.out.with_file_name(name), &options, console)
            }
        }
    }
}

impl Local {
    /// Names the commit beside every input file of `report` that came from here.
    pub fn name_in(&self, report: &mut Report) {
        let Some(pinned) = &self.pinned else { return };
        for line in report.inputs.iter_mut().filter(|l| l.origin == "base") {
            line.origin = format!("base, {pinned}");
        }
    }
}

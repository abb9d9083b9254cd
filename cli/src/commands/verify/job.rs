//! What is verified, and how: one job for each folder and each server.

use std::path::{Path, PathBuf};
use std::time::Duration;

use runner::Wish;
use verify::diagnose::Taught;
use verify::names::folder_name;
use verify::parsers::{self, Parser, ReasoningParser};
use verify::suite::{Asked, Reading, Sampling, Settings, Suite};
use verify::template::Renderer;
use verify::{Error, Result, diagnose};

use super::baseline::Baseline;
use super::reports::Reports;
use crate::args::{self, Verify};
use crate::endpoint::{Address, ApiKey};

/// A folder to verify.
pub struct Job<'a> {
    pub model: &'a Path,
    pub run: Running,
    pub reports: Reports,
    pub baseline: Option<Baseline>,
    /// Where it is run.
    pub wish: Wish,
}

/// A server to verify.
pub struct ServerJob<'a> {
    pub address: Address,
    pub key: ApiKey,
    /// The model's name there.
    pub served: Option<String>,
    /// The folder that it serves.
    pub folder: Option<&'a Path>,
    pub stream: bool,
    pub concurrency: usize,
    pub timeout: Duration,
    pub run: Running,
}

/// How a suite is run and judged, wherever.
#[derive(Clone)]
pub struct Running {
    pub parser: &'static Parser,
    pub suite: Suite,
    pub min_score: Option<u32>,
    pub max_new: usize,
    pub reasoning: Reasoning,
    pub sampling: Sampling,
    /// How often the whole suite is run.
    pub runs: usize,
}

impl Running {
    /// How tokens are drawn in the run of this number, from 0.
    pub fn seeded(&self, run: usize) -> Sampling {
        Sampling { seed: self.sampling.seed.wrapping_add(run as u64), ..self.sampling }
    }

    /// What a report tells of it, with the `reading` that was used and what was `asked` of a server.
    pub fn settings(&self, reading: &Reading, asked: Option<Asked>) -> Settings {
        Settings {
            max_new: self.max_new,
            sampling: self.sampling,
            runs: self.runs,
            reasoning_parser: reading.reasoning.map(|p| p.name),
            asked,
        }
    }
}

/// Which reasoning parser cuts the texts.
#[derive(Clone, Copy)]
pub enum Reasoning {
    /// The one that fits the template.
    Fitting,
    /// The named one, or none.
    Chosen(Option<&'static ReasoningParser>),
}

/// A row of the table.
pub enum Row<'a> {
    Folder(Job<'a>),
    Server(ServerJob<'a>),
}

impl Reasoning {
    /// The parser of this name; `none` for none.
    ///
    /// # Errors
    /// Exit 2 for an unknown one.
    pub fn of(name: Option<&str>) -> Result<Self> {
        match name {
            None => Ok(Reasoning::Fitting),
            Some("none") => Ok(Reasoning::Chosen(None)),
            Some(name) => parsers::find_reasoning(name).map(|p| Reasoning::Chosen(Some(p))),
        }
    }

    /// The parser for a model with this template.
    pub fn resolve(
        self,
        (renderer, taught): (&Renderer, &Taught),
        model_type: &str,
    ) -> Option<&'static ReasoningParser> {
        match self {
            Reasoning::Fitting => diagnose::reasoning_parser(renderer, taught, model_type),
            Reasoning::Chosen(parser) => parser,
        }
    }
}

impl<'a> Row<'a> {
    /// The rows that the command line asks for: folders, then servers.
    ///
    /// # Errors
    /// Exit 2 for an unknown parser or a wrong address, exit 3 for a suite that cannot be read.
    pub fn all(args: &'a Verify) -> Result<Vec<Self>> {
        let servers = args.server.endpoint.len();
        let rows = args.model.len() + servers;
        let suite = suite_of(args.suite.as_deref())?;
        let suite = match &args.kwargs {
            None => suite,
            Some(text) => suite.with_kwargs(&crate::commands::template::object(text)?),
        };
        let sampling = drawn(&args.sampling, !args.model.is_empty())?;
        let baseline = Baseline::of(&args.baseline)?;
        let running = |row: usize| -> Result<Running> {
            let name = one_of(&args.parser, row, rows, "--parser")?.map_or("", String::as_str);
            Ok(Running {
                parser: match row < args.model.len() {
                    true => parsers::find(name)?,
                    false => parsers::find_for_server(name)?,
                },
                suite: suite.clone(),
                min_score: args.min_score,
                max_new: args.max_new,
                reasoning: Reasoning::of(
                    one_of(&args.reasoning_parser, row, rows, "--reasoning-parser")?.map(String::as_str),
                )?,
                sampling,
                runs: args.sampling.repeat as usize,
            })
        };
        let folder = |(row, model): (usize, &'a PathBuf)| -> Result<Row<'a>> {
            // They tell of all rows, and are written when all have been looked at.
            let (reports, baseline) = (Reports::default(), baseline.clone());
            Ok(Row::Folder(Job { model, run: running(row)?, reports, baseline, wish: args.on.wish() }))
        };
        let server = |(at, address): (usize, &'a String)| -> Result<Row<'a>> {
            let s = &args.server;
            let address = Address::parse(address)?;
            let key = one_of(&s.api_key_env, at, servers, "--api-key-env")?.map(String::as_str);
            Ok(Row::Server(ServerJob {
                key: ApiKey::of_environment(key, &address)?,
                address,
                served: one_of(&s.served, at, servers, "--model")?.cloned(),
                folder: one_of(&s.folder, at, servers, "--folder")?.map(PathBuf::as_path),
                stream: !s.no_stream,
                concurrency: s.concurrency.into(),
                timeout: Duration::from_secs(s.timeout.into()),
                run: running(args.model.len() + at)?,
            }))
        };
        let folders = args.model.iter().enumerate().map(folder);
        folders.chain(args.server.endpoint.iter().enumerate().map(server)).collect()
    }

    /// Name of the model, without any path of the machine.
    pub fn name(&self) -> String {
        match self {
            Row::Folder(job) => job.name(),
            Row::Server(job) => job.served.clone().unwrap_or_else(|| job.address.to_string()),
        }
    }
}

/// The value for row `at` of `rows`: the only one, or its own.
fn one_of<'v, T>(values: &'v [T], at: usize, rows: usize, flag: &str) -> Result<Option<&'v T>> {
    match values.len() {
        0 => Ok(None),
        1 => Ok(values.first()),
        n if n == rows => Ok(values.get(at)),
        n => Err(Error::usage(format!("{flag} is given {n} times"))
            .expected(format!("once for all, or once for each of the {rows}"))),
    }
}

/// How tokens are drawn, checked; `folders` where the built-in runner draws them.
///
/// # Errors
/// Exit 2 for numbers that mean nothing, and for runs that would all be the same.
pub fn drawn(s: &args::Sampling, folders: bool) -> Result<Sampling> {
    let sampling = Sampling { temperature: s.temperature, top_p: s.top_p, top_k: s.top_k, seed: s.seed };
    runner_sampling(&sampling).check()?;
    if s.repeat > 1 && s.temperature == 0.0 && folders {
        return Err(Error::usage("--repeat without --temperature: all runs would be the same")
            .hint("add --temperature 0.7, or what the model's generation_config.json says"));
    }
    Ok(sampling)
}

/// Sampling as the built-in runner takes it.
pub fn runner_sampling(s: &Sampling) -> runner::Sampling {
    runner::Sampling {
        temperature: s.temperature,
        top_p: s.top_p,
        top_k: s.top_k as usize,
        seed: s.seed,
        ..runner::Sampling::default()
    }
}

impl Job<'_> {
    /// Name of the model, without any path of the machine.
    pub fn name(&self) -> String {
        folder_name(self.model)
    }
}

impl Running {
    /// Refuses a score that nothing can reach.
    ///
    /// # Errors
    /// Exit 2.
    pub fn check(&self) -> Result<()> {
        let most = self.suite.max_points();
        match self.min_score.filter(|min| *min > most) {
            None => Ok(()),
            Some(min) => Err(Error::usage(format!("no model can reach a score of {min}"))
                .expected(format!("at most {most}, what this suite gives"))),
        }
    }
}

/// The suite of a file, or the built-in one.
pub fn suite_of(file: Option<&Path>) -> Result<Suite> {
    file.map_or_else(Suite::default_suite, Suite::read)
}

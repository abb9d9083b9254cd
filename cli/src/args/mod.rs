//! The command line, typed. Names follow one rule: the same flag means the same in every command.

mod assemble;
mod bench;
mod checksum;
mod completions;
mod device;
mod diff;
mod doctor;
mod download;
mod generate;
mod inspect;
mod merge_lora;
mod parse;
mod quantize;
mod run;
mod serve_command;
mod template;
mod verify;

use std::path::{Path, PathBuf};
use std::time::Duration;

use ::verify::private::Paths;
use ::verify::rewrite::{Code, Locking, Part, Which};
use clap::{Args as ClapArgs, Parser, Subcommand};

pub use assemble::Assemble;
pub use bench::{Bench, Stored};
pub use checksum::Checksum;
pub use completions::{Completions, Man, Shell};
pub use device::OnDevice;
pub use diff::Diff;
pub use doctor::Doctor;
pub use download::{Download, Hub};
pub use generate::Generate;
pub use inspect::{Hardware, Inspect};
pub use merge_lora::MergeLora;
pub use parse::Parse;
pub use quantize::{Clip, Experts, KvCache, Packing, Quantize, Rounding, Scheme};
pub use run::Run;
pub use serve_command::{Engine, Form, ServeCommand};
pub use template::{Template, TemplateCheck, TemplateEmbed, TemplateModel, TemplateRender};
pub use verify::{Baseline, Sampling, Verify, divergence};

/// Prepare open-weight LLMs for vLLM and SGLang: merge, quantize, template, checksum, verify.
#[derive(Debug, Parser)]
#[command(name = "prep", version, propagate_version = true, max_term_width = 100)]
#[command(
    after_help = "Exit codes: 0 done, 1 a check failed, 2 usage, 3 input broken or refused, 4 network, 5 disk, \
6 GPU, 75 locked, 130 interrupted.

Examples:
  prep run recipes/tiny.toml --out OUT
  prep verify OUT --parser qwen3_coder"
)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
    #[command(flatten)]
    pub global: Global,
}

/// Options of every command.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Options of every command")]
pub struct Global {
    /// Print the result as one JSON object on the last line of stdout
    #[arg(long, global = true)]
    pub json: bool,
    /// Print results, warnings and errors only
    #[arg(long, global = true)]
    pub quiet: bool,
    /// Tell more, such as each finished shard
    #[arg(short, long, global = true)]
    pub verbose: bool,
    /// Worker threads; results do not depend on it [default: all cores]
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
}

impl Global {
    /// Worker threads.
    pub fn threads(&self) -> usize {
        self.threads.map_or_else(|| std::thread::available_parallelism().map_or(1, usize::from), usize::from)
    }
}

/// What `--private-paths` says.
pub fn paths(full: bool) -> Paths {
    if full { Paths::Full } else { Paths::Hidden }
}

/// What `--no-lock` says.
pub fn locking(none: bool) -> Locking {
    if none { Locking::Skip } else { Locking::Take }
}

/// Options of commands that write a model folder from another.
#[derive(Debug, Clone, Copy, ClapArgs)]
#[command(next_help_heading = "Output folder")]
pub struct Rewriting {
    /// Replace a folder that is there already, once the new one is complete
    #[arg(long)]
    pub force: bool,
    /// Put the sha256 of every input shard into the report, however large (it takes as long as the rewrite)
    #[arg(long)]
    pub hash_inputs: bool,
    /// Carry over the model's Python files and the `auto_map` that names them (servers need --trust-remote-code then)
    #[arg(long)]
    pub keep_code: bool,
    /// Keep full paths in the report; else folders keep their own name only, and the home folder is `~`
    #[arg(long)]
    pub private_paths: bool,
    /// Wait so many seconds for another run that writes the same folder
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub lock_wait: u32,
    /// Take no lock, on a disk that has none: nothing keeps another run out of the folder then
    #[arg(long, conflicts_with = "lock_wait")]
    pub no_lock: bool,
}

impl Rewriting {
    /// Whether runs keep one another out.
    pub fn locking(&self) -> Locking {
        locking(self.no_lock)
    }

    /// What becomes of the machine's paths in the report.
    pub fn paths(&self) -> Paths {
        paths(self.private_paths)
    }

    /// What becomes of the model's code.
    pub fn code(&self) -> Code {
        if self.keep_code { Code::Keep } else { Code::LeaveOut }
    }

    /// How the engine is to run.
    pub fn options(&self, which: Which, inputs: Vec<PathBuf>, global: &Global) -> ::verify::rewrite::Options {
        ::verify::rewrite::Options {
            which,
            threads: global.threads(),
            existing: match self.force {
                true => ::verify::rewrite::Existing::Replace,
                false => ::verify::rewrite::Existing::Continue,
            },
            lock_wait: Duration::from_secs(self.lock_wait.into()),
            locking: self.locking(),
            inputs,
            command: crate::commands::command_line(),
            paths: self.paths(),
            hash_inputs: self.hash_inputs,
            remember: None,
        }
    }
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Do the whole job that a recipe describes
    Run(Run),
    /// Fetch a model from a hub, every byte checked
    Download(Download),
    /// Merge LoRA adapters into a base model
    MergeLora(MergeLora),
    /// Quantize a model
    Quantize(Quantize),
    /// Complete a folder whose parts were made by --part runs
    Assemble(Assemble),
    /// Show, render, check or embed a chat template
    #[command(subcommand)]
    Template(Template),
    /// Write SHA256SUMS of a folder, or check a folder against it
    Checksum(Checksum),
    /// Check a folder, run it and score its tool calls
    Verify(Verify),
    /// Parse model outputs as a server's tool-call parser does
    Parse(Parse),
    /// List the tool-call and reasoning parsers, and which models write what they read
    #[command(after_help = "Examples:\n  prep parsers\n  prep parsers --json")]
    Parsers,
    /// Generate text, or dump logits
    Generate(Generate),
    /// Tell what a model is, what it needs, and which parser fits
    Inspect(Inspect),
    /// Write the launch line that fits a folder, or a unit, compose file or manifest
    ServeCommand(ServeCommand),
    /// Tell what differs between two folders: config, template, tokenizer, weights by their error
    Diff(Diff),
    /// Look at this machine: what prep would trip over, each with its fix
    Doctor(Doctor),
    /// Measure how fast this machine reads prompts, decodes and quantizes
    Bench(Bench),
    /// Write the completions of a shell
    Completions(Completions),
    /// Write man pages
    Man(Man),
}

impl Command {
    /// The one model that the command is about, where there is one.
    pub fn model(&self) -> Option<&Path> {
        match self {
            Command::Quantize(a) => Some(&a.model),
            Command::Template(a) => Some(a.model()),
            Command::Checksum(a) => Some(&a.model),
            Command::Generate(a) => Some(&a.model),
            Command::Inspect(a) => Some(&a.model),
            Command::ServeCommand(a) => Some(&a.model),
            _ => None,
        }
    }
}

/// Which shards are written.
#[derive(Debug, Clone, Copy, Default, ClapArgs)]
pub struct Parts {
    /// Write only part i of n; n processes share the work, `prep assemble` completes the folder
    #[arg(long, value_name = "i/n", value_parser = |t: &str| Part::parse(t).map_err(|e| e.to_string()))]
    pub part: Option<Part>,
    /// Only complete the folder: what `prep assemble` sets.
    #[arg(skip)]
    pub finish: bool,
}

impl Parts {
    /// As the engine wants it.
    pub fn which(self) -> Which {
        match (self.finish, self.part) {
            (true, _) => Which::Finish,
            (false, Some(part)) => Which::Part(part),
            (false, None) => Which::All,
        }
    }
}

//! One file per subcommand; each returns its exit code or the error that ended it.

mod assemble;
mod bench;
mod checksum;
mod completions;
mod diff;
mod doctor;
pub mod download;
mod generate;
mod inputs;
mod inspect;
mod merge_lora;
mod model;
mod parse;
mod parsers;
mod quantize;
mod rewrite;
mod run;
mod serve_command;
mod template;
mod verify;

use std::path::Path;

use ::verify::{Error, Result, Shown};

pub use rewrite::free_space;

use crate::args::{Args, Command};
use crate::console;
use crate::download::RepoId;
use crate::output::Output;

/// Runs the command that `args` name.
///
/// # Errors
/// What the command failed with.
pub fn run(args: &Args, output: &Output) -> Result<u8> {
    console::watch_interrupts();
    let done = dispatch(args, output);
    match args.command.model() {
        Some(dir) if dir.is_dir() => done.map_err(|e| e.about(dir)),
        _ => done,
    }
}

fn dispatch(args: &Args, output: &Output) -> Result<u8> {
    let global = &args.global;
    match &args.command {
        Command::Run(a) => run::run(a, global, output),
        Command::Download(a) => download::run(a, global, output),
        Command::MergeLora(a) => merge_lora::run(a, global, output),
        Command::Quantize(a) => quantize::run(a, global, output),
        Command::Assemble(a) => assemble::run(a, global, output),
        Command::Template(a) => template::run(a, output),
        Command::Checksum(a) => checksum::run(a, global, output),
        Command::Verify(a) => verify::run(a, global, output),
        Command::Parse(a) => parse::run(a, output),
        Command::Parsers => parsers::run(output),
        Command::Generate(a) => generate::run(a, global, output),
        Command::Inspect(a) => inspect::run(a, global, output),
        Command::ServeCommand(a) => serve_command::run(a, global, output),
        Command::Diff(a) => diff::run(a, global, output),
        Command::Doctor(a) => doctor::run(a, output),
        Command::Bench(a) => bench::run(a, global, output),
        Command::Completions(a) => completions::completions(a, output),
        Command::Man(a) => completions::man(a, output),
    }
}

/// The folder `dir`, or the error that it is none or cannot be looked into: files must not seem to be missing.
///
/// # Errors
/// Exit 3 where it is no folder, exit 5 where its files cannot be listed.
fn folder_of(dir: &Path) -> Result<&Path> {
    match std::fs::read_dir(dir) {
        Ok(_) => Ok(dir),
        Err(e) if dir.is_dir() => Err(Error::io("read", dir, &e)),
        Err(_) => Err(Error::input(format!("{} is not a folder", Shown::path(dir))).hint(not_a_folder(dir))),
    }
}

fn not_a_folder(dir: &Path) -> String {
    match dir.to_str().filter(|text| text.contains('/') && RepoId::parse(text).is_ok()) {
        Some(repo) => {
            format!("check the path; a model of a hub is fetched first: prep download {repo} --out DIR")
        }
        None => "check the path".into(),
    }
}

/// The command line as it was given, for the report: program name without its path.
pub fn command_line() -> String {
    let args = std::env::args().skip(1);
    std::iter::once("prep".to_string()).chain(args).collect::<Vec<_>>().join(" ")
}

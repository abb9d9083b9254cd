//! One file per subcommand; each returns its exit code or the error that ended it.

mod assemble;
mod checksum;
mod completions;
mod diff;
mod doctor;
pub mod download;
mod generate;
mod inputs;
mod inspect;
mod merge_lora;
mod parse;
mod parsers;
mod quantize;
mod rewrite;
mod run;
mod serve_command;
mod template;
mod verify;

use ::verify::Result;

pub use rewrite::free_space;

use crate::args::{Args, Command};
use crate::console;
use crate::output::Output;

/// Runs the command that `args` name.
///
/// # Errors
/// What the command failed with.
pub fn run(args: &Args, output: &Output) -> Result<u8> {
    console::watch_interrupts();
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
        Command::Inspect(a) => inspect::run(a, output),
        Command::ServeCommand(a) => serve_command::run(a, output),
        Command::Diff(a) => diff::run(a, global, output),
        Command::Doctor(a) => doctor::run(a, output),
        Command::Completions(a) => completions::completions(a, output),
        Command::Man(a) => completions::man(a, output),
    }
}

/// The command line as it was given, for the report: program name without its path.
pub fn command_line() -> String {
    let args = std::env::args().skip(1);
    std::iter::once("prep".to_string()).chain(args).collect::<Vec<_>>().join(" ")
}

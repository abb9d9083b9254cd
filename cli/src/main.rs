//! The `prep` binary: arguments in, exit code out. What it does lies in the crates below.

mod args;
mod commands;
mod console;
mod doctor;
mod download;
mod endpoint;
mod machine;
mod output;
mod recipe;
mod retry_after;

use std::process::ExitCode;

use clap::Parser;
use mimalloc::MiMalloc;

/// Calibration takes and frees large arrays of ever different sizes: the system's allocator keeps half as much again, and
/// more with every layer.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    let args = match args::Args::try_parse() {
        Ok(args) => args,
        Err(e) => return output::usage(&e),
    };
    let output = output::Output::new(&args.global);
    match commands::run(&args, &output) {
        Ok(code) => ExitCode::from(output.done(code)),
        Err(e) => ExitCode::from(output.failed(&e)),
    }
}

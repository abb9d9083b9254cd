//! `prep checksum`: writes `SHA256SUMS`, or checks a folder against it.

use serde_json::json;
use verify::checkpoint::folder::SUMS;
use verify::checksum;
use verify::progress::Progress;
use verify::{Error, Result, Shown, report};

use super::folder_of;
use crate::args::{Checksum, Global};
use crate::console::Console;
use crate::output::Output;

pub fn run(args: &Checksum, global: &Global, output: &Output) -> Result<u8> {
    folder_of(&args.model)?;
    let console = Console::new(global.quiet, global.verbose);
    match args.check {
        true => check(args, global, output, &console),
        false => write(args, global, output, &console),
    }
}

fn check(args: &Checksum, global: &Global, output: &Output, console: &Console) -> Result<u8> {
    let files = checksum::read(&args.model)?.len();
    let faults = checksum::check(&args.model, global.threads(), console)?;
    console.clear();
    for f in &faults {
        output.text(&format!("{}: {}", f.file, f.what));
    }
    let code = u8::from(!faults.is_empty());
    output.text(&match faults.len() {
        0 => format!("{files} files are as {SUMS} says"),
        n => format!("{n} of {files} files failed: fetch or make them again"),
    });
    output.result(code, json!({"files": files, "faults": faults}));
    Ok(code)
}

fn write(args: &Checksum, global: &Global, output: &Output, console: &Console) -> Result<u8> {
    let path = args.model.join(SUMS);
    if path.exists() && !args.force {
        return Err(Error::usage(format!("{} exists already", Shown::path(&path)))
            .hint("compare the folder with it by --check, or write it anew with --force"));
    }
    let digests = checksum::of_folder(&args.model, global.threads(), console)?;
    console.check()?;
    report::write_sums(&args.model, &digests, report::CHANGED)?;
    console.clear();
    output.text(&format!("{} files listed in {}", digests.len(), Shown::path(&path)));
    output.result(0, json!({"files": digests.len()}));
    Ok(0)
}

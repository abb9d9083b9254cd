//! `prep assemble`: completes a folder that was written in parts.
//!
//! The first part leaves its command in the folder; assembling plans the same again from the same inputs,
//! asks for every shard, and writes what comes after the last one.

use std::path::{Path, PathBuf};

use clap::Parser;
use serde::{Deserialize, Serialize};
use verify::checkpoint::folder::WORK;
use verify::checkpoint::json;
use verify::write::write_file;
use verify::{Error, FileName, Result, Shown};

use super::{merge_lora, quantize};
use crate::args::{Args, Assemble, Command, Global, Parts};
use crate::output::Output;

const FILE: &str = "command.json";

/// The command of a part, as it was given.
#[derive(Serialize, Deserialize)]
struct Remembered {
    folder: PathBuf,
    args: Vec<String>,
}

pub fn run(args: &Assemble, global: &Global, output: &Output) -> Result<u8> {
    let path = args.dir.join(WORK).join(FILE);
    if !path.exists() {
        return Err(Error::input(format!("{} holds no parts", Shown::path(&args.dir)))
            .expected("a folder that runs with --part wrote into and that is not complete yet")
            .hint("give the --out of those runs"));
    }
    let damaged = |e: String| Error::input(format!("{} is damaged", Shown::path(&path))).found(e);
    let told: Remembered = serde_json::from_value(json::read(&path)?).map_err(|e| damaged(e.to_string()))?;
    std::env::set_current_dir(&told.folder).map_err(|e| Error::io("read", &told.folder, &e))?;
    let command = Args::try_parse_from(&told.args).map_err(|e| damaged(e.to_string()))?.command;
    match command {
        Command::Quantize(mut a) => {
            a.parts = Parts { part: None, finish: true };
            quantize::run(&a, global, output)
        }
        Command::MergeLora(mut a) => {
            a.parts = Parts { part: None, finish: true };
            merge_lora::run(&a, global, output)
        }
        _ => Err(damaged("not a command that has parts".into())),
    }
}

/// Leaves the command of this process in `out`, for [`run`].
pub fn remember(out: &Path) -> Result<()> {
    let work = out.join(WORK);
    std::fs::create_dir_all(&work).map_err(|e| Error::io("create", &work, &e))?;
    let folder = std::env::current_dir().map_err(|e| Error::io("read", Path::new("."), &e))?;
    let text = serde_json::json!(Remembered { folder, args: std::env::args().collect() }).to_string();
    write_file(&work, &FileName::parse(FILE)?, text.as_bytes())
}

//! `prep assemble`: completes a folder that was written in parts.
//!
//! The first part leaves its command in the folder; assembling plans the same again from the same inputs,
//! asks for every shard, and writes what comes after the last one.

use std::path::PathBuf;

use clap::Parser;
use serde::{Deserialize, Serialize};
use verify::checkpoint::folder::WORK;
use verify::checkpoint::json;
use verify::rewrite::COMMAND;
use verify::{Error, Result, Shown};

use super::{merge_lora, quantize};
use crate::args::{Args, Assemble, Command, Global, Parts, Rewriting};
use crate::output::Output;

/// The command of a part, as it was given.
#[derive(Serialize, Deserialize)]
struct Remembered {
    folder: PathBuf,
    args: Vec<String>,
}

pub fn run(args: &Assemble, global: &Global, output: &Output) -> Result<u8> {
    let path = args.dir.join(WORK).join(COMMAND);
    if !path.exists() {
        return Err(Error::input(format!("{} holds no parts", Shown::path(&args.dir)))
            .expected("a folder that runs with --part wrote into and that is not complete yet")
            .hint("give the --out of those runs"));
    }
    let damaged = |e: String| Error::input(format!("{} is damaged", Shown::path(&path))).found(e);
    let told: Remembered = serde_json::from_value(json::read(&path)?).map_err(|e| damaged(e.to_string()))?;
    let out = std::path::absolute(&args.dir).map_err(|e| Error::io("read", &args.dir, &e))?;
    std::env::set_current_dir(&told.folder).map_err(|e| Error::io("read", &told.folder, &e))?;
    let command = Args::try_parse_from(&told.args).map_err(|e| damaged(e.to_string()))?.command;
    let parts = Parts { part: None, finish: true };
    // What decides the plan is the parts'; the rest is asked for here.
    let rewriting = |of_parts: Rewriting| Rewriting {
        force: false,
        hash_inputs: args.hash_inputs,
        private_paths: args.private_paths,
        lock_wait: args.lock_wait,
        no_lock: args.no_lock,
        ..of_parts
    };
    match command {
        Command::Quantize(mut a) => {
            (a.parts, a.rewriting, a.out) = (parts, rewriting(a.rewriting), out);
            quantize::run(&a, global, output)
        }
        Command::MergeLora(mut a) => {
            (a.parts, a.rewriting, a.out) = (parts, rewriting(a.rewriting), out);
            merge_lora::run(&a, global, output)
        }
        _ => Err(damaged("not a command that has parts".into())),
    }
}

/// The command of this process, for [`run`].
pub fn remembered() -> Option<Vec<u8>> {
    let folder = std::env::current_dir().ok()?;
    let told = Remembered { folder, args: std::env::args().collect() };
    Some(serde_json::json!(told).to_string().into_bytes())
}

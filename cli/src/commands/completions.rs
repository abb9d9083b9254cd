//! `prep completions` and `prep man`: made from the same definition as the command line itself.

use clap::CommandFactory;
use clap_complete::Shell as Generator;
use serde_json::json;
use verify::{Error, Result, Shown};

use crate::args::{Args, Completions, Man, Shell};
use crate::output::Output;

pub fn completions(args: &Completions, output: &Output) -> Result<u8> {
    let shell = match args.shell {
        Shell::Bash => Generator::Bash,
        Shell::Zsh => Generator::Zsh,
        Shell::Fish => Generator::Fish,
    };
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "prep", &mut text);
    let text = String::from_utf8_lossy(&text);
    match output.is_json() {
        true => output.result(0, json!({"text": text})),
        false => output.raw(&text),
    }
    Ok(0)
}

pub fn man(args: &Man, output: &Output) -> Result<u8> {
    let failed = |e: std::io::Error| Error::io("write", &args.dir, &e);
    std::fs::create_dir_all(&args.dir).map_err(failed)?;
    clap_mangen::generate_to(Args::command(), &args.dir).map_err(failed)?;
    let mut pages: Vec<String> = std::fs::read_dir(&args.dir)
        .map_err(failed)?
        .filter_map(|e| e.ok()?.file_name().into_string().ok())
        .filter(|name| name.starts_with("prep") && name.ends_with(".1"))
        .collect();
    pages.sort();
    output.text(&format!("{} pages in {}", pages.len(), Shown::path(&args.dir)));
    output.result(0, json!({"pages": pages}));
    Ok(0)
}

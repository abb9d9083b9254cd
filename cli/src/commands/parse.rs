//! `prep parse`: JSON lines of model outputs in, the server's answers out.

use std::io::BufRead;

use verify::parsers;
use verify::{Class, Error, Result};

use crate::args::Parse;
use crate::output::Output;

pub fn run(args: &Parse, output: &Output) -> Result<u8> {
    let parser = parsers::find(&args.parser)?;
    let reasoning = args.reasoning_parser.as_deref().map(parsers::find_reasoning).transpose()?;
    let answer = if args.stream { parsers::stream_line } else { parsers::answer_line };
    for (n, line) in std::io::stdin().lock().lines().enumerate() {
        let line = line.map_err(|e| {
            Error::new(Class::Input, format!("stdin, line {}: cannot be read", n + 1)).found(e.to_string())
        })?;
        if line.trim().is_empty() {
            continue;
        }
        let answer = answer(&line, parser, reasoning).map_err(|e| e.at(format!("stdin, line {}", n + 1)))?;
        output.raw(&format!("{answer}\n"));
    }
    output.lines_are_the_result();
    Ok(0)
}

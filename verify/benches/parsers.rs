//! Every tool-call parser on outputs of 1 MB: a long text with a call at its end, and calls without end.
//!
//! `cargo bench -p verify --bench parsers -- [MB]` (default 1). The texts are the repository's own cases.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::time::Instant;

use serde_json::Value;
use verify::parsers::{Context, Parser, all};

/// What the slowest parser may take for 1 MB, in milliseconds.
const BAR: f64 = 50.0;
const ROUNDS: usize = 5;

fn main() {
    let mb: f64 = std::env::args().skip(1).find_map(|a| a.parse().ok()).unwrap_or(1.0);
    let bytes = (mb * 1e6) as usize;
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/tool_calls.jsonl");
    let cases: Vec<Value> =
        std::fs::read_to_string(path).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let mut rows: Vec<(f64, &str, f64, f64)> = Vec::new();
    for parser in all() {
        let Some(case) = cases.iter().find(|c| is_for(c, parser)) else {
            println!("{:16} no case", parser.name);
            continue;
        };
        let (prose, calls) = texts(case["text"].as_str().unwrap(), bytes);
        let context = Context {
            tools: case["tools"].as_array().cloned().unwrap_or_default(),
            tokenizer: case["tokenizer"].as_str().map(str::to_string),
            ..Context::default()
        };
        let (prose, calls) = (best(parser, &prose, &context), best(parser, &calls, &context));
        rows.push((prose.max(calls), parser.name, prose, calls));
    }
    rows.sort_by(|a, b| b.0.total_cmp(&a.0));
    println!("{:16} {:>10} {:>10} {:>9}", "parser", "text ms", "calls ms", "MB/s");
    for (worst, name, prose, calls) in &rows {
        println!("{name:16} {prose:10.2} {calls:10.2} {:9.0}", mb / (worst / 1e3));
    }
    let (worst, name, ..) = rows[0];
    let bar = BAR * mb;
    let word = if worst < bar { "within" } else { "OVER" };
    println!("slowest: {name}, {worst:.1} ms for {mb} MB, {word} the {bar:.0} ms that are allowed");
}

/// A case of this parser's whose text is read as calls.
fn is_for(case: &Value, parser: &Parser) -> bool {
    let name = case["parser"].as_str().unwrap();
    let own = parser.name == name || parser.aliases.contains(&name);
    own && case["expect"]["tool_calls"].as_array().is_some_and(|calls| !calls.is_empty())
}

/// `text` behind many words, and `text` again and again.
fn texts(text: &str, bytes: usize) -> (String, String) {
    let mut prose = "The quick brown fox < jumps > over {the} [lazy] dog.\n".repeat(bytes / 52);
    prose.push_str(text);
    (prose, format!("{text}\n").repeat(bytes / (text.len() + 1)))
}

/// The shortest of some rounds, in milliseconds.
fn best(parser: &Parser, text: &str, context: &Context) -> f64 {
    let round = |_| {
        let began = Instant::now();
        std::hint::black_box(parser.parse(std::hint::black_box(text), context));
        began.elapsed().as_secs_f64() * 1e3
    };
    (0..ROUNDS).map(round).fold(f64::INFINITY, f64::min)
}

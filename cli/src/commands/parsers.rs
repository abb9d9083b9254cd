//! `prep parsers`: the names that `--parser` and `--reasoning-parser` take.

use serde_json::json;
use verify::Result;
use verify::parsers::{all, all_reasoning};

use crate::output::{Output, table};

pub fn run(output: &Output) -> Result<u8> {
    let mut rows = vec![["parser", "aliases", "vllm-rs", "models"].map(String::from).to_vec()];
    for p in all() {
        let native = if p.native { "yes" } else { "no" };
        rows.push(vec![p.name.into(), p.aliases.join(", "), native.into(), p.models.into()]);
    }
    output.text(&table(&rows));
    let reasoning: Vec<_> = all_reasoning().iter().map(|p| p.name).collect();
    output.text(&format!("\nreasoning parsers: {}", reasoning.join(", ")));
    output.text("vllm-rs: whether vLLM's native front end has the parser too");
    let parser = |p: &verify::parsers::Parser| json!({"name": p.name, "aliases": p.aliases, "models": p.models, "native": p.native});
    output
        .result(0, json!({"parsers": all().iter().map(parser).collect::<Vec<_>>(), "reasoning": reasoning}));
    Ok(0)
}

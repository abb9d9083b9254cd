//! `prep doctor`: what of this machine matters, and every problem with its fix.

use std::path::Path;

use serde_json::{Map, Value, json};
use verify::Result;
use verify::template::Level;

use crate::args::Doctor;
use crate::doctor::examine;
use crate::output::Output;

pub fn run(args: &Doctor, output: &Output) -> Result<u8> {
    let sections = examine(args.out.as_deref().unwrap_or(Path::new(".")));
    for s in &sections {
        output.text(s.name);
        for (label, text) in &s.facts {
            output.text(&format!("  {label:<14} {text}"));
        }
    }
    let findings: Vec<_> = sections.iter().flat_map(|s| &s.findings).cloned().collect();
    super::inspect::print_findings(&findings, output);
    let code = u8::from(findings.iter().any(|f| f.level == Level::Error));
    let part = |s: &crate::doctor::Section| {
        let facts: Vec<Value> =
            s.facts.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
        (s.name.to_lowercase(), Value::from(facts))
    };
    let facts: Map<String, Value> = sections.iter().map(part).collect();
    output.result(code, json!({"facts": facts, "findings": findings}));
    Ok(code)
}

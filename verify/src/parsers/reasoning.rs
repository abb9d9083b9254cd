//! Reasoning parsers: they cut the thinking off before a tool-call parser sees the text.
//!
//! Source: vLLM 0.33, `--reasoning-parser`.

use super::{Context, qwen_xml};
use crate::error::{Error, Result};

/// A reasoning parser that can be asked for by name.
#[derive(Clone, Copy)]
pub struct ReasoningParser {
    /// Its name on vLLM's command line.
    pub name: &'static str,
    /// Other names for the very same parser.
    pub aliases: &'static [&'static str],
    split: fn(&str, &Context) -> Split,
}

/// Reasoning and what follows it.
type Split = (Option<String>, Option<String>);

impl ReasoningParser {
    /// Splits a whole output into reasoning and content, call markup included; empty parts are `None`.
    pub fn split(&self, text: &str, context: &Context) -> (Option<String>, Option<String>) {
        let (reasoning, content) = (self.split)(text, context);
        (reasoning.filter(|text| !text.is_empty()), content.filter(|text| !text.is_empty()))
    }
}

static PARSERS: &[ReasoningParser] = &[
    ReasoningParser { name: "qwen3", aliases: &[], split: qwen3 },
    ReasoningParser { name: "mimo", aliases: &[], split: qwen3 },
    ReasoningParser { name: "seed_oss", aliases: &[], split: seed_oss },
    ReasoningParser { name: "step3p5", aliases: &[], split: step3p5 },
];

/// Every reasoning parser.
pub fn all_reasoning() -> &'static [ReasoningParser] {
    PARSERS
}

/// The reasoning parser called `name`.
///
/// # Errors
/// Exit 2 for unknown names.
pub fn find_reasoning(name: &str) -> Result<&'static ReasoningParser> {
    PARSERS.iter().find(|parser| parser.name == name || parser.aliases.contains(&name)).ok_or_else(|| {
        Error::usage(format!("`{name}` is no reasoning parser that prep reads"))
            .expected(PARSERS.iter().map(|parser| parser.name).collect::<Vec<_>>().join(", "))
    })
}

/// Whether the request leaves thinking on; it is unless the template is told otherwise.
fn thinks(context: &Context) -> bool {
    context.template_kwargs.get("enable_thinking").is_none_or(is_true)
}

/// Whether Python takes the value for true.
fn is_true(value: &serde_json::Value) -> bool {
    use serde_json::Value;
    match value {
        Value::Null => false,
        Value::Bool(value) => *value,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(entries) => !entries.is_empty(),
    }
}

fn both((reasoning, content): (String, String)) -> Split {
    (Some(reasoning), Some(content))
}

fn qwen3(text: &str, context: &Context) -> Split {
    if !thinks(context) {
        return (None, Some(text.to_owned()));
    }
    both(qwen_xml::qwen3_reasoning(text, context))
}

fn seed_oss(text: &str, context: &Context) -> Split {
    if !thinks(context) {
        return (None, Some(text.to_owned()));
    }
    both(qwen_xml::seed_oss_reasoning(text, context))
}

/// The template of these models has no switch, so none is heeded.
fn step3p5(text: &str, context: &Context) -> Split {
    both(qwen_xml::step3p5_reasoning(text, context))
}

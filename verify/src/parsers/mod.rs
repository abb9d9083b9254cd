//! Tool-call parsers, one file per wire grammar, faithful to the server's non-streamed answer:
//! a parser fails where the server fails. Diagnosis stands elsewhere.
//!
//! Source: vLLM 0.33 parsers.

mod engine;
mod line;
mod names;
mod python;
mod qwen_xml;
mod reasoning;
mod schema;
mod tagged_json;

use serde_json::Value;

use crate::error::Result;

pub use line::answer_line;
pub use reasoning::{ReasoningParser, all_reasoning, find_reasoning};

/// What a parser is given besides the text.
#[derive(Debug, Clone, Default)]
pub struct Context {
    /// The tools of the request, in OpenAI form. Without any the server returns no calls.
    pub tools: Vec<Value>,
    /// Tokens that the model's tokenizer flags special (deleted from engine parsers' output).
    pub special_tokens: Vec<String>,
    /// Marker set of the tokenizer where it decides the dialect (`mistral-pre-v11`, `mistral-v13`).
    pub tokenizer: Option<String>,
    /// `chat_template_kwargs` of the request.
    pub template_kwargs: serde_json::Map<String, Value>,
    /// Whether the text is what a reasoning parser left; else think markers are ordinary text.
    pub after_reasoning: bool,
}

/// One call as the server would return it.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// Function name.
    pub name: String,
    /// The argument string, which for some parsers may be no JSON.
    pub arguments: String,
}

impl ToolCall {
    /// The arguments as JSON, where the string is JSON.
    pub fn value(&self) -> Option<Value> {
        serde_json::from_str(&self.arguments).ok()
    }
}

/// What the server would answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Parsed {
    /// Text beside the calls; an empty text and `None` mean the same.
    pub content: Option<String>,
    /// Calls, in order.
    pub tool_calls: Vec<ToolCall>,
    /// Where the server itself is at fault and `prep` answers otherwise: what the server would do.
    pub server_fault: Option<String>,
}

impl Parsed {
    /// An answer without calls.
    fn plain(text: &str) -> Self {
        Parsed { content: Some(text.to_owned()).filter(|text| !text.is_empty()), ..Parsed::default() }
    }

    /// An answer with calls: content of nothing but white space disappears.
    fn called(content: &str, tool_calls: Vec<ToolCall>) -> Self {
        let content = if python::space::is_blank(content) { "" } else { content };
        Parsed { tool_calls, ..Self::plain(content) }
    }
}

/// A parser that can be asked for by name.
#[derive(Clone, Copy)]
pub struct Parser {
    /// Its name on vLLM's command line.
    pub name: &'static str,
    /// Other names for the very same parser.
    pub aliases: &'static [&'static str],
    /// Models that usually write this format.
    pub models: &'static str,
    /// Whether vLLM's native front end has it too, besides the Python one.
    pub native: bool,
    kind: Kind,
}

/// How the server treats what a parser returns.
#[derive(Clone, Copy)]
enum Kind {
    /// Its content counts even without calls, so that half-written markup disappears.
    Engine(fn(&str, &Context) -> Parsed),
    /// Without calls the text is returned untouched.
    Legacy(fn(&str, &Context) -> Option<Parsed>),
}

impl Parser {
    /// Parses a whole output of a model, as for a request with `tool_choice` auto, or none without tools.
    pub fn parse(&self, text: &str, context: &Context) -> Parsed {
        match self.kind {
            Kind::Engine(parse) => {
                let mut parsed = parse(text, context);
                if context.tools.is_empty() {
                    parsed.tool_calls.clear();
                }
                parsed
            }
            Kind::Legacy(_) if context.tools.is_empty() => Parsed::plain(text),
            Kind::Legacy(parse) => parse(text, context).unwrap_or_else(|| Parsed::plain(text)),
        }
    }
}

const fn engine(
    name: &'static str,
    aliases: &'static [&'static str],
    models: &'static str,
    parse: fn(&str, &Context) -> Parsed,
) -> Parser {
    Parser { name, aliases, models, native: names::in_native_front_end(name), kind: Kind::Engine(parse) }
}

const fn legacy(
    name: &'static str,
    aliases: &'static [&'static str],
    models: &'static str,
    parse: fn(&str, &Context) -> Option<Parsed>,
) -> Parser {
    Parser { name, aliases, models, native: names::in_native_front_end(name), kind: Kind::Legacy(parse) }
}

static PARSERS: &[Parser] = &[
    engine(
        "qwen3_coder",
        &["qwen3_xml"],
        "Qwen3-Coder, Qwen3.5, Qwen3.6, Qwen3-Next with a coder template, Nemotron 3",
        qwen_xml::qwen3_coder,
    ),
    legacy("hermes", &["qwen3_json"], "Hermes 2/3, Qwen2.5, QwQ, Qwen3 (not Coder)", tagged_json::hermes),
    engine("seed_oss", &[], "Seed-OSS", qwen_xml::seed_oss),
    engine("step3p5", &[], "Step-3.5, Step-3.7", qwen_xml::qwen3_coder),
    engine("step5", &[], "Step-5", qwen_xml::step5),
    engine("mimo", &[], "MiMo", qwen_xml::mimo),
    legacy("longcat", &[], "LongCat-Flash", tagged_json::longcat),
];

/// Every parser, in the order in which they are listed.
pub fn all() -> &'static [Parser] {
    PARSERS
}

/// The parser called `name`, an alias included.
///
/// # Errors
/// Exit 2 for unknown names, with the name that was probably meant, and for known names that `prep` does not read.
pub fn find(name: &str) -> Result<&'static Parser> {
    PARSERS
        .iter()
        .find(|parser| parser.name == name || parser.aliases.contains(&name))
        .ok_or_else(|| names::unknown(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_tools_no_calls_are_returned() {
        let none = Context::default();
        let xml = "a\n<tool_call><function=f></function></tool_call>";
        assert_eq!(find("qwen3_coder").unwrap().parse(xml, &none), Parsed::plain("a"));
        let json = "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>";
        assert_eq!(find("hermes").unwrap().parse(json, &none), Parsed::plain(json));
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> =
            all().iter().flat_map(|p| std::iter::once(&p.name).chain(p.aliases)).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}

#[cfg(test)]
mod cases;

//! Tool-call parsers, one file per wire grammar, faithful to the server's non-streamed answer:
//! a parser fails where the server fails. Diagnosis stands elsewhere.
//!
//! Source: vLLM 0.33 parsers.

use serde_json::Value;

use crate::error::{Error, Result};

/// What a parser is given besides the text.
#[derive(Debug, Clone, Default)]
pub struct Context {
    /// The tools of the request, in OpenAI form.
    pub tools: Vec<Value>,
    /// Tokens that the model's tokenizer flags special (deleted from engine parsers' output).
    pub special_tokens: Vec<String>,
    /// Marker set of the tokenizer where it decides the dialect (`mistral-pre-v11`, `mistral-v13`).
    pub tokenizer: Option<String>,
    /// `chat_template_kwargs` of the request.
    pub template_kwargs: serde_json::Map<String, Value>,
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

/// A parser that can be asked for by name.
#[derive(Clone, Copy)]
pub struct Parser {
    /// Its name on vLLM's command line.
    pub name: &'static str,
    /// Other names for the very same parser.
    pub aliases: &'static [&'static str],
    /// Models that usually write this format.
    pub models: &'static str,
    parse: fn(&str, &Context) -> Parsed,
}

impl Parser {
    /// Parses a whole output of a model.
    pub fn parse(&self, text: &str, context: &Context) -> Parsed {
        (self.parse)(text, context)
    }
}

/// Every parser, in the order in which they are listed.
pub fn all() -> &'static [Parser] {
    &[]
}

/// The parser called `name`, an alias included.
///
/// # Errors
/// Exit 2 for unknown names, with the name that was probably meant.
pub fn find(name: &str) -> Result<&'static Parser> {
    all()
        .iter()
        .find(|p| p.name == name || p.aliases.contains(&name))
        .ok_or_else(|| Error::usage(format!("`{name}` is no tool-call parser")))
}

//! How a model's texts are read: the parsers that the server would be started with.

use std::path::Path;

use serde_json::Value;

use super::format::Case;
use crate::checkpoint::json;
use crate::error::Result;
use crate::parsers::{Context, Parsed, Parser, Reasoned, ReasoningParser};

/// The parsers and what they need to know of the tokenizer.
#[derive(Clone)]
pub struct Reading {
    /// The tool-call parser.
    pub parser: &'static Parser,
    /// The reasoning parser that cuts the text first.
    pub reasoning: Option<&'static ReasoningParser>,
    /// Tokens that the tokenizer flags special.
    pub special_tokens: Vec<String>,
}

/// A text as it was read.
#[derive(Debug, Clone, Default)]
pub struct Read {
    /// What the reasoning parser cut off.
    pub reasoning: Option<String>,
    /// Content and calls.
    pub parsed: Parsed,
}

impl Reading {
    /// With `parser` alone.
    pub fn new(parser: &'static Parser) -> Self {
        Reading { parser, reasoning: None, special_tokens: Vec::new() }
    }

    /// Reads an answer of `case`.
    pub fn read(&self, case: &Case, text: &str) -> Read {
        let context = Context {
            tools: case.tools.clone(),
            special_tokens: self.special_tokens.clone(),
            template_kwargs: case.chat_template_kwargs.clone(),
            reasoned: self.reasoning.map_or(Reasoned::No, ReasoningParser::reasoned),
            ..Context::default()
        };
        match self.reasoning {
            Some(parser) => {
                let (reasoning, content) = parser.split(text, &context);
                Read { reasoning, parsed: self.parser.parse(&content.unwrap_or_default(), &context) }
            }
            None => Read { reasoning: None, parsed: self.parser.parse(text, &context) },
        }
    }
}

/// Texts of the tokens that a folder's tokenizer flags special, sorted.
///
/// # Errors
/// Exit 3 where a tokenizer file is there and cannot be read.
pub fn special_texts(dir: &Path) -> Result<Vec<String>> {
    let mut texts = Vec::new();
    let mut add = |token: &Value| {
        if token["special"] == true
            && let Some(text) = token["content"].as_str()
        {
            texts.push(text.to_string());
        }
    };
    let (config, tokenizer) = (dir.join("tokenizer_config.json"), dir.join("tokenizer.json"));
    if config.exists() {
        let value = json::read(&config)?;
        value["added_tokens_decoder"].as_object().into_iter().flat_map(|m| m.values()).for_each(&mut add);
    }
    if tokenizer.exists() {
        let value = json::parse(&json::read_text(&tokenizer, json::MAX_TOKENIZER)?, &tokenizer)?;
        value["added_tokens"].as_array().into_iter().flatten().for_each(&mut add);
    }
    texts.sort();
    texts.dedup();
    Ok(texts)
}

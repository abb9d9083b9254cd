//! How a model's texts are read: the parsers that the server would be started with.

use std::path::Path;

use serde_json::Value;

use super::format::Case;
use crate::checkpoint::json;
use crate::error::Result;
use crate::parsers::{Context, Parsed, Parser, ReasoningParser};

/// The parsers and what they need to know of the tokenizer.
#[derive(Clone)]
pub struct Reading {
    /// The tool-call parser.
    pub parser: &'static Parser,
    /// The reasoning parser that cuts the text first.
    pub reasoning: Option<&'static ReasoningParser>,
    /// Tokens that the tokenizer flags special.
    pub special_tokens: Vec<String>,
    /// Marker set of the tokenizer where it decides the dialect (see [`Context`]).
    pub tokenizer: Option<String>,
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
        Reading { parser, reasoning: None, special_tokens: Vec::new(), tokenizer: None }
    }

    /// With `parser`, and what it needs to know of the tokenizer in `dir`.
    ///
    /// # Errors
    /// As [`special_texts`].
    pub fn of_folder(dir: &Path, parser: &'static Parser) -> Result<Self> {
        let tokens = added_tokens(dir)?;
        let has = |text: &str| tokens.iter().any(|(t, _)| t == text);
        let tokenizer = match (has("[TOOL_CALLS]"), has("[ARGS]"), has("[THINK]")) {
            (true, false, _) => Some("mistral-pre-v11"),
            (true, true, true) => Some("mistral-v13"),
            _ => None,
        };
        let tokenizer = tokenizer.map(str::to_string);
        Ok(Reading { tokenizer, special_tokens: special_texts(dir)?, ..Self::new(parser) })
    }

    /// Reads an answer of `case`.
    pub fn read(&self, case: &Case, text: &str) -> Read {
        let context = Context {
            tools: case.tools.clone(),
            special_tokens: self.special_tokens.clone(),
            template_kwargs: case.chat_template_kwargs.clone(),
            tokenizer: self.tokenizer.clone(),
            reasoned: self.reasoning.map_or_else(Default::default, ReasoningParser::reasoned),
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
    let tokens = added_tokens(dir)?.into_iter();
    let mut texts: Vec<_> = tokens.filter(|(_, special)| *special).map(|(text, _)| text).collect();
    texts.sort();
    texts.dedup();
    Ok(texts)
}

/// Texts of the added tokens, and whether they are flagged special.
fn added_tokens(dir: &Path) -> Result<Vec<(String, bool)>> {
    let mut tokens = Vec::new();
    let mut add = |token: &Value| {
        if let Some(text) = token["content"].as_str() {
            tokens.push((text.to_string(), token["special"] == true));
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
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parsers;

    #[test]
    fn the_tokenizer_decides_special_tokens_and_dialect() {
        let dir = tempfile::tempdir().unwrap();
        let of = |tokens: &[(&str, bool)]| {
            let list: Vec<_> =
                tokens.iter().map(|(c, s)| serde_json::json!({"content": c, "special": s})).collect();
            let text = serde_json::json!({"added_tokens": list}).to_string();
            std::fs::write(dir.path().join("tokenizer.json"), text).unwrap();
            Reading::of_folder(dir.path(), parsers::find("mistral").unwrap()).unwrap()
        };
        let old = of(&[("[TOOL_CALLS]", true), ("<x>", false)]);
        assert_eq!(
            (old.tokenizer.as_deref(), old.special_tokens),
            (Some("mistral-pre-v11"), vec!["[TOOL_CALLS]".into()])
        );
        assert_eq!(of(&[("[TOOL_CALLS]", true), ("[ARGS]", true)]).tokenizer, None);
        assert_eq!(of(&[("<tool_call>", false)]).tokenizer, None);
    }
}

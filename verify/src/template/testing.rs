//! Renderers for tests.

use serde_json::json;

use super::{ChatTemplate, Place, Renderer, Source, tokens_of};

/// A renderer of `text` with the usual special tokens.
pub fn renderer(text: &str) -> Renderer {
    let source = Source { file: "test.jinja".into(), place: Place::Jinja, name: None };
    let tokens = tokens_of(&json!({"bos_token": "<s>", "eos_token": "</s>"}));
    Renderer::new(ChatTemplate { text: text.to_string(), source }, tokens).unwrap()
}

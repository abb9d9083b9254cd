//! Renderers for tests.

use serde_json::Map;

use super::{ChatTemplate, Place, Renderer, Source};

/// A renderer of `text` without special tokens.
pub fn renderer(text: &str) -> Renderer {
    let source = Source { file: "test.jinja".into(), place: Place::Jinja, name: None };
    Renderer::new(ChatTemplate { text: text.to_string(), source }, Map::new()).unwrap()
}

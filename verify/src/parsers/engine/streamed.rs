//! What a client puts together from the pieces of a streamed answer.
//!
//! It differs from the whole answer: content is not trimmed and holds all text beside the calls, names and some
//! arguments are sent as they come, and what has been sent is not taken back.

use serde_json::Value;

use super::Blank;
use crate::parsers::python::space;
use crate::parsers::{Context, schema};

/// Content as it arrives, a token at a time.
#[derive(Debug, Default)]
pub struct Content {
    sent: String,
    /// White space before anything else, held back.
    held: String,
}

impl Content {
    /// Takes text; `calls` tells whether a call has begun.
    pub fn text(&mut self, text: &str, calls: bool, blank: Blank) {
        if !self.sent.is_empty() {
            self.sent.push_str(text);
        } else if space::is_blank(text) {
            self.held.push_str(text);
        } else if calls && blank != Blank::Kept {
            // Tokens of white space are dropped as they come; a blank before a word is part of the word's token.
            let word = text.trim_start_matches(space::is_space);
            let start = text.len() - word.len() - usize::from(text[..text.len() - word.len()].ends_with(' '));
            self.held.clear();
            self.sent.push_str(&text[start..]);
        } else {
            self.sent.push_str(&std::mem::take(&mut self.held));
            self.sent.push_str(text);
        }
        if calls {
            self.call(blank);
        }
    }

    /// A call begins or goes on: white space held back is dropped, or sent where it is kept.
    pub fn call(&mut self, blank: Blank) {
        let held = std::mem::take(&mut self.held);
        if blank == Blank::Kept {
            self.sent.push_str(&held);
        }
    }

    /// All that has been sent at the end.
    pub fn end(self) -> String {
        self.sent + &self.held
    }
}

/// The argument string put together from what was sent at each stage and at the end.
///
/// What is sent at a stage is what later text cannot change; an end that does not go on from there is not sent.
pub fn arguments(stages: &[String], end: &str, name: &str, context: &Context) -> String {
    let properties = schema::properties(context, name);
    let mut sent = "";
    for stage in stages {
        let safe = &stage[..safe_length(stage, properties)];
        if safe.starts_with(sent) {
            sent = safe;
        }
    }
    if end.starts_with(sent) { end.to_owned() } else { sent.to_owned() }
}

/// How much of a JSON object is sure while it is open: up to its last value, and into that if it can only be a string.
fn safe_length(text: &str, properties: Option<&serde_json::Map<String, Value>>) -> usize {
    let bytes = text.as_bytes();
    let (mut depth, mut at) = (0usize, 0);
    let (mut key, mut pending, mut colon) = (None, None, None);
    while at < bytes.len() {
        match bytes[at] {
            b'"' => {
                let end = string_end(bytes, at);
                if depth == 1 {
                    pending = end.map(|end| &text[at + 1..end]);
                }
                at = end.unwrap_or(bytes.len());
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b':' if depth == 1 => (colon, key, pending) = (Some(at), pending, None),
            _ => {}
        }
        at += 1;
    }
    let Some(colon) = colon else { return 0 };
    let value = text.len() - text[colon + 1..].trim_start_matches([' ', '\t', '\n', '\r']).len();
    let is_string = |key: &str| match properties {
        Some(properties) => properties.get(key).is_some_and(schema::only_string),
        None => true,
    };
    if bytes.get(value) != Some(&b'"') || !key.is_some_and(is_string) {
        return value;
    }
    string_end(bytes, value).unwrap_or(text.len())
}

/// The closing quote of the string that opens at `start`.
fn string_end(bytes: &[u8], start: usize) -> Option<usize> {
    let mut at = start + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'"' => return Some(at),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_strings_are_sent_while_open() {
        let properties = json!({"s": {"type": "string"}, "n": {"type": "integer"}});
        let safe = |text: &str| text[..safe_length(text, properties.as_object())].to_owned();
        assert_eq!(safe("{\"s\": \"a\\\"b\"}"), "{\"s\": \"a\\\"b");
        assert_eq!(safe("{\"s\": \"a\", \"n\": 12}"), "{\"s\": \"a\", \"n\": ");
        assert_eq!(safe("{\"ghost\": \"a\"}"), "{\"ghost\": ");
        assert_eq!(safe("{\"o\": {\"x\": 1}}"), "{\"o\": ");
        assert_eq!(safe("{}"), "");
        assert_eq!(safe_length("{\"ghost\": \"ab", None), 13);
    }

    #[test]
    fn white_space_before_everything_waits() {
        let mut content = Content::default();
        content.text("\n", false, Blank::Trimmed);
        content.call(Blank::Trimmed);
        content.text("\n b ", true, Blank::Trimmed);
        assert_eq!(content.end(), " b ");
        let mut content = Content::default();
        content.text("\n", false, Blank::Kept);
        content.call(Blank::Kept);
        assert_eq!(content.end(), "\n");
    }
}

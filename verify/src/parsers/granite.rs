//! Granite 3's marker and JSON list: `<|tool_call|> [{"name": .., "arguments": {..}}, ..]`.
//!
//! Source: vLLM 0.33, `granite`.

use super::engine::{self, Arguments, Blank, Body, Delivery, Grammar, Mark, Naming, State};
use super::{Context, Parsed};

const GRANITE: Grammar = Grammar {
    markers: &[(Mark::ToolStart, "<|tool_call|>"), (Mark::ToolStart, "<tool_call>")],
    rules: &[(State::Content, Mark::ToolStart, State::Args, &[])],
    start: State::Content,
    body: Body::Array,
    arguments: Arguments::AsWritten(arguments),
    naming: Naming::Plain,
    kept_tokens: &[],
    trims_reasoning: true,
    blank: Blank::Trimmed,
    known_names_only: false,
};

/// `granite`.
pub fn granite(text: &str, context: &Context, delivery: Delivery) -> Parsed {
    engine::parse(text, context, delivery, &GRANITE)
}

/// The text of the `arguments` object of an element, `{}` without one; `None` where they are no object.
///
/// Byte for byte as the model wrote it, and of an element that is cut what there is.
fn arguments(element: &str) -> Option<String> {
    let mut depth = 0i64;
    let mut key = "";
    let mut strings = Strings::default();
    for (at, c) in element.char_indices() {
        match strings.step(at, c) {
            Step::Inside => {}
            Step::Closed(start) if depth == 1 => key = &element[start + 1..at],
            Step::Closed(_) => {}
            Step::Outside if c == ':' && depth == 1 && key == "arguments" => {
                let value = element[at + 1..].trim_start_matches([' ', '\t', '\r', '\n']);
                return match value.chars().next() {
                    None => Some("{}".to_owned()),
                    Some('{') => Some(value[..object_end(value).unwrap_or(value.len())].to_owned()),
                    Some(_) => None,
                };
            }
            Step::Outside => depth += nesting(c, "{[", "}]"),
        }
    }
    Some("{}".to_owned())
}

/// Where the object that starts the text ends.
fn object_end(text: &str) -> Option<usize> {
    let mut depth = 0;
    let mut strings = Strings::default();
    for (at, c) in text.char_indices() {
        if let Step::Outside = strings.step(at, c) {
            depth += nesting(c, "{", "}");
            if c == '}' && depth == 0 {
                return Some(at + 1);
            }
        }
    }
    None
}

fn nesting(c: char, open: &str, close: &str) -> i64 {
    i64::from(open.contains(c)) - i64::from(close.contains(c))
}

/// Tells strings from what is around them.
#[derive(Default)]
struct Strings {
    start: Option<usize>,
    escaped: bool,
}

enum Step {
    Outside,
    Inside,
    /// A string that began there ends here.
    Closed(usize),
}

impl Strings {
    fn step(&mut self, at: usize, c: char) -> Step {
        match self.start {
            None if c == '"' => self.start = Some(at),
            None => return Step::Outside,
            Some(_) if self.escaped => self.escaped = false,
            Some(_) if c == '\\' => self.escaped = true,
            Some(start) if c == '"' => {
                self.start = None;
                return Step::Closed(start);
            }
            Some(_) => {}
        }
        Step::Inside
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answer(text: &str) -> (String, Vec<(String, String)>) {
        let tools = vec![
            json!({"function": {"name": "f", "parameters": {"properties": {"n": {"type": "integer"}}}}}),
        ];
        let parsed = granite(text, &Context { tools, ..Context::default() }, Delivery::Whole);
        let calls = parsed.tool_calls.into_iter().map(|call| (call.name, call.arguments)).collect();
        (parsed.content.unwrap_or_default(), calls)
    }

    #[test]
    fn every_element_is_a_call() {
        let text =
            r#"a <|tool_call|> [{"name":"f","arguments":{"n":"1"}}, {"arguments":{"x":{}},"name":"g"}]"#;
        let (content, calls) = answer(text);
        assert_eq!(content, "a");
        assert_eq!(calls, [("f".into(), "{\"n\": 1}".into()), ("g".into(), "{\"x\":{}}".into())]);
    }

    #[test]
    fn a_cut_element_is_reported_open() {
        let (_, calls) = answer(r#"<tool_call>[{"name":"f","arguments":{"n":"#);
        assert_eq!(calls, [("f".into(), "{\"n\":".into())]);
    }

    #[test]
    fn no_list_behind_the_marker_is_content() {
        assert_eq!(answer("a<tool_call> {\"name\":\"f\"}").0, "a{\"name\":\"f\"}");
    }

    #[test]
    fn missing_arguments_are_empty() {
        assert_eq!(answer(r#"<tool_call>[{"name":"f"}]"#).1, [("f".into(), "{}".into())]);
    }
}

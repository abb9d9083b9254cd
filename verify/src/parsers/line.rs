//! One line of `prep parse`: a model's output in, the server's answer out, both as JSON.

use serde::Deserialize;
use serde_json::Value;

use super::python::{Json, json};
use super::{Context, Parsed, Parser, Reasoned, ReasoningParser, find_reasoning};
use crate::error::{Error, Result};

/// The fields of a line that count; others are ignored.
#[derive(Deserialize)]
struct Line {
    text: String,
    #[serde(default)]
    tools: Option<Vec<Value>>,
    #[serde(default)]
    special_tokens: Option<Vec<String>>,
    #[serde(default)]
    tokenizer: Option<String>,
    #[serde(default)]
    chat_template_kwargs: Option<serde_json::Map<String, Value>>,
    #[serde(default)]
    reasoning_parser: Option<String>,
}

/// The server's answer to one JSONL line, as one line of JSON without its line break:
/// `{"content", "reasoning", "tool_calls": [{"name", "arguments"}]}`.
///
/// `reasoning` is there only with a reasoning parser, the line's own or else the given one. Arguments whose string
/// is no JSON stand under `arguments_text` instead; where the server itself is at fault, `server_fault` tells.
///
/// # Errors
/// Exit 3 for a line that is no JSON object with a string `text`; exit 2 for an unknown reasoning parser.
pub fn answer_line(line: &str, parser: &Parser, reasoning: Option<&ReasoningParser>) -> Result<String> {
    answer(line, reasoning, |text, context| Ok(parser.parse(text, context)))
}

/// As [`answer_line`], for what a client puts together from a streamed answer.
///
/// # Errors
/// As [`answer_line`], and exit 2 for parsers whose streaming cannot be told.
pub fn stream_line(line: &str, parser: &Parser, reasoning: Option<&ReasoningParser>) -> Result<String> {
    answer(line, reasoning, |text, context| {
        parser.stream(text, context).ok_or_else(|| {
            Error::usage(format!("what `{}` streams cannot be told from the text", parser.name))
                .found("a parser whose deltas depend on where tokens begin and end")
                .hint("leave streaming out, or ask the running server")
        })
    })
}

fn answer(
    line: &str,
    reasoning: Option<&ReasoningParser>,
    parse: impl Fn(&str, &Context) -> Result<Parsed>,
) -> Result<String> {
    let line: Line = serde_json::from_str(line).map_err(|error| {
        Error::input("line is no request")
            .found(error.to_string())
            .expected("a JSON object with `text`, and `tools` as an array")
    })?;
    let reasoning = match &line.reasoning_parser {
        Some(name) => Some(find_reasoning(name)?),
        None => reasoning,
    };
    let context = Context {
        tools: line.tools.unwrap_or_default(),
        special_tokens: line.special_tokens.unwrap_or_default(),
        tokenizer: line.tokenizer,
        template_kwargs: line.chat_template_kwargs.unwrap_or_default(),
        reasoned: reasoning.map_or(Reasoned::No, ReasoningParser::reasoned),
    };
    let Some(reasoning) = reasoning else { return Ok(render(None, &parse(&line.text, &context)?)) };
    let (thought, content) = reasoning.split(&line.text, &context);
    Ok(render(Some(thought), &parse(content.as_deref().unwrap_or_default(), &context)?))
}

/// The answer as JSON text; `reasoning` is written if there is a reasoning parser.
fn render(reasoning: Option<Option<String>>, parsed: &Parsed) -> String {
    let text = |text: Option<&str>| text.map_or("null".to_owned(), |text| Json::Str(text.to_owned()).dump());
    let mut out = format!("{{\"content\": {}", text(parsed.content.as_deref()));
    if let Some(reasoning) = reasoning {
        out += &format!(", \"reasoning\": {}", text(reasoning.as_deref()));
    }
    out += ", \"tool_calls\": [";
    for (at, call) in parsed.tool_calls.iter().enumerate() {
        out += if at == 0 { "" } else { ", " };
        let arguments = match json::standard(&call.arguments) {
            Some(value) => format!("\"arguments\": {}", value.dump()),
            None => format!("\"arguments_text\": {}", text(Some(&call.arguments))),
        };
        out += &format!("{{\"name\": {}, {arguments}}}", text(Some(&call.name)));
    }
    out += "]";
    if let Some(fault) = &parsed.server_fault {
        out += &format!(", \"server_fault\": {}", text(Some(fault)));
    }
    out + "}"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parsers::find;

    const TOOLS: &str = r#""tools": [{"type": "function", "function": {"name": "f"}}]"#;

    fn answered(parser: &str, fields: &str) -> String {
        answer_line(&format!("{{{fields}, {TOOLS}}}"), find(parser).unwrap(), None).unwrap()
    }

    #[test]
    fn answer_is_one_line_of_json() {
        let text = r#""id": 1, "text": "ä\n<tool_call>{\"name\": \"f\", \"arguments\": {\"n\":12345678901234567890123}}""#;
        assert_eq!(
            answered("hermes", text),
            r#"{"content": "ä\n", "tool_calls": [{"name": "f", "arguments": {"n": 12345678901234567890123}}]}"#
        );
    }

    #[test]
    fn arguments_that_are_no_json_stand_as_text() {
        let text = r#""text": "<tool_call>{\"name\": \"f\", \"arguments\": {\"n\":NaN}}""#;
        assert_eq!(
            answered("hermes", text),
            r#"{"content": null, "tool_calls": [{"name": "f", "arguments_text": "{\"n\": NaN}"}]}"#
        );
    }

    #[test]
    fn reasoning_parser_of_the_line_comes_first() {
        let text = r#""text": "a</think>b", "reasoning_parser": "qwen3""#;
        assert_eq!(answered("qwen3_coder", text), r#"{"content": "b", "reasoning": "a", "tool_calls": []}"#);
        let off = format!("{text}, \"chat_template_kwargs\": {{\"enable_thinking\": false}}");
        assert_eq!(
            answered("qwen3_coder", &off),
            r#"{"content": "ab", "reasoning": null, "tool_calls": []}"#
        );
    }

    #[test]
    fn broken_lines_are_refused() {
        for line in ["", "[]", "{}", "{\"text\": 1}", "{\"text\": \"\", \"tools\": 1}"] {
            let error = answer_line(line, find("hermes").unwrap(), None).unwrap_err();
            assert_eq!(error.class(), crate::Class::Input, "{line}");
        }
        let unknown = r#"{"text": "", "reasoning_parser": "no"}"#;
        assert_eq!(
            answer_line(unknown, find("hermes").unwrap(), None).unwrap_err().class(),
            crate::Class::Usage
        );
    }
}

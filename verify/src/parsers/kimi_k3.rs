//! Kimi K3's channels: `<|open|>tools<|sep|>` with calls and arguments that tell their types.
//!
//! Source: vLLM 0.33, `kimi_k3`. Its composition in the server returns the parser's content with or without calls.

use super::python::{Dict, Json, json};
use super::{Context, Parsed, ToolCall};

const OPEN: &str = "<|open|>";
const CLOSE: &str = "<|close|>";
const SEPARATOR: &str = "<|sep|>";

/// `kimi_k3`.
pub fn kimi_k3(text: &str, _: &Context) -> Parsed {
    let tools = tag(text, 0, OPEN, "tools");
    let before = tools.map_or(text, |tools| &text[..tools.start]);
    let content = content(text, before);
    let section = tools.map_or("", |tools| {
        let end = tag(text, tools.end, CLOSE, "tools").map_or(text.len(), |close| close.start);
        &text[tools.end..end]
    });
    let calls: Vec<_> =
        blocks(section, "call").into_iter().filter_map(|(attributes, body)| call(attributes, body)).collect();
    if calls.is_empty() { Parsed::plain(&content) } else { Parsed::called(&content, calls) }
}

fn call(attributes: &str, body: &str) -> Option<ToolCall> {
    let name = attribute(attributes, "tool").filter(|name| !name.is_empty())?;
    let mut dict = Dict::default();
    for (attributes, value) in blocks(body, "argument") {
        let key = attribute(attributes, "key").unwrap_or_default();
        let text = || Json::Str(value.to_owned());
        let value = match attribute(attributes, "type").as_deref() {
            None | Some("string") => text(),
            Some(_) => json::loads(value).unwrap_or_else(text),
        };
        dict.insert(key, value);
    }
    Some(ToolCall { name, arguments: Json::Dict(dict).dump() })
}

/// Where a tag stands.
#[derive(Clone, Copy)]
struct Place {
    start: usize,
    end: usize,
}

/// The next `MARK word <|sep|>`, white space allowed around the word.
fn tag(text: &str, from: usize, mark: &str, word: &str) -> Option<Place> {
    text[from..].match_indices(mark).map(|(at, _)| from + at).find_map(|start| {
        let rest = text[start + mark.len()..].trim_start().strip_prefix(word)?;
        let rest = rest.trim_start().strip_prefix(SEPARATOR)?;
        Some(Place { start, end: text.len() - rest.len() })
    })
}

/// Attributes and bodies of every block `<|open|>word attributes<|sep|>body<|close|>word<|sep|>`.
fn blocks<'a>(text: &'a str, word: &str) -> Vec<(&'a str, &'a str)> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(start) = text[at..].find(OPEN).map(|start| at + start + OPEN.len()) {
        at = start;
        let Some(rest) = text[start..].trim_start().strip_prefix(word) else { continue };
        let attributes = rest.trim_start();
        if attributes.len() == rest.len() {
            continue;
        }
        let Some((attributes, body)) = attributes.split_once(SEPARATOR) else { break };
        let body_start = text.len() - body.len();
        // Without an end for this block there is none for any later one.
        let Some(close) = tag(text, body_start, CLOSE, word) else { break };
        found.push((attributes, &text[body_start..close.start]));
        at = close.end;
    }
    found
}

/// The last value given to `key`, `&quot;` and `&amp;` resolved in this order.
fn attribute(attributes: &str, key: &str) -> Option<String> {
    let mut value = None;
    let mut rest = attributes;
    while let Some((before, after)) = rest.split_once("=\"") {
        let name = before.trim_end_matches(|c: char| c.is_alphanumeric() || c == '_');
        let name = &before[name.len()..];
        if name.is_empty() {
            rest = after;
            continue;
        }
        let Some((inside, after)) = after.split_once('"') else { break };
        if name == key {
            value = Some(inside.replace("&quot;", "\"").replace("&amp;", "&"));
        }
        rest = after;
    }
    value
}

/// The response channel, else the text before the tools without its closing tags.
fn content(text: &str, before: &str) -> String {
    if let Some(open) = tag(text, 0, OPEN, "response")
        && let Some(close) = tag(text, open.end, CLOSE, "response")
    {
        return text[open.end..close.start].to_owned();
    }
    let inner = match tag(before, 0, OPEN, "response") {
        Some(open) => {
            let close = tag(before, open.end, CLOSE, "response");
            before[open.end..close.map_or(before.len(), |close| close.start)].to_owned()
        }
        None => without(before, "response"),
    };
    without(&inner, "message")
}

fn without(text: &str, word: &str) -> String {
    let mut out = String::new();
    let mut at = 0;
    while let Some(close) = tag(text, at, CLOSE, word) {
        out.push_str(&text[at..close.start]);
        at = close.end;
    }
    out + &text[at..]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(text: &str) -> (String, Vec<(String, String)>) {
        let text = text.replace('[', OPEN).replace(']', SEPARATOR).replace('~', CLOSE);
        let parsed = kimi_k3(&text, &Context::default());
        let calls = parsed.tool_calls.into_iter().map(|call| (call.name, call.arguments)).collect();
        (parsed.content.unwrap_or_default(), calls)
    }

    #[test]
    fn arguments_are_typed_by_their_tags() {
        let text = "[response]hi~response][tools][call tool=\"a&quot;b\" index=\"1\"][argument key=\"n\" type=\"number\"]1~argument]\
                    [argument key=\"s\" type=\"string\"] 1 ~argument][argument key=\"o\" type=\"object\"]{~argument]~call]~tools]";
        assert_eq!(
            answer(text),
            ("hi".into(), vec![("a\"b".into(), "{\"n\": 1, \"s\": \" 1 \", \"o\": \"{\"}".into())])
        );
    }

    #[test]
    fn closing_tags_vanish_from_content() {
        assert_eq!(answer("hi~response]~message]").0, "hi");
        assert_eq!(answer("hi~ response ][ tools ]x").0, "hi");
    }

    #[test]
    fn a_cut_call_is_not_reported() {
        assert_eq!(
            answer("a[tools][call tool=\"f\"][argument key=\"n\" type=\"number\"]1"),
            ("a".into(), vec![])
        );
    }
}

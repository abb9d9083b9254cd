//! Muse's messages to recipients, with `<atem:invoke>` calls in those to a tool.
//!
//! Source: vLLM 0.33, `muse` (also `musespark1x`) and `muse_glimmer`.

use std::ops::Range;

use super::python::{Dict, Json, json};
use super::scan::Next;
use super::{Context, Parsed, ToolCall, schema};

const START: &str = "<|start|>";
const MESSAGE: &str = "<|message|>";

/// What the two parsers do differently.
struct Recipients {
    /// Messages without recipient are reasoning, or else content.
    bare_is_content: bool,
    content: &'static [&'static str],
    no_tool: &'static [&'static str],
    /// Whether parameters of type string stay as they are written.
    keeps_strings: bool,
}

const MUSE: Recipients = Recipients {
    bare_is_content: false,
    content: &["user", "commentary"],
    no_tool: &["self", "user", "commentary", "developer"],
    keeps_strings: true,
};

const MUSE_GLIMMER: Recipients = Recipients {
    bare_is_content: true,
    content: &["user"],
    no_tool: &["self", "user"],
    keeps_strings: false,
};

/// `muse`, also called `musespark1x`.
pub fn muse(text: &str, context: &Context) -> Option<Parsed> {
    parse(text, context, &MUSE)
}

/// `muse_glimmer`.
pub fn muse_glimmer(text: &str, context: &Context) -> Option<Parsed> {
    parse(text, context, &MUSE_GLIMMER)
}

fn parse(text: &str, context: &Context, recipients: &Recipients) -> Option<Parsed> {
    let messages = messages(text);
    let tools: Vec<&str> = messages
        .iter()
        .filter(|message| message.recipient.is_some_and(|name| !recipients.no_tool.contains(&name)))
        .map(|message| message.body)
        .collect();
    let scoped = match (tools.is_empty(), messages.is_empty()) {
        (false, _) => tools.join("\n"),
        // Without any header the framing was lost on the way, so that all of the text counts.
        (true, true) => text.to_owned(),
        (true, false) => String::new(),
    };
    let calls: Vec<_> = invokes(&scoped).filter_map(|invoke| call(invoke, context, recipients)).collect();
    let content: String = messages
        .iter()
        .filter(|message| {
            message.recipient.map_or(recipients.bare_is_content, |name| recipients.content.contains(&name))
        })
        .map(|message| message.body)
        .collect();
    let content = if messages.is_empty() { text } else { &content };
    (!calls.is_empty()).then(|| Parsed::called(content, calls))
}

struct Message<'a> {
    recipient: Option<&'a str>,
    body: &'a str,
}

/// A message ends at its end token, at the next header or at a start token.
fn messages(text: &str) -> Vec<Message<'_>> {
    let mut ends = [Next::new(text, "<|eom|>"), Next::new(text, "<|eot|>")];
    let mut found = Vec::new();
    let mut next = header(text, 0);
    while let Some((place, recipient)) = next {
        let start = place.end;
        let end = ends.iter_mut().filter_map(|end| end.from(start)).min();
        let following = header(text, start);
        let limit = end.unwrap_or(text.len());
        let cut = following.as_ref().map(|(place, _)| place.start).filter(|at| *at < limit);
        let body = &text[start..cut.unwrap_or(limit)];
        found.push(Message { recipient, body: body.split(START).next().unwrap_or(body) });
        next = following;
    }
    found
}

/// The next header: `<|start|>assistant`, blanks and ` to=NAME`, all of them optional, and `<|message|>`.
fn header(text: &str, from: usize) -> Option<(Range<usize>, Option<&str>)> {
    let mark = from + text[from..].find(MESSAGE)?;
    let before = &text[from..mark];
    let word = before.trim_end_matches(|c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'));
    let name = &before[word.len()..];
    let addressed = word.strip_suffix("to=").filter(|_| !name.is_empty());
    let (rest, recipient) = addressed.map_or((before, None), |rest| (rest, Some(name)));
    let rest = rest.trim_end_matches(|c: char| c.is_whitespace() && c != '\n');
    let start = rest.strip_suffix("assistant").map(str::trim_end).and_then(|rest| rest.strip_suffix(START));
    Some((from + start.unwrap_or(rest).len()..mark + MESSAGE.len(), recipient))
}

/// Every `<atem:invoke ..>..</atem:invoke>`.
fn invokes(text: &str) -> impl Iterator<Item = &str> {
    const OPEN: &str = "<atem:invoke";
    const CLOSE: &str = "</atem:invoke>";
    let mut at = 0;
    std::iter::from_fn(move || {
        loop {
            let start = at + text[at..].find(OPEN)?;
            at = start + OPEN.len();
            if text[at..].starts_with(is_word) {
                continue;
            }
            let end = at + text[at..].find(CLOSE)? + CLOSE.len();
            at = end;
            return Some(&text[start..end]);
        }
    })
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn call(invoke: &str, context: &Context, recipients: &Recipients) -> Option<ToolCall> {
    let (name, _) = named_tag(invoke, "<atem:invoke")?;
    let name = registered(name, context);
    let mut dict = Dict::default();
    let mut rest = invoke;
    while let Some((key, value)) = named_tag(rest, "<atem:parameter") {
        let value = value.split_once('>').and_then(|(_, value)| value.split_once("</atem:parameter>"));
        let Some((text, after)) = value else { break };
        let plain = || Json::Str(text.to_owned());
        let is_string = recipients.keeps_strings && schema::plain_type(context, name, key) == Some("string");
        let value = if is_string { plain() } else { json::loads(text).unwrap_or_else(plain) };
        dict.insert(key.to_owned(), value);
        rest = after;
    }
    Some(ToolCall { name: name.to_owned(), arguments: Json::Dict(dict).dump() })
}

/// The name in the first tag that has a `name="..."` before its end, and what follows the name.
fn named_tag<'a>(text: &'a str, open: &str) -> Option<(&'a str, &'a str)> {
    let mut rest = text;
    loop {
        rest = &rest[rest.find(open)? + open.len()..];
        if rest.starts_with(is_word) {
            continue;
        }
        let inside = &rest[..rest.find('>').unwrap_or(rest.len())];
        for (at, mark) in inside.match_indices("name=\"") {
            let named = rest[at + mark.len()..].split_once('"').filter(|(name, _)| !name.is_empty());
            if let Some(named) = named.filter(|_| !inside[..at].ends_with(is_word)) {
                return Some(named);
            }
        }
        // What is inside of this tag has no name for another one either.
        rest = &rest[inside.len()..];
    }
}

/// `f.f` stands for a tool offered as `f`.
fn registered<'a>(name: &'a str, context: &Context) -> &'a str {
    if context.tools.is_empty() || schema::offers(context, name) {
        return name;
    }
    name.split_once('.')
        .filter(|(head, tail)| head == tail && schema::offers(context, head))
        .map_or(name, |(head, _)| head)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answer(text: &str) -> Option<(String, Vec<(String, String)>)> {
        let tools =
            vec![json!({"function": {"name": "f", "parameters": {"properties": {"s": {"type": "string"}}}}})];
        let parsed = muse(text, &Context { tools, ..Context::default() })?;
        let calls = parsed.tool_calls.into_iter().map(|call| (call.name, call.arguments)).collect();
        Some((parsed.content.unwrap_or_default(), calls))
    }

    const CALL: &str = "<atem:function_calls>\n<atem:invoke name=\"f.f\">\n<atem:parameter name=\"s\">1</atem:parameter>\
                        <atem:parameter name=\"n\">1</atem:parameter></atem:invoke>\n</atem:function_calls>";

    #[test]
    fn only_messages_to_tools_hold_calls() {
        let text = format!(
            " to=self<|message|>{CALL}<|eom|><|start|>assistant to=user<|message|>hi<|eom|><|start|>assistant to=f.f<|message|>{CALL}<|eom|>"
        );
        assert_eq!(answer(&text), Some(("hi".into(), vec![("f".into(), "{\"s\": \"1\", \"n\": 1}".into())])));
        assert_eq!(answer(&format!(" to=user<|message|>{CALL}<|eot|>")), None);
    }

    #[test]
    fn without_headers_all_of_the_text_counts() {
        assert_eq!(answer(CALL).unwrap().1.len(), 1);
    }

    #[test]
    fn a_missing_end_is_made_up_by_the_next_header() {
        let text = format!(" to=self<|message|>x<|start|>assistant to=f<|message|>{CALL}");
        assert_eq!(answer(&text).unwrap().1.len(), 1);
    }
}

//! Gemma's call syntax: `call:NAME{key:value,..}` between tokens.
//!
//! Source: vLLM 0.33, `gemma4` and `functiongemma`.

use std::cell::RefCell;

use super::engine::{self, Arguments, Blank, Body, Delivery, Event, Grammar, Mark, Naming, Rule, State};
use super::python::{Dict, Json, json, space};
use super::{Context, Parsed, ToolCall};

const RULES: &[Rule] = &[
    (State::Content, Mark::ThinkStart, State::Reasoning, &[]),
    (State::Reasoning, Mark::ThinkStart, State::Reasoning, &[]),
    (State::Reasoning, Mark::ThinkEnd, State::Content, &[Event::ReasoningEnd]),
    (State::Content, Mark::ThinkEnd, State::Content, &[]),
    (State::Reasoning, Mark::ToolStart, State::Preamble, &[Event::ReasoningEnd, Event::CallStart]),
    (State::Content, Mark::ToolStart, State::Preamble, &[Event::ReasoningEnd, Event::CallStart]),
    (State::Content, Mark::ToolEnd, State::Content, &[]),
    (State::Preamble, Mark::ToolEnd, State::Content, &[Event::CallEnd]),
    (State::Preamble, Mark::CallStart, State::Name, &[]),
    (State::Name, Mark::NameEnd, State::Args, &[]),
    (State::Name, Mark::ToolEnd, State::Content, &[Event::CallEnd]),
    (State::Args, Mark::ToolEnd, State::Content, &[Event::CallEnd]),
];

const CHANNEL_START: &str = "<|channel>";
const CHANNEL_END: &str = "<channel|>";
const QUOTE: &str = "<|\"|>";
const THOUGHT: &str = "thought\n";

const GEMMA4: Grammar = Grammar {
    markers: &[
        (Mark::ThinkStart, CHANNEL_START),
        (Mark::ThinkEnd, CHANNEL_END),
        (Mark::ToolStart, "<|tool_call>"),
        (Mark::ToolEnd, "<tool_call|>"),
        (Mark::CallStart, "call:"),
        (Mark::CallStart, ":"),
        (Mark::NameEnd, "{"),
        (Mark::NameEnd, "("),
    ],
    rules: RULES,
    start: State::Content,
    body: Body::Single,
    arguments: Arguments::Whole(|body, _, _| Some(arguments(body))),
    naming: Naming::Plain,
    kept_tokens: &[QUOTE],
    trims_reasoning: true,
    blank: Blank::Trimmed,
    known_names_only: false,
};

/// `gemma4`.
pub fn gemma4(text: &str, context: &Context, delivery: Delivery) -> Parsed {
    match delivery {
        Delivery::Whole => engine::parse(&with_channel(text), context, delivery, &GEMMA4),
        // Of a streamed text only the first token is looked at.
        Delivery::Streamed if text.starts_with(CHANNEL_END) || first_word(text) == THOUGHT.trim_end() => {
            engine::parse(&format!("{CHANNEL_START}{text}"), context, delivery, &GEMMA4)
        }
        Delivery::Streamed => engine::parse(text, context, delivery, &GEMMA4),
    }
}

/// Reasoning as `gemma4` cuts it off: the heading `thought` is no part of it.
pub fn gemma4_reasoning(text: &str, context: &Context) -> (String, String) {
    let (reasoning, content) = engine::split_reasoning(&with_channel(text), context, &GEMMA4);
    let reasoning = match reasoning.strip_prefix(THOUGHT) {
        Some(rest) => rest.to_owned(),
        None if reasoning == THOUGHT.trim_end() => String::new(),
        None => reasoning,
    };
    (reasoning, content)
}

fn first_word(text: &str) -> &str {
    &text[..text.find(|c: char| !is_word(c)).unwrap_or(text.len())]
}

/// A text that ends a channel or starts with its heading, but does not open it, is read as if it did.
fn with_channel(text: &str) -> String {
    let misses = text.contains(CHANNEL_END) || text.starts_with(THOUGHT) || text == THOUGHT.trim_end();
    if misses && !text.contains(CHANNEL_START) { format!("{CHANNEL_START}{text}") } else { text.to_owned() }
}

/// The fields of a body as JSON text; the brace that closes the call is no part of them.
fn arguments(body: &str) -> String {
    let body = space::strip(body);
    let count = |bracket| body.bytes().filter(|byte| *byte == bracket).count();
    let body = match body.strip_suffix('}') {
        Some(body) => body,
        None if count(b'(') < count(b')') => body.strip_suffix(')').unwrap_or(body),
        None => body,
    };
    Json::Dict(
        Reader { text: body, brackets: &RefCell::new(vec![0; body.len()]), at: 0, end: body.len(), depth: 0 }
            .fields(Ending::Text),
    )
    .dump()
}

/// What a list or an object ends with.
#[derive(Clone, Copy, PartialEq)]
enum Ending {
    /// The end of the text, as the outermost fields do.
    Text,
    /// Its bracket.
    Bracket,
    /// Nothing: it is cut, so that a bare value at its end may be half a value.
    Cut,
}

/// Reads fields between `at` and `end` of a body.
struct Reader<'a> {
    text: &'a str,
    /// For opening brackets that have been looked at, where they are closed, or [`UNCLOSED`]; 0 for all else. So nesting
    /// does not read them again.
    brackets: &'a RefCell<Vec<usize>>,
    at: usize,
    end: usize,
    depth: usize,
}

/// Mark of a bracket that nothing closes.
const UNCLOSED: usize = usize::MAX;

/// Nesting that is read at all; bounds the stack.
const MAX_DEPTH: usize = 500;

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..self.end]
    }

    fn skip(&mut self, blanks: &[char]) {
        self.at = self.end - self.rest().trim_start_matches(blanks).len();
    }

    fn fields(&mut self, ending: Ending) -> Dict {
        let mut dict = Dict::default();
        loop {
            self.skip(&[' ', ',', '\n', '\t']);
            let Some(colon) = self.rest().find(':') else { return dict };
            let key = space::strip(&self.rest()[..colon]);
            let key = unquoted(key).to_owned();
            self.at += colon + 1;
            self.skip(&[' ', '\n', '\t']);
            if self.rest().is_empty() {
                if ending != Ending::Cut {
                    dict.insert(key, Json::Str(String::new()));
                }
                return dict;
            }
            match self.value(&[',', '}', ']'], ending) {
                Some(value) => dict.insert(key, value),
                None => return dict,
            }
        }
    }

    fn items(&mut self, ending: Ending) -> Vec<Json> {
        let mut items = Vec::new();
        loop {
            self.skip(&[' ', ',', '\n', '\t']);
            if self.rest().is_empty() {
                return items;
            }
            match self.value(&[',', ']'], ending) {
                Some(value) => items.push(value),
                None => return items,
            }
        }
    }

    /// A quoted string, an object, a list, or text up to one of `ends`; `None` where reading cannot go on.
    fn value(&mut self, ends: &[char], ending: Ending) -> Option<Json> {
        let rest = self.rest();
        if let Some(string) = rest.strip_prefix(QUOTE) {
            let length = string.find(QUOTE);
            self.at += QUOTE.len() + length.map_or(string.len(), |length| length + QUOTE.len());
            return Some(Json::Str(string[..length.unwrap_or(string.len())].to_owned()));
        }
        match rest.chars().next()? {
            '{' => self.nested().map(|(mut inner, ending)| Json::Dict(inner.fields(ending))),
            '[' => self.nested().map(|(mut inner, ending)| Json::List(inner.items(ending))),
            _ => self.bare(ends, ending),
        }
    }

    fn bare(&mut self, ends: &[char], ending: Ending) -> Option<Json> {
        let rest = self.rest();
        let length = rest.find(ends);
        let value = &rest[..length.unwrap_or(rest.len())];
        if value.is_empty()
            || (ending == Ending::Cut && (length.is_none() || space::strip(value).ends_with('.')))
        {
            return None;
        }
        self.at += value.len();
        Some(Json::Str(space::strip(value).to_owned()))
    }

    /// A reader for what stands between the bracket at hand and its end.
    fn nested(&mut self) -> Option<(Reader<'a>, Ending)> {
        if self.depth >= MAX_DEPTH {
            return None;
        }
        let start = self.at + 1;
        let closing = self.closing(self.at).filter(|closing| *closing < self.end);
        self.at = closing.map_or(self.end, |closing| closing + 1);
        let ending = if closing.is_some() { Ending::Bracket } else { Ending::Cut };
        let inner = Reader { at: start, end: closing.unwrap_or(self.end), depth: self.depth + 1, ..*self };
        Some((inner, ending))
    }

    /// Where the bracket that opens at `start` is closed; brackets of the other kind and in strings do not count.
    fn closing(&self, start: usize) -> Option<usize> {
        let mut known = self.brackets.borrow_mut();
        if known[start] > 0 {
            return Some(known[start]).filter(|closing| *closing < UNCLOSED);
        }
        let bytes = self.text.as_bytes();
        let (open, close) = if bytes[start] == b'{' { (b'{', b'}') } else { (b'[', b']') };
        let mut opened = vec![start];
        let mut at = start + 1;
        while at < bytes.len() {
            if bytes[at] == QUOTE.as_bytes()[0] && self.text[at..].starts_with(QUOTE) {
                let string = at + QUOTE.len();
                at = self.text[string..]
                    .find(QUOTE)
                    .map_or(bytes.len(), |length| string + length + QUOTE.len());
                continue;
            }
            if bytes[at] == open {
                opened.push(at);
            } else if bytes[at] == close {
                if let Some(opening) = opened.pop() {
                    known[opening] = at;
                }
                if opened.is_empty() {
                    break;
                }
            }
            at += 1;
        }
        for opening in opened {
            known[opening] = UNCLOSED;
        }
        Some(known[start]).filter(|closing| *closing < UNCLOSED)
    }
}

/// A key without the quotes around it; one quote alone is both.
fn unquoted(key: &str) -> &str {
    let inside = key.strip_prefix(QUOTE).and_then(|key| key.strip_suffix(QUOTE));
    inside.unwrap_or(if key == QUOTE { "" } else { key })
}

/// `functiongemma`: values between `<escape>` are JSON or text; a call that is cut still counts.
pub fn functiongemma(text: &str, _: &Context) -> Option<Parsed> {
    const START: &str = "<start_function_call>";
    const END: &str = "}<end_function_call>";
    let content = &text[..text.find(START)?];
    let mut calls = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find(START) {
        rest = &rest[start + START.len()..];
        let Some((name, body)) = rest.strip_prefix("call:").and_then(word) else { continue };
        let Some(body) = body.strip_prefix('{').filter(|_| !name.is_empty()) else { continue };
        let (body, after) = body.split_once(END).unwrap_or((body, ""));
        calls.push(ToolCall { name: name.to_owned(), arguments: Json::Dict(escaped_fields(body)).dump() });
        rest = after;
    }
    (!calls.is_empty()).then(|| Parsed::called(space::strip(content), calls))
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn word(text: &str) -> Option<(&str, &str)> {
    Some(text.split_at(text.find(|c| !is_word(c)).unwrap_or(text.len())))
}

/// Every `key:<escape>value<escape>`.
fn escaped_fields(body: &str) -> Dict {
    const ESCAPE: &str = "<escape>";
    let mut dict = Dict::default();
    let mut rest = body;
    while let Some((before, value)) = rest.split_once(":<escape>") {
        let key = &before[before.trim_end_matches(is_word).len()..];
        if key.is_empty() {
            rest = value;
            continue;
        }
        let Some((value, after)) = value.split_once(ESCAPE) else { break };
        dict.insert(key.to_owned(), json::loads(value).unwrap_or_else(|| Json::Str(value.to_owned())));
        rest = after;
    }
    dict
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answer(text: &str) -> (String, Vec<(String, String)>) {
        let tools = vec![json!({"function": {"name": "f", "parameters": {"properties": {
            "n": {"type": "integer"}, "o": {"properties": {"b": {"type": "boolean"}}}, "l": {"items": {"type": "integer"}}}}}})];
        let parsed =
            gemma4(&text.replace('"', QUOTE), &Context { tools, ..Context::default() }, Delivery::Whole);
        let calls = parsed.tool_calls.into_iter().map(|call| (call.name, call.arguments)).collect();
        (parsed.content.unwrap_or_default(), calls)
    }

    fn arguments_of(body: &str) -> String {
        answer(&format!("<|tool_call>call:f{{{body}}}<tool_call|>")).1[0].1.clone()
    }

    #[test]
    fn bare_values_are_converted_and_quoted_ones_raw() {
        assert_eq!(
            arguments_of("n:3,s:\"a,{b\",o:{b:true},l:[1, 2]"),
            r#"{"n": 3, "s": "a,{b", "o": {"b": true}, "l": [1, 2]}"#
        );
        assert_eq!(arguments_of("\"k\":x y ,e:"), r#"{"k": "x y", "e": ""}"#);
    }

    #[test]
    fn cut_values_of_nested_objects_are_dropped() {
        assert_eq!(answer("a <|tool_call>call:f{o:{b:tr").1[0].1, r#"{"o": {}}"#);
        assert_eq!(answer("a <|tool_call>call:f{s:\"ab").1[0].1, r#"{"s": "ab"}"#);
    }

    #[test]
    fn openers_may_miss_their_word_or_use_parentheses() {
        assert_eq!(answer("<|tool_call>:f(n:1)<tool_call|>").1[0].1, r#"{"n": 1}"#);
        assert_eq!(answer("a<tool_call|>b").0, "ab");
    }

    #[test]
    fn functiongemma_reads_escaped_values() {
        let text = " a <start_function_call>call:f{n:<escape>1<escape>,s:<escape>x<escape>}<end_function_call>\
                    <start_function_call>call:g{";
        let parsed = functiongemma(text, &Context::default()).unwrap();
        assert_eq!(parsed.content.as_deref(), Some("a"));
        assert_eq!(parsed.tool_calls[0].arguments, r#"{"n": 1, "s": "x"}"#);
        assert_eq!(parsed.tool_calls[1].name, "g");
        assert_eq!(functiongemma("<start_function_call>call f", &Context::default()), None);
    }
}

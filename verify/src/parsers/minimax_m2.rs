//! MiniMax M2's `<invoke name="NAME"><parameter name="K">V</parameter></invoke>`.
//!
//! Source: vLLM 0.33, `minimax_m2`.

use super::engine::{
    self, Arguments, Blank, Body, Delivery, Event, Form, Grammar, Mark, Naming, Parameter, Rule, State,
};
use super::python::{Json, space};
use super::{Context, Parsed};

const RULES: &[Rule] = &[
    (State::Reasoning, Mark::ThinkStart, State::Reasoning, &[]),
    (State::Reasoning, Mark::ThinkEnd, State::Content, &[Event::ReasoningEnd]),
    (State::Content, Mark::ThinkEnd, State::Content, &[]),
    (State::Reasoning, Mark::ToolStart, State::Preamble, &[Event::ReasoningEnd]),
    (State::Content, Mark::ToolStart, State::Preamble, &[]),
    (State::Preamble, Mark::ToolEnd, State::Content, &[]),
    (State::Between, Mark::ToolEnd, State::Content, &[]),
    (State::Content, Mark::ToolEnd, State::Content, &[]),
    (State::Content, Mark::CallStart, State::Name, &[Event::CallStart]),
    (State::Preamble, Mark::CallStart, State::Name, &[Event::CallStart]),
    (State::Between, Mark::CallStart, State::Name, &[Event::CallStart]),
    (State::Name, Mark::NameEnd, State::Args, &[]),
    (State::Args, Mark::CallEnd, State::Between, &[Event::CallEnd]),
];

const MINIMAX_M2: Grammar = Grammar {
    markers: &[
        (Mark::ThinkStart, "<think>"),
        (Mark::ThinkEnd, "</think>"),
        (Mark::ToolStart, "<minimax:tool_call>"),
        (Mark::ToolEnd, "</minimax:tool_call>"),
        (Mark::CallStart, "<invoke name=\""),
        (Mark::CallStart, "<invoke name='"),
        (Mark::CallStart, "<invoke name="),
        (Mark::CallEnd, "</invoke>"),
        (Mark::NameEnd, "\">"),
        (Mark::NameEnd, "'>"),
        (Mark::NameEnd, ">"),
        (Mark::Plain, "<parameter name="),
        (Mark::Plain, "</parameter>"),
    ],
    rules: RULES,
    start: State::Reasoning,
    body: Body::Single,
    arguments: Arguments::Parameters(parameters, |dict, _, _| Json::Dict(dict).dump()),
    naming: Naming::Plain,
    kept_tokens: &[],
    trims_reasoning: true,
    blank: Blank::Trimmed,
    known_names_only: true,
};

/// `minimax_m2`.
pub fn minimax_m2(text: &str, context: &Context, delivery: Delivery) -> Parsed {
    engine::parse(text, context, delivery, &MINIMAX_M2)
}

/// Reasoning as `minimax_m2` cuts it off.
pub fn minimax_m2_reasoning(text: &str, context: &Context) -> (String, String) {
    engine::split_reasoning(text, context, &MINIMAX_M2)
}

fn parameters(body: &str) -> Vec<Parameter<'_>> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(start) = body[at..].find('<').map(|found| at + found) {
        let Some((name, value)) = open_tag(&body[start..]) else {
            at = start + 1;
            continue;
        };
        let value_start = body.len() - value.len();
        // Without an end for this value there is none for any later one either.
        let end = value_end(body, value_start);
        let (value_end, next) = end.unwrap_or((body.len(), body.len()));
        if !name.is_empty() {
            let value = &body[value_start..value_end];
            found.push(Parameter { name, value, form: Form::Text, closed: end.is_some() });
        }
        at = next;
    }
    found
}

/// The name in `<parameter name=NAME>`, quoted or not, and what follows the tag.
fn open_tag(text: &str) -> Option<(&str, &str)> {
    let name = open_head(text)?.trim_start();
    let quoted = |quote| {
        let (name, rest) = name.strip_prefix(quote)?.split_once(quote)?;
        Some((name, rest.trim_start().strip_prefix('>')?))
    };
    let bare = || {
        let end = name.find(|c: char| c == '>' || c.is_whitespace()).filter(|end| *end > 0)?;
        Some((&name[..end], name[end..].trim_start().strip_prefix('>')?))
    };
    quoted('"').or_else(|| quoted('\'')).or_else(bare).map(|(name, rest)| (space::strip(name), rest))
}

/// What follows `<parameter name=`, white space allowed between the parts.
fn open_head(text: &str) -> Option<&str> {
    let rest = text.strip_prefix('<')?.trim_start().strip_prefix("parameter")?;
    let spaced = rest.trim_start();
    let rest = Some(spaced).filter(|spaced| spaced.len() < rest.len())?.strip_prefix("name")?;
    rest.trim_start().strip_prefix('=')
}

/// What follows `</parameter>`, white space allowed between the parts.
fn close_tag(text: &str) -> Option<&str> {
    let rest = text.strip_prefix('<')?.trim_start().strip_prefix('/')?.trim_start();
    rest.strip_prefix("parameter")?.trim_start().strip_prefix('>')
}

/// Where the value ends, and where reading goes on.
fn value_end(body: &str, from: usize) -> Option<(usize, usize)> {
    let mut at = from;
    loop {
        let start = at + body[at..].find('<')?;
        if let Some(rest) = close_tag(&body[start..]) {
            return Some((start, body.len() - rest.len()));
        }
        if open_head(&body[start..]).is_some() {
            return Some((start, start));
        }
        at = start + 1;
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
        let parsed = minimax_m2(text, &Context { tools, ..Context::default() }, Delivery::Whole);
        let calls = parsed.tool_calls.into_iter().map(|call| (call.name, call.arguments)).collect();
        (parsed.content.unwrap_or_default(), calls)
    }

    fn call(arguments: &str) -> (String, String) {
        ("f".into(), arguments.into())
    }

    #[test]
    fn quotes_may_be_of_any_kind_or_none() {
        for quote in ["\"", "'", ""] {
            let text = format!(
                "<invoke name={quote}f{quote}><parameter name={quote}n{quote}>1</parameter></invoke>"
            );
            assert_eq!(answer(&text).1, [call("{\"n\": 1}")], "{text}");
        }
    }

    #[test]
    fn values_are_verbatim_and_end_at_the_next_parameter() {
        let text = "<invoke name=\"f\"><parameter name=\"a\"> x\n<parameter name=\"n\">2</parameter>lost<parameter name=\"b\">";
        assert_eq!(answer(text).1, [call("{\"a\": \" x\\n\", \"n\": 2}")]);
    }

    #[test]
    fn unknown_names_vanish_with_their_text() {
        assert_eq!(answer("a<invoke name=\"g\">x</invoke>b</minimax:tool_call>c"), ("ac".into(), vec![]));
    }

    #[test]
    fn several_calls_share_a_wrapper() {
        let text = "a\n<minimax:tool_call>\n<invoke name=\"f\">\n</invoke>\n<invoke name=\"f\"></invoke>\n</minimax:tool_call>";
        assert_eq!(answer(text), ("a".into(), vec![call("{}"), call("{}")]));
    }
}

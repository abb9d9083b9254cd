//! Kimi K2's tool tokens: a section of calls, each a header like `functions.NAME:0` and JSON.
//!
//! Source: vLLM 0.33, `kimi_k2`.

use super::engine::{self, Arguments, Blank, Body, Delivery, Event, Grammar, Mark, Naming, Rule, State};
use super::python::{number, space};
use super::{Context, Parsed, reasoning};

const RULES: &[Rule] = &[
    (State::Reasoning, Mark::ThinkStart, State::Reasoning, &[]),
    (State::Reasoning, Mark::ThinkEnd, State::Content, &[Event::ReasoningEnd]),
    (State::Content, Mark::ThinkEnd, State::Content, &[]),
    (State::Reasoning, Mark::ToolStart, State::Preamble, &[Event::ReasoningEnd]),
    (State::Content, Mark::ToolStart, State::Preamble, &[]),
    (State::Preamble, Mark::CallStart, State::Name, &[Event::CallStart]),
    (State::Name, Mark::NameEnd, State::Args, &[]),
    (State::Args, Mark::CallEnd, State::Between, &[Event::CallEnd]),
    (State::Args, Mark::ToolEnd, State::Preamble, &[Event::CallEnd]),
    (State::Between, Mark::CallStart, State::Name, &[Event::CallStart]),
    (State::Preamble, Mark::ToolEnd, State::Preamble, &[]),
    (State::Between, Mark::ToolEnd, State::Preamble, &[]),
];

const KIMI_K2: Grammar = Grammar {
    markers: &[
        (Mark::ThinkStart, "<think>"),
        (Mark::ThinkEnd, "</think>"),
        (Mark::ToolStart, "<|tool_calls_section_begin|>"),
        (Mark::ToolEnd, "<|tool_calls_section_end|>"),
        (Mark::CallStart, "<|tool_call_begin|>"),
        (Mark::CallEnd, "<|tool_call_end|>"),
        (Mark::NameEnd, "<|tool_call_argument_begin|>"),
    ],
    rules: RULES,
    start: State::Reasoning,
    body: Body::Single,
    arguments: Arguments::Raw(|body| space::strip(body).to_owned()),
    naming: Naming::Header(name),
    kept_tokens: &[],
    trims_reasoning: true,
    blank: Blank::Dropped,
    known_names_only: false,
};

/// With thinking switched off the think tags are no markers.
const KIMI_K2_PLAIN: Grammar = Grammar {
    markers: &[
        (Mark::ToolStart, "<|tool_calls_section_begin|>"),
        (Mark::ToolEnd, "<|tool_calls_section_end|>"),
        (Mark::CallStart, "<|tool_call_begin|>"),
        (Mark::CallEnd, "<|tool_call_end|>"),
        (Mark::NameEnd, "<|tool_call_argument_begin|>"),
    ],
    ..KIMI_K2
};

/// `kimi_k2`.
pub fn kimi_k2(text: &str, context: &Context, delivery: Delivery) -> Parsed {
    engine::parse(
        text,
        context,
        delivery,
        if reasoning::thinking(context) { &KIMI_K2 } else { &KIMI_K2_PLAIN },
    )
}

/// Reasoning as `kimi_k2` cuts it off where thinking is on.
pub fn kimi_k2_reasoning(text: &str, context: &Context) -> (String, String) {
    engine::split_reasoning(text, context, &KIMI_K2)
}

/// The name in a header `something:digits`: what stands before its first colon, without `functions.`.
fn name(header: &str) -> Option<&str> {
    let line = space::strip(header).split('\n').next()?;
    let numbered = |(at, _): &(usize, &str)| {
        *at > 0 && line[at + 1..].chars().next().is_some_and(|c| number::digit(c).is_some())
    };
    line.match_indices(':').find(numbered)?;
    let name = space::strip(line).split(':').next()?;
    Some(name.strip_prefix("functions.").unwrap_or(name)).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parsers::ToolCall;

    fn answer(text: &str) -> (String, Vec<ToolCall>) {
        let parsed = kimi_k2(text, &Context::default(), Delivery::Whole);
        (parsed.content.unwrap_or_default(), parsed.tool_calls)
    }

    fn section(calls: &[(&str, &str)]) -> String {
        let calls: String = calls
            .iter()
            .map(|(header, body)| {
                format!("<|tool_call_begin|>{header}<|tool_call_argument_begin|>{body}<|tool_call_end|>")
            })
            .collect();
        format!("<|tool_calls_section_begin|>{calls}<|tool_calls_section_end|>")
    }

    #[test]
    fn header_tells_the_name() {
        for (header, wanted) in [
            ("functions.f:0", Some("f")),
            (" f:12 ", Some("f")),
            ("functions.a.b:1", Some("a.b")),
            ("f", None),
            ("f:", None),
            (":0", None),
            ("f\n:0", None),
            ("a:b:3", Some("a")),
        ] {
            assert_eq!(name(header), wanted, "{header:?}");
        }
    }

    #[test]
    fn arguments_are_passed_on_unread() {
        let (content, calls) =
            answer(&format!(" a {}lost", section(&[("functions.f:0", " {\"x\":1,} "), ("g:1", "")])));
        assert_eq!(content, " a ");
        assert_eq!(calls[0], ToolCall { name: "f".into(), arguments: "{\"x\":1,}".into() });
        assert_eq!(calls[1], ToolCall { name: "g".into(), arguments: "{}".into() });
    }

    #[test]
    fn a_call_without_number_is_not_reported() {
        assert_eq!(answer(&section(&[("functions.f", "{}")])), (String::new(), vec![]));
    }

    #[test]
    fn a_call_outside_a_section_is_text() {
        let text = "<|tool_call_begin|>f:0<|tool_call_argument_begin|>{}<|tool_call_end|>";
        assert_eq!(answer(text), (text.into(), vec![]));
    }
}

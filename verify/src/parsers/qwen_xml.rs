//! Qwen's XML: `<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`.
//!
//! Source: vLLM 0.33, `qwen3_coder` and the parsers that share its grammar.

use super::engine::{
    self, Arguments, Blank, Body, Delivery, Event, Form, Grammar, Mark, Naming, Parameter, Rule, State,
};
use super::python::Json;
use super::{Context, Parsed};

const RULES: &[Rule] = &[
    (State::Reasoning, Mark::ThinkStart, State::Reasoning, &[]),
    (State::Reasoning, Mark::ThinkEnd, State::Content, &[Event::ReasoningEnd]),
    (State::Reasoning, Mark::ToolStart, State::Preamble, &[Event::ReasoningEnd, Event::CallStart]),
    (State::Content, Mark::ThinkEnd, State::Content, &[]),
    (State::Content, Mark::ToolStart, State::Preamble, &[Event::ReasoningEnd, Event::CallStart]),
    (State::Content, Mark::CallStart, State::Name, &[Event::CallStart]),
    (State::Preamble, Mark::ToolEnd, State::Content, &[Event::CallEnd]),
    (State::Preamble, Mark::CallStart, State::Name, &[]),
    (State::Name, Mark::NameEnd, State::Args, &[]),
    (State::Name, Mark::CallEnd, State::Between, &[Event::CallEnd]),
    (State::Name, Mark::ToolEnd, State::Content, &[Event::CallEnd]),
    (State::Name, Mark::ToolStart, State::Preamble, &[Event::CallEnd, Event::CallStart]),
    (State::Name, Mark::CallStart, State::Name, &[Event::CallEnd, Event::CallStart]),
    (State::Args, Mark::CallEnd, State::Between, &[Event::CallEnd]),
    (State::Args, Mark::CallStart, State::Name, &[Event::CallEnd, Event::CallStart]),
    (State::Args, Mark::ParamStart, State::Args, &[Event::Body]),
    (State::Args, Mark::ParamEnd, State::Args, &[Event::Body]),
    (State::Between, Mark::ToolEnd, State::Content, &[]),
    (State::Between, Mark::ToolStart, State::Preamble, &[Event::CallStart]),
    (State::Between, Mark::CallStart, State::Name, &[Event::CallStart]),
];

const QWEN3: Grammar = Grammar {
    markers: &[
        (Mark::ThinkStart, "<think>"),
        (Mark::ThinkEnd, "</think>"),
        (Mark::ToolStart, "<tool_call>"),
        (Mark::ToolEnd, "</tool_call>"),
        (Mark::CallStart, "<function="),
        (Mark::CallEnd, "</function>"),
        (Mark::ParamStart, "<parameter="),
        (Mark::ParamEnd, "</parameter>"),
        (Mark::NameEnd, ">"),
    ],
    rules: RULES,
    start: State::Reasoning,
    body: Body::Single,
    arguments: Arguments::Parameters(
        |body| parameters(body, trim_line_breaks),
        |dict, _, _| Json::Dict(dict).dump(),
    ),
    naming: Naming::Plain,
    kept_tokens: &[],
    trims_reasoning: false,
    blank: Blank::Trimmed,
    known_names_only: false,
};

const SEED_OSS: Grammar = Grammar {
    markers: &[
        (Mark::ThinkStart, "<seed:think>"),
        (Mark::ThinkEnd, "</seed:think>"),
        (Mark::ToolStart, "<seed:tool_call>"),
        (Mark::ToolEnd, "</seed:tool_call>"),
        (Mark::CallStart, "<function="),
        (Mark::CallEnd, "</function>"),
        (Mark::ParamStart, "<parameter="),
        (Mark::ParamEnd, "</parameter>"),
        (Mark::NameEnd, ">"),
    ],
    ..QWEN3
};

const MIMO: Grammar = Grammar {
    arguments: Arguments::Parameters(
        |body| parameters(body, |value| value),
        |dict, _, _| Json::Dict(dict).dump(),
    ),
    ..QWEN3
};

const STEP3P5: Grammar = Grammar { trims_reasoning: true, ..QWEN3 };

const STEP5: Grammar = Grammar { blank: Blank::Kept, ..QWEN3 };

/// `qwen3_coder`, also called `qwen3_xml`.
pub fn qwen3_coder(text: &str, context: &Context, delivery: Delivery) -> Parsed {
    engine::parse(text, context, delivery, &QWEN3)
}

/// `seed_oss`: other wrapper and think tags.
pub fn seed_oss(text: &str, context: &Context, delivery: Delivery) -> Parsed {
    engine::parse(text, context, delivery, &SEED_OSS)
}

/// `mimo`: values keep their line breaks.
pub fn mimo(text: &str, context: &Context, delivery: Delivery) -> Parsed {
    engine::parse(text, context, delivery, &MIMO)
}

/// `step5`: white space of the content is kept.
pub fn step5(text: &str, context: &Context, delivery: Delivery) -> Parsed {
    engine::parse(text, context, delivery, &STEP5)
}

/// Reasoning as `qwen3` and `mimo` cut it off.
pub fn qwen3_reasoning(text: &str, context: &Context) -> (String, String) {
    engine::split_reasoning(text, context, &QWEN3)
}

/// Reasoning as `seed_oss` cuts it off.
pub fn seed_oss_reasoning(text: &str, context: &Context) -> (String, String) {
    engine::split_reasoning(text, context, &SEED_OSS)
}

/// Reasoning as `step3p5` cuts it off.
pub fn step3p5_reasoning(text: &str, context: &Context) -> (String, String) {
    engine::split_reasoning(text, context, &STEP3P5)
}

/// The parameters of an argument body, all values strings.
fn parameters(body: &str, trim: fn(&str) -> &str) -> Vec<Parameter<'_>> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some((_, equals_end)) = next_tag(body, at, Tag::Open) {
        let name_start = skip_space(body, equals_end);
        let Some(name_length) = body[name_start..].find('>') else { break };
        let value_start = name_start + name_length + 1;
        let name = &body[name_start..name_start + name_length];
        // Without an end for this value there is none for any later one either.
        let end = value_end(body, value_start);
        let (value_end, next) = end.unwrap_or((body.len(), body.len()));
        let value = trim(&body[value_start..value_end]);
        if end.is_some() || !name.is_empty() {
            found.push(Parameter { name, value, form: Form::Text, closed: end.is_some() });
        }
        at = next;
    }
    found
}

/// Exactly one line break at either end belongs to the markup.
fn trim_line_breaks(value: &str) -> &str {
    let value = value.strip_prefix('\n').unwrap_or(value);
    value.strip_suffix('\n').unwrap_or(value)
}

/// `<parameter=` or `</parameter>`, white space allowed between the parts.
#[derive(Clone, Copy, PartialEq)]
enum Tag {
    Open,
    Close,
}

/// Where the value ends, and where reading goes on: after a closing tag or at the next opening one.
fn value_end(body: &str, from: usize) -> Option<(usize, usize)> {
    let mut at = from;
    loop {
        let start = at + body[at..].find('<')?;
        if let Some(end) = tag_at(body, start, Tag::Close) {
            return Some((start, end));
        }
        if tag_at(body, start, Tag::Open).is_some() {
            return Some((start, start));
        }
        at = start + 1;
    }
}

/// Start and end of the next tag of this kind.
fn next_tag(body: &str, from: usize, tag: Tag) -> Option<(usize, usize)> {
    let mut at = from;
    loop {
        let start = at + body[at..].find('<')?;
        if let Some(end) = tag_at(body, start, tag) {
            return Some((start, end));
        }
        at = start + 1;
    }
}

/// The end of the tag that starts at the `<` at `start`.
fn tag_at(body: &str, start: usize, tag: Tag) -> Option<usize> {
    let mut at = skip_space(body, start + 1);
    if tag == Tag::Close {
        at = skip_space(body, after(body, at, "/")?);
    }
    at = skip_space(body, after(body, at, "parameter")?);
    after(body, at, if tag == Tag::Open { "=" } else { ">" })
}

fn after(body: &str, at: usize, word: &str) -> Option<usize> {
    body[at..].starts_with(word).then_some(at + word.len())
}

fn skip_space(body: &str, at: usize) -> usize {
    body.len() - body[at..].trim_start().len()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::parsers::Reasoned;

    fn context() -> Context {
        let tools = vec![json!({"type": "function", "function": {"name": "f", "parameters": {"properties": {
            "n": {"type": "integer"}, "s": {"type": "string"}}}}})];
        Context { tools, ..Context::default() }
    }

    fn answer(text: &str) -> (String, Vec<(String, String)>) {
        let parsed = qwen3_coder(text, &context(), Delivery::Whole);
        let calls = parsed.tool_calls.into_iter().map(|call| (call.name, call.arguments)).collect();
        (parsed.content.unwrap_or_default(), calls)
    }

    fn calls(text: &str) -> Vec<(String, String)> {
        answer(text).1
    }

    fn call(name: &str, arguments: &str) -> (String, String) {
        (name.into(), arguments.into())
    }

    #[test]
    fn text_between_and_after_calls_is_lost() {
        let text = " a <tool_call><function=f></function></tool_call> b <function=g></function> c";
        assert_eq!(answer(text), ("a".into(), vec![call("f", "{}"), call("g", "{}")]));
    }

    #[test]
    fn text_after_an_unreported_call_is_kept() {
        assert_eq!(answer("a <tool_call>x</tool_call> b"), ("a  b".into(), vec![]));
        assert_eq!(answer("a </tool_call></function> b"), ("a </tool_call></function> b".into(), vec![]));
        assert_eq!(answer(" <tool_call>x"), (String::new(), vec![]));
    }

    #[test]
    fn hermes_json_disappears() {
        assert_eq!(answer("<tool_call>\n{\"name\": \"f\"}\n</tool_call>"), (String::new(), vec![]));
    }

    #[test]
    fn json_body_gives_no_arguments() {
        assert_eq!(calls("<function=f>{\"n\": 1}</function>"), [call("f", "{}")]);
    }

    #[test]
    fn values_lose_one_line_break_at_each_end_only() {
        assert_eq!(
            calls("<function=f><parameter=s>\n\n a \r\n</parameter></function>"),
            [call("f", "{\"s\": \"\\n a \\r\"}")]
        );
        assert_eq!(calls("<function=f><parameter=s>\n</parameter></function>"), [call("f", "{\"s\": \"\"}")]);
    }

    #[test]
    fn missing_closing_tag_ends_at_the_next_parameter() {
        let text = "<function=f><parameter=s>a\n<parameter=n>2</parameter><parameter=s>lost</function>";
        assert_eq!(calls(text), [call("f", "{\"s\": \"a\", \"n\": 2}")]);
    }

    #[test]
    fn tags_may_hold_white_space() {
        let text = "<function=f>< parameter = s >x< / parameter ></function>";
        assert_eq!(calls(text), [call("f", "{\"s \": \"x\"}")]);
    }

    #[test]
    fn last_of_two_equal_parameters_wins() {
        let text = "<function=f><parameter=s>1</parameter><parameter=n>2</parameter><parameter=s>3</parameter></function>";
        assert_eq!(calls(text), [call("f", "{\"s\": \"3\", \"n\": 2}")]);
    }

    #[test]
    fn missing_function_end_eats_the_next_wrapper() {
        let text =
            "<tool_call><function=f><parameter=n>1</parameter></tool_call><tool_call><function=g></function>";
        assert_eq!(calls(text), [call("f", "{\"n\": 1}"), call("g", "{}")]);
    }

    #[test]
    fn a_name_without_its_bracket_ends_at_the_next_marker() {
        assert_eq!(calls("<function=f</function>"), [call("f", "{}")]);
        assert_eq!(answer("<function= f </tool_call> x"), (String::new(), vec![call("f", "{}")]));
        assert_eq!(calls("<function=f<tool_call><function=g>"), [call("f", "{}"), call("g", "{}")]);
        assert_eq!(calls("<function=f<parameter=s>1>"), [call("f<parameter=s", "{}")]);
    }

    #[test]
    fn empty_names_are_not_reported() {
        assert_eq!(answer("a<function=></function></tool_call>b"), ("ab".into(), vec![]));
    }

    #[test]
    fn special_tokens_vanish_everywhere() {
        let context =
            Context { special_tokens: vec!["<|im_end|>".into(), "<tool_call>".into()], ..context() };
        let text =
            "a<|im_end|>b<tool_call><function=f<|im_end|>><parameter=s><|im_end|>x</parameter></function>";
        let parsed = qwen3_coder(text, &context, Delivery::Whole);
        assert_eq!(parsed.content.as_deref(), Some("ab"));
        assert_eq!(parsed.tool_calls[0].arguments, "{\"s\": \"x\"}");
        assert_eq!(parsed.tool_calls[0].name, "f");
    }

    #[test]
    fn think_tags_are_text_without_a_reasoning_parser() {
        let (content, _) = answer("<think>a</think>b");
        assert_eq!(content, "<think>a</think>b");
        let after = Context { reasoned: Reasoned::Engine, ..context() };
        assert_eq!(qwen3_coder("a</think>b", &after, Delivery::Whole).content.as_deref(), Some("ab"));
    }

    #[test]
    fn reasoning_ends_at_the_think_tag_or_the_first_call() {
        let split = |text| qwen3_reasoning(text, &context());
        assert_eq!(split("<think>\nA\n</think>\n\nB"), ("\nA\n".into(), "\n\nB".into()));
        assert_eq!(split("A</think>B</think>C"), ("A".into(), "BC".into()));
        assert_eq!(split("A <tool_call>x</think>B"), ("A ".into(), "<tool_call>xB".into()));
        assert_eq!(split("A <function=f> B"), ("A <function=f> B".into(), String::new()));
    }

    #[test]
    fn variants_differ_as_told() {
        let text = " \n<tool_call><function=f><parameter=s>\nx\n</parameter></function></tool_call>";
        assert_eq!(mimo(text, &context(), Delivery::Whole).tool_calls[0].arguments, "{\"s\": \"\\nx\\n\"}");
        assert_eq!(step5(&format!("a{text}"), &context(), Delivery::Whole).content.as_deref(), Some("a \n"));
        let seed = "<seed:tool_call><function=f></function></seed:tool_call>";
        assert_eq!(seed_oss(seed, &context(), Delivery::Whole).tool_calls.len(), 1);
        assert_eq!(step3p5_reasoning("A \n</think>B", &context()).0, "A");
    }
}

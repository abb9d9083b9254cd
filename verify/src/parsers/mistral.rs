//! Mistral's two dialects: `[TOOL_CALLS]NAME[ARGS]{..}` and, before tokenizer v11, `[TOOL_CALLS] [{..}]`.
//!
//! Source: vLLM 0.33, `mistral`. The tokenizer's vocabulary decides: with `[ARGS]` it is the newer one.

use super::engine::{self, Arguments, Blank, Body, Delivery, Event, Grammar, Mark, Naming, Rule, State};
use super::python::{Dict, Json, json, space};
use super::{Context, Parsed, ToolCall};

const MARKER: &str = "[TOOL_CALLS]";

const RULES: &[Rule] = &[
    (State::Content, Mark::ThinkStart, State::Reasoning, &[]),
    (State::Reasoning, Mark::ThinkStart, State::Reasoning, &[]),
    (State::Reasoning, Mark::ThinkEnd, State::Content, &[Event::ReasoningEnd]),
    (State::Content, Mark::ThinkEnd, State::Content, &[]),
    (State::Reasoning, Mark::ToolStart, State::Name, &[Event::ReasoningEnd, Event::CallStart]),
    (State::Content, Mark::ToolStart, State::Name, &[Event::ReasoningEnd, Event::CallStart]),
    (State::Name, Mark::NameEnd, State::Args, &[]),
    (State::Name, Mark::ParamStart, State::Args, &[Event::Body]),
    (State::Args, Mark::ToolStart, State::Name, &[Event::CallEnd, Event::CallStart]),
];

/// Tokenizers without think tokens.
const V11: Grammar = Grammar {
    markers: &[(Mark::ToolStart, MARKER), (Mark::NameEnd, "[ARGS]"), (Mark::ParamStart, "{")],
    rules: RULES,
    start: State::Content,
    body: Body::Single,
    arguments: Arguments::Raw(first_value),
    naming: Naming::Final,
    kept_tokens: &[],
    trims_reasoning: true,
    blank: Blank::Trimmed,
    known_names_only: false,
};

const V13: Grammar = Grammar {
    markers: &[
        (Mark::ThinkStart, "[THINK]"),
        (Mark::ThinkEnd, "[/THINK]"),
        (Mark::ToolStart, MARKER),
        (Mark::NameEnd, "[ARGS]"),
        (Mark::ParamStart, "{"),
    ],
    ..V11
};

/// `mistral`.
pub fn mistral(text: &str, context: &Context, delivery: Delivery) -> Parsed {
    match context.tokenizer.as_deref() {
        Some("mistral-pre-v11") => before_v11(text),
        Some("mistral-v13") => engine::parse(text, context, delivery, &V13),
        _ => engine::parse(text, context, delivery, &V11),
    }
}

/// Reasoning as `mistral` cuts it off; `None` where the tokenizer has no think tokens.
pub fn mistral_reasoning(text: &str, context: &Context) -> Option<(String, String)> {
    let thinks = context.tokenizer.as_deref() == Some("mistral-v13");
    thinks.then(|| engine::split_reasoning(text, context, &V13))
}

/// The text of the first JSON value, or all of it where there is none.
fn first_value(body: &str) -> String {
    let body = space::strip(body);
    json::raw_decode(body, 0).map_or(body, |(_, end)| &body[..end]).to_owned()
}

/// A list or one object behind the first marker that anything follows. Without calls, what follows is the content.
fn before_v11(text: &str) -> Parsed {
    let Some((content, rest)) = text.split_once(MARKER) else { return Parsed::plain(text) };
    let segment =
        rest.split(MARKER).map(space::strip).find(|segment| !segment.is_empty()).unwrap_or_default();
    let value = json::raw_decode(segment, 0).map(|(value, _)| value).or_else(|| bracketed(segment));
    let calls = match value {
        Some(Json::Dict(dict)) => call(&dict).into_iter().collect(),
        Some(Json::List(items)) => items.iter().filter_map(Json::as_dict).filter_map(call).collect(),
        _ => Vec::new(),
    };
    if calls.is_empty() { Parsed::plain(segment) } else { Parsed::called(content, calls).without_blank() }
}

/// The JSON from the first `[{` to the last `}]`.
fn bracketed(text: &str) -> Option<Json> {
    let start = text.find("[{")?;
    let end = text.rfind("}]").filter(|end| *end >= start + 2)?;
    json::loads(&text[start..end + 2])
}

fn call(dict: &Dict) -> Option<ToolCall> {
    let (name, arguments) = (dict.get("name"), dict.get("arguments"));
    name.or(arguments)?;
    let arguments = match arguments {
        None | Some(Json::Null) => "{}".to_owned(),
        Some(Json::Str(text)) => text.clone(),
        Some(other) => other.dump(),
    };
    Some(ToolCall { name: name.and_then(Json::as_str).unwrap_or_default().to_owned(), arguments })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(text: &str, tokenizer: &str) -> (String, Vec<(String, String)>) {
        let context = Context { tokenizer: Some(tokenizer.into()), ..Context::default() };
        let parsed = mistral(text, &context, Delivery::Whole);
        let calls = parsed.tool_calls.into_iter().map(|call| (call.name, call.arguments)).collect();
        (parsed.content.unwrap_or_default(), calls)
    }

    fn new(text: &str) -> (String, Vec<(String, String)>) {
        answer(text, "mistral-v11")
    }

    fn old(text: &str) -> (String, Vec<(String, String)>) {
        answer(text, "mistral-pre-v11")
    }

    fn call(name: &str, arguments: &str) -> (String, String) {
        (name.into(), arguments.into())
    }

    #[test]
    fn text_behind_the_first_value_is_dropped() {
        let text = " a [TOOL_CALLS]f[ARGS]{\"x\":1} b[TOOL_CALLS]g{}[TOOL_CALLS]h";
        assert_eq!(new(text), ("a".into(), vec![call("f", "{\"x\":1}"), call("g", "{}"), call("h", "{}")]));
    }

    #[test]
    fn what_is_no_json_reaches_the_client() {
        assert_eq!(new("[TOOL_CALLS]f[ARGS] {\"x\": ").1, [call("f", "{\"x\":")]);
        assert_eq!(new("[TOOL_CALLS]f[ARGS] ").1, [call("f", "{}")]);
    }

    #[test]
    fn an_empty_name_is_reported() {
        assert_eq!(new("[TOOL_CALLS][ARGS]{\"name\":\"f\"}").1, [call("", "{\"name\":\"f\"}")]);
        assert_eq!(new("[TOOL_CALLS]").1, []);
    }

    #[test]
    fn the_old_form_given_to_a_new_tokenizer_yields_a_bracket() {
        assert_eq!(new("[TOOL_CALLS] [{\"name\":\"f\"}]").1, [call("[", "{\"name\":\"f\"}")]);
    }

    #[test]
    fn old_dialect_takes_lists_and_objects() {
        assert_eq!(
            old("a[TOOL_CALLS] [{\"name\":\"f\",\"arguments\":\"x\"}, 1, {}, {\"arguments\":1}]b").1.len(),
            2
        );
        assert_eq!(old("a [TOOL_CALLS]{\"name\":1}"), ("a ".into(), vec![call("", "{}")]));
        assert_eq!(old("[TOOL_CALLS] x [{\"name\":\"f\"}] y").1, [call("f", "{}")]);
    }

    #[test]
    fn old_dialect_without_calls_returns_what_follows_the_marker() {
        assert_eq!(old("a [TOOL_CALLS] [TOOL_CALLS] x [TOOL_CALLS]y"), ("x".into(), vec![]));
        assert_eq!(old("a"), ("a".into(), vec![]));
    }
}

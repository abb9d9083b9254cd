//! DeepSeek's DSML: `<｜DSML｜invoke name="NAME">` with `<｜DSML｜parameter name="K" string="true">V</｜DSML｜parameter>`.
//!
//! Source: vLLM 0.33, `deepseek_v32`, `deepseek_v4` and `deepseek_v41`, which differ in wrapper and spacing.

use super::engine::{
    self, Arguments, Blank, Body, Delivery, Event, Form, Grammar, Mark, Naming, Parameter, Rule, State,
};
use super::python::{Dict, Json, json};
use super::{Context, Parsed, reasoning, schema};

const RULES: &[Rule] = &[
    (State::Content, Mark::ThinkStart, State::Reasoning, &[]),
    (State::Content, Mark::ThinkEnd, State::Content, &[]),
    (State::Reasoning, Mark::ThinkStart, State::Reasoning, &[]),
    (State::Reasoning, Mark::ThinkEnd, State::Content, &[Event::ReasoningEnd]),
    (State::Reasoning, Mark::ToolStart, State::Preamble, &[Event::ReasoningEnd]),
    (State::Content, Mark::ToolStart, State::Preamble, &[]),
    (State::Content, Mark::CallStart, State::Name, &[Event::CallStart]),
    (State::Preamble, Mark::CallStart, State::Name, &[Event::CallStart]),
    (State::Name, Mark::NameEnd, State::Args, &[]),
    (State::Args, Mark::CallEnd, State::Between, &[Event::CallEnd]),
    (State::Args, Mark::ToolEnd, State::Between, &[Event::CallEnd]),
    (State::Between, Mark::CallStart, State::Name, &[Event::CallStart]),
    (State::Between, Mark::ToolEnd, State::Between, &[]),
    (State::Between, Mark::ToolStart, State::Preamble, &[]),
];

const V32: Grammar = Grammar {
    markers: &[
        (Mark::ToolStart, "<｜DSML｜function_calls>"),
        (Mark::ToolEnd, "</｜DSML｜function_calls>"),
        (Mark::CallStart, "<｜DSML｜invoke name=\""),
        (Mark::CallEnd, "</｜DSML｜invoke>"),
        (Mark::NameEnd, "\">"),
        (Mark::Plain, "<｜DSML｜parameter"),
        (Mark::Plain, "</｜DSML｜parameter>"),
    ],
    rules: RULES,
    start: State::Content,
    body: Body::Single,
    arguments: Arguments::Parameters(|body| parameters(body, TIGHT), arguments),
    naming: Naming::Plain,
    kept_tokens: &[],
    trims_reasoning: true,
    blank: Blank::Dropped,
    known_names_only: false,
};

const V4: Grammar = Grammar {
    markers: &[
        (Mark::ThinkStart, "<think>"),
        (Mark::ThinkEnd, "</think>"),
        (Mark::ToolStart, "<｜DSML｜tool_calls>"),
        (Mark::ToolStart, "<｜DSML｜toolcalls>"),
        (Mark::ToolStart, "<｜DSML｜tool>"),
        (Mark::ToolEnd, "</｜DSML｜tool_calls>"),
        (Mark::CallStart, "<｜DSML｜invoke name=\""),
        (Mark::CallEnd, "</｜DSML｜invoke>"),
        (Mark::NameEnd, "\">"),
        (Mark::Plain, "<｜DSML｜parameter"),
        (Mark::Plain, "</｜DSML｜parameter>"),
    ],
    start: State::Reasoning,
    ..V32
};

const V41: Grammar = Grammar {
    markers: &[
        (Mark::ThinkStart, "<think>"),
        (Mark::ThinkEnd, "</think>"),
        (Mark::ToolStart, "<｜DSML｜ calls>"),
        (Mark::ToolEnd, "</｜DSML｜ calls>"),
        (Mark::CallStart, "<｜DSML｜ invoke name=\""),
        (Mark::CallEnd, "</｜DSML｜ invoke>"),
        (Mark::NameEnd, "\">"),
        (Mark::Plain, "<｜DSML｜ parameter"),
        (Mark::Plain, "</｜DSML｜ parameter>"),
    ],
    arguments: Arguments::Parameters(|body| parameters(body, SPACED), arguments),
    ..V4
};

/// `deepseek_v32`: wrapper `function_calls`.
pub fn deepseek_v32(text: &str, context: &Context, delivery: Delivery) -> Parsed {
    engine::parse(text, context, delivery, &V32)
}

/// `deepseek_v4`: wrapper `tool_calls`, two misspelt openers taken as well.
pub fn deepseek_v4(text: &str, context: &Context, delivery: Delivery) -> Parsed {
    engine::parse(text, context, delivery, &V4)
}

/// `deepseek_v41`: wrapper `calls`, a blank after each `｜DSML｜`.
pub fn deepseek_v41(text: &str, context: &Context, delivery: Delivery) -> Parsed {
    engine::parse(text, context, delivery, &V41)
}

/// Reasoning as `deepseek_v4` cuts it off; it starts in content where the request switches thinking off.
pub fn deepseek_v4_reasoning(text: &str, context: &Context) -> (String, String) {
    split(text, context, V4)
}

/// Reasoning as `deepseek_v41` cuts it off.
pub fn deepseek_v41_reasoning(text: &str, context: &Context) -> (String, String) {
    split(text, context, V41)
}

fn split(text: &str, context: &Context, grammar: Grammar) -> (String, String) {
    let start = if thinking(context) { State::Reasoning } else { State::Content };
    engine::split_reasoning(text, context, &Grammar { start, ..grammar })
}

/// Thinking is on unless the request switches it off or wants no effort of it.
fn thinking(context: &Context) -> bool {
    let kwargs = &context.template_kwargs;
    let silent = !kwargs.contains_key("thinking") && !kwargs.contains_key("enable_thinking");
    let effort = kwargs.get("reasoning_effort").and_then(|effort| effort.as_str());
    (silent || reasoning::asked(context)) && effort != Some("none")
}

/// Spelling of the parameter tags.
#[derive(Clone, Copy)]
struct Tags {
    open: &'static str,
    close: &'static str,
}

const TIGHT: Tags = Tags { open: "<｜DSML｜parameter", close: "</｜DSML｜parameter>" };
const SPACED: Tags = Tags { open: "<｜DSML｜ parameter", close: "</｜DSML｜ parameter>" };

/// Opening tag of a parameter.
struct Head<'a> {
    name: &'a str,
    form: Form,
    end: usize,
}

fn arguments(dict: Dict, name: &str, context: &Context) -> String {
    unwrapped(&dict, name, context).unwrap_or_else(|| Json::Dict(dict).dump())
}

fn parameters(body: &str, tags: Tags) -> Vec<Parameter<'_>> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(start) = body[at..].find(tags.open).map(|found| at + found) {
        let Some(head) = head(body, start, tags) else {
            at = start + tags.open.len();
            continue;
        };
        // Without an end for this value there is none for any later one either.
        let end = value_end(body, head.end, tags);
        let (value_end, next) = end.unwrap_or((body.len(), body.len()));
        let value = &body[head.end..value_end];
        // An open value is sent only as far as a bracket makes the server look at it.
        let value = if end.is_some() { value } else { &value[..value.rfind('>').map_or(0, |at| at + 1)] };
        found.push(Parameter { name: head.name, value, form: head.form, closed: end.is_some() });
        at = next;
    }
    found
}

/// `name="K"`, an optional `string="X"`, and `>`, white space between them.
fn head<'a>(body: &'a str, start: usize, tags: Tags) -> Option<Head<'a>> {
    let rest = &body[start + tags.open.len()..];
    let (name, rest) = quoted(spaced(rest)?.strip_prefix("name=\"")?)?;
    if name.is_empty() {
        return None;
    }
    let attribute = spaced(rest).and_then(|rest| quoted(rest.strip_prefix("string=\"")?));
    let (told, rest) = attribute.unwrap_or(("", rest));
    let form = if told == "true" { Form::Text } else { Form::Json };
    let rest = rest.trim_start().strip_prefix('>')?;
    Some(Head { name, form, end: body.len() - rest.len() })
}

/// What follows at least one white space.
fn spaced(text: &str) -> Option<&str> {
    Some(text.trim_start()).filter(|rest| rest.len() < text.len())
}

fn quoted(text: &str) -> Option<(&str, &str)> {
    text.split_once('"')
}

/// Where a value ends and where reading goes on: after its closing tag, or at the next parameter with a name.
fn value_end(body: &str, from: usize, tags: Tags) -> Option<(usize, usize)> {
    let mut at = from;
    loop {
        let start = at + body[at..].find('<')?;
        let rest = &body[start..];
        if rest.starts_with(tags.close) {
            return Some((start, start + tags.close.len()));
        }
        if rest.strip_prefix(tags.open).and_then(spaced).is_some_and(|rest| rest.starts_with("name=")) {
            return Some((start, start));
        }
        at = start + 1;
    }
}

/// Arguments that a model has wrapped once more in `arguments` or `input`.
fn unwrapped(dict: &Dict, name: &str, context: &Context) -> Option<String> {
    let properties = schema::properties(context, name)?;
    let (key, value) = dict.iter().next().filter(|_| dict.len() == 1)?;
    if !matches!(key, "arguments" | "input") || properties.contains_key(key) {
        return None;
    }
    let inner = match value {
        Json::Str(text) => json::loads(text)?,
        other => other.clone(),
    };
    let known = inner.as_dict()?.iter().all(|(key, _)| properties.contains_key(key));
    known.then(|| inner.dump())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answer(text: &str) -> (String, Vec<(String, String)>) {
        let tools = vec![json!({"function": {"name": "f", "parameters": {"properties": {
            "n": {"type": "integer"}, "s": {"type": "string"}, "l": {"type": "array"}}}}})];
        let parsed = deepseek_v32(
            &text.replace('|', "｜DSML｜"),
            &Context { tools, ..Context::default() },
            Delivery::Whole,
        );
        let calls = parsed.tool_calls.into_iter().map(|call| (call.name, call.arguments)).collect();
        (parsed.content.unwrap_or_default(), calls)
    }

    fn arguments_of(parameters: &str) -> String {
        answer(&format!("<|invoke name=\"f\">{parameters}</|invoke>")).1[0].1.clone()
    }

    #[test]
    fn string_attribute_tells_text_from_json() {
        assert_eq!(arguments_of("<|parameter name=\"l\" string=\"false\">[1]</|parameter>"), "{\"l\": [1]}");
        assert_eq!(
            arguments_of("<|parameter name=\"x\" string=\"true\">[1]</|parameter>"),
            "{\"x\": \"[1]\"}"
        );
        assert_eq!(arguments_of("<|parameter name=\"x\"> 1 </|parameter>"), "{\"x\": 1}");
        assert_eq!(arguments_of("<|parameter name=\"n\" string=\"true\">7</|parameter>"), "{\"n\": 7}");
    }

    #[test]
    fn values_end_at_the_next_parameter_and_an_open_one_is_dropped() {
        let text = "<|parameter name=\"s\" string=\"true\"> a \n<|parameter name=\"n\">2</|parameter><|parameter name=\"l\">[";
        assert_eq!(arguments_of(text), "{\"s\": \" a \\n\", \"n\": 2}");
    }

    #[test]
    fn wrapped_arguments_are_unwrapped_where_all_keys_are_known() {
        assert_eq!(arguments_of("<|parameter name=\"input\">{\"n\": \"1\"}</|parameter>"), "{\"n\": 1}");
        let unknown = "<|parameter name=\"input\">{\"ghost\": 1}</|parameter>";
        assert_eq!(arguments_of(unknown), "{\"input\": {\"ghost\": 1}}");
    }

    #[test]
    fn all_text_behind_the_first_call_is_dropped() {
        let text = " a <|function_calls><|invoke name=\"f\"></|invoke></|function_calls>b<|invoke name=\"g\">c</|function_calls>d";
        assert_eq!(answer(text), (" a ".into(), vec![("f".into(), "{}".into()), ("g".into(), "{}".into())]));
    }
}

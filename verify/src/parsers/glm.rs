//! GLM's key/value tags: `<tool_call>NAME<arg_key>K</arg_key><arg_value>V</arg_value></tool_call>`.
//!
//! Source: vLLM 0.33, `glm45` (also `glm47`), `ling3` and, with code of its own, `poolside_v1`.

use super::engine::{
    self, Arguments, Blank, Body, Delivery, Event, Form, Grammar, Mark, Naming, Parameter, Rule, State,
};
use super::python::literal::{self, Literal};
use super::python::{Json, json, space};
use super::scan::between;
use super::{Context, Parsed, ToolCall, reasoning, schema};

const RULES: &[Rule] = &[
    (State::Content, Mark::ThinkStart, State::Reasoning, &[]),
    (State::Content, Mark::ThinkEnd, State::Content, &[]),
    (State::Reasoning, Mark::ThinkStart, State::Reasoning, &[]),
    (State::Reasoning, Mark::ThinkEnd, State::Content, &[Event::ReasoningEnd]),
    (State::Reasoning, Mark::ToolStart, State::Name, &[Event::ReasoningEnd, Event::CallStart]),
    (State::Content, Mark::ToolStart, State::Name, &[Event::CallStart]),
    (State::Name, Mark::ParamStart, State::Args, &[Event::Body]),
    (State::Name, Mark::ToolEnd, State::Content, &[Event::CallEnd]),
    (State::Args, Mark::ToolEnd, State::Content, &[Event::CallEnd]),
];

const GLM: Grammar = Grammar {
    markers: &[
        (Mark::ThinkStart, "<think>"),
        (Mark::ThinkEnd, "</think>"),
        (Mark::ToolStart, "<tool_call>"),
        (Mark::ToolEnd, "</tool_call>"),
        (Mark::ParamStart, "<arg_key>"),
        (Mark::Plain, "</arg_key>"),
        (Mark::Plain, "<arg_value>"),
        (Mark::Plain, "</arg_value>"),
    ],
    rules: RULES,
    start: State::Reasoning,
    body: Body::Single,
    arguments: Arguments::Parameters(parameters, |dict, _, _| Json::Dict(dict).dump()),
    naming: Naming::Trimmed,
    kept_tokens: &[],
    trims_reasoning: true,
    blank: Blank::Trimmed,
    known_names_only: true,
};

/// With thinking switched off the think tags are no markers.
const GLM_PLAIN: Grammar = Grammar {
    markers: &[
        (Mark::ToolStart, "<tool_call>"),
        (Mark::ToolEnd, "</tool_call>"),
        (Mark::ParamStart, "<arg_key>"),
        (Mark::Plain, "</arg_key>"),
        (Mark::Plain, "<arg_value>"),
        (Mark::Plain, "</arg_value>"),
    ],
    ..GLM
};

/// `glm45`, also called `glm47`, and `ling3`.
pub fn glm45(text: &str, context: &Context, delivery: Delivery) -> Parsed {
    engine::parse(text, context, delivery, if reasoning::thinking(context) { &GLM } else { &GLM_PLAIN })
}

/// Reasoning as `glm45` cuts it off where thinking is on.
pub fn glm45_reasoning(text: &str, context: &Context) -> (String, String) {
    engine::split_reasoning(text, context, &GLM)
}

/// Pairs with their keys trimmed and their values as they are.
fn parameters(body: &str) -> Vec<Parameter<'_>> {
    all_pairs(body)
        .map(|pair| Parameter { name: space::strip(pair.name), ..pair })
        .filter(|pair| pair.closed || !pair.name.is_empty())
        .collect()
}

/// Every pair whose value has an end.
pub fn pairs(body: &str) -> impl Iterator<Item = (&str, &str)> {
    all_pairs(body).filter(|pair| pair.closed).map(|pair| (pair.name, pair.value))
}

/// Every `<arg_key>K</arg_key>`, white space, `<arg_value>V</arg_value>`; the last value may miss its end.
///
/// A key runs over further tags up to the first `</arg_key>` that a value follows.
fn all_pairs(body: &str) -> impl Iterator<Item = Parameter<'_>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let key = at + body[at..].find("<arg_key>")? + "<arg_key>".len();
        let mut end = key;
        let value = loop {
            end += body[end..].find("</arg_key>")?;
            let rest = body[end + "</arg_key>".len()..].trim_start();
            if let Some(value) = rest.strip_prefix("<arg_value>") {
                break value;
            }
            end += "</arg_key>".len();
        };
        let (value, closed, rest) = match value.split_once("</arg_value>") {
            Some((value, rest)) => (value, true, rest),
            None => (value, false, ""),
        };
        at = body.len() - rest.len();
        Some(Parameter { name: &body[key..end], value, form: Form::Text, closed })
    })
}

/// `poolside_v1`: only complete calls count, values of other than string parameters are JSON or Python literals.
pub fn poolside_v1(text: &str, context: &Context) -> Option<Parsed> {
    let content = &text[..text.find(OPEN)?];
    let parts = between(text, OPEN, "</tool_call>").filter_map(|piece| poolside_parts(piece.inside));
    let calls = parts.map(|(name, body)| poolside_call(name, body, context)).collect::<Option<Vec<_>>>()?;
    (!calls.is_empty()).then(|| Parsed::called(content, calls))
}

const OPEN: &str = "<tool_call>";

/// Name and pairs. A further opening tag starts the call anew, as the server takes the first place that fits.
fn poolside_parts(inside: &str) -> Option<(&str, &str)> {
    let later = inside.match_indices(OPEN).map(|(at, tag)| &inside[at + tag.len()..]);
    std::iter::once(inside).chain(later).find_map(|text| {
        let start = text.trim_start();
        let end = start.find(['\n', '<']).unwrap_or(start.len());
        let body = start[end..].trim_start();
        // White space can stand for a name, line breaks cannot.
        let named = end > 0 || text[..text.len() - start.len()].contains(|c| c != '\n');
        let fits = named && (body.is_empty() || body.starts_with("<arg_key>"));
        fits.then_some((space::strip(&start[..end]), body))
    })
}

/// `None` for a value that JSON does not have.
fn poolside_call(name: &str, body: &str, context: &Context) -> Option<ToolCall> {
    let values = pairs(body).map(|(key, value)| {
        let key = space::strip(key);
        let value = match schema::plain_type(context, name, key) {
            Some("string") => Literal::Json(Json::Str(value.to_owned())),
            _ => deserialize(space::strip(value)),
        };
        (key.to_owned(), value)
    });
    let dict = literal::writable(values)?;
    Some(ToolCall { name: name.to_owned(), arguments: Json::Dict(dict).dump() })
}

/// JSON, else a Python literal, else the text.
pub fn deserialize(text: &str) -> Literal {
    let text_itself = || Literal::Json(Json::Str(text.to_owned()));
    json::loads(text).map(Literal::Json).or_else(|| literal::eval(text)).unwrap_or_else(text_itself)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn context() -> Context {
        let tools = vec![json!({"function": {"name": "f", "parameters": {"properties": {
            "n": {"type": "integer"}, "s": {"type": "string"}}}}})];
        Context { tools, ..Context::default() }
    }

    fn answer(parsed: Parsed) -> (String, Vec<String>) {
        (
            parsed.content.unwrap_or_default(),
            parsed.tool_calls.into_iter().map(|call| call.arguments).collect(),
        )
    }

    fn glm(text: &str) -> (String, Vec<String>) {
        answer(glm45(text, &context(), Delivery::Whole))
    }

    fn poolside(text: &str) -> Option<(String, Vec<String>)> {
        poolside_v1(text, &context()).map(answer)
    }

    #[test]
    fn keys_are_trimmed_and_values_are_not() {
        let text = "a <tool_call>f\n<arg_key> s </arg_key>\n<arg_value> x\n</arg_value><arg_key>n</arg_key><arg_value> 3\n</arg_value></tool_call> b";
        assert_eq!(glm(text), ("a".into(), vec!["{\"s\": \" x\\n\", \"n\": 3}".into()]));
    }

    #[test]
    fn unknown_names_vanish_but_text_stays() {
        assert_eq!(
            glm("a<tool_call>g<arg_key>x</arg_key><arg_value>1</arg_value></tool_call>b"),
            ("ab".into(), vec![])
        );
        assert_eq!(glm("a<tool_call><function=f></function></tool_call>"), ("a".into(), vec![]));
    }

    #[test]
    fn an_open_value_is_dropped() {
        assert_eq!(glm("<tool_call>f<arg_key>s</arg_key><arg_value>x").1, ["{}"]);
        assert_eq!(glm("<tool_call>f").1, ["{}"]);
    }

    #[test]
    fn a_key_runs_up_to_its_value() {
        assert_eq!(
            glm("<tool_call>f<arg_key>a</arg_key>x<arg_key>b</arg_key><arg_value>1</arg_value></tool_call>")
                .1,
            ["{\"a</arg_key>x<arg_key>b\": \"1\"}"]
        );
    }

    #[test]
    fn poolside_reads_json_and_python_literals() {
        let text = "a\n<tool_call>f\n<arg_key>s</arg_key>\n<arg_value> 1 </arg_value><arg_key>x</arg_key><arg_value>('a', None)</arg_value></tool_call>";
        assert_eq!(
            poolside(text),
            Some(("a\n".into(), vec!["{\"s\": \" 1 \", \"x\": [\"a\", null]}".into()]))
        );
        assert_eq!(poolside("<tool_call>f<arg_key>x</arg_key><arg_value>{1}</arg_value></tool_call>"), None);
    }

    #[test]
    fn poolside_wants_complete_calls() {
        for text in [
            "<tool_call>f",
            "<tool_call>f x\ny</tool_call>",
            "<tool_call></tool_call>",
            "<tool_call>f<b></tool_call>",
        ] {
            assert_eq!(poolside(text), None, "{text}");
        }
    }
}

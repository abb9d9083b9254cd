//! Step-3's `<steptml:invoke name="NAME">` inside tool tokens.
//!
//! Source: vLLM 0.33, `step3`.

use serde_json::Value;

use super::python::{Dict, Json, number, space};
use super::{Context, Parsed, ToolCall, schema};

const CALLS_BEGIN: &str = "<｜tool_calls_begin｜>";
const CALLS_END: &str = "<｜tool_calls_end｜>";
const BEGIN: &str = "<｜tool_call_begin｜>";
const END: &str = "<｜tool_call_end｜>";
const SEPARATOR: &str = "<｜tool_sep｜>";

/// `step3`: parts without an end, a separator or the type `function` are passed over.
pub fn step3(text: &str, context: &Context) -> Option<Parsed> {
    let (before, rest) = text.split_once(CALLS_BEGIN)?;
    let (block, after) = rest.split_once(CALLS_END)?;
    let calls: Vec<_> = block.split(BEGIN).filter_map(|part| call(part, context)).collect();
    let content = format!("{before}{after}");
    (!calls.is_empty()).then(|| Parsed::called(space::strip(&content), calls))
}

fn call(part: &str, context: &Context) -> Option<ToolCall> {
    let (part, _) = part.split_once(END)?;
    let (kind, invoke) = part.split_once(SEPARATOR)?;
    if space::strip(kind) != "function" {
        return None;
    }
    let (name, _) = named(invoke, "<steptml:invoke name=\"").next()?;
    let mut dict = Dict::default();
    for (key, value) in parameters(invoke) {
        dict.insert(key.to_owned(), Json::Str(space::strip(value).to_owned()));
    }
    let properties = schema::properties(context, name);
    for (key, value) in dict.iter_mut() {
        let schema = properties.and_then(|properties| properties.get(key));
        if let Some(new) = value.as_str().zip(schema).and_then(|(text, schema)| converted(text, schema)) {
            *value = new;
        }
    }
    Some(ToolCall { name: name.to_owned(), arguments: Json::Dict(dict).dump() })
}

/// Every `open` with a name and `">` behind it: the name and what follows.
fn named<'a>(text: &'a str, open: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
    text.match_indices(open).filter_map(move |(at, _)| {
        let (name, rest) = text[at + open.len()..].split_once('"')?;
        Some((name, rest.strip_prefix('>')?)).filter(|_| !name.is_empty())
    })
}

fn parameters(text: &str) -> Vec<(&str, &str)> {
    const OPEN: &str = "<steptml:parameter name=\"";
    const CLOSE: &str = "</steptml:parameter>";
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(OPEN) {
        rest = &rest[at + OPEN.len()..];
        let Some((name, value)) = rest.split_once('"') else { break };
        let Some(value) = value.strip_prefix('>').filter(|_| !name.is_empty()) else { continue };
        // A value without an end leaves none for those after it.
        let Some((value, after)) = value.split_once(CLOSE) else { break };
        found.push((name, value));
        rest = after;
    }
    found
}

/// By plain `type` only; a number is always a float.
fn converted(text: &str, schema: &Value) -> Option<Json> {
    match schema.get("type")?.as_str()? {
        "integer" => number::parse_int(text).map(Json::Int),
        "number" => number::parse_any_float(text).map(Json::Float),
        "boolean" if text.eq_ignore_ascii_case("true") => Some(Json::Bool(true)),
        "boolean" if text.eq_ignore_ascii_case("false") => Some(Json::Bool(false)),
        "null" if text.eq_ignore_ascii_case("null") => Some(Json::Null),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answer(parts: &str) -> Option<Vec<(String, String)>> {
        let kinds = json!({"i": {"type": "integer"}, "n": {"type": "number"}, "b": {"type": "boolean"},
                           "z": {"type": "null"}, "a": {"type": "array"}, "u": {"type": ["integer", "null"]}});
        let tools = vec![json!({"function": {"name": "f", "parameters": {"properties": kinds}}})];
        let context = Context { tools, ..Context::default() };
        let parsed = step3(&format!("a{CALLS_BEGIN}{parts}{CALLS_END} b "), &context)?;
        assert_eq!(parsed.content.as_deref(), Some("a b"));
        Some(parsed.tool_calls.into_iter().map(|call| (call.name, call.arguments)).collect())
    }

    fn parameter(key: &str, value: &str) -> String {
        format!("<steptml:parameter name=\"{key}\">{value}</steptml:parameter>")
    }

    #[test]
    fn only_plain_types_convert() {
        for (key, value, written) in [
            ("i", " 3 ", "3"),
            ("n", "3", "3.0"),
            ("b", "TRUE", "true"),
            ("b", "1", "\"1\""),
            ("z", "null", "null"),
            ("a", "[1]", "\"[1]\""),
            ("u", "3", "\"3\""),
            ("x", "3", "\"3\""),
        ] {
            let call = format!(
                "{BEGIN}function{SEPARATOR}<steptml:invoke name=\"f\">{}{END}",
                parameter(key, value)
            );
            assert_eq!(answer(&call).unwrap(), [("f".into(), format!("{{\"{key}\": {written}}}"))]);
        }
    }

    #[test]
    fn parts_that_do_not_read_are_passed_over() {
        let good = format!("{BEGIN}function{SEPARATOR}<steptml:invoke name=\"f\">{END}");
        for bad in [
            "",
            "x",
            "tool<｜tool_sep｜><steptml:invoke name=\"f\"><｜tool_call_end｜>",
            "function<｜tool_call_end｜>",
        ] {
            assert_eq!(answer(&format!("{BEGIN}{bad}{good}")).unwrap().len(), 1, "{bad}");
            assert_eq!(answer(&format!("{BEGIN}{bad}")), None);
        }
    }
}

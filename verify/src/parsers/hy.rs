//! Hunyuan's `<tool_calls><tool_call>NAME<tool_sep>` with key and value tags.
//!
//! Source: vLLM 0.33, `hy_v3`.

use serde_json::Value;

use super::glm::{deserialize, pairs};
use super::python::literal::{self, Literal};
use super::python::{Json, json, number, space};
use super::{Context, Parsed, ToolCall, schema};

const OPEN: &str = "<tool_calls>";
const CALL: &str = "<tool_call>";
const CALL_END: &str = "</tool_call>";
const SEPARATOR: &str = "<tool_sep>";

/// `hy_v3`: a call that is cut counts with the pairs it has.
pub fn hy_v3(text: &str, context: &Context) -> Option<Parsed> {
    let content = &text[..text.find(OPEN)?];
    // One value that cannot be written drops all calls, not the text before them.
    let calls =
        sections(text).into_iter().map(|(name, body)| call(name, body, context)).collect::<Option<Vec<_>>>();
    Some(Parsed::called(content, calls.unwrap_or_default()))
}

/// Name and body of every call; behind the last complete one, or without any, of one that is cut.
fn sections(text: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(complete) = rest.split_once(CALL).and_then(|(_, rest)| {
        let (name, rest) = rest.split_once(SEPARATOR)?;
        let (body, rest) = rest.split_once(CALL_END)?;
        Some((name, body, rest))
    }) {
        found.push((complete.0, complete.1));
        rest = complete.2;
    }
    let tail = if found.is_empty() { text } else { text.rsplit(CALL_END).next().unwrap_or_default() };
    found.extend(tail.split_once(CALL).and_then(|(_, rest)| rest.split_once(SEPARATOR)));
    found
}

fn call(name: &str, body: &str, context: &Context) -> Option<ToolCall> {
    let name = space::strip(name);
    let values =
        pairs(space::strip(body)).map(|(key, value)| (key.to_owned(), converted(value, name, key, context)));
    let dict = literal::writable(values)?;
    Some(ToolCall { name: name.to_owned(), arguments: Json::Dict(dict).dump() })
}

/// Types of the parameter, aliases resolved; `null` counts for nothing.
fn types(name: &str, key: &str, context: &Context) -> Vec<String> {
    let property = schema::parameters(context, name)
        .and_then(|parameters| parameters.get("properties")?.get(key))
        .unwrap_or(&Value::Null);
    let branches = || ["anyOf", "oneOf"].iter().find_map(|key| property.get(*key));
    let names: Vec<&str> = match (property.get("type"), branches()) {
        (Some(Value::Array(kinds)), _) => kinds.iter().filter_map(Value::as_str).collect(),
        (Some(kind), _) => kind.as_str().into_iter().collect(),
        (None, Some(Value::Array(branches))) => branches
            .iter()
            .map(|branch| branch.get("type").and_then(Value::as_str).unwrap_or("string"))
            .collect(),
        _ => vec!["string"],
    };
    names.into_iter().map(normalized).filter(|kind| kind != "null").collect()
}

fn normalized(name: &str) -> String {
    let lower = name.to_lowercase();
    let starts = |prefixes: &[&str]| prefixes.iter().any(|prefix| lower.starts_with(prefix));
    match name {
        "str" | "text" | "varchar" | "char" | "enum" => "string".into(),
        "bool" | "binary" => "boolean".into(),
        "int" => "integer".into(),
        "float" | "double" => "number".into(),
        "list" => "array".into(),
        "dict" | "map" => "object".into(),
        _ if starts(&["int", "uint", "long", "short", "unsigned"]) => "integer".into(),
        _ if starts(&["num", "float"]) => "number".into(),
        other => other.into(),
    }
}

/// Boolean, integer, number, JSON and string are tried in this order.
fn converted(text: &str, name: &str, key: &str, context: &Context) -> Literal {
    let types = types(name, key, context);
    let has = |wanted: &str| types.iter().any(|kind| kind == wanted);
    let boolean = || match text {
        _ if !has("boolean") => None,
        text if text.eq_ignore_ascii_case("true") => Some(Json::Bool(true)),
        text if text.eq_ignore_ascii_case("false") => Some(Json::Bool(false)),
        _ => None,
    };
    let integer = || number::parse_int(text).filter(|_| has("integer")).map(Json::Int);
    let any_number = || match text {
        _ if !has("number") => None,
        text if text.contains(['.', 'e', 'E']) => number::parse_any_float(text).map(Json::Float),
        text => number::parse_int(text).map(Json::Int),
    };
    let other =
        types.iter().any(|kind| !matches!(kind.as_str(), "string" | "boolean" | "integer" | "number"));
    let structure = || json::loads(text).filter(|_| other);
    let plain = || has("string").then(|| Json::Str(text.to_owned()));
    let found = boolean().or_else(integer).or_else(any_number).or_else(structure).or_else(plain);
    found.map_or_else(|| deserialize(text), Literal::Json)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answer(body: &str) -> (String, Vec<(String, String)>) {
        let tools = vec![json!({"function": {"name": "f", "parameters": {"properties": {
            "i": {"type": "int64"}, "n": {"type": "number"}, "b": {"type": "boolean"}, "l": {"type": ["array", "null"]},
            "u": {"anyOf": [{"type": "string"}, {"type": "integer"}]}}}}})];
        let parsed = hy_v3(&format!("a{body}"), &Context { tools, ..Context::default() }).unwrap();
        let calls = parsed.tool_calls.into_iter().map(|call| (call.name, call.arguments)).collect();
        (parsed.content.unwrap_or_default(), calls)
    }

    fn converted(key: &str, value: &str) -> String {
        let call = format!(
            "<tool_calls><tool_call>f<tool_sep><arg_key>{key}</arg_key><arg_value>{value}</arg_value>"
        );
        answer(&call).1[0].1.clone()
    }

    #[test]
    fn values_convert_by_type() {
        assert_eq!(converted("i", "3"), "{\"i\": 3}");
        assert_eq!(converted("i", "3.0"), "{\"i\": 3.0}");
        assert_eq!(converted("n", "5.0"), "{\"n\": 5.0}");
        assert_eq!(converted("b", "True"), "{\"b\": true}");
        assert_eq!(converted("l", "['a']"), "{\"l\": [\"a\"]}");
        assert_eq!(converted("u", "7"), "{\"u\": 7}");
        assert_eq!(converted("ghost", "7"), "{\"ghost\": \"7\"}");
    }

    #[test]
    fn complete_calls_and_one_that_is_cut() {
        let text = "<tool_calls><tool_call>f<tool_sep></tool_call><tool_call> g <tool_sep><arg_key>x";
        assert_eq!(answer(text), ("a".into(), vec![("f".into(), "{}".into()), ("g".into(), "{}".into())]));
    }

    #[test]
    fn the_wrapper_alone_is_a_call_of_nothing() {
        assert_eq!(answer("<tool_calls>x"), ("a".into(), vec![]));
    }
}

//! dots' `<dots_function_call>` with invoke and parameter tags, or a JSON object.
//!
//! Source: vLLM 0.33, `dots`.

use serde_json::Value;

use super::python::{Dict, Json, json, number, space};
use super::scan::between;
use super::{Context, Parsed, ToolCall, schema};

const OPEN: &str = "<dots_function_call>";
const CLOSE: &str = "</dots_function_call>";
/// How far references of a schema are followed.
const MAX_REFERENCES: usize = 10;

/// `dots`: calls of tools that were not offered are passed over, and so is what does not read.
pub fn dots(text: &str, context: &Context) -> Option<Parsed> {
    let content = &text[..text.find(OPEN)?];
    let mut calls = Vec::new();
    for block in between(text, OPEN, CLOSE) {
        let inside = space::strip(block.inside);
        if inside.starts_with("<invoke") {
            calls.extend(
                elements(inside, "<invoke", "</invoke>")
                    .filter_map(|(name, body)| invoke(name, body, context)),
            );
        } else {
            calls.extend(json::loads(inside).and_then(|value| json_call(&value, context)));
        }
    }
    (!calls.is_empty()).then(|| Parsed::called(space::strip(content), calls))
}

/// Every `<TAG name=NAME>`, shortest body, closing tag.
fn elements<'a>(text: &'a str, open: &'a str, close: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        loop {
            let start = at + text[at..].find(open)? + open.len();
            at = start;
            let Some(name) = name_attribute(&text[start..]) else { continue };
            // Without a bracket or an end for this element there is none for any later one.
            let (name, body) = name.split_once('>')?;
            if name.is_empty() {
                continue;
            }
            let (inside, after) = body.split_once(close)?;
            at = text.len() - after.len();
            return Some((unquoted(name), inside));
        }
    })
}

/// What follows white space, `name` and `=`.
fn name_attribute(text: &str) -> Option<&str> {
    let rest = text.trim_start();
    let rest = Some(rest).filter(|rest| rest.len() < text.len())?.strip_prefix("name")?;
    rest.trim_start().strip_prefix('=')
}

fn unquoted(name: &str) -> &str {
    let name = space::strip(name);
    let inside = |quote| name.strip_prefix(quote)?.strip_suffix(quote);
    inside('"').or_else(|| inside('\'')).unwrap_or(name)
}

fn invoke(name: &str, body: &str, context: &Context) -> Option<ToolCall> {
    let mut dict = Dict::default();
    for (key, value) in elements(body, "<parameter", "</parameter>") {
        let kind = schema::parameters(context, name).and_then(|parameters| kind(key, parameters));
        dict.insert(key.to_owned(), converted(space::strip(value), kind.as_deref().unwrap_or("string")));
    }
    reported(name, &Json::Dict(dict), context)
}

fn json_call(value: &Json, context: &Context) -> Option<ToolCall> {
    let object = value.as_dict()?;
    let empty = Json::Dict(Dict::default());
    let arguments = object.get("arguments").or_else(|| object.get("parameters")).unwrap_or(&empty);
    reported(object.get("name")?.as_str()?, if is_empty(arguments) { &empty } else { arguments }, context)
}

/// Whether Python takes the value for false.
fn is_empty(value: &Json) -> bool {
    match value {
        Json::Null | Json::Bool(false) => true,
        Json::Bool(true) => false,
        Json::Int(digits) => digits == "0",
        Json::Float(value) => *value == 0.0,
        Json::Str(text) => text.is_empty(),
        Json::List(items) => items.is_empty(),
        Json::Dict(dict) => dict.is_empty(),
    }
}

fn reported(name: &str, arguments: &Json, context: &Context) -> Option<ToolCall> {
    let known = schema::offers(context, name) && arguments.as_dict().is_some();
    known.then(|| ToolCall { name: name.to_owned(), arguments: arguments.dump() })
}

/// The type that the schema tells for `key`.
fn kind(key: &str, parameters: &Value) -> Option<String> {
    let property = parameters.get("properties")?.get(key)?;
    let kind = resolve(property, parameters.get("$defs"), 0)?;
    let name = match kind {
        Value::Array(kinds) => kinds.iter().find(|kind| *kind != "null")?,
        kind => kind,
    };
    name.as_str().filter(|name| !name.is_empty()).map(str::to_lowercase)
}

fn resolve<'a>(schema: &'a Value, definitions: Option<&'a Value>, depth: usize) -> Option<&'a Value> {
    if depth > MAX_REFERENCES {
        return None;
    }
    let schema = schema.as_object()?;
    if let Some(kind) = schema.get("type") {
        return Some(kind);
    }
    if let Some(reference) =
        schema.get("$ref").and_then(Value::as_str).and_then(|name| name.strip_prefix("#/$defs/"))
    {
        let name = reference.rsplit('/').next()?;
        return resolve(definitions?.get(name)?, definitions, depth + 1);
    }
    ["anyOf", "oneOf", "allOf"]
        .iter()
        .filter_map(|key| schema.get(*key)?.as_array())
        .flatten()
        .filter(|branch| branch.get("type").is_none_or(|kind| kind != "null"))
        .find_map(|branch| resolve(branch, definitions, depth + 1))
}

fn converted(text: &str, kind: &str) -> Json {
    let plain = || Json::Str(text.to_owned());
    if text.eq_ignore_ascii_case("null") {
        return Json::Null;
    }
    match kind {
        "string" | "str" | "text" => plain(),
        "integer" | "int" => number::parse_int(text).map_or_else(plain, Json::Int),
        "number" | "float" => match number::parse_any_float(text) {
            Some(value) => number::whole(value).map_or(Json::Float(value), Json::Int),
            None => plain(),
        },
        "boolean" | "bool" => Json::Bool(text == "1" || text.eq_ignore_ascii_case("true")),
        _ => json::loads(text).unwrap_or_else(plain),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answer(body: &str) -> Option<Vec<(String, String)>> {
        let parameters = json!({"properties": {
            "i": {"type": "integer"}, "n": {"anyOf": [{"type": "null"}, {"type": "number"}]}, "b": {"type": "boolean"},
            "l": {"$ref": "#/$defs/L"}, "s": {"type": ["null", "string"]}, "x": {}}, "$defs": {"L": {"type": "array"}}});
        let tools = vec![json!({"function": {"name": "f", "parameters": parameters}})];
        let context = Context { tools, ..Context::default() };
        let parsed = dots(&format!(" a {OPEN}{body}{CLOSE} b"), &context)?;
        assert_eq!(parsed.content.as_deref(), Some("a"));
        Some(parsed.tool_calls.into_iter().map(|call| (call.name, call.arguments)).collect())
    }

    #[test]
    fn values_convert_by_type() {
        for (key, value, written) in [
            ("i", " 3\n", "3"),
            ("i", "x", "\"x\""),
            ("n", "3.0", "3"),
            ("n", "3.5", "3.5"),
            ("b", "1", "true"),
            ("b", "yes", "false"),
            ("l", "[1]", "[1]"),
            ("s", "null", "null"),
            ("s", " 1 ", "\"1\""),
            ("x", "1", "\"1\""),
            ("ghost", "1", "\"1\""),
        ] {
            let body = format!("<invoke name=\"f\"><parameter name='{key}'>{value}</parameter></invoke>");
            assert_eq!(answer(&body).unwrap(), [("f".into(), format!("{{\"{key}\": {written}}}"))]);
        }
    }

    #[test]
    fn a_json_object_is_a_call() {
        assert_eq!(
            answer("{\"name\":\"f\",\"arguments\":{\"i\":\"1\"}}").unwrap(),
            [("f".into(), "{\"i\": \"1\"}".into())]
        );
        assert_eq!(answer("{\"name\":\"f\",\"arguments\":null}").unwrap(), [("f".into(), "{}".into())]);
        assert_eq!(answer("{\"name\":\"f\",\"arguments\":[1]}"), None);
    }

    #[test]
    fn unknown_tools_are_passed_over() {
        assert_eq!(answer("<invoke name=\"g\"></invoke>"), None);
        assert_eq!(answer("<invoke name=\"g\"></invoke><invoke name = f ></invoke>").unwrap().len(), 1);
    }
}

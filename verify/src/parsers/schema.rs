//! Conversion of arguments by the tool's JSON schema, as the server's engine parsers do it.
//!
//! Source: vLLM 0.33, engine parsers. Most wire formats carry text only, so the kind of a value comes from the schema.

use serde_json::Value;

use super::Context;
use super::python::{Dict, Json, json, number, space};

/// A JSON type that a schema may ask for, in the order in which they are tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Type {
    Null,
    Integer,
    Number,
    Boolean,
    Structure,
    String,
}

/// `parameters` of the tool called `name`.
pub fn parameters<'a>(context: &'a Context, name: &str) -> Option<&'a Value> {
    let tool = context.tools.iter().find(|tool| tool_name(tool) == Some(name))?;
    tool.get("function")?.get("parameters")
}

/// The `type` of one parameter where it is a single name.
pub fn plain_type<'a>(context: &'a Context, name: &str, key: &str) -> Option<&'a str> {
    parameters(context, name)?.get("properties")?.get(key)?.get("type")?.as_str()
}

/// `parameters.properties` of the tool called `name`: empty for unknown tools.
pub fn properties<'a>(context: &'a Context, name: &str) -> Option<&'a serde_json::Map<String, Value>> {
    let properties = parameters(context, name)?.get("properties")?.as_object()?;
    (!properties.is_empty()).then_some(properties)
}

/// Whether the request offers a tool of this name; true for requests without tools.
pub fn offers(context: &Context, name: &str) -> bool {
    context.tools.is_empty() || context.tools.iter().any(|tool| tool_name(tool) == Some(name))
}

fn tool_name(tool: &Value) -> Option<&str> {
    tool.get("function")?.get("name")?.as_str()
}

/// The argument string after conversion: byte for byte the same where nothing changed.
pub fn convert_arguments(arguments: String, name: &str, context: &Context) -> String {
    let Some(properties) = properties(context, name) else { return arguments };
    match json::loads(&arguments) {
        Some(Json::Dict(mut dict)) => {
            if convert_dict(&mut dict, properties) {
                Json::Dict(dict).dump()
            } else {
                arguments
            }
        }
        _ => arguments,
    }
}

fn convert_dict(dict: &mut Dict, properties: &serde_json::Map<String, Value>) -> bool {
    let mut changed = false;
    for (key, value) in dict.iter_mut() {
        if let Some(schema) = properties.get(key).filter(|schema| schema.is_object()) {
            changed |= convert(value, schema);
        }
    }
    changed
}

fn convert(value: &mut Json, schema: &Value) -> bool {
    let new = match value {
        Json::Str(text) => convert_text(text, schema),
        Json::Dict(dict) => {
            let nested = schema.get("properties").and_then(Value::as_object);
            return nested.is_some_and(|nested| convert_dict(dict, nested));
        }
        Json::List(items) => {
            let Some(schema) = schema.get("items").filter(|items| items.is_object()) else { return false };
            return items.iter_mut().fold(false, |changed, item| convert(item, schema) | changed);
        }
        ref other => {
            let text = other.dump();
            let new = convert_text(&text, schema).unwrap_or(Json::Str(text));
            (new != **other).then_some(new)
        }
    };
    match new {
        Some(new) => {
            *value = new;
            true
        }
        None => false,
    }
}

/// What `text` becomes under `schema`; `None` where it stays the text.
pub fn convert_text(text: &str, schema: &Value) -> Option<Json> {
    let mut types = Vec::new();
    collect_types(schema, &mut types);
    types.sort_unstable();
    types.dedup();
    for wanted in types {
        let found = match wanted {
            Type::Null => text.eq_ignore_ascii_case("null").then_some(Json::Null),
            Type::Integer => number::parse_int(text).map(Json::Int),
            Type::Number => parse_number(text),
            Type::Boolean => parse_bool(text),
            Type::Structure => json::loads(text).filter(Json::is_finite),
            Type::String => return None,
        };
        if found.is_some() {
            return found;
        }
    }
    json::loads(text).filter(Json::is_finite)
}

fn parse_number(text: &str) -> Option<Json> {
    if let Some(digits) = number::parse_int(text) {
        return Some(Json::Int(digits));
    }
    let value = number::parse_float(text)?;
    Some(number::whole(value).map_or(Json::Float(value), Json::Int))
}

fn parse_bool(text: &str) -> Option<Json> {
    match space::strip(text).to_ascii_lowercase().as_str() {
        "true" | "1" => Some(Json::Bool(true)),
        "false" | "0" => Some(Json::Bool(false)),
        _ => None,
    }
}

/// Whether `schema` allows a string and nothing else.
pub fn only_string(schema: &Value) -> bool {
    let mut types = Vec::new();
    collect_types(schema, &mut types);
    types.iter().all(|kind| *kind == Type::String)
}

/// Whether `schema` allows a string.
pub fn allows_string(schema: &Value) -> bool {
    let mut types = Vec::new();
    collect_types(schema, &mut types);
    types.contains(&Type::String)
}

/// Adds every type `schema` allows; a schema, or a branch of one, that tells none means a string.
fn collect_types(schema: &Value, types: &mut Vec<Type>) {
    let before = types.len();
    let mut told = false;
    let names = match schema.get("type") {
        Some(Value::Array(names)) => names.as_slice(),
        Some(name) => std::slice::from_ref(name),
        None => &[],
    };
    for name in names.iter().filter_map(Value::as_str) {
        told = true;
        types.extend(named(name));
    }
    if let Some(Value::Array(members)) = schema.get("enum") {
        types.extend(members.iter().map(kind_of));
    }
    for key in ["anyOf", "oneOf", "allOf"] {
        if let Some(Value::Array(branches)) = schema.get(key) {
            for branch in branches {
                told = true;
                collect_types(branch, types);
            }
        }
    }
    if !told && types.len() == before {
        types.push(Type::String);
    }
}

/// The type behind a name of a schema, aliases of other languages included.
fn named(name: &str) -> Option<Type> {
    Some(match space::strip(name).to_lowercase().as_str() {
        "null" => Type::Null,
        "integer" | "int" | "int32" | "int64" | "uint" | "uint32" | "uint64" | "long" | "short"
        | "unsigned" => Type::Integer,
        "number" | "float" | "float32" | "float64" | "double" => Type::Number,
        "boolean" | "bool" => Type::Boolean,
        "object" | "dict" | "array" | "arr" | "list" | "sequence" => Type::Structure,
        "string" | "str" | "text" | "varchar" | "char" | "enum" => Type::String,
        _ => return None,
    })
}

fn kind_of(value: &Value) -> Type {
    match value {
        Value::Null => Type::Null,
        Value::Bool(_) => Type::Boolean,
        Value::Number(number) if number.is_f64() => Type::Number,
        Value::Number(_) => Type::Integer,
        Value::String(_) => Type::String,
        Value::Array(_) | Value::Object(_) => Type::Structure,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The JSON text that `text` becomes, quotes included where it stays text.
    fn converted(text: &str, schema: Value) -> String {
        convert_text(text, &schema).unwrap_or(Json::Str(text.into())).dump()
    }

    #[test]
    fn types_are_tried_in_the_fixed_order() {
        let any_of =
            |names: &[&str]| json!({"anyOf": names.iter().map(|n| json!({"type": n})).collect::<Vec<_>>()});
        assert_eq!(converted("42", any_of(&["string", "integer"])), "42");
        assert_eq!(converted("1", any_of(&["string", "boolean"])), "true");
        assert_eq!(converted("1", any_of(&["boolean", "integer"])), "1");
        assert_eq!(converted("NULL", any_of(&["string", "null"])), "null");
        assert_eq!(converted("null", json!({"type": "string"})), "\"null\"");
        assert_eq!(converted("None", any_of(&["integer", "null"])), "\"None\"");
        assert_eq!(converted("{\"a\":1}", any_of(&["string", "object"])), "{\"a\": 1}");
        assert_eq!(converted("x", json!({"type": ["string", "object"]})), "\"x\"");
    }

    #[test]
    fn numbers_become_whole_where_they_are() {
        for (text, written) in
            [("12.0", "12"), ("1e3", "1000"), ("1.5", "1.5"), ("inf", "\"inf\""), ("-0.0", "0")]
        {
            assert_eq!(converted(text, json!({"type": "number"})), written);
        }
        assert_eq!(converted("1e23", json!({"type": "number"})), "99999999999999991611392");
    }

    #[test]
    fn without_a_match_json_decides() {
        assert_eq!(converted("5.0", json!({"type": "integer"})), "5.0");
        assert_eq!(converted("true", json!({"type": "integer"})), "true");
        assert_eq!(converted("yes", json!({"type": "boolean"})), "\"yes\"");
        assert_eq!(converted("['a']", json!({"type": "array"})), "\"['a']\"");
        assert_eq!(converted("{\"a\": 1}", json!({"type": "array"})), "{\"a\": 1}");
        assert_eq!(converted("[1e999]", json!({"type": "array"})), "\"[1e999]\"");
        assert_eq!(converted("NaN", json!({"type": "number"})), "\"NaN\"");
        assert_eq!(converted("7", json!({"type": "file"})), "7");
    }

    #[test]
    fn missing_types_mean_a_string() {
        for schema in [json!({}), json!({"$ref": "#/x"}), json!({"type": []}), json!({"enum": []})] {
            assert_eq!(converted("12", schema), "\"12\"");
        }
        assert_eq!(converted("12", json!({"anyOf": [{"$ref": "#/x"}, {"type": "null"}]})), "\"12\"");
        assert_eq!(converted("12", json!({"anyOf": []})), "\"12\"");
    }

    #[test]
    fn enum_members_and_aliases_tell_types() {
        assert_eq!(converted("2", json!({"enum": [1, 2]})), "2");
        assert_eq!(converted("2", json!({"enum": ["a", 2]})), "2");
        assert_eq!(converted("2", json!({"enum": [1.5]})), "2");
        for (alias, text, written) in [
            ("Int64", "7", "7"),
            ("double", "2.0", "2"),
            ("bool", " TRUE ", "true"),
            ("list", "[1]", "[1]"),
            ("varchar", "7", "\"7\""),
        ] {
            assert_eq!(converted(text, json!({"type": alias})), written);
        }
    }

    fn arguments(text: &str, properties: Value) -> String {
        let tools = vec![json!({"function": {"name": "f", "parameters": {"properties": properties}}})];
        convert_arguments(text.into(), "f", &Context { tools, ..Context::default() })
    }

    #[test]
    fn unchanged_arguments_stay_byte_for_byte() {
        let text = r#"{"a":"x" , "ghost":"1"}"#;
        assert_eq!(arguments(text, json!({"a": {"type": "string"}})), text);
        assert_eq!(arguments("not json", json!({"a": {}})), "not json");
        assert_eq!(arguments("[\"1\"]", json!({"a": {"type": "integer"}})), "[\"1\"]");
    }

    #[test]
    fn objects_and_lists_are_visited_by_their_own_schema() {
        let schema =
            json!({"o": {"properties": {"n": {"type": "integer"}}}, "l": {"items": {"type": "integer"}}});
        assert_eq!(
            arguments(r#"{"o":{"n":"1","m":"2"},"l":["3",4]}"#, schema),
            r#"{"o": {"n": 1, "m": "2"}, "l": [3, 4]}"#
        );
    }

    #[test]
    fn converted_text_is_not_visited_again() {
        let schema = json!({"o": {"type": "object", "properties": {"n": {"type": "integer"}}}});
        assert_eq!(arguments(r#"{"o":"{\"n\":\"1\"}"}"#, schema), r#"{"o": {"n": "1"}}"#);
    }

    #[test]
    fn other_values_run_through_the_same_rules() {
        let schema =
            json!({"s": {"type": "string"}, "z": {}, "n": {"type": "number"}, "b": {"type": "boolean"}});
        assert_eq!(
            arguments(r#"{"s":7,"z":null,"n":5.0,"b":1}"#, schema),
            r#"{"s": "7", "z": "null", "n": 5, "b": true}"#
        );
    }

    #[test]
    fn long_integers_stay_exact() {
        let digits = "123456789012345678901234567890";
        assert_eq!(
            arguments(&format!("{{\"n\":\"{digits}\"}}"), json!({"n": {"type": "integer"}})),
            format!("{{\"n\": {digits}}}")
        );
    }
}

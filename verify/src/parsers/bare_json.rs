//! JSON objects without any tag, as Llama 3 and 4 write them.
//!
//! Source: vLLM 0.33, `llama3_json`.

use super::python::{Json, json};
use super::{Context, Parsed, ToolCall};

/// `llama3_json`, also called `llama4_json`: every object of the text must be a call; text beside them is dropped.
pub fn llama3_json(text: &str, _: &Context) -> Option<Parsed> {
    let mut calls = Vec::new();
    let mut at = 0;
    while let Some(found) = text[at..].find('{') {
        let start = at + found;
        let (value, end) = json::raw_decode(text, start)?;
        calls.push(call(&value)?);
        // The server takes a brace right behind an object for one of its own.
        at = if text[end..].starts_with('{') { end + 1 } else { end };
    }
    (!calls.is_empty()).then(|| Parsed::called("", calls))
}

fn call(value: &Json) -> Option<ToolCall> {
    let object = value.as_dict()?;
    let arguments = object.get("arguments").or_else(|| object.get("parameters"))?;
    Some(ToolCall { name: object.get("name")?.as_str()?.to_owned(), arguments: arguments.dump() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(text: &str) -> Option<Vec<(String, String)>> {
        let parsed = llama3_json(text, &Context::default())?;
        Some(parsed.tool_calls.into_iter().map(|call| (call.name, call.arguments)).collect())
    }

    #[test]
    fn arguments_come_before_parameters() {
        let text = r#"say {"name":"f","parameters":{"a":1},"arguments":"x"}"#;
        assert_eq!(calls(text).unwrap(), [("f".into(), "\"x\"".into())]);
    }

    #[test]
    fn one_fault_makes_all_of_it_content() {
        let good = r#"{"name":"f","parameters":{}}"#;
        for bad in ["{", "{prose}", "{\"name\":\"f\"}", "{\"name\":1,\"parameters\":{}}"] {
            assert_eq!(calls(&format!("{good} {bad}")), None, "{bad}");
        }
        assert_eq!(calls("no braces"), None);
    }

    #[test]
    fn an_object_right_behind_another_is_lost() {
        let text = r#"{"name":"f","parameters":{}}{"name":"g","parameters":1}"#;
        assert_eq!(calls(text).unwrap().len(), 1);
        let spaced = r#"{"name":"f","parameters":{}} {"name":"g","parameters":1}"#;
        assert_eq!(calls(spaced).unwrap().len(), 2);
    }
}

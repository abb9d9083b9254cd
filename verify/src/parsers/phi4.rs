//! Phi-4's `functools[{"name": .., "arguments": ..}]`.
//!
//! Source: vLLM 0.33, `phi4_mini_json`.

use super::python::{Json, json};
use super::scan::between;
use super::{Context, Parsed, ToolCall};

/// `phi4_mini_json`. The server ends the list at the first `]`, whatever that belongs to, and loses calls and text where
/// this is no JSON; here the whole list counts then, or the text if there is none.
pub fn phi4_mini_json(text: &str, _: &Context) -> Option<Parsed> {
    let list = between(text, "functools[", "]").next()?;
    if let Some(items) = json::loads(&format!("[{}]", list.inside)) {
        return called(&items);
    }
    let whole = json::raw_decode(text, list.start + "functools".len()).and_then(|(items, _)| called(&items));
    let fault = "the server reports calls, but returns neither a call nor the text: \
                 it ends the list at its first `]` and does not get valid JSON";
    Some(Parsed { server_fault: Some(fault.into()), ..whole.unwrap_or_else(|| Parsed::plain(text)) })
}

fn called(items: &Json) -> Option<Parsed> {
    let Json::List(items) = items else { return None };
    Some(Parsed::called("", items.iter().map(call).collect::<Option<Vec<_>>>()?))
}

fn call(value: &Json) -> Option<ToolCall> {
    let object = value.as_dict()?;
    let arguments = object.get("arguments").or_else(|| object.get("parameters"))?;
    Some(ToolCall { name: object.get("name")?.as_str()?.to_owned(), arguments: arguments.dump() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_around_is_dropped() {
        let text = r#"a functools[{"name":"f","parameters":{"x":1}}] b"#;
        let parsed = phi4_mini_json(text, &Context::default()).unwrap();
        assert_eq!(parsed.content, None);
        assert_eq!(parsed.tool_calls, [ToolCall { name: "f".into(), arguments: "{\"x\": 1}".into() }]);
    }

    #[test]
    fn a_list_inside_is_the_servers_fault() {
        let text = r#"functools[{"name":"f","arguments":{"x":[1]}}]"#;
        let parsed = phi4_mini_json(text, &Context::default()).unwrap();
        assert_eq!(parsed.tool_calls, [ToolCall { name: "f".into(), arguments: "{\"x\": [1]}".into() }]);
        assert!(parsed.server_fault.is_some());
    }

    #[test]
    fn broken_json_is_kept_as_text() {
        let text = r#"functools[{"name":"f","arguments":{"x":[1}}]"#;
        let parsed = phi4_mini_json(text, &Context::default()).unwrap();
        assert_eq!((parsed.content.as_deref(), parsed.tool_calls.len()), (Some(text), 0));
        assert!(parsed.server_fault.is_some());
    }

    #[test]
    fn a_missing_key_makes_it_content() {
        assert_eq!(phi4_mini_json(r#"functools[{"name":"f"}]"#, &Context::default()), None);
    }
}

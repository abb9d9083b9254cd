//! JSON between tags: `<tool_call>{"name": .., "arguments": {..}}</tool_call>`.
//!
//! Source: vLLM 0.33, `hermes` and its kin.

use super::python::{Json, json};
use super::{Context, Parsed, ToolCall};

/// `hermes`, also called `qwen3_json`.
pub fn hermes(text: &str, _: &Context) -> Option<Parsed> {
    tagged(text, "<tool_call>", "</tool_call>")
}

/// `longcat`: the same with its own tags.
pub fn longcat(text: &str, _: &Context) -> Option<Parsed> {
    tagged(text, "<longcat_tool_call>", "</longcat_tool_call>")
}

/// All calls or none: any fault makes the whole text content.
fn tagged(text: &str, open: &str, close: &str) -> Option<Parsed> {
    let content = &text[..text.find(open)?];
    let mut calls = Vec::new();
    let mut rest = &text[content.len()..];
    while let Some(start) = rest.find(open) {
        let body = &rest[start + open.len()..];
        let (body, after) = body.split_once(close).unwrap_or((body, ""));
        calls.push(call(&json::loads(body)?)?);
        rest = after;
    }
    Some(Parsed::called(content, calls))
}

/// Reads `name`, a string, and `arguments`, of any kind and written again.
fn call(value: &Json) -> Option<ToolCall> {
    let object = value.as_dict()?;
    let name = object.get("name")?.as_str()?.to_owned();
    Some(ToolCall { name, arguments: object.get("arguments")?.dump() })
}

/// `granite4`: the same tags, both needed; content is all text beside the calls.
pub fn granite4(text: &str, _: &Context) -> Option<Parsed> {
    const OPEN: &str = "<tool_call>";
    const CLOSE: &str = "</tool_call>";
    let mut content = String::new();
    let mut calls = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find(OPEN) {
        let (body, after) = rest[start + OPEN.len()..].split_once(CLOSE)?;
        if rest[..start].contains(CLOSE) || body.is_empty() || body.contains(OPEN) {
            return None;
        }
        content.push_str(&rest[..start]);
        calls.push(granite4_call(&json::loads(body)?)?);
        rest = after;
    }
    if rest.contains(CLOSE) {
        return None;
    }
    content.push_str(rest);
    (!calls.is_empty()).then(|| Parsed::called(&content, calls))
}

/// A string of arguments is passed on as it is.
fn granite4_call(value: &Json) -> Option<ToolCall> {
    match value.as_dict()?.get("arguments")? {
        Json::Str(arguments) => {
            let name = value.as_dict()?.get("name")?.as_str()?.to_owned();
            Some(ToolCall { name, arguments: arguments.clone() })
        }
        Json::Null => None,
        _ => call(value),
    }
}

/// `ernie45`: bodies that are no object in braces are passed over, name and arguments may be missing.
pub fn ernie45(text: &str, _: &Context) -> Option<Parsed> {
    const OPEN: &str = "<tool_call>";
    let content = &text[..text.find(OPEN)?];
    let mut calls = Vec::new();
    let mut rest = &text[content.len()..];
    while let Some(start) = rest.find(OPEN) {
        let body = &rest[start + OPEN.len()..];
        if !body.trim_start().starts_with('{') {
            rest = body;
            continue;
        }
        // Without an end for this object there is none for any later one.
        let Some(end) = braced_end(body) else { break };
        let (inside, after) = body.split_at(end);
        let object = json::loads(inside.trim())?;
        let object = object.as_dict()?;
        let name = match object.get("name") {
            Some(name) => name.as_str()?.to_owned(),
            None => String::new(),
        };
        let arguments = object.get("arguments").map_or_else(|| "{}".to_owned(), Json::dump);
        calls.push(ToolCall { name, arguments });
        rest = &after["</tool_call>".len()..];
    }
    Some(Parsed::called(content.trim_end_matches('\n'), calls))
}

/// Where the closing tag stands that follows the first `}` that one does follow, white space between.
fn braced_end(body: &str) -> Option<usize> {
    body.match_indices("</tool_call>").map(|(end, _)| end).find(|end| body[..*end].trim_end().ends_with('}'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(body: &str) -> Option<String> {
        let parsed = hermes(&format!("<tool_call>{body}</tool_call>"), &Context::default())?;
        Some(parsed.tool_calls[0].arguments.clone())
    }

    #[test]
    fn arguments_are_written_again() {
        assert_eq!(
            arguments(r#" {"arguments":{"ä":1.0,"b":[1,2],"ä":2},"name":"f"} "#).unwrap(),
            r#"{"ä": 2, "b": [1, 2]}"#
        );
        assert_eq!(arguments(r#"{"name":"f","arguments":"{}"}"#).unwrap(), r#""{}""#);
        assert_eq!(arguments(r#"{"name":"f","arguments":null}"#).unwrap(), "null");
        assert_eq!(
            arguments(r#"{"name":"f","arguments":12345678901234567890123}"#).unwrap(),
            "12345678901234567890123"
        );
    }

    #[test]
    fn any_fault_makes_all_of_it_content() {
        for body in [
            "",
            "{}",
            r#"{"name":"f"}"#,
            r#"{"name":1,"arguments":{}}"#,
            r#"[{"name":"f","arguments":{}}]"#,
            "```json\n{\"name\":\"f\",\"arguments\":{}}\n```",
            r#"{"name":"f","arguments":{}} {}"#,
            "{\"name\":\"f\",\"arguments\":{\"a\":\"b\nc\"}}",
            "<function=f></function>",
            r#"{"name":"f","arguments":{"a":"</tool_call>"}}"#,
        ] {
            assert_eq!(arguments(body), None, "{body}");
            let two = format!(
                "<tool_call>{{\"name\":\"f\",\"arguments\":{{}}}}</tool_call><tool_call>{body}</tool_call>"
            );
            assert_eq!(hermes(&two, &Context::default()), None);
        }
    }

    #[test]
    fn content_is_the_untrimmed_text_before_the_first_tag() {
        let text = "a \n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>b<tool_call>{\"name\":\"g\",\"arguments\":{}}";
        let parsed = hermes(text, &Context::default()).unwrap();
        assert_eq!(parsed.content.as_deref(), Some("a \n"));
        assert_eq!(parsed.tool_calls.len(), 2);
    }

    #[test]
    fn blank_content_is_none() {
        let context = Context { tools: vec![serde_json::json!({})], ..Context::default() };
        let text = " \n<tool_call>{\"name\":\"f\",\"arguments\":{}}";
        assert_eq!(crate::parsers::find("hermes").unwrap().parse(text, &context).content, None);
    }
}

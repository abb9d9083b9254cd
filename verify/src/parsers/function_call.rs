//! Granite-20B-FC's `<function_call> {"name": .., "arguments": ..}`.
//!
//! Source: vLLM 0.33, `granite-20b-fc`.

use super::python::json;
use super::scan::sections;
use super::{Context, Parsed, ToolCall};

const MARKER: &str = "<function_call>";

/// `granite-20b-fc`: one JSON object behind each marker, other text there is ignored.
pub fn granite_20b_fc(text: &str, _: &Context) -> Option<Parsed> {
    let content = &text[..text.find(MARKER)?];
    let calls = sections(text, MARKER).map(call).collect::<Option<Vec<_>>>()?;
    Some(Parsed::called(content, calls))
}

fn call(section: &str) -> Option<ToolCall> {
    let (value, _) = json::raw_decode(section.trim_start(), 0)?;
    let object = value.as_dict()?;
    Some(ToolCall {
        name: object.get("name")?.as_str()?.to_owned(),
        arguments: object.get("arguments")?.dump(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_behind_the_json_is_ignored() {
        let text = "a <function_call> {\"name\":\"f\",\"arguments\":1} b <function_call>{\"name\":\"g\",\"arguments\":{}}";
        let parsed = granite_20b_fc(text, &Context::default()).unwrap();
        assert_eq!(parsed.content.as_deref(), Some("a "));
        assert_eq!(parsed.tool_calls[0].arguments, "1");
        assert_eq!(parsed.tool_calls.len(), 2);
    }

    #[test]
    fn one_fault_makes_all_of_it_content() {
        let text = "<function_call>{\"name\":\"f\",\"arguments\":1}<function_call>";
        assert_eq!(granite_20b_fc(text, &Context::default()), None);
    }
}

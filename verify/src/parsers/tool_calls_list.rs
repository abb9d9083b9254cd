//! A JSON list between `<tool_calls>` and `</tool_calls>`, as Jamba and Hunyuan-A13B write it.
//!
//! Source: vLLM 0.33, `jamba` and `hunyuan_a13b`.

use super::python::{Json, json, space};
use super::scan::between;
use super::{Context, Parsed, ToolCall, xlam};

const OPEN: &str = "<tool_calls>";
const CLOSE: &str = "</tool_calls>";

/// `jamba`: the first block only, all of it or nothing.
pub fn jamba(text: &str, _: &Context) -> Option<Parsed> {
    let block = between(text, OPEN, CLOSE).next()?;
    let calls = match json::loads(block.inside)? {
        Json::List(items) => items.iter().map(call).collect::<Option<Vec<_>>>()?,
        // Python walks over these as well, and finds nothing.
        Json::Dict(dict) if dict.is_empty() => Vec::new(),
        Json::Str(text) if text.is_empty() => Vec::new(),
        _ => return None,
    };
    Some(Parsed::called(&text[..block.start], calls))
}

fn call(value: &Json) -> Option<ToolCall> {
    let object = value.as_dict()?;
    Some(ToolCall {
        name: object.get("name")?.as_str()?.to_owned(),
        arguments: object.get("arguments")?.dump(),
    })
}

/// `hunyuan_a13b`: the first block outside the thinking that is JSON.
pub fn hunyuan_a13b(text: &str, _: &Context) -> Option<Parsed> {
    let thoughts: Vec<_> = between(text, "<think>", "</think>").collect();
    let mut next_thought = thoughts.iter().peekable();
    for block in between(text, OPEN, CLOSE) {
        while next_thought.next_if(|thought| thought.end <= block.start).is_some() {}
        if next_thought.peek().is_some_and(|thought| block.start > thought.start && block.end < thought.end) {
            continue;
        }
        let Some(value) = json::loads(space::strip(block.inside)) else { continue };
        let calls = xlam::listed_calls(&value)?;
        return (!calls.is_empty()).then(|| Parsed::called(&text[..block.start], calls));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: &str = r#"<tool_calls>[{"name":"f","arguments":{"a":1}}]</tool_calls>"#;

    #[test]
    fn jamba_reads_the_first_block_only() {
        let parsed = jamba(&format!("a {CALL} b {CALL}"), &Context::default()).unwrap();
        assert_eq!((parsed.content.as_deref(), parsed.tool_calls.len()), (Some("a "), 1));
        assert_eq!(
            jamba(r#"<tool_calls>{"name":"f","arguments":{}}</tool_calls>"#, &Context::default()),
            None
        );
        assert_eq!(jamba("<tool_calls>[]", &Context::default()), None);
    }

    #[test]
    fn an_empty_list_is_a_call_of_nothing() {
        let parsed = jamba("a<tool_calls>[]</tool_calls>b", &Context::default()).unwrap();
        assert_eq!((parsed.content.as_deref(), parsed.tool_calls.len()), (Some("a"), 0));
    }

    #[test]
    fn hunyuan_skips_the_thinking_and_broken_blocks() {
        let text = format!("<think>x{CALL}</think><tool_calls>[</tool_calls>{CALL}");
        let parsed = hunyuan_a13b(&text, &Context::default()).unwrap();
        assert_eq!(parsed.tool_calls.len(), 1);
        assert!(parsed.content.unwrap().ends_with("<tool_calls>[</tool_calls>"));
        assert_eq!(hunyuan_a13b(&format!("<think>x{CALL}</think>"), &Context::default()), None);
    }
}

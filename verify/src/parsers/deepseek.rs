//! DeepSeek's tool tokens, as V3, R1-0528 and V3.1 write them.
//!
//! Source: vLLM 0.33, `deepseek_v3` and `deepseek_v31`. Arguments are passed on as text, whether they are JSON or not.

use super::scan::Next;
use super::{Context, Parsed, ToolCall};

const CALLS_BEGIN: &str = "<｜tool▁calls▁begin｜>";
const CALLS_END: &str = "<｜tool▁calls▁end｜>";
const BEGIN: &str = "<｜tool▁call▁begin｜>";
const END: &str = "<｜tool▁call▁end｜>";
const SEPARATOR: &str = "<｜tool▁sep｜>";
const FENCE: &str = "```json\n";
const FENCE_END: &str = "\n```<｜tool▁call▁end｜>";

/// `deepseek_v3`: type, separator and name on one line, arguments in a fence.
pub fn deepseek_v3(text: &str, _: &Context) -> Option<Parsed> {
    let before = &text[..text.find(CALLS_BEGIN)?];
    let after = text.rfind(CALLS_END).map_or("", |end| &text[end + CALLS_END.len()..]);
    let mut calls = Vec::new();
    let mut at = 0;
    while let Some(start) = text[at..].find(BEGIN).map(|found| at + found + BEGIN.len()) {
        let Some(length) = text[start..].find('\n') else { break };
        let line = &text[start..start + length];
        let arguments = start + length + 1;
        let name = line.rsplit_once(SEPARATOR).filter(|_| text[arguments..].starts_with(FENCE));
        // All that begins on this line shares its end.
        let Some((kind, name)) = name else {
            at = arguments;
            continue;
        };
        let arguments = arguments + FENCE.len();
        let Some(length) = text[arguments..].find(FENCE_END) else { break };
        if kind != "function" {
            return None;
        }
        calls.push(ToolCall {
            name: name.to_owned(),
            arguments: text[arguments..arguments + length].to_owned(),
        });
        at = arguments + length + FENCE_END.len();
    }
    Some(Parsed::called(&format!("{before}{after}"), calls))
}

/// `deepseek_v31`: name, separator and arguments, the name on one line.
pub fn deepseek_v31(text: &str, _: &Context) -> Option<Parsed> {
    let before = &text[..text.find(CALLS_BEGIN)?];
    let mut calls = Vec::new();
    let (mut line_end, mut separator) = (Next::new(text, "\n"), Next::new(text, SEPARATOR));
    let mut at = 0;
    while let Some(start) = text[at..].find(BEGIN).map(|found| at + found + BEGIN.len()) {
        let Some(name_end) = separator.from(start) else { break };
        if line_end.from(start).is_some_and(|end| end < name_end) {
            at = start;
            continue;
        }
        let arguments = name_end + SEPARATOR.len();
        let Some(length) = text[arguments..].find(END) else { break };
        calls.push(ToolCall {
            name: text[start..name_end].to_owned(),
            arguments: text[arguments..arguments + length].to_owned(),
        });
        at = arguments + length + END.len();
    }
    Some(Parsed::called(before, calls))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v3(calls: &str) -> Option<(String, Vec<(String, String)>)> {
        let text = format!("a{CALLS_BEGIN}{calls}{CALLS_END}b");
        let parsed = deepseek_v3(&text, &Context::default())?;
        let calls = parsed.tool_calls.into_iter().map(|call| (call.name, call.arguments)).collect();
        Some((parsed.content.unwrap_or_default(), calls))
    }

    #[test]
    fn v3_passes_broken_json_on() {
        let call = format!("{BEGIN}function{SEPARATOR}f\n```json\n{{\"a\":\n```{END}");
        assert_eq!(v3(&call), Some(("ab".into(), vec![("f".into(), "{\"a\":".into())])));
    }

    #[test]
    fn v3_wants_its_form_exactly() {
        for call in [
            format!("{BEGIN}function{SEPARATOR}f\n```\n{{}}\n```{END}"),
            format!("{BEGIN}function{SEPARATOR}f{{}}{END}"),
            format!("{BEGIN}function{SEPARATOR}f\n```json\n{{}}\n``` {END}"),
        ] {
            assert_eq!(v3(&call), Some(("ab".into(), vec![])), "{call}");
        }
    }

    #[test]
    fn v31_takes_arguments_over_lines() {
        let text =
            format!("a{CALLS_BEGIN}{BEGIN}f{SEPARATOR}{{\n}}{END}{BEGIN}g\n{SEPARATOR}x{END}{CALLS_END}b");
        let parsed = deepseek_v31(&text, &Context::default()).unwrap();
        assert_eq!(parsed.content.as_deref(), Some("a"));
        assert_eq!(parsed.tool_calls, [ToolCall { name: "f".into(), arguments: "{\n}".into() }]);
    }

    #[test]
    fn v3_style_given_to_v31_names_the_type() {
        let text = format!("{CALLS_BEGIN}{BEGIN}function{SEPARATOR}f\n```json\n{{}}\n```{END}{CALLS_END}");
        let parsed = deepseek_v31(&text, &Context::default()).unwrap();
        assert_eq!(parsed.tool_calls[0].name, "function");
    }
}

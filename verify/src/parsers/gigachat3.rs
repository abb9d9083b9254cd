//! GigaChat 3's `<|function_call|>{"name": .., "arguments": {..}}`.
//!
//! Source: vLLM 0.33, `gigachat3`.

use super::python::json::{self, Dialect};
use super::python::space;
use super::{Context, Parsed, ToolCall};

const MARKERS: [&str; 2] = ["function call<|role_sep|>\n", "<|function_call|>"];

/// `gigachat3`: one call, control characters allowed in its strings, nothing behind it but the end of the text.
pub fn gigachat3(output: &str, _: &Context) -> Option<Parsed> {
    let text = space::strip_end(output).strip_suffix("</s>").unwrap_or(output);
    let start =
        MARKERS.iter().filter_map(|marker| text.find(marker).map(|at| (at, at + marker.len()))).min()?.1;
    let (value, end) = json::value_at(text, json::blanks(text, start), Dialect::Lenient)?;
    if json::blanks(text, end) < text.len() {
        return None;
    }
    let object = value.as_dict()?;
    let (name, arguments) = (object.get("name")?, object.get("arguments")?);
    arguments.as_dict()?;
    let content =
        ["<|message_sep|>", "<|function_call|>"].iter().filter_map(|marker| text.find(marker)).min();
    let content = &text[..content.unwrap_or(text.len())];
    Some(match name.as_str() {
        Some(name) => {
            Parsed::called(content, vec![ToolCall { name: name.to_owned(), arguments: arguments.dump() }])
        }
        None => {
            let fault = "the server raises an exception and answers with HTTP 500: the name is no string";
            Parsed { server_fault: Some(fault.into()), ..Parsed::plain(output) }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(text: &str) -> Option<(String, String)> {
        let parsed = gigachat3(text, &Context::default())?;
        Some((parsed.content.unwrap_or_default(), parsed.tool_calls[0].arguments.clone()))
    }

    #[test]
    fn content_ends_at_the_separator() {
        let text = "a<|message_sep|>b<|function_call|>{\"name\":\"f\",\"arguments\":{\"x\":\"1\n2\"}}</s>\n";
        assert_eq!(answer(text), Some(("a".into(), "{\"x\": \"1\\n2\"}".into())));
    }

    #[test]
    fn the_older_marker_leaves_all_text_in_content() {
        let text = "function call<|role_sep|>\n{\"name\":\"f\",\"arguments\":{}}";
        assert_eq!(answer(text), Some((text.into(), "{}".into())));
    }

    #[test]
    fn anything_else_is_content() {
        for body in
            ["{\"name\":\"f\",\"arguments\":\"{}\"}", "{\"name\":\"f\",\"arguments\":{}} x", "{}", "["]
        {
            assert_eq!(answer(&format!("<|function_call|>{body}")), None, "{body}");
        }
    }
}

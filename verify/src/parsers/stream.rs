//! Streamed answers, as a client puts them together from the server's deltas.
//!
//! Told for engine parsers only. What the others stream depends on where the tokens begin and end.

use super::engine::Delivery;
use super::{Context, Kind, Parsed, Parser};

impl Parser {
    /// What a client has at the end of a streamed answer: content untrimmed and with the text between and after the
    /// calls, broken arguments where something that was sent already had to be taken back. `None` where that cannot be
    /// told from the text.
    pub fn stream(&self, text: &str, context: &Context) -> Option<Parsed> {
        let Kind::Engine(parse) = self.kind else { return None };
        if self.name == "mistral" && context.tokenizer.as_deref() == Some("mistral-pre-v11") {
            return None;
        }
        let parsed = parse(text, context, Delivery::Streamed);
        let none = context.tools.is_empty();
        Some(if none { Parsed { tool_calls: Vec::new(), ..parsed } } else { parsed })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::parsers::find;

    fn stream(parser: &str, text: &str) -> (String, Vec<(String, String)>) {
        let tools = vec![json!({"function": {"name": "f", "parameters": {"properties": {
            "n": {"type": "integer"}, "s": {"type": "string"}}}}})];
        let parsed = find(parser).unwrap().stream(text, &Context { tools, ..Context::default() }).unwrap();
        let calls = parsed.tool_calls.into_iter().map(|call| (call.name, call.arguments)).collect();
        (parsed.content.unwrap_or_default(), calls)
    }

    fn call(arguments: &str) -> (String, String) {
        ("f".into(), arguments.into())
    }

    #[test]
    fn text_between_and_after_calls_is_sent() {
        let text = " a\n<tool_call><function=f></function></tool_call> b <tool_call><function=f></function></tool_call>c\n";
        assert_eq!(stream("qwen3_coder", text), (" a\n b c\n".into(), vec![call("{}"), call("{}")]));
    }

    #[test]
    fn a_parameter_given_twice_breaks_the_arguments() {
        let text = "<function=f><parameter=s>1</parameter><parameter=n>2</parameter><parameter=s>3</parameter></function>";
        assert_eq!(stream("qwen3_coder", text).1, [call("{\"s\": \"1\", \"n\": ")]);
        let same = text.replace('3', "1");
        assert_eq!(stream("qwen3_coder", &same).1, [call("{\"s\": \"1\", \"n\": 2}")]);
    }

    #[test]
    fn a_value_without_an_end_stays_open() {
        assert_eq!(stream("qwen3_coder", "<function=f><parameter=s>ab").1, [call("{\"s\": \"ab")]);
        assert_eq!(stream("qwen3_coder", "<function=f><parameter=n>12").1, [call("{\"n\": ")]);
        assert_eq!(
            stream("glm45", "<tool_call>f<arg_key>s</arg_key><arg_value>ab").1,
            [call("{\"s\": \"ab")]
        );
    }

    #[test]
    fn kimi_and_mistral_send_arguments_as_they_are() {
        let kimi = "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|> {\"n\": \"1\"}\n<|tool_call_end|>";
        assert_eq!(stream("kimi_k2", kimi).1, [call(" {\"n\": \"1\"}\n")]);
        assert_eq!(stream("mistral", "[TOOL_CALLS]f[ARGS]{\"n\": \"1\"} x").1, [call("{\"n\": \"1\"} x")]);
    }

    #[test]
    fn other_parsers_cannot_be_told() {
        assert!(find("hermes").unwrap().stream("", &Context::default()).is_none());
    }
}

//! InternLM's `<|action_start|><|plugin|>{"name": .., "parameters": ..}<|action_end|>`.
//!
//! Source: vLLM 0.33, `internlm`.

use super::python::json;
use super::scan::sections;
use super::{Context, Parsed, ToolCall};

const START: &str = "<|action_start|><|plugin|>";

/// `internlm`. The server raises on broken JSON and on a second call; here several calls count, and what does not read
/// is plain content.
pub fn internlm(text: &str, _: &Context) -> Option<Parsed> {
    let content = &text[..text.find(START)?];
    let calls = sections(text, START).map(call).collect::<Option<Vec<_>>>();
    let sound = calls.as_ref().is_some_and(|calls| calls.len() == 1);
    let parsed = calls.map_or_else(|| Parsed::plain(text), |calls| Parsed::called(content, calls));
    let fault = "the server raises an exception and answers with HTTP 500";
    Some(Parsed { server_fault: (!sound).then(|| fault.into()), ..parsed })
}

fn call(action: &str) -> Option<ToolCall> {
    let action = action.split("<|action_end|>").next()?;
    let value = json::loads(&action[action.find('{')?..])?;
    let object = value.as_dict()?;
    let arguments = object.get("parameters").or_else(|| object.get("arguments"));
    Some(ToolCall {
        name: object.get("name")?.as_str()?.to_owned(),
        arguments: arguments.map_or_else(|| "{}".to_owned(), |arguments| arguments.dump()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(action: &str) -> Parsed {
        internlm(&format!("a{START}{action}"), &Context::default()).unwrap()
    }

    #[test]
    fn parameters_come_before_arguments() {
        let parsed = answer(r#"x {"name":"f","arguments":1,"parameters":2}<|action_end|> lost"#);
        assert_eq!(parsed.tool_calls, [ToolCall { name: "f".into(), arguments: "2".into() }]);
        assert_eq!(parsed.content.as_deref(), Some("a"));
        assert_eq!(answer(r#"{"name":"f"}"#).tool_calls[0].arguments, "{}");
    }

    #[test]
    fn two_calls_are_read_and_the_servers_fault() {
        let parsed = answer(&format!("{{\"name\":\"f\"}}{START}{{\"name\":\"g\"}}"));
        assert_eq!(parsed.tool_calls.len(), 2);
        assert!(parsed.server_fault.is_some());
    }

    #[test]
    fn what_does_not_read_is_the_servers_fault() {
        for action in ["", "{", "{}", "{\"name\":\"f\"} x", &format!("{{\"name\":\"f\"}}{START}{{")] {
            let parsed = answer(action);
            assert!(parsed.server_fault.is_some() && parsed.tool_calls.is_empty(), "{action}");
            assert!(parsed.content.unwrap().starts_with("a<|action_start|>"));
        }
    }
}

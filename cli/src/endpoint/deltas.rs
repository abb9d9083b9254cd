//! A streamed answer, put together as OpenAI's own clients do: pieces of text are joined, calls found by index.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use verify::parsers::ToolCall;
use verify::suite::Message;

use super::chat::usage;

/// What came so far.
#[derive(Debug, Default)]
pub struct Deltas {
    content: Option<String>,
    reasoning: Option<String>,
    calls: BTreeMap<u64, ToolCall>,
    finish_reason: Option<String>,
    counted: Message,
    first_token: Option<Duration>,
}

impl Deltas {
    /// Adds a chunk that came `since` after the request was sent.
    ///
    /// # Errors
    /// What a client could not make sense of.
    pub fn add(&mut self, chunk: &Value, since: Duration) -> Result<(), String> {
        if chunk["usage"].is_object() {
            self.counted = usage(&chunk["usage"]);
        }
        let choices = chunk["choices"].as_array().ok_or("it has no choices")?;
        // The chunk that holds the usage has none.
        let Some(choice) = choices.iter().find(|c| c["index"].as_u64().unwrap_or(0) == 0) else {
            return Ok(());
        };
        let delta = &choice["delta"];
        let mut told = join(&mut self.content, delta, "content")?;
        let (mut reasoning, mut other) = (None, None);
        join(&mut reasoning, delta, "reasoning_content")?;
        join(&mut other, delta, "reasoning")?;
        if let Some(piece) = reasoning.or(other) {
            told |= !piece.is_empty();
            self.reasoning.get_or_insert_default().push_str(&piece);
        }
        match &delta["tool_calls"] {
            Value::Null => {}
            Value::Array(calls) => {
                for call in calls {
                    self.add_call(call)?;
                    told = true;
                }
            }
            _ => return Err("`tool_calls` is no list".into()),
        }
        if told {
            self.first_token.get_or_insert(since);
        }
        if let Some(reason) = choice["finish_reason"].as_str() {
            self.finish_reason = Some(reason.to_string());
        }
        Ok(())
    }

    fn add_call(&mut self, delta: &Value) -> Result<(), String> {
        let index = delta["index"].as_u64().ok_or("a call has no `index`")?;
        let call = self
            .calls
            .entry(index)
            .or_insert_with(|| ToolCall { name: String::new(), arguments: String::new() });
        for (text, key) in [(&mut call.name, "name"), (&mut call.arguments, "arguments")] {
            match &delta["function"][key] {
                Value::Null => {}
                Value::String(piece) => text.push_str(piece),
                _ => return Err(format!("`{key}` of call {index} is no text")),
            }
        }
        Ok(())
    }

    /// The message, `latency` after the request was sent; none where the server never said why it stopped.
    pub fn finish(self, latency: Duration) -> Option<Message> {
        Some(Message {
            content: self.content,
            reasoning: self.reasoning.filter(|r| !r.is_empty()),
            tool_calls: self.calls.into_values().collect(),
            finish_reason: Some(self.finish_reason?),
            first_token: self.first_token,
            latency,
            ..self.counted
        })
    }
}

/// Appends a piece of text; true where it is not empty.
fn join(text: &mut Option<String>, delta: &Value, key: &str) -> Result<bool, String> {
    match &delta[key] {
        Value::Null => Ok(false),
        Value::String(piece) => {
            text.get_or_insert_default().push_str(piece);
            Ok(!piece.is_empty())
        }
        _ => Err(format!("`{key}` is no text")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn delta(delta: Value) -> Value {
        json!({"choices": [{"index": 0, "delta": delta, "finish_reason": null}]})
    }

    fn done() -> Value {
        json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    }

    fn joined(chunks: &[Value]) -> Result<Option<Message>, String> {
        let mut deltas = Deltas::default();
        for (at, chunk) in chunks.iter().enumerate() {
            deltas.add(chunk, Duration::from_millis(at as u64))?;
        }
        Ok(deltas.finish(Duration::from_secs(1)))
    }

    #[test]
    fn calls_are_joined_by_index_in_whatever_order_they_come() {
        let m = joined(&[
            delta(json!({"role": "assistant", "content": ""})),
            delta(
                json!({"tool_calls": [{"index": 1, "id": "b", "function": {"name": "g", "arguments": ""}}]}),
            ),
            delta(json!({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{\"a\""}},
                                        {"index": 1, "function": {"arguments": "{}"}}]})),
            delta(json!({"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]})),
            done(),
            json!({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 9}}),
        ]);
        let m = m.unwrap().unwrap();
        let calls: Vec<_> = m.tool_calls.iter().map(|c| (c.name.as_str(), c.arguments.as_str())).collect();
        assert_eq!(calls, [("f", "{\"a\": 1}"), ("g", "{}")]);
        assert_eq!((m.prompt_tokens, m.tokens), (Some(5), Some(9)));
        assert_eq!(m.first_token, Some(Duration::from_millis(1)));
    }

    #[test]
    fn reasoning_under_either_name_is_joined() {
        let m = joined(&[delta(json!({"reasoning_content": "a"})), delta(json!({"reasoning": "b"})), done()]);
        assert_eq!(m.unwrap().unwrap().reasoning.as_deref(), Some("ab"));
    }

    #[test]
    fn without_a_finish_reason_the_answer_is_cut() {
        assert_eq!(joined(&[delta(json!({"content": "a"}))]), Ok(None));
    }

    #[test]
    fn what_a_client_could_not_join_is_an_error() {
        assert!(joined(&[json!({"object": "x"})]).unwrap_err().contains("no choices"));
        assert!(
            joined(&[delta(json!({"tool_calls": [{"function": {"name": "f"}}]}))])
                .unwrap_err()
                .contains("index")
        );
        assert!(joined(&[delta(json!({"content": []}))]).unwrap_err().contains("content"));
    }
}

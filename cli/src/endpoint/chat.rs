//! Chat completions: what is sent, and the answer in one piece or in deltas.

use std::time::Instant;

use serde_json::{Value, json};
use verify::parsers::ToolCall;
use verify::suite::{Ask, Message};

use super::client::{Go, Trouble};
use super::deltas::Deltas;
use super::models::Dialect;
use super::{Endpoint, excerpt};

impl Endpoint {
    /// The body of a request, with every setting that bears on the answer.
    pub(super) fn chat_body(&self, ask: &Ask) -> Value {
        let mut body = json!({
            "model": self.model,
            "messages": ask.messages,
            "max_tokens": self.max_new,
            "stream": false,
        });
        self.add_sampling(&mut body);
        if !ask.tools.is_empty() {
            body["tools"] = ask.tools.clone().into();
            body["tool_choice"] = "auto".into();
        }
        if !ask.kwargs.is_empty() {
            body["chat_template_kwargs"] = ask.kwargs.clone().into();
        }
        if self.dialect != Dialect::Other {
            body["return_token_ids"] = true.into();
        }
        body
    }

    /// Servers take what is not sent from the model's generation_config.json.
    pub(super) fn add_sampling(&self, body: &mut Value) {
        let s = &self.sampling;
        body["temperature"] = number(s.temperature);
        body["top_p"] = number(s.top_p);
        body["seed"] = s.seed.into();
        let known = self.dialect != Dialect::Other;
        if s.top_k > 0 {
            body["top_k"] = s.top_k.into();
        } else if known {
            body["top_k"] = (-1).into();
        }
        if known {
            body["min_p"] = 0.into();
            body["repetition_penalty"] = json!(1.0);
        }
    }

    pub(super) fn ask_whole(&self, ask: &Ask) -> Result<Message, Trouble> {
        let began = Instant::now();
        let answer = self.client.post("/chat/completions", &self.chat_body(ask))?;
        let latency = began.elapsed();
        let message = message(&answer).map_err(|what| Trouble::Malformed {
            what: format!("the answer of {} is no chat completion: {what}", self.client.address()),
        })?;
        Ok(Message { latency, ..message })
    }

    pub(super) fn ask_streamed(&self, ask: &Ask) -> Result<Message, Trouble> {
        let mut body = self.chat_body(ask);
        body["stream"] = true.into();
        body["stream_options"] = json!({"include_usage": true});
        let began = Instant::now();
        let (mut deltas, mut number) = (Deltas::default(), 0);
        self.client.stream("/chat/completions", &body, &mut |data| {
            if data == "[DONE]" {
                return Ok(Go::Enough);
            }
            number += 1;
            let malformed =
                |what: String| Trouble::Malformed { what: format!("chunk {number} is malformed: {what}") };
            let chunk: Value =
                serde_json::from_str(data).map_err(|e| malformed(format!("{e} in {}", excerpt(data))))?;
            if let Some(error) = chunk.get("error").filter(|e| !e.is_null()) {
                let said = error["message"].as_str().map_or_else(|| error.to_string(), str::to_string);
                return Err(Trouble::Malformed {
                    what: format!("the stream ends in an error: {}", excerpt(&said)),
                });
            }
            deltas.add(&chunk, began.elapsed()).map_err(malformed)?;
            Ok(Go::On)
        })?;
        deltas.finish(began.elapsed()).ok_or_else(|| Trouble::Network {
            what: format!("the stream of {} was cut off after {number} chunks", self.client.address()),
        })
    }
}

/// A float that is written as it was typed: 0.7, not 0.699999988079071.
fn number(x: f32) -> Value {
    x.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

/// The message of a whole answer.
fn message(answer: &Value) -> Result<Message, String> {
    let choice = answer["choices"].get(0).ok_or("it has no choice")?;
    let said = choice["message"].as_object().ok_or("its choice has no message")?;
    let text = |key: &str| match said.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(format!("`{key}` is no text")),
    };
    let reasoning = text("reasoning_content")?.or(text("reasoning")?).filter(|r| !r.is_empty());
    let calls = match said.get("tool_calls") {
        None | Some(Value::Null) => &[][..],
        Some(calls) => calls.as_array().ok_or("`tool_calls` is no list")?,
    };
    Ok(Message {
        content: text("content")?,
        reasoning,
        tool_calls: calls.iter().map(call).collect::<Result<_, _>>()?,
        finish_reason: choice["finish_reason"].as_str().map(str::to_string),
        token_ids: ids(&choice["token_ids"]),
        ..usage(&answer["usage"])
    })
}

/// Counts of tokens, in a message that says nothing.
pub(super) fn usage(usage: &Value) -> Message {
    let count = |key: &str| usage[key].as_u64().and_then(|n| usize::try_from(n).ok());
    Message {
        prompt_tokens: count("prompt_tokens"),
        tokens: count("completion_tokens"),
        ..Message::default()
    }
}

fn call(call: &Value) -> Result<ToolCall, String> {
    let function = &call["function"];
    let name = function["name"].as_str().ok_or("a call has no name")?;
    let arguments = function["arguments"].as_str().ok_or("the arguments of a call are no text")?;
    Ok(ToolCall { name: name.to_string(), arguments: arguments.to_string() })
}

fn ids(value: &Value) -> Option<Vec<u32>> {
    value.as_array()?.iter().map(|id| u32::try_from(id.as_u64()?).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_sent_as_typed() {
        assert_eq!(number(0.7).to_string(), "0.7");
        assert_eq!(number(0.0).to_string(), "0.0");
    }

    #[test]
    fn a_whole_answer_is_read() {
        let m = message(&json!({"choices": [{"message": {"content": null, "reasoning": "hm", "tool_calls": [
            {"id": "x", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]},
            "finish_reason": "tool_calls", "token_ids": [1, 2]}], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}))
        .unwrap();
        assert_eq!((m.content, m.reasoning.as_deref()), (None, Some("hm")));
        assert_eq!((m.tool_calls[0].name.as_str(), m.tool_calls[0].arguments.as_str()), ("f", "{\"a\": 1}"));
        assert_eq!((m.prompt_tokens, m.tokens, m.token_ids), (Some(7), Some(2), Some(vec![1, 2])));
    }

    #[test]
    fn what_a_client_could_not_read_is_an_error() {
        for (answer, says) in [
            (json!({}), "no choice"),
            (json!({"choices": [{}]}), "no message"),
            (json!({"choices": [{"message": {"content": 1}}]}), "`content` is no text"),
            (json!({"choices": [{"message": {"tool_calls": {}}}]}), "no list"),
            (
                json!({"choices": [{"message": {"tool_calls": [{"function": {"arguments": "{}"}}]}}]}),
                "no name",
            ),
            (
                json!({"choices": [{"message": {"tool_calls": [{"function": {"name": "f", "arguments": {}}}]}}]}),
                "no text",
            ),
        ] {
            assert!(message(&answer).unwrap_err().contains(says), "{answer}");
        }
    }
}

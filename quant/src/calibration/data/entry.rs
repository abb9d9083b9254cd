//! One line of calibration data.

use serde_json::{Map, Value};
use verify::{Error, Result};

/// What a line holds.
#[derive(Debug, Clone, PartialEq)]
pub enum Entry {
    /// A conversation for the model's chat template.
    Chat {
        /// Turns in OpenAI form.
        messages: Vec<Value>,
        /// Tools in OpenAI form.
        tools: Vec<Value>,
    },
    /// Plain text.
    Text(String),
    /// Token ids, taken as they are.
    Tokens(Vec<u32>),
}

const KEYS: [&str; 3] = ["messages", "text", "input_ids"];

impl Entry {
    /// Reads a line. Keys that say nothing here are passed over: data sets carry ids, sources and scores.
    ///
    /// # Errors
    /// Exit 3 for a line that is no object with one of the three keys, or whose value is of another type.
    pub fn parse(line: &[u8]) -> Result<Self> {
        let value: Value = serde_json::from_slice(line)
            .map_err(|e| Error::input("is no JSON").found(e.to_string()).expected(EXPECTED))?;
        let Value::Object(mut object) = value else {
            return Err(Error::input("is no JSON object").found(kind(&value)).expected(EXPECTED));
        };
        let has: Vec<&str> =
            KEYS.into_iter().filter(|k| object.get(*k).is_some_and(|v| !v.is_null())).collect();
        let [key] = has[..] else {
            let found = if has.is_empty() { "none of them".to_string() } else { has.join(" and ") };
            return Err(Error::input("needs one of `messages`, `text` and `input_ids`").found(found));
        };
        let value = object.remove(key).unwrap_or_default();
        match (key, value) {
            ("text", Value::String(text)) => Ok(Entry::Text(text)),
            ("input_ids", Value::Array(ids)) => tokens(&ids),
            ("messages", Value::Array(messages)) => chat(messages, &mut object),
            (key, value) => {
                let expected = if key == "text" { "text" } else { "a list" };
                Err(Error::input(format!("`{key}` has the wrong type"))
                    .found(kind(&value))
                    .expected(expected))
            }
        }
    }

    /// True for a conversation in which a tool is called.
    pub fn has_tool_calls(&self) -> bool {
        let calls = |m: &Value| m.get("tool_calls").and_then(Value::as_array).is_some_and(|c| !c.is_empty());
        matches!(self, Entry::Chat { messages, .. } if messages.iter().any(calls))
    }
}

const EXPECTED: &str = "{\"messages\": [..]}, {\"text\": \"..\"} or {\"input_ids\": [..]}";

fn tokens(ids: &[Value]) -> Result<Entry> {
    let id = |(at, v): (usize, &Value)| {
        v.as_u64().and_then(|n| u32::try_from(n).ok()).ok_or_else(|| {
            Error::input(format!("`input_ids`[{at}] is no token id")).found(shown(v)).expected("a count")
        })
    };
    Ok(Entry::Tokens(ids.iter().enumerate().map(id).collect::<Result<_>>()?))
}

fn chat(messages: Vec<Value>, object: &mut Map<String, Value>) -> Result<Entry> {
    if messages.is_empty() {
        return Err(Error::input("`messages` is an empty list").expected("at least one turn"));
    }
    for (at, message) in messages.iter().enumerate() {
        if message.get("role").and_then(Value::as_str).is_none() {
            return Err(Error::input(format!("`messages`[{at}] has no `role`"))
                .found(shown(message))
                .expected("{\"role\": \"user\", \"content\": \"..\"}"));
        }
    }
    let tools = match object.remove("tools").unwrap_or_default() {
        Value::Null => Vec::new(),
        Value::Array(tools) => tools,
        other => {
            return Err(Error::input("`tools` has the wrong type").found(kind(&other)).expected("a list"));
        }
    };
    match tools.iter().position(|t| !t.is_object()) {
        None => Ok(Entry::Chat { messages, tools }),
        Some(at) => Err(Error::input(format!("`tools`[{at}] is no object")).found(shown(&tools[at]))),
    }
}

fn shown(value: &Value) -> String {
    verify::Shown(&value.to_string()).to_string()
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn parse(value: &Value) -> Result<Entry> {
        Entry::parse(value.to_string().as_bytes())
    }

    #[test]
    fn all_three_forms_are_read() {
        let messages = json!([{"role": "user", "content": "hi"}]);
        let tools = json!([{"type": "function", "function": {"name": "f"}}]);
        let chat = parse(&json!({"id": 7, "messages": messages, "tools": tools, "text": null})).unwrap();
        let (want, offered) = (messages.as_array().unwrap().clone(), tools.as_array().unwrap().clone());
        assert_eq!(chat, Entry::Chat { messages: want, tools: offered });
        assert!(matches!(parse(&json!({"messages": messages, "tools": null})), Ok(Entry::Chat { .. })));
        assert_eq!(parse(&json!({"text": "a\nb"})).unwrap(), Entry::Text("a\nb".into()));
        assert_eq!(
            parse(&json!({"input_ids": [0, 4294967295u32]})).unwrap(),
            Entry::Tokens(vec![0, u32::MAX])
        );
    }

    #[test]
    fn what_is_no_sample_says_why() {
        for (line, word) in [
            (json!([1, 2]), "a list"),
            (json!({}), "none of them"),
            (json!({"prompt": "x"}), "none of them"),
            (json!({"text": "x", "input_ids": [1]}), "text and input_ids"),
            (json!({"text": 3}), "a number"),
            (json!({"messages": "x"}), "text"),
            (json!({"messages": []}), "empty"),
            (json!({"messages": [{"role": "user"}, {"content": "x"}]}), "`messages`[1]"),
            (json!({"messages": ["x"]}), "`messages`[0]"),
            (json!({"messages": [{"role": "user"}], "tools": {}}), "an object"),
            (json!({"messages": [{"role": "user"}], "tools": ["x"]}), "`tools`[0]"),
            (json!({"input_ids": [1, -1]}), "`input_ids`[1]"),
            (json!({"input_ids": [1.5]}), "`input_ids`[0]"),
            (json!({"input_ids": [4294967296u64]}), "`input_ids`[0]"),
        ] {
            let e = parse(&line).unwrap_err();
            assert!(e.class().exit_code() == 3 && e.to_string().contains(word), "{line}: {e}");
        }
        assert!(Entry::parse(b"{\"text\": \"\xff\"}").unwrap_err().what().contains("no JSON"));
    }

    #[test]
    fn calls_are_seen_in_the_assistants_turns() {
        let with = |calls: Value| {
            parse(&json!({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": calls}]}))
                .unwrap()
                .has_tool_calls()
        };
        assert!(with(json!([{"function": {"name": "f", "arguments": {}}}])));
        assert!(!with(json!([])) && !with(Value::Null));
        assert!(!Entry::Text("<tool_call>".into()).has_tool_calls());
    }

    proptest! {
        #[test]
        fn no_line_panics(line in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = Entry::parse(&line);
        }

        #[test]
        fn no_value_panics(
            key in "messages|text|input_ids|tools",
            inner in "[\\[\\]{}:,\"0-9a-z.-]{0,30}",
            role in ".{0,5}",
        ) {
            let _ = Entry::parse(format!("{{\"{key}\": {inner}}}").as_bytes());
            let _ = Entry::parse(format!("{{\"messages\":[{{\"role\":{role:?},\"tool_calls\":{inner}}}]}}").as_bytes())
                .map(|e| e.has_tool_calls());
        }
    }
}

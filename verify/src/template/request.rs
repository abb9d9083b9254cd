//! What a template is rendered with: the conversation as a server prepares it, tools, tokens, arguments.

use std::path::Path;

use serde_json::{Map, Value};

use super::find::TOKENIZER_CONFIG;
use super::render::Failure;
use crate::checkpoint::json;
use crate::error::Result;

/// One conversation to render.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// Turns in OpenAI form.
    pub messages: Vec<Value>,
    /// Tools in OpenAI form; an empty list is rendered as no tools.
    pub tools: Vec<Value>,
    /// Documents of retrieval templates.
    pub documents: Option<Vec<Value>>,
    /// End with the opening of the assistant's turn.
    pub add_generation_prompt: bool,
    /// Further variables (`chat_template_kwargs` of a server), such as `enable_thinking`.
    pub kwargs: Map<String, Value>,
    /// What becomes of keys with the value `null` in messages.
    pub nulls: Nulls,
}

/// Keys with the value `null` in messages (OpenAI clients send `content: null` beside calls).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Nulls {
    /// Left out, as transformers does since 5.
    #[default]
    Dropped,
    /// Given to the template as `None`, as older servers do.
    Kept,
}

impl Request {
    /// A request that asks for the assistant's next turn.
    pub fn new(messages: &[Value], tools: &[Value]) -> Self {
        Request {
            messages: messages.to_vec(),
            tools: tools.to_vec(),
            add_generation_prompt: true,
            ..Self::default()
        }
    }

    /// The variables of the template.
    pub(super) fn context(&self, tokens: &Map<String, Value>) -> Result<Map<String, Value>, Failure> {
        let list_or_none = |list: &[Value]| match list.is_empty() {
            true => Value::Null,
            false => Value::Array(list.to_vec()),
        };
        let mut messages = Vec::with_capacity(self.messages.len());
        for (at, message) in self.messages.iter().enumerate() {
            messages.push(prepared(message, at, self.nulls)?);
        }
        let mut context = tokens.clone();
        context.extend(self.kwargs.clone());
        context.insert("messages".into(), Value::Array(messages));
        context.insert("tools".into(), list_or_none(&self.tools));
        context
            .insert("documents".into(), self.documents.as_deref().map_or(Value::Null, |d| d.to_vec().into()));
        context.insert("add_generation_prompt".into(), self.add_generation_prompt.into());
        Ok(context)
    }
}

/// A message as servers hand it to the template: arguments as objects, reasoning under its standard name.
fn prepared(message: &Value, at: usize, nulls: Nulls) -> Result<Value, Failure> {
    let Value::Object(message) = message else {
        return Err(Failure::Failed { reason: format!("message {at} is not an object"), line: None });
    };
    let mut message = message.clone();
    if nulls == Nulls::Dropped {
        message.retain(|_, v| !v.is_null());
    }
    let names = ["reasoning_content", "thinking", "reasoning"];
    if let Some(reasoning) = names.iter().find_map(|n| message.get(*n).filter(|v| !v.is_null())) {
        let reasoning = reasoning.clone();
        message.entry("thinking").or_insert_with(|| reasoning.clone());
        message.insert("reasoning_content".into(), reasoning);
    }
    let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
    for call in calls.into_iter().flatten() {
        let function = match call.get("function").is_some_and(Value::is_object) {
            true => call.get_mut("function"),
            false => Some(call),
        };
        let Some(arguments) = function.and_then(|f| f.get_mut("arguments")) else { continue };
        if let Value::String(text) = arguments {
            let text = if text.trim().is_empty() { "{}" } else { text.as_str() };
            *arguments = serde_json::from_str(text).map_err(|e| Failure::Failed {
                reason: format!("the arguments of a call in message {at} are no JSON: {e}"),
                line: None,
            })?;
        }
    }
    Ok(Value::Object(message))
}

const TOKENS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// The special tokens by name from `tokenizer_config.json` of `dir`; none where there is no such file.
///
/// # Errors
/// Exit 3 where the file is no JSON.
pub fn special_tokens(dir: &Path) -> Result<Map<String, Value>> {
    let path = dir.join(TOKENIZER_CONFIG);
    if !path.exists() {
        return Ok(Map::new());
    }
    Ok(tokens_of(&json::read(&path)?))
}

/// The special tokens by name in the content of a `tokenizer_config.json`.
pub fn tokens_of(config: &Value) -> Map<String, Value> {
    let text = |v: &Value| match v {
        Value::String(s) => Some(Value::from(s.as_str())),
        v => v.get("content").and_then(Value::as_str).map(Value::from),
    };
    let mut tokens = Map::new();
    for name in TOKENS {
        if let Some(token) = config.get(name).and_then(text) {
            tokens.insert(name.into(), token);
        }
    }
    for section in ["extra_special_tokens", "model_specific_special_tokens"] {
        for (name, token) in config.get(section).and_then(Value::as_object).into_iter().flatten() {
            if let Some(token) = text(token) {
                tokens.insert(name.clone(), token);
            }
        }
    }
    tokens
}

//! The text behind a server's calls, in three ways, the surest first:
//!
//! 1. the token ids of the very answer (`return_token_ids`: vLLM, SGLang), decoded by the server or by the served folder's
//!    tokenizer;
//! 2. the prompt that the served folder's template gives, sent to `/v1/completions`, where no parser is at work;
//! 3. the same conversation with `tool_choice` none, for parsers that then leave the text alone.
//!
//! The last two are second answers: they are compared only where the server repeats itself.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use verify::suite::{Ask, Message, Raw, RawSource};

use super::Endpoint;
use super::client::Trouble;
use super::models::Dialect;

impl Endpoint {
    pub(super) fn raw_text(&self, ask: &Ask, whole: &Message) -> Result<Option<Raw>, Trouble> {
        if let Some(raw) = self.of_token_ids(whole)? {
            return Ok(Some(raw));
        }
        if let Some(raw) = self.of_completions(ask)? {
            return Ok(Some(raw));
        }
        self.of_tool_choice_none(ask, whole)
    }

    fn of_token_ids(&self, whole: &Message) -> Result<Option<Raw>, Trouble> {
        let Some(ids) = &whole.token_ids else { return Ok(None) };
        // The token that ended the answer is no part of the text.
        let text = match (whole.is_cut(), ids.split_last()) {
            (false, Some((_, text))) => text,
            _ => ids,
        };
        let decoded = match self.decode(text)? {
            Some(text) => Some(text),
            None => self.folder.as_ref().and_then(|folder| folder.decode(text)),
        };
        Ok(decoded.map(|text| Raw { text, source: RawSource::TokenIds }))
    }

    fn decode(&self, ids: &[u32]) -> Result<Option<String>, Trouble> {
        let body = json!({"model": self.model, "tokens": ids});
        let answer = unless_unknown(&self.no_detokenize, || self.client.post_root("/detokenize", &body))?;
        // vLLM calls the text `prompt`, SGLang `text`.
        Ok(answer.and_then(|a| a["prompt"].as_str().or(a["text"].as_str()).map(str::to_string)))
    }

    fn of_completions(&self, ask: &Ask) -> Result<Option<Raw>, Trouble> {
        let Some(prompt) = self.folder.as_ref().and_then(|folder| folder.prompt(ask)) else {
            return Ok(None);
        };
        let mut body = json!({
            "model": self.model,
            "prompt": prompt,
            "max_tokens": self.max_new,
            "stream": false,
        });
        self.add_sampling(&mut body);
        if self.dialect != Dialect::Other {
            // The template wrote the special tokens of the prompt already; those of the answer are markers.
            body["add_special_tokens"] = false.into();
            body["skip_special_tokens"] = false.into();
        }
        let answer = unless_unknown(&self.no_completions, || self.client.post("/completions", &body))?;
        let text = answer.and_then(|a| a["choices"][0]["text"].as_str().map(str::to_string));
        Ok(text.map(|text| Raw { text, source: RawSource::Completions }))
    }

    fn of_tool_choice_none(&self, ask: &Ask, whole: &Message) -> Result<Option<Raw>, Trouble> {
        if !self.parser.leaves_text_alone() || ask.tools.is_empty() {
            return Ok(None);
        }
        let mut body = self.chat_body(ask);
        body["tool_choice"] = "none".into();
        if self.dialect != Dialect::Other {
            body["skip_special_tokens"] = false.into();
        }
        let answer = self.client.post("/chat/completions", &body)?;
        // A server may leave the tools out of the prompt then: that would be another question.
        let tokens = answer["usage"]["prompt_tokens"].as_u64().and_then(|n| usize::try_from(n).ok());
        if tokens != whole.prompt_tokens {
            return Ok(None);
        }
        let text = answer["choices"][0]["message"]["content"].as_str().unwrap_or_default();
        Ok(Some(Raw { text: text.to_string(), source: RawSource::ToolChoiceNone }))
    }
}

/// The answer of a path that not every server has; asked for no more once it was missing.
fn unless_unknown(
    missing: &AtomicBool,
    post: impl Fn() -> Result<Value, Trouble>,
) -> Result<Option<Value>, Trouble> {
    if missing.load(Ordering::Relaxed) {
        return Ok(None);
    }
    match post() {
        Ok(answer) => Ok(Some(answer)),
        Err(trouble) if trouble.is_unknown_path() => {
            missing.store(true, Ordering::Relaxed);
            Ok(None)
        }
        Err(trouble) if trouble.is_refused() => Ok(None),
        Err(trouble) => Err(trouble),
    }
}

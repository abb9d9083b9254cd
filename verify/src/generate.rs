//! What `verify` asks of something that can run a model; `runner` implements it.

use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::error::Result;
use crate::progress::Progress;

/// One prompt, rendered by the chat template, and how far to go.
#[derive(Debug, Clone)]
pub struct Prompt {
    /// The text; special tokens in it are recognised, none are added.
    pub text: String,
    /// At most so many new tokens.
    pub max_new: usize,
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// The model wrote a stop token.
    Stop,
    /// `max_new` or the context was used up.
    Length,
}

/// One answer.
#[derive(Debug, Clone, Serialize)]
pub struct Answer {
    /// The text as the model wrote it, special tokens included, the stop token not.
    pub text: String,
    /// Tokens in the prompt.
    pub prompt_tokens: usize,
    /// Tokens written, the stop token included.
    pub tokens: usize,
    /// Why it ended.
    pub finish: Finish,
    /// From the start of this prompt's work to its first token.
    #[serde(rename = "first_token_secs", serialize_with = "secs")]
    pub first_token: Duration,
    /// From the start of this prompt's work to its last token.
    #[serde(rename = "secs", serialize_with = "secs")]
    pub latency: Duration,
}

/// A model that answers prompts.
pub trait Generate {
    /// Answers in the order of the prompts; one answer never depends on its neighbours.
    ///
    /// # Errors
    /// When a prompt does not fit the context, or the model's weights cannot be read.
    fn generate(&mut self, prompts: &[Prompt], progress: &dyn Progress) -> Result<Vec<Answer>>;
}

fn secs<S: Serializer>(time: &Duration, s: S) -> std::result::Result<S::Ok, S::Error> {
    s.serialize_f64(time.as_secs_f64())
}

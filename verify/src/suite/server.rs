//! What the suite asks of a server that answers conversations with messages instead of text; `cli` implements it.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::parsers::{Parsed, ToolCall};

/// One turn of a conversation that a server is to answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Ask {
    /// Turns in OpenAI form.
    pub messages: Vec<Value>,
    /// Tools in OpenAI form.
    pub tools: Vec<Value>,
    /// `chat_template_kwargs`.
    pub kwargs: Map<String, Value>,
}

/// What a server said in one answer, streamed or whole.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Message {
    /// Text beside the calls.
    pub content: Option<String>,
    /// Thinking, where the server cuts it off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    /// Calls, in order.
    pub tool_calls: Vec<ToolCall>,
    /// `finish_reason`.
    pub finish_reason: Option<String>,
    /// Tokens of the prompt, by the server's count.
    pub prompt_tokens: Option<usize>,
    /// New tokens, by the server's count.
    pub tokens: Option<usize>,
    /// The new tokens themselves, the stop token included, where the server tells them.
    #[serde(skip)]
    pub token_ids: Option<Vec<u32>>,
    /// From sending the request to the first token; none where the answer came whole.
    #[serde(skip)]
    pub first_token: Option<Duration>,
    /// From sending the request to the end of the answer.
    #[serde(skip)]
    pub latency: Duration,
}

impl Message {
    /// Content and calls as a parser's answer.
    pub fn parsed(&self) -> Parsed {
        let content = self.content.clone().filter(|text| !text.is_empty());
        Parsed { content, tool_calls: self.tool_calls.clone(), server_fault: None }
    }

    /// True where the answer was cut at the limit of new tokens.
    pub fn is_cut(&self) -> bool {
        self.finish_reason.as_deref() == Some("length")
    }

    /// True where both say the same; times do not count.
    pub fn says_as(&self, other: &Message) -> bool {
        let said =
            |m: &Message| (m.content.clone().unwrap_or_default(), m.reasoning.clone().unwrap_or_default());
        said(self) == said(other) && self.tool_calls == other.tool_calls
    }
}

/// The text that a server's parser was given.
#[derive(Debug, Clone, PartialEq)]
pub struct Raw {
    /// The text; special tokens included, the stop token not.
    pub text: String,
    /// How it was come by.
    pub source: RawSource,
}

/// How a raw text was come by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RawSource {
    /// The token ids of the very answer, decoded.
    TokenIds,
    /// The rendered prompt sent to `/v1/completions`: a second answer.
    Completions,
    /// The same conversation with `tool_choice` none: a second answer, with its thinking cut off already.
    ToolChoiceNone,
}

/// Why an answer did not come.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Lost {
    /// Who is at fault.
    pub to: LostTo,
    /// One sentence.
    pub what: String,
}

/// Who is at fault for an answer that did not come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LostTo {
    /// The connection: refused, timed out, cut, or a server that is too busy.
    Network,
    /// The server answered, but with an error or with what is no answer.
    Server,
}

impl Lost {
    /// Lost to the network.
    pub fn network(what: impl Into<String>) -> Self {
        Lost { to: LostTo::Network, what: what.into() }
    }

    /// Lost to the server.
    pub fn server(what: impl Into<String>) -> Self {
        Lost { to: LostTo::Server, what: what.into() }
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

/// A server that speaks OpenAI's chat completions. Asked from several threads at once.
pub trait Server: Sync {
    /// The answer in one piece.
    ///
    /// # Errors
    /// Where none came.
    fn whole(&self, ask: &Ask) -> Result<Message, Lost>;

    /// The answer put together from its deltas.
    ///
    /// # Errors
    /// Where none came, or not to its end.
    fn streamed(&self, ask: &Ask) -> Result<Message, Lost>;

    /// The text that the calls of `whole`, the answer to `ask`, were parsed from; none where the server does not
    /// tell it.
    ///
    /// # Errors
    /// Where the server should have told it and did not.
    fn raw(&self, ask: &Ask, whole: &Message) -> Result<Option<Raw>, Lost>;

    /// Tokens of the prompt that the served folder's template gives, where that folder is known.
    fn prompt_tokens(&self, ask: &Ask) -> Option<usize>;
}

//! A running OpenAI-compatible server, asked as its clients ask it.
//!
//! ```text
//!   Address + ApiKey ──▶ Client (HTTP, retries, time limits) ──▶ chat (whole), deltas (streamed), raw text
//! ```

mod address;
mod chat;
mod client;
mod deltas;
mod key;
mod models;
mod raw;
mod served_folder;

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde_json::json;
use verify::parsers::Parser;
use verify::suite::{Ask, Lost, Message, Raw, Sampling, Server};
use verify::{Class, Error, Result, Shown};

pub use self::address::Address;
use self::client::{Client, Trouble};
pub use self::key::ApiKey;
use self::models::Dialect;
pub use self::served_folder::ServedFolder;

/// A model of a server, and how its answers are asked for.
pub struct Endpoint {
    client: Client,
    model: String,
    dialect: Dialect,
    max_new: usize,
    sampling: Sampling,
    parser: &'static Parser,
    folder: Option<ServedFolder>,
    /// Set once the server has shown that it does not have `/v1/completions` or `/detokenize`.
    no_completions: AtomicBool,
    no_detokenize: AtomicBool,
}

/// What is wanted of a server.
pub struct Wanted {
    /// Where it is.
    pub address: Address,
    /// Its key.
    pub key: ApiKey,
    /// The model's name there; none for a server that has one model only.
    pub model: Option<String>,
    /// At most so many new tokens for each answer.
    pub max_new: usize,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Longest silence of the server.
    pub timeout: Duration,
    /// The parser that it should have been started with.
    pub parser: &'static Parser,
    /// The folder that it serves.
    pub folder: Option<ServedFolder>,
}

impl Endpoint {
    /// Sees that the server is there, has the model and takes tools.
    ///
    /// # Errors
    /// Exit 4 where it cannot be reached, refuses the key or does not have the model; exit 1 where it was started
    /// without a tool-call parser.
    pub fn open(wanted: Wanted) -> Result<Self> {
        let client = Client::new(wanted.address, wanted.key, wanted.timeout);
        let listed = models::list(&client)?;
        let model = models::choose(&client, &listed, wanted.model)?;
        let endpoint = Endpoint {
            client,
            model,
            dialect: listed.dialect,
            max_new: wanted.max_new,
            sampling: wanted.sampling,
            parser: wanted.parser,
            folder: wanted.folder,
            no_completions: AtomicBool::new(false),
            no_detokenize: AtomicBool::new(false),
        };
        endpoint.preflight(&listed)?;
        Ok(endpoint)
    }

    /// The model's name at the server.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// The address, which never holds credentials.
    pub fn address(&self) -> String {
        self.client.address().to_string()
    }

    /// Another seed for the requests to come.
    pub fn reseed(&mut self, seed: u64) {
        self.sampling.seed = seed;
    }

    /// One token of an answer to a request with a tool: what fails here would fail for every case.
    fn preflight(&self, listed: &models::Listed) -> Result<()> {
        let tool = json!({"type": "function", "function": {"name": "probe", "description": "Nothing.",
            "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}});
        let ask = Ask {
            messages: vec![json!({"role": "user", "content": "Hello"})],
            tools: vec![tool],
            kwargs: serde_json::Map::new(),
        };
        let mut body = self.chat_body(&ask);
        body["max_tokens"] = 1.into();
        let trouble = match self.client.post("/chat/completions", &body) {
            Ok(_) => return Ok(()),
            Err(trouble) => trouble,
        };
        Err(match &trouble {
            Trouble::Status { code: 404, .. } if !listed.names.contains(&self.model) => {
                models::unknown(&self.client, listed, &self.model)
            }
            Trouble::Status { code: 400, message } if message.contains("tool choice") => {
                Error::new(Class::Check, format!("the server at {} takes no tools", self.client.address()))
                    .found(message.clone())
                    .hint(format!(
                        "start vLLM with --enable-auto-tool-choice --tool-call-parser {}",
                        self.parser.name
                    ))
            }
            _ => self.client.error(&trouble),
        })
    }
}

impl Server for Endpoint {
    fn whole(&self, ask: &Ask) -> Result<Message, Lost> {
        self.ask_whole(ask).map(|m| self.client.hide(m)).map_err(Trouble::lost)
    }

    fn streamed(&self, ask: &Ask) -> Result<Message, Lost> {
        self.ask_streamed(ask).map(|m| self.client.hide(m)).map_err(Trouble::lost)
    }

    fn raw(&self, ask: &Ask, whole: &Message) -> Result<Option<Raw>, Lost> {
        let hidden = |raw: Raw| Raw { text: self.client.hide_text(raw.text), ..raw };
        self.raw_text(ask, whole).map(|raw| raw.map(hidden)).map_err(Trouble::lost)
    }

    fn prompt_tokens(&self, ask: &Ask) -> Option<usize> {
        self.folder.as_ref()?.prompt_tokens(ask)
    }
}

/// A piece of what a server said, safe to print.
fn excerpt(text: &str) -> String {
    let text = text.trim();
    let short: String = text.chars().take(300).collect();
    let dots = if short.len() < text.len() { "..." } else { "" };
    format!("{}{dots}", Shown(&short))
}

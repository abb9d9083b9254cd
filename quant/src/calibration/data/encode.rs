//! Entries to token ids, with the model's own template and tokenizer, each opened when it is first needed.

use std::path::PathBuf;

use runner::Tokenizer;
use verify::checkpoint::Config;
use verify::template::{ChatTemplate, Renderer, Request, special_tokens};
use verify::{Error, Result, Shown, diagnose};

use super::Voice;
use super::entry::Entry;

/// Makes token ids of entries.
pub struct Encoder {
    folder: PathBuf,
    template: Option<ChatTemplate>,
    vocabulary: Option<usize>,
    tokenizer: Option<Tokenizer>,
    renderer: Option<Renderer>,
}

impl Encoder {
    /// For a model.
    ///
    /// # Errors
    /// Exit 3 where its config.json cannot be read.
    pub fn new(voice: Voice<'_>) -> Result<Self> {
        let vocabulary = Config::read(&voice.config.join("config.json"))?.count("vocab_size")?;
        let (folder, template) = (voice.tokenizer.to_path_buf(), voice.template);
        Ok(Encoder { folder, template, vocabulary, tokenizer: None, renderer: None })
    }

    /// The text of a conversation, by the model's template; `None` for what is no conversation.
    ///
    /// # Errors
    /// Exit 3 where the model has no template, or its template refuses the conversation.
    pub fn render(&mut self, entry: &Entry) -> Result<Option<String>> {
        let Entry::Chat { messages, tools } = entry else { return Ok(None) };
        let request = Request { add_generation_prompt: false, ..Request::new(messages, tools) };
        let rendered = self.renderer()?.render(&request);
        rendered.map(Some).map_err(|failure| {
            Error::input("cannot be rendered by the chat template of the model").found(failure.to_string())
        })
    }

    /// Token ids of `entry`, of which `rendered` is the text where it is a conversation.
    ///
    /// # Errors
    /// Exit 3 where the tokenizer fails or an id is none of the model's.
    pub fn tokens(&mut self, entry: &Entry, rendered: Option<String>) -> Result<Vec<u32>> {
        let ids = match (entry, rendered) {
            (Entry::Tokens(ids), _) => ids.clone(),
            (Entry::Text(text), _) => self.tokenizer()?.encode_document(text)?,
            // The template writes the special tokens itself.
            (Entry::Chat { .. }, text) => self.tokenizer()?.encode(&text.unwrap_or_default())?,
        };
        let bound = self.vocabulary.unwrap_or(usize::MAX);
        match ids.iter().find(|id| **id as usize >= bound) {
            None => Ok(ids),
            Some(id) => Err(Error::input("has a token that the model does not have")
                .found(format!("id {id}"))
                .expected(format!("ids below {bound}, as `vocab_size` in config.json says"))
                .hint("the tokens, or tokenizer.json, are of another model")),
        }
    }

    /// The template, where one was needed.
    pub fn used_renderer(&self) -> Option<&Renderer> {
        self.renderer.as_ref()
    }

    /// Whether the template that was used shows tools to the model.
    pub fn teaches_tools(&self) -> bool {
        self.renderer.as_ref().is_some_and(|r| diagnose::taught(r).shows_tools)
    }

    fn tokenizer(&mut self) -> Result<&Tokenizer> {
        match &mut self.tokenizer {
            Some(tokenizer) => Ok(tokenizer),
            empty => Ok(empty.insert(Tokenizer::open(&self.folder)?)),
        }
    }

    fn renderer(&mut self) -> Result<&Renderer> {
        match &mut self.renderer {
            Some(renderer) => Ok(renderer),
            empty => {
                let template = self.template.clone().map_or_else(|| ChatTemplate::open(&self.folder), Ok);
                let opened = template.and_then(|t| Renderer::new(t, special_tokens(&self.folder)?));
                let opened = opened.map_err(|e| {
                    Error::input("is a conversation, and the model has no chat template to render it with")
                        .found(Shown(e.what()).to_string())
                        .hint("give lines with `text`, or embed a template: `prep template embed MODEL --from FILE`")
                })?;
                Ok(empty.insert(opened))
            }
        }
    }
}

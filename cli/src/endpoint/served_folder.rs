//! The folder that a server serves, where the user has it too: its template and tokenizer tell what the server does not.

use std::path::Path;

use runner::Tokenizer;
use verify::Result;
use verify::suite::Ask;
use verify::template::{Renderer, Request};

/// Template and tokenizer of a served folder.
pub struct ServedFolder {
    renderer: Renderer,
    tokenizer: Tokenizer,
}

impl ServedFolder {
    /// Opens both.
    ///
    /// # Errors
    /// Exit 3 where the folder has no usable template or tokenizer.
    pub fn open(dir: &Path) -> Result<Self> {
        Ok(ServedFolder { renderer: Renderer::open(dir)?, tokenizer: Tokenizer::open(dir)? })
    }

    /// The template.
    pub fn renderer(&self) -> &Renderer {
        &self.renderer
    }

    /// The prompt, where the template gives one.
    pub fn prompt(&self, ask: &Ask) -> Option<String> {
        let request = Request { kwargs: ask.kwargs.clone(), ..Request::new(&ask.messages, &ask.tools) };
        self.renderer.render(&request).ok()
    }

    /// Its tokens.
    pub fn prompt_tokens(&self, ask: &Ask) -> Option<usize> {
        Some(self.tokenizer.encode(&self.prompt(ask)?).ok()?.len())
    }

    /// The text of an answer, special tokens included.
    pub fn decode(&self, ids: &[u32]) -> Option<String> {
        self.tokenizer.decode(ids).ok()
    }
}

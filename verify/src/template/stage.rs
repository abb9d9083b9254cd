//! Embedding as a stage of a rewrite: tensors pass through, the template's files are replaced.

use serde_json::json;

use super::embed::{Files, embed};
use super::find::{ChatTemplate, PROCESSOR, Places, TOKENIZER_CONFIG};
use super::render::Renderer;
use super::request::tokens_of;
use crate::checkpoint::{TensorReader, json as files};
use crate::error::{Error, Result};
use crate::names::FileName;
use crate::rewrite::{Content, Decision, ModelView, Rewrite, Stage, ViewFile};

/// Writes one template text into every place of the result that a server reads.
#[derive(Debug, Clone, Default)]
pub struct EmbedTemplate {
    /// The template; `None` takes the one that wins in the model so far.
    pub template: Option<ChatTemplate>,
}

impl Rewrite for EmbedTemplate {
    fn plan(&self, input: &ModelView, _: &dyn TensorReader) -> Result<Stage> {
        let text = |name: &str| input.text(name);
        let template = match &self.template {
            Some(t) => t.clone(),
            None => Places::of(input)?.chosen().ok_or_else(no_template)?,
        };
        let tokenizer_config = text(TOKENIZER_CONFIG)?;
        let tokens = match &tokenizer_config {
            Some(t) => tokens_of(&files::parse(t, &input.folder().join(TOKENIZER_CONFIG))?),
            None => Default::default(),
        };
        // A template that does not compile would only be noticed by the server.
        Renderer::new(template.clone(), tokens)?;
        let origin = |name: &str| input.file(name).map_or("prep".to_string(), |f| f.origin.clone());
        let written = embed(&template.text, &Files { tokenizer_config, processor: text(PROCESSOR)? })?;
        let mut output = input.clone();
        let mut decisions = Vec::new();
        for file in written {
            let same = text(file.name)?.is_some_and(|old| old == file.text);
            let origin = match (same, input.file(file.name).is_some()) {
                (true, _) => origin(file.name),
                (false, true) => format!("{}, template embedded", origin(file.name)),
                (false, false) => "prep".to_string(),
            };
            decisions.push(Decision {
                what: file.name.to_string(),
                choice: if same { "kept".into() } else { "template embedded".into() },
                reason: format!("servers read the template here; its text is that of {}", template.source),
            });
            let content = Content::Bytes(file.text.into_bytes().into());
            output.put_file(ViewFile { name: FileName::parse(file.name)?, content, origin });
        }
        let mut stage = Stage::unchanged("template", output, input)?;
        stage.options = json!({"sha256": template.digest()});
        stage.decisions = decisions;
        Ok(stage)
    }
}

fn no_template() -> Error {
    Error::input("neither the base nor an adapter has a chat template")
        .expected("chat_template.jinja, or the key `chat_template` in tokenizer_config.json")
        .hint("give one by `template.from` in the recipe")
}

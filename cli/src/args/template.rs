//! Arguments of `prep template`.

use std::path::{Path, PathBuf};

use clap::{Args as ClapArgs, Subcommand};

/// `prep template`.
#[derive(Debug, Subcommand)]
pub enum Template {
    /// Print the template that servers use, and where it stands
    #[command(after_help = "Examples:\n  prep template show MODEL\n  prep template show MODEL --json")]
    Show(TemplateModel),
    /// Print the prompt that the template makes of a conversation
    #[command(after_help = "Examples:
  prep template render MODEL --messages chat.json
  prep template render MODEL --messages chat.json --tools tools.json --kwargs '{\"enable_thinking\": false}'")]
    Render(TemplateRender),
    /// Check that the template is where servers look, renders, and teaches a known tool format
    #[command(
        after_help = "Examples:\n  prep template check MODEL\n  prep template check MODEL --from ADAPTER"
    )]
    Check(TemplateCheck),
    /// Write a template into both places that servers read
    #[command(after_help = "Examples:
  prep template embed MODEL --from ADAPTER
  prep template embed MODEL --from chat_template.jinja")]
    Embed(TemplateEmbed),
}

impl Template {
    /// The folder that it is about.
    pub fn model(&self) -> &Path {
        match self {
            Template::Show(a) => &a.model,
            Template::Render(a) => &a.model,
            Template::Check(a) => &a.model,
            Template::Embed(a) => &a.model,
        }
    }
}

/// A model folder.
#[derive(Debug, ClapArgs)]
pub struct TemplateModel {
    /// Folder of the model
    pub model: PathBuf,
}

/// `prep template render`.
#[derive(Debug, ClapArgs)]
pub struct TemplateRender {
    /// Folder of the model
    pub model: PathBuf,
    /// Render this template instead: a file, or a folder that has one
    #[arg(long, value_name = "FILE|DIR")]
    pub from: Option<PathBuf>,
    /// The conversation: a JSON list of messages, or an object with `messages` and `tools`
    #[arg(long, value_name = "FILE")]
    pub messages: PathBuf,
    /// The tools: a JSON list
    #[arg(long, value_name = "FILE")]
    pub tools: Option<PathBuf>,
    /// Further template arguments (chat_template_kwargs), a JSON object
    #[arg(long, value_name = "JSON")]
    pub kwargs: Option<String>,
    /// Leave out the start of the assistant's turn
    #[arg(long)]
    pub no_generation_prompt: bool,
}

/// `prep template check`.
#[derive(Debug, ClapArgs)]
pub struct TemplateCheck {
    /// Folder of the model
    pub model: PathBuf,
    /// Must be this template: a file, or a folder that has one
    #[arg(long, value_name = "FILE|DIR")]
    pub from: Option<PathBuf>,
}

/// `prep template embed`.
#[derive(Debug, ClapArgs)]
pub struct TemplateEmbed {
    /// Folder of the model
    pub model: PathBuf,
    /// The template: a file, or a folder that has one [default: the folder's own]
    #[arg(long, value_name = "FILE|DIR")]
    pub from: Option<PathBuf>,
}

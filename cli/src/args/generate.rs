//! Arguments of `prep generate`.

use std::path::PathBuf;

use clap::Args as ClapArgs;

use super::OnDevice;

/// `prep generate`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  prep generate MODEL --prompt 'Once upon a time' --max-new 40
  prep generate MODEL --messages chat.json --tools tools.json
  prep generate MODEL --tokens prompts.json --max-new 16 --ignore-eos --logits logits.safetensors")]
pub struct Generate {
    /// Folder of the model
    pub model: PathBuf,
    #[command(flatten)]
    pub input: GenerateInput,
    /// With --messages, tools for the chat template: a JSON list
    #[arg(long, value_name = "FILE")]
    pub tools: Option<PathBuf>,
    /// With --messages, further template arguments (chat_template_kwargs): a JSON object
    #[arg(long, value_name = "JSON")]
    pub kwargs: Option<String>,
    /// Longest answer in tokens
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub max_new: usize,
    /// Go on after a stop token
    #[arg(long)]
    pub ignore_eos: bool,
    /// Write the logits at every position of the prompts, and the likeliest continuations, instead of text
    #[arg(long, value_name = "OUT.safetensors")]
    pub logits: Option<PathBuf>,
    /// 0 takes the likeliest token
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    pub temperature: f32,
    /// Draw from the K likeliest tokens
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub top_k: usize,
    /// Draw from the likeliest tokens that hold this share
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    pub top_p: f32,
    /// Leave out tokens less likely than this share of the likeliest
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    pub min_p: f32,
    /// Above 1 makes repeating less likely
    #[arg(long, value_name = "R", default_value_t = 1.0)]
    pub repetition_penalty: f32,
    /// Same seed, same text
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    #[command(flatten)]
    pub on: OnDevice,
}

/// What to generate from.
#[derive(Debug, ClapArgs)]
#[group(required = true, multiple = false)]
pub struct GenerateInput {
    /// Plain text, no template
    #[arg(long, value_name = "TEXT")]
    pub prompt: Option<String>,
    /// A conversation for the chat template: a JSON list of messages, or an object with `messages` and `tools`
    #[arg(long, value_name = "FILE")]
    pub messages: Option<PathBuf>,
    /// Token ids: a JSON list of lists
    #[arg(long, value_name = "FILE")]
    pub tokens: Option<PathBuf>,
}

//! Arguments of `prep download`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, ValueEnum};

/// `prep download`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  prep download Qwen/Qwen3-0.6B --out BASE
  prep download Qwen/Qwen3-0.6B --out BASE --dry-run --exclude '*.md'
  prep download Qwen/Qwen3-0.6B --cache --revision main
  prep download Qwen/Qwen3-0.6B --out BASE --source modelscope

Environment: HF_ENDPOINT (a mirror), HF_TOKEN or HF_TOKEN_PATH, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE; for ModelScope
MODELSCOPE_DOMAIN, MODELSCOPE_API_TOKEN; for both HTTPS_PROXY, SSL_CERT_FILE.")]
pub struct Download {
    /// Repository, such as Qwen/Qwen3-0.6B
    #[arg(value_name = "REPO")]
    pub repo: String,
    /// Folder of the result
    #[arg(long, value_name = "DIR", required_unless_present = "cache", conflicts_with = "cache")]
    pub out: Option<PathBuf>,
    /// Branch, tag or commit [default: main, on ModelScope master]
    #[arg(long, value_name = "REVISION")]
    pub revision: Option<String>,
    /// The hub to ask
    #[arg(long, value_enum, default_value = "hf")]
    pub source: Hub,
    /// Fetch only files that match; may be repeated [default: safetensors, configs, tokenizer, template, licence]
    #[arg(long, value_name = "GLOB")]
    pub include: Vec<String>,
    /// Leave out files that match; may be repeated
    #[arg(long, value_name = "GLOB")]
    pub exclude: Vec<String>,
    /// Fetch the model's Python files too (servers need --trust-remote-code to use them)
    #[arg(long)]
    pub keep_code: bool,
    /// List what would be fetched, with sizes, and stop
    #[arg(long)]
    pub dry_run: bool,
    /// Open no connection: use what is there, and verify it
    #[arg(long)]
    pub offline: bool,
    /// Download into the hub cache that other tools share, instead of a folder
    #[arg(long)]
    pub cache: bool,
    /// Connections at a time
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub streams: u16,
    /// Replace a folder that is there already, whatever it holds, once the new one is complete
    #[arg(long)]
    pub force: bool,
    /// Keep full paths in the report; else folders keep their own name only, and the home folder is `~`
    #[arg(long)]
    pub private_paths: bool,
    /// Wait so many seconds for another run that writes the same folder
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub lock_wait: u32,
    /// Take no lock, on a disk that has none: nothing keeps another run out of the folder then
    #[arg(long, conflicts_with = "lock_wait")]
    pub no_lock: bool,
}

/// Hubs that models are fetched from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Hub {
    /// Hugging Face, or a mirror of it
    Hf,
    /// ModelScope
    Modelscope,
}

impl Hub {
    /// Its name, as `--source` and recipes have it.
    pub fn name(self) -> &'static str {
        match self {
            Hub::Hf => "hf",
            Hub::Modelscope => "modelscope",
        }
    }

    /// The branch that is meant where none is named.
    pub fn default_revision(self) -> &'static str {
        match self {
            Hub::Hf => "main",
            Hub::Modelscope => "master",
        }
    }
}

//! Arguments of `prep verify`.

use std::path::PathBuf;

use clap::Args as ClapArgs;

/// `prep verify`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  prep verify MODEL --parser qwen3_coder
  prep verify MODEL --parser qwen3_coder --min-score 60 --report verify.html")]
pub struct Verify {
    /// Folder of the model
    pub model: PathBuf,
    /// The tool-call parser that the server will use
    #[arg(long, value_name = "NAME")]
    pub parser: String,
    /// Cases to run [default: the built-in 24]
    #[arg(long, value_name = "FILE")]
    pub suite: Option<PathBuf>,
    /// Fail below this score (the built-in suite gives at most 72)
    #[arg(long, value_name = "N")]
    pub min_score: Option<u32>,
    /// The reasoning parser that the server will use, for models that think
    #[arg(long, value_name = "NAME")]
    pub reasoning_parser: Option<String>,
    /// Longest answer in tokens
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub max_new: usize,
    /// Write a report: a page (.html), JSON (.json) or JUnit (.xml); may be repeated
    #[arg(long, value_name = "FILE")]
    pub report: Vec<PathBuf>,
}

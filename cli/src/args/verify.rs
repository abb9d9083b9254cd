//! Arguments of `prep verify`.

use std::path::PathBuf;

use clap::Args as ClapArgs;

/// `prep verify`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  prep verify MODEL --parser qwen3_coder
  prep verify MODEL --parser qwen3_coder --min-score 60 --report verify.html
  prep verify MODEL-FP8 --parser qwen3_coder --baseline MODEL --text wiki.txt --max-score-drop 2")]
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
    #[command(flatten)]
    pub baseline: Baseline,
}

/// What the model is compared with.
#[derive(Debug, Clone, Default, ClapArgs)]
pub struct Baseline {
    /// Run this model too and compare: scores case by case, predictions, router choices
    #[arg(long, value_name = "DIR")]
    pub baseline: Option<PathBuf>,
    /// Compare the predictions over this plain text too, and its perplexities
    #[arg(long, value_name = "FILE", requires = "baseline")]
    pub text: Option<PathBuf>,
    /// Fail where the score falls further below the baseline's
    #[arg(long, value_name = "N", requires = "baseline")]
    pub max_score_drop: Option<u32>,
    /// Fail where the mean KL divergence (nats) over the baseline's answers or the text is higher
    #[arg(long, value_name = "X", requires = "baseline", value_parser = divergence)]
    pub max_kl: Option<f64>,
}

fn divergence(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|x| x.is_finite() && *x >= 0.0);
    number.ok_or_else(|| "a number of nats, 0 or more".to_string())
}

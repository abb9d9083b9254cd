//! Arguments of `prep verify`.

use std::path::PathBuf;

use clap::Args as ClapArgs;

use super::OnDevice;

/// `prep verify`.
#[derive(Debug, ClapArgs)]
#[command(
    after_help = "Several MODEL and --endpoint make one table. --model, --parser, --reasoning-parser, --api-key-env \
and --folder are given once for all, or once for each (folders first, in the order of the command line).

A server's calls are compared with what --parser finds in the raw text, where that can be had: from the answer's token \
ids (vLLM, SGLang); else from /v1/completions with the prompt that --folder's template gives; else, for parsers that leave \
text without calls alone, from the same request with tool_choice none. The last two are second answers and count only \
where the server repeats itself. The API key comes from the environment alone.

Examples:
  prep verify MODEL --parser qwen3_coder
  prep verify MODEL --parser qwen3_coder --min-score 60 --report verify.html
  prep verify MODEL-FP8 --parser qwen3_coder --baseline MODEL --text wiki.txt --max-score-drop 2
  prep verify MODEL --parser qwen3_coder --repeat 5 --temperature 0.7 --top-p 0.8
  prep verify --endpoint http://localhost:8000 --model NAME --parser qwen3_coder
  prep verify OUT --endpoint http://gpu1:8000 --endpoint http://gpu2:8000 --parser qwen3_coder --report all.html"
)]
pub struct Verify {
    /// Folders of models
    #[arg(required_unless_present = "endpoint")]
    pub model: Vec<PathBuf>,
    /// The tool-call parser that the server will use
    #[arg(long, value_name = "NAME", required = true)]
    pub parser: Vec<String>,
    /// Cases to run [default: the built-in 24]
    #[arg(long, value_name = "FILE")]
    pub suite: Option<PathBuf>,
    /// Fail below this score (the built-in suite gives at most 72); of several runs, the lowest counts
    #[arg(long, value_name = "N")]
    pub min_score: Option<u32>,
    /// The reasoning parser that the server will use, or `none` [default: the one that fits the template]
    #[arg(long, value_name = "NAME")]
    pub reasoning_parser: Vec<String>,
    /// Longest answer in tokens
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub max_new: usize,
    /// Template arguments (chat_template_kwargs) for all cases, a JSON object
    #[arg(long, value_name = "JSON")]
    pub kwargs: Option<String>,
    /// Write a report: a page (.html), JSON (.json) or JUnit (.xml); may be repeated
    #[arg(long, value_name = "FILE")]
    pub report: Vec<PathBuf>,
    /// Keep full paths in reports; else folders keep their own name only, and the home folder is `~`
    #[arg(long)]
    pub private_paths: bool,
    #[command(flatten)]
    pub on: OnDevice,
    #[command(flatten)]
    pub baseline: Baseline,
    #[command(flatten)]
    pub sampling: Sampling,
    #[command(flatten)]
    pub server: Server,
}

/// How tokens are chosen.
#[derive(Debug, Clone, ClapArgs)]
#[command(next_help_heading = "Sampling")]
pub struct Sampling {
    /// Run the suite N times, each with the next seed
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: u32,
    /// 0 takes the likeliest token
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    pub temperature: f32,
    /// Draw from the K likeliest tokens; 0 is all
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub top_k: u32,
    /// Draw from the likeliest tokens that hold this share
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    pub top_p: f32,
    /// Same seed, same answers
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling { repeat: 1, temperature: 0.0, top_k: 0, top_p: 1.0, seed: 0 }
    }
}

/// Servers instead of folders.
#[derive(Debug, Clone, ClapArgs)]
#[command(next_help_heading = "Servers")]
pub struct Server {
    /// Ask a running OpenAI-compatible server, such as http://localhost:8000/v1; may be repeated
    #[arg(long, value_name = "URL")]
    pub endpoint: Vec<String>,
    /// The model's name at the server [default: its only one]
    #[arg(long = "model", value_name = "NAME", requires = "endpoint")]
    pub served: Vec<String>,
    /// The folder that the server serves: its template and tokenizer show the raw text where the server does not
    #[arg(long, value_name = "DIR", requires = "endpoint")]
    pub folder: Vec<PathBuf>,
    /// The environment variable that holds the API key [default: OPENAI_API_KEY]
    #[arg(long, value_name = "NAME", requires = "endpoint")]
    pub api_key_env: Vec<String>,
    /// Ask for whole answers only; else each is asked for streamed too, and both are compared
    #[arg(long, requires = "endpoint")]
    pub no_stream: bool,
    /// Answers asked for at once
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256), requires = "endpoint")]
    pub concurrency: u16,
    /// Longest silence of a server
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u32).range(1..=3600), requires = "endpoint")]
    pub timeout: u32,
}

/// What the model is compared with.
#[derive(Debug, Clone, Default, ClapArgs)]
#[command(next_help_heading = "Baseline")]
pub struct Baseline {
    /// Run this model too and compare: scores case by case, predictions, router choices
    #[arg(long, value_name = "DIR", conflicts_with = "endpoint")]
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

/// A number of nats.
pub fn divergence(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|x| x.is_finite() && *x >= 0.0);
    number.ok_or_else(|| "a number of nats, 0 or more".to_string())
}

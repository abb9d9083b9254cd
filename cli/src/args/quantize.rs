//! Arguments of `prep quantize`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, ValueEnum};

use super::{OnDevice, Parts, Rewriting};

/// `prep quantize`.
#[derive(Debug, ClapArgs)]
#[command(group(clap::ArgGroup::new("to").required(true)))]
#[command(after_help = "Examples:
  prep quantize MODEL --out MODEL-FP8 --fp8
  prep quantize MODEL --out FP8 --fp8 --scheme channel --ignore 'model.layers.0.*' --dry-run
  prep quantize MODEL --out MODEL-AWQ --awq --calibration traffic.jsonl
  prep quantize MODEL --out MODEL-AWQ --awq --format autoawq --group-size 64")]
pub struct Quantize {
    /// Folder of the model
    pub model: PathBuf,
    /// Folder of the result
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// 8-bit floating point weights (E4M3)
    #[arg(long, group = "to")]
    pub fp8: bool,
    /// Integer weights (AWQ), 4 bit by default, calibrated layer by layer
    #[arg(long, group = "to")]
    pub awq: bool,
    /// FP8: how scales are shared out
    #[arg(long, value_enum, default_value_t = Scheme::Block, conflicts_with = "awq")]
    pub scheme: Scheme,
    #[command(flatten)]
    pub integers: Integers,
    /// Leave modules in 16 bit: a glob, or `re:` and a regular expression; may be repeated
    #[arg(long, value_name = "PATTERN")]
    pub ignore: Vec<String>,
    /// Take an FP8 model as the source: back to 16 bit first, then as asked for
    #[arg(long)]
    pub from_quantized: bool,
    /// Calibrated scales for activations (refused: needs calibration, which is not there yet)
    #[arg(long, hide = true)]
    pub static_activations: bool,
    /// Calibrated scales for the key and value cache (refused: needs calibration, which is not there yet)
    #[arg(long, hide = true)]
    pub kv_cache: bool,
    /// Also quantize matrices that do not fill their 128 x 128 blocks, where servers do not fuse them (vLLM loads
    /// them, transformers does not)
    #[arg(long, conflicts_with = "awq")]
    pub quantize_tails: bool,
    /// Write a page with the error of every layer and the tokens of every expert
    #[arg(long, value_name = "FILE.html", requires = "awq", conflicts_with = "dry_run")]
    pub report: Option<PathBuf>,
    #[command(flatten)]
    pub on: OnDevice,
    #[command(flatten)]
    pub parts: Parts,
    /// Print the plan and stop
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub rewriting: Rewriting,
}

/// Options of `--awq`.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "AWQ")]
pub struct Integers {
    /// Samples to calibrate on, one JSON object a line: `messages` (and `tools`), `text`, or `input_ids` [default: a
    /// built-in set of English, Chinese, code and tool calls]
    #[arg(long, value_name = "FILE", conflicts_with = "fp8")]
    pub calibration: Option<PathBuf>,
    /// Sequences to calibrate on
    #[arg(long, value_name = "N", default_value_t = 128, conflicts_with = "fp8")]
    pub samples: usize,
    /// Tokens of a sequence at most
    #[arg(long, value_name = "N", default_value_t = 512, conflicts_with = "fp8")]
    pub seq_len: usize,
    /// Names and packing of the result
    #[arg(long, value_enum, default_value_t = Packing::CompressedTensors, conflicts_with = "fp8")]
    pub format: Packing,
    /// Weights under one scale: 32, 64 or 128
    #[arg(long, value_name = "N", default_value_t = 128, conflicts_with = "fp8")]
    pub group_size: usize,
    /// Bits of a weight: 4 or 8
    #[arg(long, value_name = "N", default_value_t = 4, conflicts_with = "fp8")]
    pub bits: u32,
    /// No stored zeros: half the range on either side
    #[arg(long, conflicts_with = "fp8")]
    pub symmetric: bool,
    /// Whether ranges are narrowed where that loses less
    #[arg(long, value_enum, default_value_t = Clip::Search, num_args = 0..=1, default_missing_value = "search", conflicts_with = "fp8")]
    pub clip: Clip,
    /// How codes are found: nearest, or from there downhill in the error on the calibration data
    #[arg(long, value_enum, default_value_t = Rounding::Descent, conflicts_with = "fp8")]
    pub rounding: Rounding,
    /// Which tokens an expert is calibrated on: all, or those that the router sends to it
    #[arg(long, value_enum, default_value_t = Experts::All, conflicts_with = "fp8")]
    pub experts: Experts,
}

/// Names and packing of integer weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Packing {
    /// compressed-tensors `pack-quantized`
    CompressedTensors,
    /// AutoAWQ `gemm`
    #[value(alias = "awq")]
    Autoawq,
}

/// Ranges of groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Clip {
    /// From the smallest to the largest weight
    Off,
    /// Narrower where that loses less, but for query and key
    Search,
}

/// How codes are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Rounding {
    /// The nearest code
    Nearest,
    /// From the nearest codes downhill: neighbours make up for each other's errors
    Descent,
}

/// What experts are calibrated on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Experts {
    /// All tokens, so that no expert goes without
    All,
    /// Only the tokens that the router sends there
    Routed,
}

/// FP8 schemes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheme {
    /// One scale for 128 x 128 weights (the publishers' own format)
    Block,
    /// One scale for each output channel (compressed-tensors); loads at any tensor-parallel size
    Channel,
    /// One scale for each matrix (compressed-tensors)
    Tensor,
    /// The blocks of `block` under compressed-tensors' names
    CompressedBlock,
}

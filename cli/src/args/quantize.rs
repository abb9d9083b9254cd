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
  prep quantize MODEL --out MODEL-AWQ --awq --format autoawq --group-size 64
  prep quantize MODEL --out MODEL-AWQ --awq --kv-cache fp8 --report scales.html
  prep quantize MODEL --out MODEL-FP8 --fp8 --kv-cache fp8 --calibration traffic.jsonl
  prep quantize MODEL --out STATIC --fp8 --static-activations --kv-cache fp8 --samples 64")]
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
    /// FP8: how scales of weights are shared out [default: block; tensor with --static-activations]
    #[arg(long, value_enum, conflicts_with = "awq")]
    pub scheme: Option<Scheme>,
    #[command(flatten)]
    pub integers: Integers,
    /// Leave modules in 16 bit: a glob, or `re:` and a regular expression; may be repeated
    #[arg(long, value_name = "PATTERN")]
    pub ignore: Vec<String>,
    /// Copy modules that hold NaN or infinity as they are, with all they are fused with, and warn (reads all weights
    /// once more)
    #[arg(long)]
    pub allow_nonfinite: bool,
    /// Take an FP8 model as the source: back to 16 bit first, then as asked for
    #[arg(long)]
    pub from_quantized: bool,
    /// FP8: one calibrated scale for what goes into each matrix, where servers else find one for each token (faster, a
    /// little less exact)
    #[arg(long, conflicts_with = "awq")]
    pub static_activations: bool,
    /// Calibrated scales for keys and values, which servers then cache in 8 bits
    #[arg(long, value_enum, value_name = "FORMAT", num_args = 0..=1, default_missing_value = "fp8")]
    pub kv_cache: Option<KvCache>,
    #[command(flatten)]
    pub calibration: Calibration,
    /// Also quantize matrices that do not fill their 128 x 128 blocks, where servers do not fuse them (vLLM loads
    /// them, transformers does not)
    #[arg(long, conflicts_with = "awq")]
    pub quantize_tails: bool,
    /// Write a page with what calibration found: the error or the scales of every layer, the tokens of every expert
    #[arg(long, value_name = "FILE.html", conflicts_with = "dry_run")]
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

/// Options of all that calibrates.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Calibration (--awq, --static-activations, --kv-cache)")]
pub struct Calibration {
    /// Samples to calibrate on, one JSON object a line: `messages` (and `tools`), `text`, or `input_ids` [default: a
    /// built-in set of English, Chinese, code and tool calls]
    #[arg(long, value_name = "FILE")]
    pub calibration: Option<PathBuf>,
    /// Sequences to calibrate on [default: 128]
    #[arg(long, value_name = "N")]
    pub samples: Option<usize>,
    /// Tokens of a sequence at most [default: 512]
    #[arg(long, value_name = "N")]
    pub seq_len: Option<usize>,
    /// Which tokens an expert is calibrated on: all, or those that the router sends to it [default: all]
    #[arg(long, value_enum)]
    pub experts: Option<Experts>,
}

/// Options of `--awq`.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "AWQ")]
pub struct Integers {
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

/// How keys and values are cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KvCache {
    /// 8-bit floating point (E4M3), a scale for the keys and one for the values of each layer
    Fp8,
}

/// What experts are calibrated on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
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

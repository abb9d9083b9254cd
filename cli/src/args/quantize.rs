//! Arguments of `prep quantize`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, ValueEnum};

use super::Parts;

/// `prep quantize`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  prep quantize MODEL --out MODEL-FP8 --fp8
  prep quantize MODEL --out FP8 --fp8 --scheme channel --ignore 'model.layers.0.*' --dry-run")]
pub struct Quantize {
    /// Folder of the model
    pub model: PathBuf,
    /// Folder of the result
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// 8-bit floating point weights (E4M3)
    #[arg(long, required = true)]
    pub fp8: bool,
    /// How scales are shared out
    #[arg(long, value_enum, default_value_t = Scheme::Block)]
    pub scheme: Scheme,
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
    #[arg(long)]
    pub quantize_tails: bool,
    #[command(flatten)]
    pub parts: Parts,
    /// Print the plan and stop
    #[arg(long)]
    pub dry_run: bool,
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

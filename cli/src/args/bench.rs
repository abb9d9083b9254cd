//! Arguments of `prep bench`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, ValueEnum};

use super::OnDevice;

/// `prep bench`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  prep bench --layers 1 --prompt 64
  prep bench MODEL --format fp8 --batch 8 --device auto

Every figure stands beside what the machine can do at best, measured in the same run.")]
pub struct Bench {
    /// A config.json, or a folder that has one; the weights are made up [default: a small qwen3_moe]
    #[arg(value_name = "CONFIG")]
    pub config: Option<PathBuf>,
    /// How linear layers are stored
    #[arg(long, value_enum, default_value_t = Stored::Bf16)]
    pub format: Stored,
    /// Only so many layers
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub layers: Option<u32>,
    /// Tokens of each prompt
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub prompt: u32,
    /// Steps of decoding that are timed
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub steps: u32,
    /// Sequences that are decoded together
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub batch: u32,
    #[command(flatten)]
    pub on: OnDevice,
}

/// How weights are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Stored {
    /// 16 bit
    Bf16,
    /// E4M3 in blocks of 128 x 128
    Fp8,
    /// 4 bit in groups of 128
    Int4,
}

//! Arguments of `prep diff`.

use std::path::PathBuf;

use clap::Args as ClapArgs;

/// `prep diff`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  prep diff BASE MODEL
  prep diff MODEL MODEL-FP8 --json

Weights are compared as numbers, whichever format holds them: a bf16 folder against its FP8 or 4-bit one gives the
error of quantizing. Exit code 0: nothing differs. 1: something does.")]
pub struct Diff {
    /// The first folder
    pub a: PathBuf,
    /// The second
    pub b: PathBuf,
    /// How many differing weights to print
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub most: usize,
}

//! Arguments of `prep merge-lora`.

use std::path::PathBuf;

use clap::Args as ClapArgs;

use super::{Parts, Rewriting};

/// `prep merge-lora`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  prep merge-lora --base BASE --adapter ADAPTER --out MERGED
  prep merge-lora --base BASE --adapter STYLE=0.7 --adapter TOOLS --out MERGED --dry-run")]
pub struct MergeLora {
    /// Folder of the base model
    #[arg(long, value_name = "DIR")]
    pub base: PathBuf,
    /// Folder of an adapter, with an optional weight; may be repeated
    #[arg(long, value_name = "DIR[=WEIGHT]", required = true)]
    pub adapter: Vec<String>,
    /// Folder of the result
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Go on when adapter tensors fit nothing in the base (they are listed in the report)
    #[arg(long)]
    pub allow_unused: bool,
    #[command(flatten)]
    pub parts: Parts,
    /// Print the plan and stop
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub rewriting: Rewriting,
}

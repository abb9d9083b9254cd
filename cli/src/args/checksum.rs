//! Arguments of `prep checksum`.

use std::path::PathBuf;

use clap::Args as ClapArgs;

/// `prep checksum`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:\n  prep checksum MODEL\n  prep checksum MODEL --check")]
pub struct Checksum {
    /// Folder of the model
    pub model: PathBuf,
    /// Compare the folder with its SHA256SUMS
    #[arg(long)]
    pub check: bool,
    /// Write SHA256SUMS anew where it is there already
    #[arg(long, conflicts_with = "check")]
    pub force: bool,
}

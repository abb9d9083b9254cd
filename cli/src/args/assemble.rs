//! Arguments of `prep assemble`.

use std::path::PathBuf;

use clap::Args as ClapArgs;

/// `prep assemble`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  prep assemble OUT
  prep assemble OUT --json

Before it, one process for each part, on one machine or on many that share the disk:
  prep quantize MODEL --out OUT --fp8 --part 1/2
  prep quantize MODEL --out OUT --fp8 --part 2/2")]
pub struct Assemble {
    /// Folder that the parts were written into
    pub dir: PathBuf,
    /// Put the sha256 of every input shard into the report, however large
    #[arg(long)]
    pub hash_inputs: bool,
    /// Keep full paths in the report; else folders keep their own name only, and the home folder is `~`
    #[arg(long)]
    pub private_paths: bool,
    /// Wait so many seconds for another run that writes the same folder
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub lock_wait: u32,
    /// Take no lock, on a disk that has none: nothing keeps another run out of the folder then
    #[arg(long, conflicts_with = "lock_wait")]
    pub no_lock: bool,
}

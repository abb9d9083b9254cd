//! Arguments of `prep doctor`.

use std::path::PathBuf;

use clap::Args as ClapArgs;

/// `prep doctor`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  prep doctor
  prep doctor --out OUT --json

Exit code 1 where something keeps prep from working. Tokens and passwords are never printed.")]
pub struct Doctor {
    /// The folder that results are to go to: its disk is looked at [default: the current one]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

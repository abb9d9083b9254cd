//! Arguments of `prep completions` and `prep man`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, ValueEnum};

/// `prep completions`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  prep completions bash > prep.bash
  prep completions fish > prep.fish

bash: put the file into ~/.local/share/bash-completion/completions/prep. zsh: as _prep into a folder of $fpath.
fish: into ~/.config/fish/completions/prep.fish.")]
pub struct Completions {
    /// The shell
    #[arg(value_enum)]
    pub shell: Shell,
}

/// A shell.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Shell {
    /// bash
    Bash,
    /// zsh
    Zsh,
    /// fish
    Fish,
}

/// `prep man`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  prep man man1
  prep man ~/.local/share/man/man1")]
pub struct Man {
    /// The folder to write pages to; it is made where it does not exist
    pub dir: PathBuf,
}

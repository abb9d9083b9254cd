//! Arguments of `prep parse`.

use clap::Args as ClapArgs;

/// `prep parse`.
#[derive(Debug, ClapArgs)]
#[command(
    after_help = "Reads JSON lines {\"text\", \"tools\"} from stdin, writes {\"content\", \"tool_calls\"} lines.

Examples:
  prep parse --parser qwen3_coder < outputs.jsonl
  prep parse --parser hermes --reasoning-parser qwen3 < outputs.jsonl"
)]
pub struct Parse {
    /// The tool-call parser
    #[arg(long, value_name = "NAME")]
    pub parser: String,
    /// The parser that takes the reasoning out first
    #[arg(long, value_name = "NAME")]
    pub reasoning_parser: Option<String>,
    /// Answer as a client assembles the server's streamed deltas
    #[arg(long)]
    pub stream: bool,
}

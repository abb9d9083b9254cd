//! Arguments of `prep inspect`, and the questions about hardware that `prep serve-command` asks too.

use std::path::PathBuf;

use ::verify::serving::Vram;
use clap::Args as ClapArgs;

/// `prep inspect`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  prep inspect MODEL
  prep inspect MODEL --vram 24GiB --context 32768 --concurrency 8
  prep inspect MODEL --vram \"RTX 4090 48GB\" --gpus 2 --json
  prep inspect Qwen/Qwen3-0.6B

Of a model of a hub (OWNER/NAME, hf:OWNER/NAME@REVISION, modelscope:OWNER/NAME) only configs, tokenizer, template and
the headers of the shards are fetched, some MB; the environment is that of `prep download`. A folder of that name wins.

The memory table reckons weights, cache and recurrent state exactly; activations and overhead are estimates.
Without --vram it names the smallest card for each format.")]
pub struct Inspect {
    /// Folder of the model, or a model of a hub
    pub model: PathBuf,
    #[command(flatten)]
    pub hardware: Hardware,
    /// Tokens of a conversation, prompt and answer [default: the model's context, at most 32768]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    pub context: Option<u64>,
    /// Conversations at once [default: 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub concurrency: Option<u64>,
}

/// The GPUs to serve with.
#[derive(Debug, Clone, ClapArgs)]
pub struct Hardware {
    /// Memory of a GPU (24GiB, 24564MiB), or a card by name ("RTX 4090 48GB", L40S, H200)
    #[arg(long, value_name = "SIZE|CARD", value_parser = |t: &str| Vram::parse(t).map_err(|e| e.to_string()))]
    pub vram: Option<Vram>,
    /// How many of them share the model (tensor-parallel)
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub gpus: u64,
}

//! Arguments of `prep serve-command`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, ValueEnum};

use super::Hardware;

/// `prep serve-command`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  prep serve-command MODEL
  prep serve-command MODEL --engine sglang --vram L40S --context 65536
  prep serve-command MODEL --vram 24GiB --gpus 2 --as systemd
  prep serve-command MODEL --as k8s -- --seed 7
  prep serve-command Qwen/Qwen3-0.6B

Units, compose files and manifests wait until the server is ready and send it a first request. A compose file
mounts the folder; a manifest expects it on a volume claim called `models`. A model of a hub gets a line that makes the
server fetch it; units and the like need a folder.")]
pub struct ServeCommand {
    /// Folder of the model, or a model of a hub
    pub model: PathBuf,
    /// The server
    #[arg(long, value_enum, default_value_t = Engine::Vllm)]
    pub engine: Engine,
    #[command(flatten)]
    pub hardware: Hardware,
    /// Longest conversation [default: the model's context, at most 32768, or what fits --vram]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    pub context: Option<u64>,
    /// Conversations at once [default: the server's own limit; 8 are reckoned with]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub concurrency: Option<u64>,
    /// What to write
    #[arg(long = "as", value_enum, default_value_t = Form::Line)]
    pub form: Form,
    /// The name that clients ask for [default: the folder's, or the repository's]
    #[arg(long, value_name = "NAME")]
    pub served_name: Option<String>,
    /// Port [default: the server's own]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    /// Serve with this template instead of the folder's
    #[arg(long, value_name = "FILE")]
    pub template: Option<PathBuf>,
    /// Further arguments of the server, checked against its list
    #[arg(last = true, value_name = "ARGUMENT")]
    pub extra: Vec<String>,
}

/// A server.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Engine {
    /// vLLM 0.33
    Vllm,
    /// SGLang 0.5.23
    Sglang,
}

/// What to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// A line for a shell
    Line,
    /// A systemd unit
    Systemd,
    /// A compose file
    Compose,
    /// A Kubernetes manifest
    K8s,
}

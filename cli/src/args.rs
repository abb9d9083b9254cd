//! The command line, typed. Names follow one rule: the same flag means the same in every command.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use verify::rewrite::{Part, Which};

/// Prepare open-weight LLMs for vLLM and SGLang: merge, quantize, template, checksum, verify.
#[derive(Debug, Parser)]
#[command(name = "prep", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = "Exit codes: 0 done, 1 a check failed, 2 usage, 3 input broken or refused, 5 disk, \
75 locked, 130 interrupted.

Examples:
  prep run recipes/tiny.toml --out OUT
  prep verify OUT --parser qwen3_coder")]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
    #[command(flatten)]
    pub global: Global,
}

/// Options of every command.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Options of every command")]
pub struct Global {
    /// Print the result as one JSON object on the last line of stdout
    #[arg(long, global = true)]
    pub json: bool,
    /// Print results, warnings and errors only
    #[arg(long, global = true)]
    pub quiet: bool,
    /// Tell more, such as each finished shard
    #[arg(short, long, global = true)]
    pub verbose: bool,
    /// Worker threads; results do not depend on it [default: all cores]
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Replace what is there already: an output folder once the new one is complete, or SHA256SUMS
    #[arg(long, global = true)]
    pub force: bool,
    /// Put the sha256 of every input shard into the report, however large (it takes as long as the rewrite)
    #[arg(long, global = true)]
    pub hash_inputs: bool,
    /// Wait so many seconds for another run that writes the same folder
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u32))]
    pub lock_wait: u32,
}

impl Global {
    /// Worker threads.
    pub fn threads(&self) -> usize {
        self.threads.map_or_else(|| std::thread::available_parallelism().map_or(1, usize::from), usize::from)
    }

    /// How the engine is to run.
    pub fn rewrite_options(&self, which: Which, inputs: Vec<PathBuf>) -> verify::rewrite::Options {
        verify::rewrite::Options {
            which,
            threads: self.threads(),
            existing: match self.force {
                true => verify::rewrite::Existing::Replace,
                false => verify::rewrite::Existing::Continue,
            },
            lock_wait: Duration::from_secs(self.lock_wait.into()),
            inputs,
            command: crate::commands::command_line(),
            hash_inputs: self.hash_inputs,
            remember: None,
        }
    }
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Do the whole job that a recipe describes
    Run(Run),
    /// Merge LoRA adapters into a base model
    MergeLora(MergeLora),
    /// Quantize a model
    Quantize(Quantize),
    /// Complete a folder whose parts were made by --part runs
    Assemble(Assemble),
    /// Show, render, check or embed a chat template
    #[command(subcommand)]
    Template(Template),
    /// Write SHA256SUMS of a folder, or check a folder against it
    Checksum(Checksum),
    /// Check a folder, run it and score its tool calls
    Verify(Verify),
    /// Parse model outputs as a server's tool-call parser does
    Parse(Parse),
    /// List the tool-call and reasoning parsers, and which models write what they read
    #[command(after_help = "Examples:\n  prep parsers\n  prep parsers --json")]
    Parsers,
    /// Generate text, or dump logits
    Generate(Generate),
}

/// `prep run`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  prep run recipes/tiny.toml --out OUT
  prep run recipes/tiny.toml --out OUT --set quantize.scheme=channel --dry-run

Keys of a recipe (paths are relative to it):
  base = \"DIR\"                 out = \"DIR\"
  [[adapter]]   path = \"DIR\"   weight = 1.0
  [quantize]    format = \"fp8\" scheme = \"block\"   ignore = [\"model.layers.0.*\"]
  [template]    from = \"FILE or DIR\"
  [verify]      parser = \"NAME\"  reasoning_parser = \"NAME\"  suite = \"FILE\"  min_score = 60
                max_new = 256    report = [\"FILE.html\"]")]
pub struct Run {
    /// The recipe
    #[arg(value_name = "RECIPE.toml")]
    pub recipe: PathBuf,
    /// Folder of the result [default: `out` of the recipe]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Print the plan and stop
    #[arg(long)]
    pub dry_run: bool,
    /// Set a key of the recipe, such as verify.parser=hermes
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

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
}

/// Which shards are written.
#[derive(Debug, Clone, Copy, Default, ClapArgs)]
pub struct Parts {
    /// Write only part i of n; n processes share the work, `prep assemble` completes the folder
    #[arg(long, value_name = "i/n", value_parser = |t: &str| Part::parse(t).map_err(|e| e.to_string()))]
    pub part: Option<Part>,
    /// Only complete the folder: what `prep assemble` sets.
    #[arg(skip)]
    pub finish: bool,
}

impl Parts {
    /// As the engine wants it.
    pub fn which(self) -> Which {
        match (self.finish, self.part) {
            (true, _) => Which::Finish,
            (false, Some(part)) => Which::Part(part),
            (false, None) => Which::All,
        }
    }
}

/// `prep quantize`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  prep quantize MODEL --out MODEL-FP8 --fp8
  prep quantize MODEL --out FP8 --fp8 --scheme channel --ignore 'model.layers.0.*' --dry-run")]
pub struct Quantize {
    /// Folder of the model
    pub model: PathBuf,
    /// Folder of the result
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// 8-bit floating point weights (E4M3)
    #[arg(long, required = true)]
    pub fp8: bool,
    /// How scales are shared out
    #[arg(long, value_enum, default_value_t = Scheme::Block)]
    pub scheme: Scheme,
    /// Leave modules in 16 bit: a glob, or `re:` and a regular expression; may be repeated
    #[arg(long, value_name = "PATTERN")]
    pub ignore: Vec<String>,
    /// Take an FP8 model as the source: back to 16 bit first, then as asked for
    #[arg(long)]
    pub from_quantized: bool,
    /// Calibrated scales for activations (refused: needs calibration, which is not there yet)
    #[arg(long, hide = true)]
    pub static_activations: bool,
    /// Calibrated scales for the key and value cache (refused: needs calibration, which is not there yet)
    #[arg(long, hide = true)]
    pub kv_cache: bool,
    /// Also quantize matrices that do not fill their 128 x 128 blocks, where servers do not fuse them (vLLM loads
    /// them, transformers does not)
    #[arg(long)]
    pub quantize_tails: bool,
    #[command(flatten)]
    pub parts: Parts,
    /// Print the plan and stop
    #[arg(long)]
    pub dry_run: bool,
}

/// FP8 schemes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheme {
    /// One scale for 128 x 128 weights (the publishers' own format)
    Block,
    /// One scale for each output channel (compressed-tensors); loads at any tensor-parallel size
    Channel,
    /// One scale for each matrix (compressed-tensors)
    Tensor,
    /// The blocks of `block` under compressed-tensors' names
    CompressedBlock,
}

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
}

/// `prep template`.
#[derive(Debug, Subcommand)]
pub enum Template {
    /// Print the template that servers use, and where it stands
    #[command(after_help = "Examples:\n  prep template show MODEL\n  prep template show MODEL --json")]
    Show(TemplateModel),
    /// Print the prompt that the template makes of a conversation
    #[command(after_help = "Examples:
  prep template render MODEL --messages chat.json
  prep template render MODEL --messages chat.json --tools tools.json --kwargs '{\"enable_thinking\": false}'")]
    Render(TemplateRender),
    /// Check that the template is where servers look, renders, and teaches a known tool format
    #[command(
        after_help = "Examples:\n  prep template check MODEL\n  prep template check MODEL --from ADAPTER"
    )]
    Check(TemplateCheck),
    /// Write a template into both places that servers read
    #[command(after_help = "Examples:
  prep template embed MODEL --from ADAPTER
  prep template embed MODEL --from chat_template.jinja")]
    Embed(TemplateEmbed),
}

/// A model folder.
#[derive(Debug, ClapArgs)]
pub struct TemplateModel {
    /// Folder of the model
    pub model: PathBuf,
}

/// `prep template render`.
#[derive(Debug, ClapArgs)]
pub struct TemplateRender {
    /// Folder of the model
    pub model: PathBuf,
    /// Render this template instead: a file, or a folder that has one
    #[arg(long, value_name = "FILE|DIR")]
    pub from: Option<PathBuf>,
    /// The conversation: a JSON list of messages, or an object with `messages` and `tools`
    #[arg(long, value_name = "FILE")]
    pub messages: PathBuf,
    /// The tools: a JSON list
    #[arg(long, value_name = "FILE")]
    pub tools: Option<PathBuf>,
    /// Further template arguments (chat_template_kwargs), a JSON object
    #[arg(long, value_name = "JSON")]
    pub kwargs: Option<String>,
    /// Leave out the start of the assistant's turn
    #[arg(long)]
    pub no_generation_prompt: bool,
}

/// `prep template check`.
#[derive(Debug, ClapArgs)]
pub struct TemplateCheck {
    /// Folder of the model
    pub model: PathBuf,
    /// Must be this template: a file, or a folder that has one
    #[arg(long, value_name = "FILE|DIR")]
    pub from: Option<PathBuf>,
}

/// `prep template embed`.
#[derive(Debug, ClapArgs)]
pub struct TemplateEmbed {
    /// Folder of the model
    pub model: PathBuf,
    /// The template: a file, or a folder that has one [default: the folder's own]
    #[arg(long, value_name = "FILE|DIR")]
    pub from: Option<PathBuf>,
}

/// `prep checksum`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:\n  prep checksum MODEL\n  prep checksum MODEL --check")]
pub struct Checksum {
    /// Folder of the model
    pub model: PathBuf,
    /// Compare the folder with its SHA256SUMS
    #[arg(long)]
    pub check: bool,
}

/// `prep verify`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  prep verify MODEL --parser qwen3_coder
  prep verify MODEL --parser qwen3_coder --min-score 60 --report verify.html")]
pub struct Verify {
    /// Folder of the model
    pub model: PathBuf,
    /// The tool-call parser that the server will use
    #[arg(long, value_name = "NAME")]
    pub parser: String,
    /// Cases to run [default: the built-in 24]
    #[arg(long, value_name = "FILE")]
    pub suite: Option<PathBuf>,
    /// Fail below this score (the built-in suite gives at most 72)
    #[arg(long, value_name = "N")]
    pub min_score: Option<u32>,
    /// The reasoning parser that the server will use, for models that think
    #[arg(long, value_name = "NAME")]
    pub reasoning_parser: Option<String>,
    /// Longest answer in tokens
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub max_new: usize,
    /// Write a report: a page (.html), JSON (.json) or JUnit (.xml); may be repeated
    #[arg(long, value_name = "FILE")]
    pub report: Vec<PathBuf>,
}

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

/// `prep generate`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  prep generate MODEL --prompt 'Once upon a time' --max-new 40
  prep generate MODEL --messages chat.json --tools tools.json
  prep generate MODEL --tokens prompts.json --max-new 16 --ignore-eos --logits logits.safetensors")]
pub struct Generate {
    /// Folder of the model
    pub model: PathBuf,
    #[command(flatten)]
    pub input: GenerateInput,
    /// Tools for the chat template: a JSON list
    #[arg(long, value_name = "FILE", requires = "messages")]
    pub tools: Option<PathBuf>,
    /// Further template arguments (chat_template_kwargs), a JSON object
    #[arg(long, value_name = "JSON", requires = "messages")]
    pub kwargs: Option<String>,
    /// Longest answer in tokens
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub max_new: usize,
    /// Go on after a stop token
    #[arg(long)]
    pub ignore_eos: bool,
    /// Write the logits at every position, prompt and continuation
    #[arg(long, value_name = "OUT.safetensors", requires = "tokens")]
    pub logits: Option<PathBuf>,
    /// 0 takes the likeliest token
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    pub temperature: f32,
    /// Draw from the K likeliest tokens
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub top_k: usize,
    /// Draw from the likeliest tokens that hold this share
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    pub top_p: f32,
    /// Leave out tokens less likely than this share of the likeliest
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    pub min_p: f32,
    /// Above 1 makes repeating less likely
    #[arg(long, value_name = "R", default_value_t = 1.0)]
    pub repetition_penalty: f32,
    /// Same seed, same text
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

/// What to generate from.
#[derive(Debug, ClapArgs)]
#[group(required = true, multiple = false)]
pub struct GenerateInput {
    /// Plain text, no template
    #[arg(long, value_name = "TEXT")]
    pub prompt: Option<String>,
    /// A conversation for the chat template: a JSON list of messages, or an object with `messages` and `tools`
    #[arg(long, value_name = "FILE")]
    pub messages: Option<PathBuf>,
    /// Token ids: a JSON list of lists
    #[arg(long, value_name = "FILE")]
    pub tokens: Option<PathBuf>,
}

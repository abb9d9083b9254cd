//! Arguments of `prep run`.

use std::path::PathBuf;

use clap::Args as ClapArgs;

use super::{OnDevice, Rewriting};

/// `prep run`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  prep run recipes/tiny.toml --out OUT
  prep run recipes/tiny.toml --out OUT --set quantize.scheme=channel --dry-run

Keys of a recipe (paths are relative to it):
  base = \"DIR\"                 out = \"DIR\"
  base = \"hf:Qwen/Qwen3-0.6B@COMMIT\", also modelscope:OWNER/NAME@REVISION: downloaded, or found and verified
  keep_code = true              carry over the base's Python files and `auto_map` (as --keep-code)
  [[adapter]]   path = \"DIR\"   weight = 1.0
  [quantize]    format = \"fp8\" scheme = \"block\"   ignore = [\"model.layers.0.*\"]
                format = \"fp8\" static_activations = true
                format = \"awq\" group_size = 128  symmetric = false  packing = \"compressed-tensors\"
                kv_cache = \"fp8\", allow_nonfinite = true (with either format)
                what calibrates (awq, static_activations, kv_cache) also takes
                calibration = \"FILE.jsonl\"  samples = 128  seq_len = 512  experts = \"all\"
  [template]    from = \"FILE or DIR\"
  [verify]      parser = \"NAME\"  reasoning_parser = \"NAME\"  suite = \"FILE\"  min_score = 60
                max_new = 256    report = [\"FILE.html\"]  kwargs = { enable_thinking = false }
                baseline = \"DIR or hf:..\"  text = \"FILE\"  max_score_drop = 2  max_kl = 0.1
                temperature = 0.7  top_p = 0.8  top_k = 20  seed = 0  repeat = 5")]
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
    #[command(flatten)]
    pub on: OnDevice,
    #[command(flatten)]
    pub rewriting: Rewriting,
}

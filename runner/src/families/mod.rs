//! Model families: one file each, saying which pieces a checkpoint of this `model_type` is put together from.

mod builder;
mod keys;
mod llama;
mod mixtral;
mod olmoe;
mod qwen3;
mod qwen3_5;
mod qwen3_moe;
mod qwen3_next;

pub use builder::{Builder, NormKind};
pub use keys::Keys;

use std::sync::Arc;

use verify::checkpoint::Config;
use verify::{Error, MappedCheckpoint, Result, Shown};

use crate::backend::Backend;
use crate::decoder::Decoder;
use crate::weights::Source;

/// Every `model_type` that can be run.
pub const MODEL_TYPES: [&str; 10] = [
    "llama",
    "mixtral",
    "olmoe",
    "qwen3",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_5_moe_text",
    "qwen3_5_text",
    "qwen3_moe",
    "qwen3_next",
];

/// Puts the model of a checkpoint together on `backend`. Reads small tensors; matrices are only pointed at.
///
/// # Errors
/// Exit 3 for an unknown `model_type`, a setting that is not implemented, and tensors that are missing or misshapen.
pub fn build<B: Backend>(map: &Arc<MappedCheckpoint>, config: &Config, backend: &B) -> Result<Decoder<B>> {
    let model = Builder::new(Source::new(map, config)?, Keys::new(config), backend);
    match config.model_type() {
        "llama" => llama::build(&model),
        "mixtral" => mixtral::build(&model),
        "olmoe" => olmoe::build(&model),
        "qwen3" => qwen3::build(&model),
        "qwen3_moe" => qwen3_moe::build(&model),
        "qwen3_next" => qwen3_next::build(&model),
        "qwen3_5" | "qwen3_5_text" => qwen3_5::build_dense(&model),
        "qwen3_5_moe" | "qwen3_5_moe_text" => qwen3_5::build_moe(&model),
        other => {
            Err(Error::input(format!("{}: this kind of model cannot be run", Shown::path(config.path())))
                .found(format!("model_type `{}`", Shown(other)))
                .expected(MODEL_TYPES.join(", "))
                .hint("verify it through a served endpoint"))
        }
    }
}

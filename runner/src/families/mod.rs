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

pub use builder::{Blueprint, Builder, LayerPlan, NormKind};
pub use keys::Keys;

use verify::checkpoint::Config;
use verify::{Error, Result, Shown};

use crate::backend::Backend;
use crate::weights::{Invented, Source, Store};

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

/// How the model of a checkpoint is put together on `backend`. Of mapped files only small tensors are read; matrices
/// are pointed at.
///
/// # Errors
/// Exit 3 for an unknown `model_type`, a setting that is not implemented, and tensors that are missing or misshapen.
pub fn blueprint<'a, B: Backend>(
    store: &'a dyn Store,
    config: &'a Config,
    backend: &'a B,
) -> Result<Blueprint<'a, B>> {
    of_source(Source::new(store, config)?, config, backend)
}

/// The same with weights that are made up.
///
/// # Errors
/// Exit 3 for an unknown `model_type`, and a setting that is not implemented.
pub fn invented<'a, B: Backend>(
    made: &'a Invented,
    config: &'a Config,
    backend: &'a B,
) -> Result<Blueprint<'a, B>> {
    of_source(Source::invented(made), config, backend)
}

fn of_source<'a, B: Backend>(
    source: Source<'a>,
    config: &'a Config,
    backend: &'a B,
) -> Result<Blueprint<'a, B>> {
    let model = Builder::new(source, Keys::new(config), backend);
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

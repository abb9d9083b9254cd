//! Qwen3.5 and Qwen3.6: Qwen3-Next's layers with flat DeltaNet projections; dense, or experts in every layer.
//!
//! The same files hold a vision tower (`model.visual.*`) and a draft layer (`mtp.*`); text needs neither.

use verify::Result;

use super::qwen3_next::Hybrid;
use super::{Blueprint, Builder};
use crate::backend::{Backend, Divide};
use crate::blocks::{Mlp, MoeConfig, Projections};

/// What the configuration classes fill in.
const DENSE: &[(&str, usize)] = &[
    ("vocab_size", 248_320),
    ("hidden_size", 4096),
    ("intermediate_size", 12_288),
    ("num_hidden_layers", 32),
    ("num_attention_heads", 16),
    ("num_key_value_heads", 4),
    ("head_dim", 256),
];
const MOE: &[(&str, usize)] = &[
    ("vocab_size", 248_320),
    ("hidden_size", 2048),
    ("moe_intermediate_size", 512),
    ("num_experts", 256),
    ("num_experts_per_tok", 8),
    ("num_hidden_layers", 40),
    ("num_attention_heads", 16),
    ("num_key_value_heads", 2),
    ("head_dim", 256),
];

pub fn build_dense<'a, B: Backend>(model: &Builder<'a, B>) -> Result<Blueprint<'a, B>> {
    let keys = model.keys().with_defaults(DENSE);
    let hybrid = Hybrid::parse(&keys, Projections::Flat)?;
    let inter = keys.count("intermediate_size")?;
    let frame = hybrid.frame(prefix(model), tied(model)?)?;
    let layer =
        move |layer: &Builder<'a, B>, n| hybrid.layer(layer, n, Mlp::dense(layer, hybrid.hidden(), inter)?);
    model.blueprint(frame, Box::new(layer))
}

pub fn build_moe<'a, B: Backend>(model: &Builder<'a, B>) -> Result<Blueprint<'a, B>> {
    let keys = model.keys().with_defaults(MOE);
    let hybrid = Hybrid::parse(&keys, Projections::Flat)?;
    let moe = MoeConfig::parse(&keys, "moe_intermediate_size", Divide::BySum)?;
    let moe = MoeConfig { shared: Some(keys.count_or("shared_expert_intermediate_size", 512)?), ..moe };
    let frame = hybrid.frame(prefix(model), tied(model)?)?;
    let layer = move |layer: &Builder<'a, B>, n| hybrid.layer(layer, n, Mlp::moe(layer, &moe)?);
    model.blueprint(frame, Box::new(layer))
}

/// Text-only checkpoints come with either prefix: the names decide, not the model_type.
fn prefix<B: Backend>(model: &Builder<B>) -> &'static str {
    match model.has("model.language_model.embed_tokens.weight") {
        true => "model.language_model",
        false => "model",
    }
}

/// The flag stands both at the top level and in `text_config`; the top level decides.
fn tied<B: Backend>(model: &Builder<B>) -> Result<bool> {
    let top = model.keys().config().value().get("tie_word_embeddings").and_then(serde_json::Value::as_bool);
    top.map_or_else(|| model.keys().flag_or("tie_word_embeddings", false), Ok)
}

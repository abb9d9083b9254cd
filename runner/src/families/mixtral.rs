//! Mixtral: Llama's attention, experts in every layer under their own names.

use verify::Result;

use super::builder::Frame;
use super::{Blueprint, Builder, NormKind};
use crate::backend::{Backend, Divide};
use crate::blocks::{Attention, AttentionConfig, ExpertNames, Mlp, MoeConfig, RopeConfig};
use crate::decoder::{Layer, Mixer};

/// What the configuration class fills in.
const DEFAULTS: &[(&str, usize)] = &[
    ("vocab_size", 32_000),
    ("hidden_size", 4096),
    ("intermediate_size", 14_336),
    ("num_experts", 8),
    ("num_experts_per_tok", 2),
    ("num_hidden_layers", 32),
    ("num_attention_heads", 32),
    ("num_key_value_heads", 8),
];

pub fn build<'a, B: Backend>(model: &Builder<'a, B>) -> Result<Blueprint<'a, B>> {
    let keys = model.keys().with_defaults(DEFAULTS).with_eps(1e-5);
    let attention = AttentionConfig { bias: false, ..AttentionConfig::parse(&keys)? };
    let moe = MoeConfig::parse(&keys, "intermediate_size", Divide::BySum)?;
    let moe = MoeConfig { names: ExpertNames::Mixtral, ..moe };
    let (hidden, eps) = (attention.hidden, keys.eps()?);
    let frame = Frame {
        keys,
        prefix: "model",
        norm: NormKind::Plain,
        eps,
        rope: RopeConfig::parse(&keys, attention.heads.dim, 1_000_000.0, 1.0)?,
        tied: keys.flag_or("tie_word_embeddings", false)?,
    };
    let layer = move |layer: &Builder<'a, B>, _| {
        Ok(Layer {
            norm_in: layer.norm("input_layernorm", hidden, NormKind::Plain, eps)?,
            mixer: Mixer::Attention(Attention::load(layer, &attention)?),
            norm_post: layer.norm("post_attention_layernorm", hidden, NormKind::Plain, eps)?,
            mlp: Mlp::moe(layer, &moe)?,
        })
    };
    model.blueprint(frame, Box::new(layer))
}

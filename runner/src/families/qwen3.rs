//! Qwen3, dense: Llama with a norm on each head of q and k.

use verify::Result;

use super::builder::Frame;
use super::{Blueprint, Builder, NormKind};
use crate::backend::Backend;
use crate::blocks::{Attention, AttentionConfig, Mlp, QkNorm, RopeConfig};
use crate::decoder::{Layer, Mixer};

/// What the configuration class fills in.
const DEFAULTS: &[(&str, usize)] = &[
    ("vocab_size", 151_936),
    ("hidden_size", 4096),
    ("intermediate_size", 22_016),
    ("num_hidden_layers", 32),
    ("num_attention_heads", 32),
    ("num_key_value_heads", 32),
    ("head_dim", 128),
];

pub fn build<'a, B: Backend>(model: &Builder<'a, B>) -> Result<Blueprint<'a, B>> {
    let keys = model.keys().with_defaults(DEFAULTS);
    let attention = AttentionConfig { qk_norm: QkNorm::Head, ..AttentionConfig::parse(&keys)? };
    let (hidden, inter, eps) = (attention.hidden, keys.count("intermediate_size")?, keys.eps()?);
    let frame = Frame {
        keys,
        prefix: "model",
        norm: NormKind::Plain,
        eps,
        rope: RopeConfig::parse(&keys, attention.heads.dim, 10_000.0, 1.0)?,
        tied: keys.flag_or("tie_word_embeddings", false)?,
    };
    let layer = move |layer: &Builder<'a, B>, _| {
        Ok(Layer {
            norm_in: layer.norm("input_layernorm", hidden, NormKind::Plain, eps)?,
            mixer: Mixer::Attention(Attention::load(layer, &attention)?),
            norm_post: layer.norm("post_attention_layernorm", hidden, NormKind::Plain, eps)?,
            mlp: Mlp::dense(layer, hidden, inter)?,
        })
    };
    model.blueprint(frame, Box::new(layer))
}

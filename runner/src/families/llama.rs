//! Llama, and what is built like it (SmolLM2): plain norms, rotary over the whole head, dense MLP.

use verify::Result;

use super::builder::Frame;
use super::{Blueprint, Builder, NormKind};
use crate::backend::Backend;
use crate::blocks::{Attention, AttentionConfig, Mlp, RopeConfig};
use crate::decoder::{Layer, Mixer};

/// What the configuration class fills in.
const DEFAULTS: &[(&str, usize)] = &[
    ("vocab_size", 32_000),
    ("hidden_size", 4096),
    ("intermediate_size", 11_008),
    ("num_hidden_layers", 32),
    ("num_attention_heads", 32),
];

pub fn build<'a, B: Backend>(model: &Builder<'a, B>) -> Result<Blueprint<'a, B>> {
    let keys = model.keys().with_defaults(DEFAULTS);
    let attention = AttentionConfig::parse(&keys)?;
    let (hidden, inter, eps) = (attention.hidden, keys.count("intermediate_size")?, keys.eps()?);
    let mlp_bias = keys.flag_or("mlp_bias", false)?;
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
            mlp: match mlp_bias {
                true => Mlp::dense_with_bias(layer, hidden, inter)?,
                false => Mlp::dense(layer, hidden, inter)?,
            },
        })
    };
    model.blueprint(frame, Box::new(layer))
}

//! OLMoE: q and k normalised as whole vectors and perhaps clamped, experts in every layer.

use verify::Result;

use super::builder::Frame;
use super::{Blueprint, Builder, NormKind};
use crate::backend::{Backend, Divide};
use crate::blocks::{Attention, AttentionConfig, Mlp, MoeConfig, QkNorm, RopeConfig};
use crate::decoder::{Layer, Mixer};

/// What the configuration class fills in.
const DEFAULTS: &[(&str, usize)] = &[
    ("vocab_size", 50_304),
    ("hidden_size", 2048),
    ("intermediate_size", 2048),
    ("num_experts", 64),
    ("num_experts_per_tok", 8),
    ("num_hidden_layers", 16),
    ("num_attention_heads", 16),
];

pub fn build<'a, B: Backend>(model: &Builder<'a, B>) -> Result<Blueprint<'a, B>> {
    let keys = model.keys().with_defaults(DEFAULTS).with_eps(1e-5);
    let clip = keys.get("clip_qkv").map(|v| keys.as_number(v, "clip_qkv")).transpose()?;
    let attention = AttentionConfig {
        qk_norm: QkNorm::Whole,
        clip: clip.map(|c| c as f32),
        ..AttentionConfig::parse(&keys)?
    };
    let divide = if keys.flag_or("norm_topk_prob", false)? { Divide::BySum } else { Divide::Never };
    let moe = MoeConfig::parse(&keys, "intermediate_size", divide)?;
    let (hidden, eps) = (attention.hidden, keys.eps()?);
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
            mlp: Mlp::moe(layer, &moe)?,
        })
    };
    model.blueprint(frame, Box::new(layer))
}

//! Qwen3 MoE (Qwen3-30B-A3B, Qwen3-Coder): attention as Qwen3, experts in most or all layers.

use verify::Result;

use super::builder::Frame;
use super::{Blueprint, Builder, Keys, NormKind};
use crate::backend::{Backend, Divide};
use crate::blocks::{Attention, AttentionConfig, Mlp, MoeConfig, QkNorm, RopeConfig};
use crate::decoder::{Layer, Mixer};

/// What the configuration class fills in.
const DEFAULTS: &[(&str, usize)] = &[
    ("vocab_size", 151_936),
    ("hidden_size", 2048),
    ("intermediate_size", 6144),
    ("moe_intermediate_size", 768),
    ("num_experts", 128),
    ("num_experts_per_tok", 8),
    ("num_hidden_layers", 24),
    ("num_attention_heads", 32),
    ("num_key_value_heads", 4),
];

pub fn build<'a, B: Backend>(model: &Builder<'a, B>) -> Result<Blueprint<'a, B>> {
    let keys = model.keys().with_defaults(DEFAULTS);
    // The class has no default for `head_dim`: hidden / heads where the file does not say.
    let attention = AttentionConfig { qk_norm: QkNorm::Head, ..AttentionConfig::parse(&keys)? };
    let sparse = SparseLayers::parse(&keys)?;
    let divide = if keys.flag_or("norm_topk_prob", false)? { Divide::BySum } else { Divide::Never };
    let moe = MoeConfig::parse(&keys, "moe_intermediate_size", divide)?;
    let (hidden, eps) = (attention.hidden, keys.eps()?);
    let frame = Frame {
        keys,
        prefix: "model",
        norm: NormKind::Plain,
        eps,
        rope: RopeConfig::parse(&keys, attention.heads.dim, 10_000.0, 1.0)?,
        tied: keys.flag_or("tie_word_embeddings", false)?,
    };
    let layer = move |layer: &Builder<'a, B>, n| {
        Ok(Layer {
            norm_in: layer.norm("input_layernorm", hidden, NormKind::Plain, eps)?,
            mixer: Mixer::Attention(Attention::load(layer, &attention)?),
            norm_post: layer.norm("post_attention_layernorm", hidden, NormKind::Plain, eps)?,
            mlp: match sparse.holds(n) {
                true => Mlp::moe(layer, &moe)?,
                false => Mlp::dense(layer, hidden, keys.count("intermediate_size")?)?,
            },
        })
    };
    model.blueprint(frame, Box::new(layer))
}

/// Which layers have experts: every `step`-th, counted from one, that is not listed as dense.
pub struct SparseLayers {
    dense: Vec<u64>,
    step: usize,
}

impl SparseLayers {
    pub fn parse(keys: &Keys) -> Result<Self> {
        Ok(SparseLayers {
            dense: keys.counts("mlp_only_layers")?,
            step: keys.count_or("decoder_sparse_step", 1)?,
        })
    }

    pub fn holds(&self, layer: usize) -> bool {
        !self.dense.contains(&(layer as u64)) && (layer + 1).is_multiple_of(self.step)
    }
}

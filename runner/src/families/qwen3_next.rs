//! Qwen3-Next: three Gated DeltaNet layers to one of gated attention, experts with a shared one.

use verify::Result;

use super::builder::Frame;
use super::qwen3_moe::SparseLayers;
use super::{Blueprint, Builder, Keys, NormKind};
use crate::backend::{Backend, Divide};
use crate::blocks::{
    Attention, AttentionConfig, DeltaConfig, DeltaNet, Mlp, MoeConfig, Projections, QkNorm, RopeConfig,
};
use crate::decoder::{Layer, Mixer};

/// What the configuration class fills in.
const DEFAULTS: &[(&str, usize)] = &[
    ("vocab_size", 151_936),
    ("hidden_size", 2048),
    ("intermediate_size", 5632),
    ("moe_intermediate_size", 512),
    ("num_experts", 512),
    ("num_experts_per_tok", 10),
    ("num_hidden_layers", 48),
    ("num_attention_heads", 16),
    ("num_key_value_heads", 2),
    ("head_dim", 256),
];

pub fn build<'a, B: Backend>(model: &Builder<'a, B>) -> Result<Blueprint<'a, B>> {
    let keys = model.keys().with_defaults(DEFAULTS);
    let hybrid = Hybrid::parse(&keys, Projections::Grouped)?;
    let sparse = SparseLayers::parse(&keys)?;
    let divide = if keys.flag_or("norm_topk_prob", true)? { Divide::BySum } else { Divide::Never };
    let moe = MoeConfig::parse(&keys, "moe_intermediate_size", divide)?;
    let moe = MoeConfig { shared: Some(keys.count_or("shared_expert_intermediate_size", 512)?), ..moe };
    let tied = keys.flag_or("tie_word_embeddings", false)?;
    let frame = hybrid.frame("model", tied)?;
    let layer = move |layer: &Builder<'a, B>, n| {
        hybrid.layer(
            layer,
            n,
            match sparse.holds(n) {
                true => Mlp::moe(layer, &moe)?,
                false => Mlp::dense(layer, hybrid.hidden(), keys.count("intermediate_size")?)?,
            },
        )
    };
    model.blueprint(frame, Box::new(layer))
}

/// What qwen3_next and qwen3_5 share: which layers are which, and both mixers. All norms are zero-centred.
pub struct Hybrid<'a> {
    keys: Keys<'a>,
    attention: AttentionConfig,
    delta: DeltaConfig,
    projections: Projections,
    linear: Vec<bool>,
    eps: f32,
}

impl<'a> Hybrid<'a> {
    pub fn parse(keys: &Keys<'a>, projections: Projections) -> Result<Self> {
        let eps = keys.eps()?;
        let attention = AttentionConfig {
            qk_norm: QkNorm::Head,
            norm: (NormKind::ZeroCentred, eps),
            gated: keys.flag_or("attn_output_gate", true)?,
            ..AttentionConfig::parse(keys)?
        };
        let delta = DeltaConfig::parse(keys)?;
        let linear = linear_layers(keys)?;
        Ok(Hybrid { keys: *keys, attention, delta, projections, linear, eps })
    }

    pub fn hidden(&self) -> usize {
        self.attention.hidden
    }

    pub fn frame(&self, prefix: &'static str, tied: bool) -> Result<Frame<'a>> {
        let rope = RopeConfig::parse(&self.keys, self.attention.heads.dim, 10_000.0, 0.25)?;
        Ok(Frame { keys: self.keys, prefix, norm: NormKind::ZeroCentred, eps: self.eps, rope, tied })
    }

    pub fn layer<B: Backend>(&self, layer: &Builder<B>, n: usize, mlp: Mlp<B>) -> Result<Layer<B>> {
        let norm = |name: &str| layer.norm(name, self.hidden(), NormKind::ZeroCentred, self.eps);
        Ok(Layer {
            norm_in: norm("input_layernorm")?,
            mixer: match self.linear[n] {
                true => Mixer::Delta(DeltaNet::load(layer, &self.delta, self.projections)?),
                false => Mixer::Attention(Attention::load(layer, &self.attention)?),
            },
            norm_post: norm("post_attention_layernorm")?,
            mlp,
        })
    }
}

/// From `layer_types`, or every `full_attention_interval`-th layer, counted from one, is attention.
fn linear_layers(keys: &Keys) -> Result<Vec<bool>> {
    let layers = keys.count("num_hidden_layers")?;
    let Some(types) = keys.layer_types(layers)? else {
        let interval = keys.count_or("full_attention_interval", 4)?;
        return Ok((1..=layers).map(|n| !n.is_multiple_of(interval)).collect());
    };
    let linear = |t: String| match t.as_str() {
        "linear_attention" => Ok(true),
        "full_attention" => Ok(false),
        other => Err(keys
            .wrong("`layer_types`")
            .found(format!("`{}`", verify::Shown(other)))
            .expected("`linear_attention` or `full_attention`")),
    };
    types.into_iter().map(linear).collect()
}

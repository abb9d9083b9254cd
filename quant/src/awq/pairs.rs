//! Smoothing pairs: what can be divided by a scale per channel, and who then must be multiplied by it.
//!
//! | producer | divided | readers, multiplied | judged by the output of |
//! |---|---|---|---|
//! | `input_layernorm` | weight | q, k, v; or all of `in_proj_*` | the mixer |
//! | `v_proj` | rows (and bias) | columns of `o_proj`; a key-value head's scale serves all query heads that read it | `o_proj` |
//! | `linear_attn.norm` | weight | columns of `out_proj`; one scale serves all value heads | `out_proj` |
//! | `post_attention_layernorm` | weight | gate and up of MLP, shared expert and every expert; router; shared-expert gate | the MLP |
//! | `up_proj` | rows (and bias) | columns of its `down_proj` | `down_proj` |
//!
//! All of it is exact. Values pass attention as weighted sums over positions and an output gate multiplies channel by
//! channel: neither mixes channels of a head. So every family has these pairs, with one exception: values that are
//! clamped (`clip_qkv` of olmoe) do not scale.

use std::collections::HashMap;

use verify::architecture::{Architecture, Layer, Module, Part, Role};
use verify::checkpoint::Config;
use verify::error::Result;

use crate::select::Fate;

/// What is divided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Producer {
    /// The weight of this norm; `1 + weight` where it is zero-centred.
    Norm {
        /// Path without `.weight`.
        module: String,
        /// Whether 1 is added to it.
        zero_centred: bool,
    },
    /// Rows of a linear, by index of `Architecture::modules`.
    Rows(usize),
}

/// Whose output tells how good a scale is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judge {
    /// Attention or DeltaNet.
    Mixer,
    /// The MLP or the experts with their router.
    Mlp,
    /// The one reader.
    Reader,
}

/// A producer with all that reads it.
#[derive(Debug, Clone)]
pub struct Pair {
    /// What is divided.
    pub producer: Producer,
    /// Everything that reads it, quantized or not: indices of `Architecture::modules`.
    pub readers: Vec<usize>,
    /// The channel of every column of a reader.
    pub channel: Vec<usize>,
    /// Whose output is looked at.
    pub judge: Judge,
}

impl Pair {
    /// Number of channels.
    pub fn channels(&self) -> usize {
        self.channel.iter().max().map_or(0, |c| c + 1)
    }

    /// The columns' scales, of the channels' ones.
    pub fn columns(&self, channels: &[f32]) -> Vec<f32> {
        self.channel.iter().map(|c| channels[*c]).collect()
    }

    /// Means over the columns of each channel.
    pub fn fold(&self, columns: &[f32]) -> Vec<f32> {
        let mut sums = vec![(0.0f64, 0u32); self.channels()];
        for (column, channel) in columns.iter().zip(&self.channel) {
            sums[*channel].0 += f64::from(*column);
            sums[*channel].1 += 1;
        }
        sums.into_iter().map(|(sum, n)| (sum / f64::from(n.max(1))) as f32).collect()
    }
}

/// The pairs of body layer `n` that have a quantized reader, those of the first half before those of the second.
///
/// # Errors
/// Exit 3 for counts in the config that are none.
pub fn of_layer(arch: &Architecture, fates: &[Fate], config: &Config, n: usize) -> Result<Vec<Pair>> {
    let modules = arch.modules();
    let here: Vec<(usize, &Module)> =
        modules.iter().enumerate().filter(|(_, m)| m.layer == Some(Layer::Body(n))).collect();
    let in_layer = || here.iter().copied();
    let with = |role: &dyn Fn(Role) -> bool| -> Vec<usize> {
        in_layer().filter(|(_, m)| role(m.role)).map(|(at, _)| at).collect()
    };
    let norm = |leaf: &str| Producer::Norm {
        module: format!("{}layers.{n}.{leaf}", arch.prefix()),
        zero_centred: arch.family().is_hybrid() && leaf != "linear_attn.norm",
    };
    let straight = |columns: usize| (0..columns).collect::<Vec<_>>();
    let mut pairs = Vec::new();
    let mut add = |producer, readers: Vec<usize>, channel: Vec<usize>, judge| {
        if readers.iter().any(|r| fates[*r] == Fate::Quantize) {
            pairs.push(Pair { producer, readers, channel, judge });
        }
    };
    let cols = |readers: &[usize]| readers.first().map_or(0, |r| modules[*r].cols);

    let readers = with(&reads_first_norm);
    let channel = straight(cols(&readers));
    add(norm("input_layernorm"), readers, channel, Judge::Mixer);
    let one = |role| with(&|r| r == role).first().copied();
    let clamped = config.get("clip_qkv").is_some_and(|v| !v.is_null());
    if let (Some(v), Some(o), false) = (one(Role::Attention(Part::V)), one(Role::Attention(Part::O)), clamped)
    {
        let dim = head_dim(config, &modules[o])?;
        let shared = modules[o].cols / modules[v].rows.max(1);
        let channel = (0..modules[o].cols).map(|c| c / dim / shared.max(1) * dim + c % dim).collect();
        add(Producer::Rows(v), vec![o], channel, Judge::Reader);
    }
    if let Some(out) = one(Role::DeltaNet(Part::Out)) {
        let heads = config.count("linear_num_value_heads")?.unwrap_or(32).max(1);
        let dim = (modules[out].cols / heads).max(1);
        let channel = (0..modules[out].cols).map(|c| c % dim).collect();
        add(norm("linear_attn.norm"), vec![out], channel, Judge::Reader);
    }

    let readers = with(&reads_second_norm);
    let channel = straight(cols(&readers));
    add(norm("post_attention_layernorm"), readers, channel, Judge::Mlp);
    let expert_up: HashMap<usize, usize> = in_layer()
        .filter_map(|(at, m)| match m.role {
            Role::Expert(e, Part::Up) => Some((e, at)),
            _ => None,
        })
        .collect();
    for (down, m) in in_layer() {
        let up = match m.role {
            Role::Mlp(Part::Down) => one(Role::Mlp(Part::Up)),
            Role::SharedExpert(Part::Down) => one(Role::SharedExpert(Part::Up)),
            Role::Expert(e, Part::Down) => expert_up.get(&e).copied(),
            _ => None,
        };
        if let Some(up) = up {
            add(Producer::Rows(up), vec![down], straight(m.cols), Judge::Reader);
        }
    }
    Ok(pairs)
}

fn reads_first_norm(role: Role) -> bool {
    use Part::{InA, InB, InBa, InQkv, InQkvz, InZ, K, Q, V};
    matches!(role, Role::Attention(Q | K | V) | Role::DeltaNet(InQkv | InZ | InB | InA | InQkvz | InBa))
}

fn reads_second_norm(role: Role) -> bool {
    use Part::{Gate, Up};
    matches!(
        role,
        Role::Router
            | Role::SharedExpertGate
            | Role::Mlp(Gate | Up)
            | Role::SharedExpert(Gate | Up)
            | Role::Expert(_, Gate | Up)
    )
}

fn head_dim(config: &Config, o: &Module) -> Result<usize> {
    let heads = config.count("num_attention_heads")?.unwrap_or(1).max(1);
    Ok((o.cols / heads).max(1))
}

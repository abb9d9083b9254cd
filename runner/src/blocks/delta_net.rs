//! Gated DeltaNet: linear attention whose state forgets by a gate and is corrected by the delta rule.
//!
//! ```text
//!   x ─▶ q k v ─▶ convolution, silu ─▶ delta rule ─▶ norm · act(z) ─▶ out_proj
//!     └▶ z, b (strength), a (decay) ──────┘              │
//!     └──────────────────────────────────────────────────┘
//! ```
//!
//! Yang et al. 2024, "Gated Delta Networks"; names as in qwen3_next and qwen3_5.

use verify::Result;

use crate::backend::{Backend, DeltaInputs, DeltaRule, GateActivation, Linear};
use crate::decoder::{Memory, Step};
use crate::families::{Builder, Keys, NormKind};

/// Shape of a DeltaNet layer.
#[derive(Debug, Clone)]
pub struct DeltaConfig {
    hidden: usize,
    key_heads: usize,
    value_heads: usize,
    key_dim: usize,
    value_dim: usize,
    taps: usize,
    eps: f32,
    gate: GateActivation,
}

/// How the input projections lie on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Projections {
    /// `in_proj_qkvz` and `in_proj_ba`, each grouped by key head (qwen3_next).
    Grouped,
    /// `in_proj_qkv`, `in_proj_z`, `in_proj_b`, `in_proj_a`, each flat (qwen3_5).
    Flat,
}

impl DeltaConfig {
    /// Reads `linear_*` and `output_gate_type`.
    ///
    /// # Errors
    /// Exit 3 for head counts that do not fit and an unknown gate.
    pub fn parse(keys: &Keys) -> Result<Self> {
        let gate = match keys.text("output_gate_type")?.as_deref() {
            None | Some("silu" | "swish") => GateActivation::Silu,
            Some("sigmoid") => GateActivation::Sigmoid,
            Some(other) => {
                return Err(keys
                    .wrong("`output_gate_type`")
                    .found(format!("`{other}`"))
                    .expected("`silu`, `swish` or `sigmoid`"));
            }
        };
        let c = DeltaConfig {
            hidden: keys.count("hidden_size")?,
            key_heads: keys.count_or("linear_num_key_heads", 16)?,
            value_heads: keys.count_or("linear_num_value_heads", 32)?,
            key_dim: keys.count_or("linear_key_head_dim", 128)?,
            value_dim: keys.count_or("linear_value_head_dim", 128)?,
            taps: keys.count_or("linear_conv_kernel_dim", 4)?,
            eps: keys.eps()?,
            gate,
        };
        match c.value_heads % c.key_heads {
            0 => Ok(c),
            _ => Err(keys
                .wrong("linear attention heads")
                .found(format!("{} key heads and {} value heads", c.key_heads, c.value_heads))
                .expected("a multiple")),
        }
    }
}

/// A DeltaNet layer.
pub struct DeltaNet<B: Backend> {
    /// The rule's own parameters.
    pub rule: DeltaRule<B>,
    /// `[hidden, value_heads * value_dim]`.
    pub out: Linear<B>,
    inputs: Inputs<B>,
}

enum Inputs<B: Backend> {
    Grouped { qkvz: Linear<B>, ba: Linear<B>, columns: Columns },
    Flat { qkv: Linear<B>, z: Linear<B>, b: Linear<B>, a: Linear<B> },
}

/// Which columns of the grouped projections make q k v, z, b and a.
struct Columns {
    qkv: Vec<usize>,
    z: Vec<usize>,
    b: Vec<usize>,
    a: Vec<usize>,
}

impl<B: Backend> DeltaNet<B> {
    /// Reads `linear_attn.*`.
    ///
    /// # Errors
    /// Exit 3 naming a missing or misshapen tensor.
    pub fn load(layer: &Builder<B>, c: &DeltaConfig, projections: Projections) -> Result<Self> {
        let at = layer.within("linear_attn");
        let (keys, values) = (c.key_heads * c.key_dim, c.value_heads * c.value_dim);
        let (channels, h) = (2 * keys + values, c.hidden);
        // The projections first: they bound every size below, and products of these.
        let out = at.linear("out_proj", [h, values])?;
        let inputs = match projections {
            Projections::Grouped => Inputs::Grouped {
                qkvz: at.linear("in_proj_qkvz", [channels + values, h])?,
                ba: at.linear("in_proj_ba", [2 * c.value_heads, h])?,
                columns: Columns::grouped_by_key_head(c),
            },
            Projections::Flat => Inputs::Flat {
                qkv: at.linear("in_proj_qkv", [channels, h])?,
                z: at.linear("in_proj_z", [values, h])?,
                b: at.linear("in_proj_b", [c.value_heads, h])?,
                a: at.linear("in_proj_a", [c.value_heads, h])?,
            },
        };
        let decay = at.vector("A_log", c.value_heads)?.into_iter().map(|a| -a.exp()).collect();
        let rule = DeltaRule {
            key_heads: c.key_heads,
            value_heads: c.value_heads,
            key_dim: c.key_dim,
            value_dim: c.value_dim,
            taps: c.taps,
            conv: at.tensor([channels, c.taps], at.vector("conv1d.weight", channels * c.taps)?)?,
            decay: at.tensor([1, c.value_heads], decay)?,
            dt_bias: at.tensor([1, c.value_heads], at.vector("dt_bias", c.value_heads)?)?,
            norm: at.norm("norm", c.value_dim, NormKind::Plain, c.eps)?,
            gate: c.gate,
        };
        Ok(DeltaNet { rule, out, inputs })
    }

    /// Every linear layer of it.
    pub fn linears_mut(&mut self) -> Vec<&mut Linear<B>> {
        let mut all = match &mut self.inputs {
            Inputs::Grouped { qkvz, ba, .. } => vec![qkvz, ba],
            Inputs::Flat { qkv, z, b, a } => vec![qkv, z, b, a],
        };
        all.push(&mut self.out);
        all
    }

    /// `x` `[tokens, hidden]` to the same shape.
    ///
    /// # Errors
    /// The machine's.
    pub fn forward(&self, step: &Step<B>, x: &B::Tensor, memories: Vec<&mut Memory<B>>) -> Result<B::Tensor> {
        let m = step.backend;
        let inputs = match &self.inputs {
            Inputs::Grouped { qkvz, ba, columns } => {
                let [qkvz, ba] = m.linear(x, [qkvz, ba])?;
                DeltaInputs {
                    qkv: m.columns(&qkvz, &columns.qkv)?,
                    z: m.columns(&qkvz, &columns.z)?,
                    b: m.columns(&ba, &columns.b)?,
                    a: m.columns(&ba, &columns.a)?,
                }
            }
            Inputs::Flat { qkv, z, b, a } => {
                let [qkv, z, b, a] = m.linear(x, [qkv, z, b, a])?;
                DeltaInputs { qkv, z, b, a }
            }
        };
        let states = memories.into_iter().filter_map(|m| match m {
            Memory::Delta(state) => Some(state),
            Memory::Kv(_) => None,
        });
        let y = m.delta_rule(inputs, &self.rule, step.spans, states.collect())?;
        let [out] = m.linear(&y, [&self.out])?;
        Ok(out)
    }
}

impl Columns {
    fn grouped_by_key_head(c: &DeltaConfig) -> Self {
        let each = c.value_heads / c.key_heads;
        let group = 2 * c.key_dim + 2 * each * c.value_dim;
        // Columns `len` from `offset` of every key head's group.
        let of = |group: usize, offset: usize, len: usize| {
            (0..c.key_heads).flat_map(move |j| (0..len).map(move |i| j * group + offset + i))
        };
        let (k, v) = (c.key_dim, each * c.value_dim);
        Columns {
            qkv: of(group, 0, k).chain(of(group, k, k)).chain(of(group, 2 * k, v)).collect(),
            z: of(group, 2 * k + v, v).collect(),
            b: of(2 * each, 0, each).collect(),
            a: of(2 * each, each, each).collect(),
        }
    }
}

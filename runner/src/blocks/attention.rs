//! Causal attention with the variations of the families: q/k norm, biases, output gate, clamp.

use verify::Result;

use crate::backend::{Backend, Heads, Linear, Norm};
use crate::decoder::{Memory, Step};
use crate::families::{Builder, Keys, NormKind};

/// Which norm queries and keys get before the rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkNorm {
    /// None.
    None,
    /// One weight of the head's width, for each head.
    Head,
    /// Over the whole vector, before it is split into heads.
    Whole,
}

/// Shape of an attention layer.
#[derive(Debug, Clone)]
pub struct AttentionConfig {
    /// Input and output width.
    pub hidden: usize,
    /// Heads.
    pub heads: Heads,
    /// Norm of queries and keys.
    pub qk_norm: QkNorm,
    /// Kind and eps of those norms.
    pub norm: (NormKind, f32),
    /// True where all four projections have a bias.
    pub bias: bool,
    /// True where `q_proj` also gives an output gate, for each head after its query.
    pub gated: bool,
    /// Clamp of q, k and v.
    pub clip: Option<f32>,
}

impl AttentionConfig {
    /// The keys that all families share; `head_dim` is hidden / heads where neither file nor family say.
    ///
    /// # Errors
    /// Exit 3 for missing keys and numbers that make no sense.
    pub fn parse(keys: &Keys) -> Result<Self> {
        let hidden = keys.count("hidden_size")?;
        let queries = keys.count("num_attention_heads")?;
        let pairs = keys.count_or("num_key_value_heads", queries)?;
        let dim = keys.count_or("head_dim", (hidden / queries).max(1))?;
        if queries % pairs != 0 {
            return Err(keys
                .wrong("attention heads")
                .found(format!("{queries} query heads and {pairs} key-value heads"))
                .expected("a multiple"));
        }
        Ok(AttentionConfig {
            hidden,
            heads: Heads { queries, pairs, dim },
            qk_norm: QkNorm::None,
            norm: (NormKind::Plain, keys.eps()?),
            bias: keys.flag_or("attention_bias", false)?,
            gated: false,
            clip: None,
        })
    }
}

/// An attention layer.
pub struct Attention<B: Backend> {
    /// Shape.
    pub heads: Heads,
    /// `[queries * dim, hidden]`, twice the rows where gated.
    pub q: Linear<B>,
    /// `[pairs * dim, hidden]`.
    pub k: Linear<B>,
    /// `[pairs * dim, hidden]`.
    pub v: Linear<B>,
    /// `[hidden, queries * dim]`.
    pub o: Linear<B>,
    /// Norms of queries and keys.
    pub qk_norm: Option<[Norm<B>; 2]>,
    /// Clamp of q, k and v.
    pub clip: Option<f32>,
    /// Scales of cached keys and values, where the checkpoint wants them in FP8: one each, or one for each head.
    pub cache: Option<[Vec<f32>; 2]>,
    gate: Option<[Vec<usize>; 2]>,
}

impl<B: Backend> Attention<B> {
    /// Reads `self_attn.*`.
    ///
    /// # Errors
    /// Exit 3 naming a missing or misshapen tensor.
    pub fn load(layer: &Builder<B>, c: &AttentionConfig) -> Result<Self> {
        let at = layer.within("self_attn");
        let Heads { queries, pairs, dim } = c.heads;
        let linear = |name: &str, shape: [usize; 2]| match c.bias {
            true => at.linear_with_bias(name, shape),
            false => at.linear(name, shape),
        };
        let (kind, eps) = c.norm;
        let norms = |q: usize, k: usize| -> Result<_> {
            Ok(Some([at.norm("q_norm", q, kind, eps)?, at.norm("k_norm", k, kind, eps)?]))
        };
        let of_head =
            |part: usize| (0..queries * dim).map(|i| (2 * (i / dim) + part) * dim + i % dim).collect();
        Ok(Attention {
            heads: c.heads,
            q: linear("q_proj", [queries * dim * (1 + usize::from(c.gated)), c.hidden])?,
            k: linear("k_proj", [pairs * dim, c.hidden])?,
            v: linear("v_proj", [pairs * dim, c.hidden])?,
            o: linear("o_proj", [c.hidden, queries * dim])?,
            qk_norm: match c.qk_norm {
                QkNorm::None => None,
                QkNorm::Head => norms(dim, dim)?,
                QkNorm::Whole => norms(queries * dim, pairs * dim)?,
            },
            clip: c.clip,
            cache: at.cache_scales(pairs)?,
            gate: c.gated.then(|| [of_head(0), of_head(1)]),
        })
    }

    /// `x` `[tokens, hidden]` to the same shape.
    ///
    /// # Errors
    /// The machine's.
    pub fn forward(&self, step: &Step<B>, x: &B::Tensor, memories: Vec<&mut Memory<B>>) -> Result<B::Tensor> {
        let b = step.backend;
        let [mut q, mut k, mut v] = b.linear(x, [&self.q, &self.k, &self.v])?;
        let mut gate = None;
        if let Some([query_columns, gate_columns]) = &self.gate {
            gate = Some(b.columns(&q, gate_columns)?);
            q = b.columns(&q, query_columns)?;
        }
        if let Some([q_norm, k_norm]) = &self.qk_norm {
            q = b.norm(&q, q_norm)?;
            k = b.norm(&k, k_norm)?;
        }
        if let Some(limit) = self.clip {
            [&mut q, &mut k, &mut v].into_iter().try_for_each(|x| b.clamp(x, limit))?;
        }
        b.rotate(&mut q, self.heads.dim, &step.angles)?;
        b.rotate(&mut k, self.heads.dim, &step.angles)?;
        if let Some([k_scales, v_scales]) = &self.cache {
            b.round_to_fp8(&mut k, k_scales)?;
            b.round_to_fp8(&mut v, v_scales)?;
        }
        let caches = memories.into_iter().filter_map(|m| match m {
            Memory::Kv(kv) => Some(kv),
            Memory::Delta(_) => None,
        });
        let mut y = b.attention([q, k, v], self.heads, step.spans, caches.collect())?;
        if let Some(gate) = gate {
            b.gate(&mut y, &gate)?;
        }
        let [out] = b.linear(&y, [&self.o])?;
        Ok(out)
    }
}

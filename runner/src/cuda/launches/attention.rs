//! Attention: rotary embedding, cache, scores.

use super::{read, write};
use crate::backend::Heads;
use crate::cuda::{Arg, Launch};

/// Element type of cached keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvKind {
    /// Exact.
    F32,
    /// Half the memory.
    Bf16,
}

impl KvKind {
    /// As it stands at the end of kernels' names.
    pub fn suffix(self) -> &'static str {
        match self {
            KvKind::F32 => "f32",
            KvKind::Bf16 => "bf16",
        }
    }

    /// Bytes of a number.
    pub fn bytes(self) -> usize {
        match self {
            KvKind::F32 => 4,
            KvKind::Bf16 => 2,
        }
    }
}

/// Norm and rotary embedding of each head.
#[derive(Debug, Clone, Copy)]
pub struct Rope<P> {
    /// Head `h` of token `t` begins at `t * token_stride + h * head_stride`.
    pub x: P,
    /// Numbers from a token to the next.
    pub token_stride: u32,
    /// Numbers from a head to the next.
    pub head_stride: u32,
    /// `[dim]` and what stands inside the root; no norm where there is none.
    pub norm: Option<(P, f32)>,
    /// `[rows, 2 * half]`: cosines, then sines.
    pub angles: P,
    /// u32 `[tokens]`: each token's row of `angles`; its own number where there are none.
    pub positions: Option<P>,
    /// Half the rotated entries.
    pub half: u32,
    /// Tokens.
    pub tokens: u32,
    /// Heads.
    pub heads: u32,
    /// Entries of a head.
    pub dim: u32,
    /// `[tokens, heads, dim]`.
    pub out: P,
}

impl<P: Copy> Rope<P> {
    /// The launch.
    pub fn launch(&self) -> Launch<P> {
        let args = vec![
            read(self.x),
            Arg::U32(self.token_stride),
            Arg::U32(self.head_stride),
            Arg::Read(self.norm.map(|n| n.0)),
            Arg::F32(self.norm.map_or(0.0, |n| n.1)),
            read(self.angles),
            Arg::Read(self.positions),
            Arg::U32(self.half),
            Arg::U32(self.tokens),
            Arg::U32(self.heads),
            Arg::U32(self.dim),
            write(self.out),
        ];
        Launch::new("rope", [(self.tokens * self.heads).div_ceil(8), 1, 1], [32, 8, 1], args)
    }
}

/// Keys and values of new tokens to their places.
#[derive(Debug, Clone, Copy)]
pub struct KvWrite<P> {
    /// Of the cache.
    pub kind: KvKind,
    /// `[tokens, width]`.
    pub k: P,
    /// `[tokens, width]`.
    pub v: P,
    /// u64 `[tokens]`: numbers from `keys` to the first of each token's sequence, likewise from `values`.
    pub starts: P,
    /// u32 `[tokens]`: position in its sequence.
    pub positions: P,
    /// Pairs times entries of a head.
    pub width: u32,
    /// Numbers from a position to the next, at least `width`.
    pub stride: u32,
    /// Of one sequence, `[positions, width]`.
    pub keys: P,
    /// Of the same.
    pub values: P,
    /// At most 65535.
    pub tokens: u32,
}

impl<P: Copy> KvWrite<P> {
    /// The launch.
    pub fn launch(&self) -> Launch<P> {
        let args = vec![
            read(self.k),
            read(self.v),
            read(self.starts),
            read(self.positions),
            Arg::U32(self.width),
            Arg::U32(self.stride),
            write(self.keys),
            write(self.values),
        ];
        let grid = [self.width.div_ceil(256), self.tokens, 1];
        Launch::new(format!("kv_write_{}", self.kind.suffix()), grid, [256, 1, 1], args)
    }
}

/// The scores of each token, the positions in splits; [`AttentionCombine`] puts them together.
#[derive(Debug, Clone, Copy)]
pub struct Attention<P> {
    /// Of the cache.
    pub kind: KvKind,
    /// `[tokens, queries, dim]`.
    pub q: P,
    /// Of one sequence, `[positions, pairs, dim]`.
    pub keys: P,
    /// Of the same.
    pub values: P,
    /// u64 `[tokens]`: numbers from `keys` to the first of each token's sequence, likewise from `values`.
    pub starts: P,
    /// u32 `[tokens]`: position in its sequence, whose key is written.
    pub positions: P,
    /// Numbers from a position to the next.
    pub stride: u32,
    /// Shape.
    pub heads: Heads,
    /// Splits; together at least as long as the longest sequence.
    pub splits: u32,
    /// Positions of a split.
    pub length: u32,
    /// `[tokens, queries, splits, dim + 2]`.
    pub parts: P,
    /// At most 65535.
    pub tokens: u32,
}

impl<P: Copy> Attention<P> {
    /// The launch.
    pub fn launch(&self) -> Launch<P> {
        let [queries, pairs, dim] = [self.heads.queries, self.heads.pairs, self.heads.dim].map(|n| n as u32);
        let group = queries / pairs;
        let args = vec![
            read(self.q),
            read(self.keys),
            read(self.values),
            read(self.starts),
            read(self.positions),
            Arg::U32(self.stride),
            Arg::U32(queries),
            Arg::U32(pairs),
            Arg::U32(dim),
            Arg::U32(self.length),
            write(self.parts),
        ];
        // Query and sums, the scores of 32 positions, three numbers; for each head.
        let shared = group * (2 * dim + 32 + 3) * 4;
        let kernel = format!("attention_split_{}", self.kind.suffix());
        Launch::new(kernel, [self.splits, pairs, self.tokens], [128, 1, 1], args).shared(shared)
    }
}

/// The splits of [`Attention`] put together, with an output gate where there is one.
#[derive(Debug, Clone, Copy)]
pub struct AttentionCombine<P> {
    /// `[tokens, queries, splits, dim + 2]`.
    pub parts: P,
    /// Gate of head `h` of token `t` at `t * gate_stride + h * gate_head`, before the sigmoid.
    pub gate: Option<P>,
    /// Numbers from a token's gates to the next's.
    pub gate_stride: u32,
    /// Numbers from a head's gate to the next's.
    pub gate_head: u32,
    /// Shape.
    pub heads: Heads,
    /// Splits.
    pub splits: u32,
    /// `[tokens, queries, dim]`.
    pub out: P,
    /// At most 65535.
    pub tokens: u32,
}

impl<P: Copy> AttentionCombine<P> {
    /// The launch.
    pub fn launch(&self) -> Launch<P> {
        let queries = self.heads.queries as u32;
        let args = vec![
            read(self.parts),
            Arg::Read(self.gate),
            Arg::U32(self.gate_stride),
            Arg::U32(self.gate_head),
            Arg::U32(queries),
            Arg::U32(self.heads.dim as u32),
            Arg::U32(self.splits),
            write(self.out),
        ];
        Launch::new("attention_combine", [queries.div_ceil(4), self.tokens, 1], [32, 4, 1], args)
    }
}

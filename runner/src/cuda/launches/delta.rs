//! Gated DeltaNet.

use super::{read, write};
use crate::cuda::{Arg, Launch};

/// Heads of a DeltaNet layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeltaShape {
    /// Key heads.
    pub key_heads: u32,
    /// A multiple of `key_heads`.
    pub value_heads: u32,
    /// Entries of a key head, at most 256.
    pub key_dim: u32,
    /// Entries of a value head.
    pub value_dim: u32,
}

impl DeltaShape {
    /// All q, all k, all v.
    pub fn channels(&self) -> u32 {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }
}

/// Causal convolution and silu; keeps the last inputs.
#[derive(Debug, Clone, Copy)]
pub struct Conv<P> {
    /// `[tokens, channels]`.
    pub x: P,
    /// `[channels, count]`.
    pub taps: P,
    /// Taps of a channel.
    pub count: u32,
    /// Channels.
    pub channels: u32,
    /// u32 `[spans + 1]`: each span's first token.
    pub firsts: P,
    /// u64 `[spans]`: numbers from `recent` to that of each span.
    pub states: P,
    /// `[count - 1, channels]` of one span, oldest first.
    pub recent: P,
    /// `[tokens, channels]`.
    pub out: P,
    /// At most 65535.
    pub spans: u32,
}

impl<P: Copy> Conv<P> {
    /// The launch.
    pub fn launch(&self) -> Launch<P> {
        let args = vec![
            read(self.x),
            read(self.taps),
            Arg::U32(self.count),
            Arg::U32(self.channels),
            read(self.firsts),
            read(self.states),
            write(self.recent),
            write(self.out),
        ];
        Launch::new("delta_conv", [self.channels.div_ceil(256), self.spans, 1], [256, 1, 1], args)
    }
}

/// Heads of unit length, times `scale`.
#[derive(Debug, Clone, Copy)]
pub struct UnitNorm<P> {
    /// Head `h` of token `t` begins at `t * stride + h * dim`.
    pub x: P,
    /// Numbers from a token to the next.
    pub stride: u32,
    /// Heads.
    pub heads: u32,
    /// Entries of a head.
    pub dim: u32,
    /// Tokens.
    pub tokens: u32,
    /// `1 / sqrt(dim)` for q, 1 for k.
    pub scale: f32,
}

impl<P: Copy> UnitNorm<P> {
    /// The launch.
    pub fn launch(&self) -> Launch<P> {
        let args = vec![
            write(self.x),
            Arg::U32(self.stride),
            Arg::U32(self.heads),
            Arg::U32(self.dim),
            Arg::U32(self.tokens),
            Arg::F32(self.scale),
        ];
        Launch::new("unit_norm", [(self.tokens * self.heads).div_ceil(8), 1, 1], [32, 8, 1], args)
    }
}

/// Strength and decay of each token and value head.
#[derive(Debug, Clone, Copy)]
pub struct DeltaGates<P> {
    /// `[tokens, heads]`.
    pub b: P,
    /// `[tokens, heads]`.
    pub a: P,
    /// `-exp(A_log)`, `[heads]`.
    pub rate: P,
    /// `[heads]`.
    pub dt_bias: P,
    /// Value heads.
    pub heads: u32,
    /// Tokens.
    pub tokens: u32,
    /// `[tokens, heads]`.
    pub beta: P,
    /// `[tokens, heads]`, not positive.
    pub log_decay: P,
}

impl<P: Copy> DeltaGates<P> {
    /// The launch.
    pub fn launch(&self) -> Launch<P> {
        let n = self.tokens * self.heads;
        let args = vec![
            read(self.b),
            read(self.a),
            read(self.rate),
            read(self.dt_bias),
            Arg::U32(self.heads),
            Arg::U32(n),
            write(self.beta),
            write(self.log_decay),
        ];
        Launch::new("delta_gates", [n.div_ceil(256), 1, 1], [256, 1, 1], args)
    }
}

/// The delta rule.
#[derive(Debug, Clone, Copy)]
pub struct DeltaRule<P> {
    /// `[tokens, channels]` after convolution and unit norm.
    pub qkv: P,
    /// `[tokens, value_heads]`.
    pub beta: P,
    /// `[tokens, value_heads]`.
    pub log_decay: P,
    /// u32 `[spans + 1]`: each span's first token.
    pub firsts: P,
    /// u64 `[spans]`: numbers from `state` to that of each span.
    pub states: P,
    /// Heads.
    pub shape: DeltaShape,
    /// `[value_heads, key_dim, value_dim]` of one span.
    pub state: P,
    /// `[tokens, value_heads, value_dim]`.
    pub out: P,
    /// At most 65535.
    pub spans: u32,
}

impl<P: Copy> DeltaRule<P> {
    /// Token by token: for steps of a few tokens.
    pub fn launch(&self) -> Launch<P> {
        self.launch_of(if self.shape.key_dim <= 128 { "delta_recurrent_128" } else { "delta_recurrent_256" })
    }

    /// Sixteen tokens at a time, for prompts; key heads of at most 128 entries.
    pub fn launch_chunked(&self) -> Launch<P> {
        let dim = self.shape.key_dim;
        let numbers = dim * 32 + 2 * 16 * (dim + 1) + 2 * 16 * 16 + 16 * 32 + 16;
        self.launch_of("delta_chunked").shared(numbers * 4)
    }

    fn launch_of(&self, kernel: &str) -> Launch<P> {
        let s = self.shape;
        let mut args =
            vec![read(self.qkv), read(self.beta), read(self.log_decay), read(self.firsts), read(self.states)];
        args.extend([s.key_heads, s.value_heads, s.key_dim, s.value_dim].map(Arg::U32));
        args.extend([write(self.state), write(self.out)]);
        Launch::new(kernel, [s.value_dim.div_ceil(32), s.value_heads, self.spans], [32, 8, 1], args)
    }
}

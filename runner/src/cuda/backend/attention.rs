//! Keys, values and attention.

use std::sync::Arc;

use verify::{Class, Error, Result};

use super::{Cuda, Tensor, lock};
use crate::backend::{Heads, Span};
use crate::cuda::launches::{Attention, AttentionCombine, KvKind, KvWrite};
use crate::cuda::pool::Buffer;

/// Positions of a split; a row's result depends on it, so it is the same for all.
const SPLIT: usize = 128;
/// Positions that a cache has room for at first, and grows by at least.
pub const FIRST_ROOM: usize = 256;
/// Bytes of splits that are put together at once.
const MOST_PARTS: usize = 64 << 20;

/// Keys and values of one sequence in one layer: f32 `[room, 2, pairs * dim]`, a position's key before its value.
pub struct Kv {
    buffer: Buffer,
    room: usize,
    len: usize,
    /// Numbers of a key.
    width: usize,
}

impl Kv {
    /// Room for a few tokens.
    pub fn new(cuda: &Cuda, heads: Heads) -> Result<Self> {
        let width = heads.pairs * heads.dim;
        let buffer = cuda.device.take(FIRST_ROOM * 2 * width * 4)?;
        Ok(Kv { buffer, room: FIRST_ROOM, len: 0, width })
    }

    /// The same for another sequence.
    pub fn copy(&self, cuda: &Cuda) -> Result<Self> {
        let buffer = cuda.device.take(self.buffer.bytes())?;
        buffer.copy(&self.buffer, self.len * 2 * self.width * 4)?;
        Ok(Kv { buffer, ..*self })
    }

    /// Makes room for `len` tokens, which it will hold after the step.
    pub fn grow(&mut self, cuda: &Cuda, len: usize) -> Result<()> {
        if len > self.room {
            let room = len.max(2 * self.room).next_multiple_of(FIRST_ROOM);
            let buffer = cuda.device.take(room * 2 * self.width * 4)?;
            buffer.copy(&self.buffer, self.len * 2 * self.width * 4)?;
            (self.buffer, self.room) = (buffer, room);
        }
        self.len = len;
        Ok(())
    }

    /// Where it lies.
    pub fn place(&self) -> u64 {
        self.buffer.order()
    }
}

/// Splits for sequences of `len` tokens: a power of two, so that recorded steps stay good for a while. Those beyond a
/// row's position add nothing to it, to the last bit.
pub fn splits(len: usize) -> usize {
    len.div_ceil(SPLIT).next_power_of_two()
}

/// Appends keys and values, then attends.
pub fn attend(
    cuda: &Cuda,
    [q, k, v]: [Tensor; 3],
    heads: Heads,
    spans: &[Span],
    caches: Vec<&mut Kv>,
) -> Result<Tensor> {
    let positions = lock(&cuda.step).positions.as_ref().map(Arc::clone);
    let Some(positions) = positions else {
        return Err(Error::new(Class::Gpu, "attention outside of a step"));
    };
    let mut longest = 0;
    let mut kept = Vec::with_capacity(spans.len());
    for (span, cache) in spans.iter().zip(caches) {
        cache.grow(cuda, span.start + span.len)?;
        longest = longest.max(span.start + span.len);
        kept.push(&*cache);
    }
    let Some(base) = kept.iter().min_by_key(|kv| kv.place()) else { return cuda.room(0, q.cols) };
    let starts = kept.iter().zip(spans);
    let starts = starts.flat_map(|(kv, s)| vec![kv.buffer.numbers_after(&base.buffer, 4); s.len]);
    let starts = cuda.longs(starts)?;
    let width = base.width;
    let (keys, values, stride) = (base.buffer.at(0), base.buffer.at(width * 4), 2 * width as u32);
    let kind = KvKind::F32;
    let write = KvWrite {
        kind,
        k: k.at(),
        v: v.at(),
        starts: starts.at(0),
        positions: positions.at(0),
        width: width as u32,
        stride,
        keys,
        values,
        tokens: q.rows as u32,
    };
    cuda.device.run(&write.launch())?;
    let out = cuda.room(q.rows, q.cols)?;
    let splits = splits(longest);
    let each = heads.queries * splits * (heads.dim + 2) * 4;
    let together = (MOST_PARTS / each).clamp(1, 65535);
    for first in (0..q.rows).step_by(together) {
        let tokens = (q.rows - first).min(together);
        let parts = cuda.device.take(tokens * each)?;
        let launch = Attention {
            kind,
            q: q.buffer.at(first * q.cols * 4),
            keys,
            values,
            starts: starts.at(first * 8),
            positions: positions.at(first * 4),
            stride,
            heads,
            splits: splits as u32,
            length: SPLIT as u32,
            parts: parts.at(0),
            tokens: tokens as u32,
        };
        cuda.device.run(&launch.launch())?;
        let combine = AttentionCombine {
            parts: parts.at(0),
            gate: None,
            gate_stride: 0,
            gate_head: 0,
            heads,
            splits: splits as u32,
            out: out.buffer.at(first * out.cols * 4),
            tokens: tokens as u32,
        };
        cuda.device.run(&combine.launch())?;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    #[test]
    fn splits_cover_every_position() {
        for len in 1..5000 {
            let splits = super::splits(len);
            assert!(splits * super::SPLIT >= len, "{len}");
            assert!(splits.is_power_of_two());
        }
    }
}

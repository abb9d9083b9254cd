//! The next token.

use super::{read, write};
use crate::cuda::{Arg, Launch};
use crate::sampling::Sampling;

/// A block for each sequence: whole warps, no more than the logits can use.
fn block(vocab: u32) -> [u32; 3] {
    [vocab.div_ceil(8).next_multiple_of(32).clamp(32, 1024), 1, 1]
}

/// The largest logit of each sequence.
#[derive(Debug, Clone, Copy)]
pub struct Argmax<P> {
    /// `[sequences, vocab]`.
    pub logits: P,
    /// Logits of a sequence.
    pub vocab: u32,
    /// Sequences.
    pub sequences: u32,
    /// u32 `[sequences]`.
    pub ids: P,
}

impl<P: Copy> Argmax<P> {
    /// The launch.
    pub fn launch(&self) -> Launch<P> {
        let args = vec![read(self.logits), Arg::U32(self.vocab), write(self.ids)];
        Launch::new("argmax", [self.sequences, 1, 1], block(self.vocab), args)
    }
}

/// A draw for each sequence, all with the same settings; the temperature is not 0.
#[derive(Debug, Clone, Copy)]
pub struct Sample<P> {
    /// `[sequences, vocab]`.
    pub logits: P,
    /// u8 `[sequences, vocab]`: not 0 for tokens that were there before.
    pub seen: Option<P>,
    /// Logits of a sequence.
    pub vocab: u32,
    /// Sequences.
    pub sequences: u32,
    /// The settings.
    pub how: Sampling,
    /// u64 `[sequences]`: state of the random numbers.
    pub states: P,
    /// Room, u32 `[sequences, vocab]`.
    pub ranks: P,
    /// Room, f64 `[sequences, vocab]`.
    pub weights: P,
    /// u32 `[sequences]`.
    pub ids: P,
}

impl<P: Copy> Sample<P> {
    /// The launch.
    pub fn launch(&self) -> Launch<P> {
        let args = vec![
            read(self.logits),
            Arg::Read(self.seen),
            Arg::U32(self.vocab),
            Arg::F32(self.how.repetition_penalty),
            Arg::F32(self.how.temperature),
            Arg::U32(u32::try_from(self.how.top_k).unwrap_or(u32::MAX)),
            Arg::F32(self.how.top_p),
            Arg::F32(self.how.min_p),
            write(self.states),
            write(self.ranks),
            write(self.weights),
            write(self.ids),
        ];
        Launch::new("sample", [self.sequences, 1, 1], block(self.vocab), args)
    }
}

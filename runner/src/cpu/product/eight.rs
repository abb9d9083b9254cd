//! FP8 e4m3: where its scales go.
//!
//! Multiplying every weight by its scale would cost a third of the time. A scale that holds for a whole row multiplies
//! the sum instead; scales of blocks multiply the tokens, once for all rows of a block. The lanes read codes divided by
//! 2^120: half of that is given back to the tokens, half to the sums, so that nothing in between leaves f32's range.

use super::codes::{Chunk, RUN};
use crate::cpu::isa::{LANES, Lanes};
use crate::weights::Scales;

/// 2^60.
const HALF: f32 = f32::from_bits((127 + 60) << 23);

impl Scales {
    /// Rows from `row` on, up to `end`, whose tokens are multiplied alike: up to here.
    pub(super) fn alike(&self, row: usize, end: usize) -> usize {
        match self.across {
            1 => end,
            _ => end.min((row / self.block[0] + 1) * self.block[0]),
        }
    }

    /// The factor of the sum of row `row`.
    #[inline(always)]
    fn of_sum(&self, row: usize) -> f32 {
        if self.across == 1 { self.of_row(row)[0] * HALF } else { HALF }
    }
}

/// `to = x * scale` for the rows alike to `row`; both `[chunk, tokens beside each other]`.
#[inline(always)]
pub fn scale_tokens<L: Lanes>(scales: &Scales, row: usize, x: &[Chunk], beside: usize, to: &mut [Chunk]) {
    if scales.across == 1 {
        multiply::<L>(x, HALF, to);
        return;
    }
    let step = scales.block[1] / LANES * beside;
    for ((x, to), scale) in x.chunks(step).zip(to.chunks_mut(step)).zip(scales.of_row(row)) {
        multiply::<L>(x, scale * HALF, to);
    }
}

#[inline(always)]
fn multiply<L: Lanes>(x: &[Chunk], factor: f32, to: &mut [Chunk]) {
    let factor = L::splat(factor);
    for (x, to) in x.iter().zip(to) {
        L::load(&x.0).mul(factor).store(&mut to.0);
    }
}

/// Gives the sums `out` of the rows from `first`, of one token, their scale.
#[inline(always)]
pub fn scale_sums(scales: &Scales, first: usize, out: &mut [f32]) {
    for (r, out) in out.iter_mut().enumerate() {
        *out *= scales.of_sum(first + r);
    }
}

/// Makes the sums of the rows NaN whose `codes` hold one, token by token: the lanes read it as 480.
#[inline(always)]
pub fn spoil_sums(codes: &[u8], out: &mut [&mut [f32]]) {
    // One look at all rows, for there is none in a sound file.
    if has_nan(codes) {
        let len = codes.len() / out.first().map_or(1, |out| out.len().max(1));
        for (r, _) in codes.chunks_exact(len).enumerate().filter(|(_, codes)| has_nan(codes)) {
            out.iter_mut().for_each(|out| out[r] = f32::NAN);
        }
    }
}

/// True where one of the codes is 0x7f, the largest of the signed numbers, or 0xff, the largest of the unsigned ones.
#[inline(always)]
pub fn has_nan(codes: &[u8]) -> bool {
    // No early exit, so that it runs over whole registers.
    let (runs, left) = codes.as_chunks::<RUN>();
    let (mut signed, mut unsigned) = ([i8::MIN; RUN], [0; RUN]);
    for run in runs {
        for i in 0..RUN {
            signed[i] = signed[i].max(run[i].cast_signed());
            unsigned[i] = unsigned[i].max(run[i]);
        }
    }
    let mut found = 0;
    for i in 0..RUN {
        found |= u8::from(signed[i] == i8::MAX) | u8::from(unsigned[i] == u8::MAX);
    }
    for code in left {
        found |= u8::from(code & 0x7f == 0x7f);
    }
    found != 0
}

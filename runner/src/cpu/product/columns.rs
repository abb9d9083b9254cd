//! AutoAWQ's layout: inputs outside, outputs inside, so the lanes run over outputs.
//!
//! Every output adds its group's products in the order of inputs, then the groups in order: the same for one token and
//! for many.

use super::codes::Chunk;
use crate::cpu::Array;
use crate::cpu::isa::{Kernel, LANES, Lanes};
use crate::weights::{Awq, Matrix};

/// Outputs of a task, a multiple of [`WIDTH`].
pub const OUTPUTS: usize = 256;
/// Outputs whose sums are in registers together: four registers' worth of lanes.
const WIDTH: usize = 4 * LANES;

/// Outputs `first..` of one product, for every token.
pub struct Columns<'a> {
    /// The matrix.
    pub w: &'a Matrix,
    /// Its scales and zeros.
    pub awq: &'a Awq,
    /// `[tokens, in]`.
    pub x: &'a Array,
    /// The first output.
    pub first: usize,
    /// `[outputs, tokens]`.
    pub out: &'a mut [f32],
}

impl Kernel for Columns<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let tokens = self.x.rows();
        let mut tile = vec![Chunk::ZERO; self.awq.group * 4];
        let mut totals = vec![[Chunk::ZERO; 4]; tokens];
        for (n, out) in self.out.chunks_mut(WIDTH * tokens).enumerate() {
            let part =
                Part { w: self.w, awq: self.awq, first: self.first + n * WIDTH, outputs: out.len() / tokens };
            totals.fill([Chunk::ZERO; 4]);
            for group in 0..self.w.cols / self.awq.group {
                part.unpack::<L>(group, &mut tile);
                for (x, totals) in self.x.each_row().zip(&mut totals) {
                    add_group::<L>(&tile, &x[group * self.awq.group..][..self.awq.group], totals);
                }
            }
            for (t, totals) in totals.iter().enumerate() {
                for output in 0..part.outputs {
                    let (word, place) = (output / 8, nibble_of(output % 8));
                    out[output * tokens + t] = totals[word / 2].0[word % 2 * 8 + place];
                }
            }
        }
    }
}

/// Where in its word output `output` of eight stands.
#[inline(always)]
fn nibble_of(output: usize) -> usize {
    // The inverse of `Awq::ORDER`.
    if output.is_multiple_of(2) { output / 2 } else { output / 2 + 4 }
}

/// Up to [`WIDTH`] outputs from `first`.
struct Part<'a> {
    w: &'a Matrix,
    awq: &'a Awq,
    first: usize,
    outputs: usize,
}

impl Part<'_> {
    /// The weights of one group, `[inputs, 4]` chunks; within a chunk outputs stand as their nibbles do.
    #[inline(always)]
    fn unpack<L: Lanes>(&self, group: usize, tile: &mut [Chunk]) {
        let inputs = group * self.awq.group..(group + 1) * self.awq.group;
        for lane in 0..self.outputs.div_ceil(LANES) {
            let mut scales = [0.0; LANES];
            for (n, scale) in scales.iter_mut().enumerate() {
                let output = self.first + lane * LANES + n / 8 * 8 + Awq::ORDER[n % 8];
                if output < self.w.rows {
                    *scale = self.awq.scale(output, self.w.rows, group);
                }
            }
            let scale = L::load(&scales);
            let zero = L::from_u4(&self.words(self.awq.zeros.as_slice(), group, lane));
            for (input, to) in inputs.clone().zip(tile.chunks_exact_mut(4)) {
                let codes = L::from_u4(&self.words(self.w.bytes.as_slice(), input, lane));
                codes.sub(zero).mul(scale).store(&mut to[lane].0);
            }
        }
    }

    /// The two words of lane `lane` in line `line`; zero where there is only one.
    #[inline(always)]
    fn words(&self, bytes: &[u8], line: usize, lane: usize) -> [u8; 8] {
        let at = self.first / 2 + lane * 8;
        let line = &bytes[line * self.w.rows / 2..][..self.w.rows / 2];
        let mut words = [0; 8];
        if let Some(whole) = line[at..].first_chunk::<8>() {
            words = *whole;
        } else {
            words[..line.len() - at].copy_from_slice(&line[at..]);
        }
        words
    }
}

/// `totals += sum over the group of weight * x`.
#[inline(always)]
fn add_group<L: Lanes>(tile: &[Chunk], x: &[f32], totals: &mut [Chunk; 4]) {
    let mut sums = [L::splat(0.0); 4];
    let (tile, _) = tile.as_chunks::<4>();
    for (weights, x) in tile.iter().zip(x) {
        let x = L::splat(*x);
        for i in 0..4 {
            sums[i] = sums[i].fma(L::load(&weights[i].0), x);
        }
    }
    for i in 0..4 {
        L::load(&totals[i].0).add(sums[i]).store(&mut totals[i].0);
    }
}

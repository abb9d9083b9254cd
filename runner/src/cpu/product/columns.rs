//! AutoAWQ's layout: inputs outside, outputs inside, so the lanes run over outputs.
//!
//! Every output adds `(code - zero) * x` over a group in the order of inputs, multiplies that by the group's scale, and
//! adds the groups in order: the same for one token and for many.

use super::codes::{Chunk, RUN};
use crate::cpu::Array;
use crate::cpu::isa::{Kernel, Lanes};
use crate::weights::{Awq, Floats, Matrix};

/// Outputs of a task, a multiple of [`RUN`].
pub const OUTPUTS: usize = 4 * RUN;

/// Outputs `first..` of one product, for every token.
pub struct Columns<'a, 'b> {
    /// The matrix.
    pub w: &'a Matrix,
    /// Its scales and zeros.
    pub awq: &'a Awq,
    /// `[tokens, in]`.
    pub x: &'a Array,
    /// The first output.
    pub first: usize,
    /// Outputs, token by token.
    pub out: &'a mut [&'b mut [f32]],
}

impl Kernel for Columns<'_, '_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let (tokens, group) = (self.x.rows(), self.awq.group);
        let mut tile = vec![[Chunk::ZERO; 4]; if tokens > 1 { group } else { 0 }];
        let mut totals = vec![[Chunk::ZERO; 4]; tokens];
        let all = self.out.first().map_or(0, |out| out.len());
        for from in (0..all).step_by(RUN) {
            let outputs = RUN.min(all - from);
            let part = Part {
                w: self.w,
                group: self.awq.group,
                codes: self.w.bytes.as_slice(),
                zeros: self.awq.zeros.as_slice(),
                scales: self.awq.scales(),
                first: self.first + from,
                outputs,
            };
            totals.fill([Chunk::ZERO; 4]);
            for g in 0..self.w.cols / group {
                let scales = part.scales(g);
                if tokens == 1 {
                    let sums = part.sums::<L>(g, &self.x.row(0)[g * group..][..group]);
                    add_scaled::<L>(sums, &scales, &mut totals[0]);
                    continue;
                }
                part.unpack::<L>(g, &mut tile);
                for (x, totals) in self.x.each_row().zip(&mut totals) {
                    let sums = sums_of_tile::<L>(&tile, &x[g * group..][..group]);
                    add_scaled::<L>(sums, &scales, totals);
                }
            }
            for (out, totals) in self.out.iter_mut().zip(&totals) {
                for (output, out) in out[from..][..outputs].iter_mut().enumerate() {
                    // Nibble `4 i + k` of the line is lane `i` of chunk `k`.
                    let nibble = output / 8 * 8 + NIBBLE[output % 8];
                    *out = totals[nibble % 4].0[nibble / 4];
                }
            }
        }
    }
}

/// Where in its word output `o` of eight stands: the inverse of [`Awq::ORDER`].
const NIBBLE: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// Up to [`RUN`] outputs from `first`.
struct Part<'a> {
    w: &'a Matrix,
    group: usize,
    codes: &'a [u8],
    zeros: &'a [u8],
    scales: Floats<'a>,
    first: usize,
    outputs: usize,
}

impl Part<'_> {
    /// The scales of the outputs, as [`Lanes::from_u4`] places their codes.
    #[inline(always)]
    fn scales(&self, group: usize) -> [Chunk; 4] {
        let mut scales = [Chunk::ZERO; 4];
        for nibble in 0..self.outputs {
            let output = self.first + nibble / 8 * 8 + Awq::ORDER[nibble % 8];
            scales[nibble % 4].0[nibble / 4] = self.scales.at(group * self.w.rows + output);
        }
        scales
    }

    /// `sum over the group of (code - zero) * x`.
    #[inline(always)]
    fn sums<L: Lanes>(&self, group: usize, x: &[f32]) -> [L; 4] {
        let zeros = L::from_u4(&self.words(self.zeros, group));
        let mut sums = [L::splat(0.0); 4];
        for (input, x) in x.iter().enumerate() {
            let (weights, x) =
                (L::from_u4(&self.words(self.codes, group * self.group + input)), L::splat(*x));
            for k in 0..4 {
                sums[k] = sums[k].fma(weights[k].sub(zeros[k]), x);
            }
        }
        sums
    }

    /// `code - zero` of the group, by input.
    #[inline(always)]
    fn unpack<L: Lanes>(&self, group: usize, tile: &mut [[Chunk; 4]]) {
        let zeros = L::from_u4(&self.words(self.zeros, group));
        for (input, to) in tile.iter_mut().enumerate() {
            let weights = L::from_u4(&self.words(self.codes, group * self.group + input));
            for k in 0..4 {
                weights[k].sub(zeros[k]).store(&mut to[k].0);
            }
        }
    }

    /// The codes of the outputs in line `line`; zero beyond the last.
    #[inline(always)]
    fn words(&self, bytes: &[u8], line: usize) -> [u8; RUN / 2] {
        let at = line * self.w.rows / 2 + self.first / 2;
        if self.outputs == RUN
            && let Some(whole) = bytes[at..].first_chunk()
        {
            return *whole;
        }
        let mut words = [0; RUN / 2];
        words[..self.outputs / 2].copy_from_slice(&bytes[at..][..self.outputs / 2]);
        words
    }
}

/// `sum over the group of weight * x`.
#[inline(always)]
fn sums_of_tile<L: Lanes>(tile: &[[Chunk; 4]], x: &[f32]) -> [L; 4] {
    let mut sums = [L::splat(0.0); 4];
    for (weights, x) in tile.iter().zip(x) {
        let x = L::splat(*x);
        for k in 0..4 {
            sums[k] = sums[k].fma(L::load(&weights[k].0), x);
        }
    }
    sums
}

/// `totals += sums * scales`.
#[inline(always)]
fn add_scaled<L: Lanes>(sums: [L; 4], scales: &[Chunk; 4], totals: &mut [Chunk; 4]) {
    for k in 0..4 {
        L::load(&totals[k].0).fma(sums[k], L::load(&scales[k].0)).store(&mut totals[k].0);
    }
}

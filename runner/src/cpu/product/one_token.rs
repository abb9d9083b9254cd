//! Decoding: one token, the weights read straight from the file.

use super::codes::{
    Brain, Byte, Chunk, Codes, Eight, Four, Group, Half, Run, Single, factors, runs_of_a_group,
};
use super::eight::{scale_sums, scale_tokens, spoil_sums};
use super::many_tokens::Packed;
use crate::cpu::isa::{Kernel, Lanes, fetch};
use crate::weights::{Format, Matrix, Scales};

/// Rows times one token.
pub struct OneToken<'a> {
    /// The matrix.
    pub w: &'a Matrix,
    /// The token.
    pub x: &'a Packed,
    /// The first row.
    pub first: usize,
    /// `[rows]`
    pub out: &'a mut [f32],
}

impl Kernel for OneToken<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let OneToken { w, x, first, out } = self;
        let x = &x.chunks[..];
        match &w.format {
            Format::F32 => straight::<L, Single>(w, first, x, out),
            Format::F16 => straight::<L, Half>(w, first, x, out),
            Format::Bf16 => straight::<L, Brain>(w, first, x, out),
            Format::E4m3(scales) => fp8::<L>(w, scales, first, x, out),
            Format::Int4(_) => straight::<L, Four>(w, first, x, out),
            Format::Int8(_) => straight::<L, Byte>(w, first, x, out),
            // Has no rows: see `columns`.
            Format::Awq(_) => {}
        }
    }
}

/// Row after row: the memory system only reads ahead of a single stream; taking four rows side by side is three times
/// slower.
#[inline(always)]
fn straight<L: Lanes, C: Codes>(w: &Matrix, first: usize, x: &[Chunk], out: &mut [f32]) {
    let len = w.format.row_bytes(w.cols);
    let bytes = &w.bytes.as_slice()[first * len..];
    let (step, factors) = (runs_of_a_group(w), factors(w));
    let (x, _) = x.as_chunks::<4>();
    for (r, (out, bytes)) in out.iter_mut().zip(bytes.chunks_exact(len)).enumerate() {
        let (runs, left) = C::Run::split(bytes);
        let mut sums = Pair::<L>::zero();
        if C::GROUPED {
            for (number, (runs, x)) in runs.chunks(step).zip(x.chunks(step)).enumerate() {
                sums.add_row::<C>(runs, x, &C::group::<L>(factors, first + r, number));
            }
        } else {
            sums.add_row::<C>(runs, x, &C::group::<L>(factors, first + r, 0));
        }
        if !left.is_empty() {
            let group = C::group::<L>(factors, first + r, runs.len() / step);
            sums.add_products(C::read::<L>(&C::Run::filled(left), &group), &x[runs.len()]);
        }
        *out = sums.sum();
    }
}

/// Bytes of rows that are looked through for NaN while they are still in the first cache.
const LOOK: usize = 16 << 10;

#[inline(always)]
fn fp8<L: Lanes>(w: &Matrix, scales: &Scales, first: usize, x: &[Chunk], out: &mut [f32]) {
    let mut scaled = vec![Chunk::ZERO; x.len()];
    let end = first + out.len();
    let some = (LOOK / w.cols).max(1);
    let mut row = first;
    while row < end {
        let alike = scales.alike(row, end);
        scale_tokens::<L>(scales, row, x, 1, &mut scaled);
        while row < alike {
            let until = alike.min(row + some);
            let out = &mut out[row - first..until - first];
            straight::<L, Eight>(w, row, &scaled, out);
            spoil_sums(&w.bytes.as_slice()[row * w.cols..until * w.cols], &mut [out]);
            row = until;
        }
    }
    scale_sums(scales, first, out);
}

/// Bytes between what is read and what is fetched meanwhile.
const AHEAD: usize = 8 << 10;

/// The two chains of one sum: even chunks of sixteen, odd chunks of sixteen.
struct Pair<L>([L; 2]);

impl<L: Lanes> Pair<L> {
    #[inline(always)]
    fn zero() -> Self {
        Pair([L::splat(0.0); 2])
    }

    #[inline(always)]
    fn add_row<C: Codes>(&mut self, runs: &[C::Run], x: &[[Chunk; 4]], group: &Group<L>) {
        for (run, x) in runs.iter().zip(x) {
            fetch(std::ptr::from_ref(run).cast::<u8>().wrapping_add(AHEAD));
            self.add_products(C::read::<L>(run, group), x);
        }
    }

    #[inline(always)]
    fn add_products(&mut self, weights: [L; 4], x: &[Chunk; 4]) {
        for k in 0..4 {
            self.0[k % 2] = self.0[k % 2].fma(weights[k], L::load(&x[k].0));
        }
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        self.0[0].add(self.0[1]).sum()
    }
}

//! Decoding: one token, the weights read straight from the file.

use super::codes::{Block, Brain, Chunk, Codes, Eight, Four, Half, Single, chunks_of_a_block, has_nan};
use super::many_tokens::Packed;
use crate::cpu::isa::{Kernel, Lanes};
use crate::weights::{Format, Matrix};

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
            Format::E4m3(_) => straight::<L, Eight>(w, first, x, out),
            Format::Int4(_) => straight::<L, Four>(w, first, x, out),
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
    let step = chunks_of_a_block(w);
    for (r, (out, bytes)) in out.iter_mut().zip(bytes.chunks_exact(len)).enumerate() {
        let (codes, left) = C::chunks(bytes);
        let block = |number: usize| C::block::<L>(&w.format, first + r, number);
        let mut sums = Pair::<L>::zero();
        if step == 8 {
            // The usual width, unrolled.
            let ((blocks, codes), (xs, x)) = (codes.as_chunks::<8>(), x[..codes.len()].as_chunks::<8>());
            for (number, (codes, x)) in blocks.iter().zip(xs).enumerate() {
                sums.add_products::<C>(codes, x, block(number));
            }
            if !codes.is_empty() {
                sums.add_products::<C>(codes, x, block(blocks.len()));
            }
        } else {
            for (number, (codes, x)) in codes.chunks(step).zip(x.chunks(step)).enumerate() {
                sums.add_products::<C>(codes, x, block(number));
            }
        }
        if let Some(x) = x.get(codes.len()) {
            let weight = C::read::<L>(&C::tail(left), block(codes.len() / step));
            sums.add_product(codes.len(), weight, L::load(&x.0));
        }
        *out = sums.sum();
    }
    // The lanes read the NaN as 480. One look at all rows, for there is none in a sound file.
    if has_nan(w, &bytes[..out.len() * len]) {
        for (out, bytes) in out.iter_mut().zip(bytes.chunks_exact(len)) {
            *out = if has_nan(w, bytes) { f32::NAN } else { *out };
        }
    }
}

/// The two chains of one sum: even chunks of sixteen, odd chunks of sixteen.
struct Pair<L>([L; 2]);

impl<L: Lanes> Pair<L> {
    #[inline(always)]
    fn zero() -> Self {
        Pair([L::splat(0.0); 2])
    }

    /// `codes` begin at an even chunk.
    #[inline(always)]
    fn add_products<C: Codes>(&mut self, codes: &[C::Chunk], x: &[Chunk], block: Block<L>) {
        let ((codes, last_code), (x, last_x)) = (codes.as_chunks::<2>(), x[..codes.len()].as_chunks::<2>());
        for (codes, x) in codes.iter().zip(x) {
            for i in 0..2 {
                self.0[i] = self.0[i].fma(C::read::<L>(&codes[i], block), L::load(&x[i].0));
            }
        }
        for (code, x) in last_code.iter().zip(last_x) {
            self.0[0] = self.0[0].fma(C::read::<L>(code, block), L::load(&x.0));
        }
    }

    #[inline(always)]
    fn add_product(&mut self, chunk: usize, weight: L, x: L) {
        if chunk.is_multiple_of(2) {
            self.0[0] = self.0[0].fma(weight, x);
        } else {
            self.0[1] = self.0[1].fma(weight, x);
        }
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        self.0[0].add(self.0[1]).sum()
    }
}

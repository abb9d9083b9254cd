//! Decoding: one token, the weights read straight from the file.

use super::Task;
use super::codes::{Brain, Chunk, Codes, Eight, Half, Single, has_nan};
use crate::cpu::isa::{Kernel, LANES, Lanes};
use crate::weights::{Format, Matrix, Scales};

/// Rows times one token.
pub struct OneToken<'a>(pub Task<'a>);

impl Kernel for OneToken<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Task { w, x, first, out } = self.0;
        let x = &x.chunks[..];
        match &w.format {
            Format::F32 => straight::<L, Single>(w, first, x, out, None),
            Format::F16 => straight::<L, Half>(w, first, x, out, None),
            Format::Bf16 => straight::<L, Brain>(w, first, x, out, None),
            Format::E4m3(s) => straight::<L, Eight>(w, first, x, out, Some(s)),
        }
    }
}

/// Row after row: the memory system only reads ahead of a
/// single stream; taking four rows side by side is three times slower.
#[inline(always)]
fn straight<L: Lanes, C: Codes>(
    w: &Matrix,
    first: usize,
    x: &[Chunk],
    out: &mut [f32],
    scales: Option<&Scales>,
) {
    let len = w.cols * w.format.width();
    let bytes = &w.bytes.as_slice()[first * len..];
    for (r, (out, bytes)) in out.iter_mut().zip(bytes.chunks_exact(len)).enumerate() {
        let (codes, left) = C::chunks(bytes);
        let mut sums = Pair::<L>::zero();
        match scales {
            None => sums.add_products::<C>(codes, x, None),
            Some(scales) if scales.block[1] == 8 * LANES => {
                // The usual width, unrolled.
                let ((blocks, codes), (xs, x)) = (codes.as_chunks::<8>(), x[..codes.len()].as_chunks::<8>());
                let scales = scales.of_row(first + r);
                for ((codes, x), scale) in blocks.iter().zip(xs).zip(scales) {
                    sums.add_products::<C>(codes, x, Some(L::splat(C::scale(*scale))));
                }
                if let Some(scale) = scales.get(blocks.len()) {
                    sums.add_products::<C>(codes, x, Some(L::splat(C::scale(*scale))));
                }
            }
            Some(scales) => {
                let step = scales.block[1].div_ceil(LANES).next_multiple_of(2);
                let blocks = codes.chunks(step).zip(x.chunks(step)).zip(scales.of_row(first + r));
                for ((codes, x), scale) in blocks {
                    sums.add_products::<C>(codes, x, Some(L::splat(C::scale(*scale))));
                }
            }
        }
        if let Some(x) = x.get(codes.len()) {
            let last = scales.and_then(|s| s.of_row(first + r).last());
            let weight = C::tail_weight::<L>(left, last);
            sums.add_product(codes.len(), weight, L::load(&x.0));
        }
        *out = sums.sum();
    }
    // The lanes read the NaN as 480. One look at all rows, for there is none in a sound file.
    if scales.is_some() && has_nan(&bytes[..out.len() * len]) {
        for (out, bytes) in out.iter_mut().zip(bytes.chunks_exact(len)) {
            *out = if has_nan(bytes) { f32::NAN } else { *out };
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
    fn add_products<C: Codes>(&mut self, codes: &[C::Chunk], x: &[Chunk], scale: Option<L>) {
        let ((codes, last_code), (x, last_x)) = (codes.as_chunks::<2>(), x[..codes.len()].as_chunks::<2>());
        for (codes, x) in codes.iter().zip(x) {
            for i in 0..2 {
                let weight = C::read::<L>(&codes[i]);
                let weight = if let Some(scale) = scale { weight.mul(scale) } else { weight };
                self.0[i] = self.0[i].fma(weight, L::load(&x[i].0));
            }
        }
        for (code, x) in last_code.iter().zip(last_x) {
            let weight = C::read::<L>(code);
            let weight = if let Some(scale) = scale { weight.mul(scale) } else { weight };
            self.0[0] = self.0[0].fma(weight, L::load(&x.0));
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

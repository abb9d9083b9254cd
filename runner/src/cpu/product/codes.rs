//! Weights as they lie in the file, read sixteen at a time.

use std::ops::Range;

use crate::cpu::isa::{E4M3_SCALE, Kernel, LANES, Lanes};
use crate::weights::{Format, Matrix};

/// Sixteen weights as they lie in the file.
pub trait Codes {
    /// Their bytes.
    type Chunk;
    /// Whole chunks of a row, and what is left.
    fn chunks(row: &[u8]) -> (&[Self::Chunk], &[u8]);
    /// The left over, filled up with zeros.
    fn tail(left: &[u8]) -> Self::Chunk;
    /// As numbers, of `block`'s zero and scale.
    fn read<L: Lanes>(chunk: &Self::Chunk, block: Block<L>) -> L;
    /// What the weights of block number `block` of row `row` share.
    fn block<L: Lanes>(format: &Format, row: usize, block: usize) -> Block<L>;
}

/// What the weights under one scale share.
#[derive(Clone, Copy)]
pub struct Block<L> {
    zero: L,
    scale: L,
}

/// Chunks of a row under one scale: all of it where there are no scales.
pub fn chunks_of_a_block(w: &Matrix) -> usize {
    let columns = match &w.format {
        Format::E4m3(scales) => scales.block[1],
        Format::Int4(int4) => int4.group,
        _ => w.cols,
    };
    // A block begins at an even chunk, also where it is the only one.
    columns.div_ceil(LANES).next_multiple_of(2)
}

macro_rules! codes {
    ($name:ident, $bytes:literal, $chunk:ident, $of:ident => $read:expr, |$format:ident, $row:ident, $block:ident| $factors:expr) => {
        /// See [`Codes`].
        pub struct $name;

        impl Codes for $name {
            type Chunk = [u8; $bytes];

            #[inline(always)]
            fn chunks(row: &[u8]) -> (&[Self::Chunk], &[u8]) {
                row.as_chunks()
            }

            #[inline(always)]
            fn tail(left: &[u8]) -> Self::Chunk {
                let mut chunk = [0; $bytes];
                chunk[..left.len()].copy_from_slice(left);
                chunk
            }

            #[inline(always)]
            #[allow(unused_variables)]
            fn read<L: Lanes>($chunk: &Self::Chunk, $of: Block<L>) -> L {
                $read
            }

            #[inline(always)]
            #[allow(unused_variables)]
            fn block<L: Lanes>($format: &Format, $row: usize, $block: usize) -> Block<L> {
                let [zero, scale]: [f32; 2] = $factors;
                Block { zero: L::splat(zero), scale: L::splat(scale) }
            }
        }
    };
}

codes!(Single, 64, chunk, block => L::from_f32(chunk), |f, row, block| [0.0, 1.0]);
codes!(Half, 32, chunk, block => L::from_f16(chunk), |f, row, block| [0.0, 1.0]);
codes!(Brain, 32, chunk, block => L::from_bf16(chunk), |f, row, block| [0.0, 1.0]);
codes!(Eight, 16, chunk, block => L::from_e4m3(chunk).mul(block.scale), |f, row, block| match f {
    Format::E4m3(scales) => [0.0, scales.of_row(row)[block] * E4M3_SCALE],
    _ => [0.0, 1.0],
});
codes!(Four, 8, chunk, block => L::from_u4(chunk).sub(block.zero).mul(block.scale), |f, row, block| match f {
    Format::Int4(int4) => int4.factors(row, block),
    _ => [0.0, 1.0],
});

/// Sixteen numbers on a cache line of their own.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Chunk(pub [f32; LANES]);

impl Chunk {
    /// All zero.
    pub const ZERO: Chunk = Chunk([0.0; LANES]);
}

/// Some rows as f32, each filled up with zeros to whole chunks, `beside` of them interleaved chunk by chunk:
/// `to[group, chunk, row of the group]`.
pub struct Unpack<'a> {
    /// The matrix.
    pub w: &'a Matrix,
    /// Its rows.
    pub rows: Range<usize>,
    /// Rows of a group.
    pub beside: usize,
    /// Room for whole groups.
    pub to: &'a mut [Chunk],
}

impl Kernel for Unpack<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        match &self.w.format {
            Format::F32 => self.unpack::<L, Single>(),
            Format::F16 => self.unpack::<L, Half>(),
            Format::Bf16 => self.unpack::<L, Brain>(),
            Format::E4m3(_) => self.unpack::<L, Eight>(),
            Format::Int4(_) => self.unpack::<L, Four>(),
            // Has no rows, and its products never unpack any.
            Format::Awq(_) => {}
        }
    }
}

impl Unpack<'_> {
    #[inline(always)]
    fn unpack<L: Lanes, C: Codes>(self) {
        let Unpack { w, rows, beside, to } = self;
        let bytes = w.bytes.as_slice();
        let (len, n) = (w.format.row_bytes(w.cols), w.cols.div_ceil(LANES));
        let step = chunks_of_a_block(w);
        for (r, row) in rows.clone().enumerate() {
            let to = &mut to[r / beside * n * beside + r % beside..];
            let (codes, left) = C::chunks(&bytes[row * len..][..len]);
            for (number, codes) in codes.chunks(step).enumerate() {
                let block = C::block::<L>(&w.format, row, number);
                for (code, to) in codes.iter().zip(to[number * step * beside..].chunks_mut(beside)) {
                    C::read::<L>(code, block).store(&mut to[0].0);
                }
            }
            if codes.len() < n {
                let block = C::block::<L>(&w.format, row, codes.len() / step);
                C::read::<L>(&C::tail(left), block).store(&mut to[codes.len() * beside].0);
            }
        }
        // The lanes read the NaN as 480. One look at all rows, for there is none in a sound file.
        if has_nan(w, &bytes[rows.start * len..rows.end * len]) {
            for (r, row) in rows.enumerate() {
                if has_nan(w, &bytes[row * len..][..len]) {
                    to[r / beside * n * beside + r % beside].0 = [f32::NAN; LANES];
                }
            }
        }
    }
}

/// True where the codes are e4m3 and one of them is the NaN.
#[inline(always)]
pub fn has_nan(w: &Matrix, codes: &[u8]) -> bool {
    if !matches!(w.format, Format::E4m3(_)) {
        return false;
    }
    // No early exit, so that it runs over whole registers.
    let mut found = 0;
    for code in codes {
        found |= u8::from(code & 0x7f == 0x7f);
    }
    found != 0
}

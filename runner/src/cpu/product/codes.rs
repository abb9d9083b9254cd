//! Weights as they lie in the file, read sixteen at a time.

use std::ops::Range;

use crate::cpu::isa::{E4M3_SCALE, Kernel, LANES, Lanes};
use crate::weights::{Format, Matrix, Scales};

/// Sixteen weights as they lie in the file.
pub trait Codes {
    /// Their bytes.
    type Chunk;
    /// Whole chunks of a row, and what is left.
    fn chunks(row: &[u8]) -> (&[Self::Chunk], &[u8]);
    /// The left over, filled up with zeros.
    fn tail(left: &[u8]) -> Self::Chunk;
    /// As numbers, without scale.
    fn read<L: Lanes>(chunk: &Self::Chunk) -> L;
    /// The factor that makes weights of what is read.
    fn scale(scale: f32) -> f32;

    /// The last weights of a row that is no multiple of sixteen.
    #[inline(always)]
    fn tail_weight<L: Lanes>(left: &[u8], scale: Option<&f32>) -> L {
        let weight = Self::read::<L>(&Self::tail(left));
        if let Some(scale) = scale { weight.mul(L::splat(Self::scale(*scale))) } else { weight }
    }
}

macro_rules! codes {
    ($name:ident, $bytes:literal, $read:ident, $scale:expr) => {
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
            fn read<L: Lanes>(chunk: &Self::Chunk) -> L {
                L::$read(chunk)
            }

            #[inline(always)]
            fn scale(scale: f32) -> f32 {
                scale * $scale
            }
        }
    };
}

codes!(Single, 64, from_f32, 1.0);
codes!(Half, 32, from_f16, 1.0);
codes!(Brain, 32, from_bf16, 1.0);
codes!(Eight, 16, from_e4m3, E4M3_SCALE);

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
            Format::F32 => self.unpack::<L, Single>(None),
            Format::F16 => self.unpack::<L, Half>(None),
            Format::Bf16 => self.unpack::<L, Brain>(None),
            Format::E4m3(scales) => self.unpack::<L, Eight>(Some(scales)),
        }
    }
}

impl Unpack<'_> {
    #[inline(always)]
    fn unpack<L: Lanes, C: Codes>(self, scales: Option<&Scales>) {
        let Unpack { w, rows, beside, to } = self;
        let bytes = w.bytes.as_slice();
        let (len, n) = (w.cols * w.format.width(), w.cols.div_ceil(LANES));
        let step = scales.map_or(n, |s| s.block[1].div_ceil(LANES)).max(1);
        for (r, row) in rows.clone().enumerate() {
            let to = &mut to[r / beside * n * beside + r % beside..];
            let (codes, left) = C::chunks(&bytes[row * len..][..len]);
            for (block, codes) in codes.chunks(step).enumerate() {
                let to = &mut to[block * step * beside..];
                match scales {
                    None => {
                        for (code, to) in codes.iter().zip(to.chunks_mut(beside)) {
                            C::read::<L>(code).store(&mut to[0].0);
                        }
                    }
                    Some(s) => {
                        let s = L::splat(C::scale(s.of_row(row)[block]));
                        for (code, to) in codes.iter().zip(to.chunks_mut(beside)) {
                            C::read::<L>(code).mul(s).store(&mut to[0].0);
                        }
                    }
                }
            }
            if codes.len() < n {
                let last = scales.and_then(|s| s.of_row(row).last());
                C::tail_weight::<L>(left, last).store(&mut to[codes.len() * beside].0);
            }
        }
        // The lanes read the NaN as 480. One look at all rows, for there is none in a sound file.
        if scales.is_some() && has_nan(&bytes[rows.start * len..rows.end * len]) {
            for (r, row) in rows.enumerate() {
                if has_nan(&bytes[row * len..][..len]) {
                    to[r / beside * n * beside + r % beside].0 = [f32::NAN; LANES];
                }
            }
        }
    }
}

/// True where one of the e4m3 codes is the NaN.
#[inline(always)]
pub fn has_nan(codes: &[u8]) -> bool {
    // No early exit, so that it runs over whole registers.
    let mut found = 0;
    for code in codes {
        found |= u8::from(code & 0x7f == 0x7f);
    }
    found != 0
}

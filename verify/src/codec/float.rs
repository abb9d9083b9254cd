//! F32, F16 and BF16 bytes to and from f32 numbers.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::dtype::Dtype;

/// An element type that conversions compute on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Float {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of [`Float::F32`].
    BF16,
}

impl Float {
    /// The float of `dtype`, where it is one.
    pub fn of(dtype: Dtype) -> Option<Self> {
        match dtype {
            Dtype::F32 => Some(Float::F32),
            Dtype::F16 => Some(Float::F16),
            Dtype::BF16 => Some(Float::BF16),
            _ => None,
        }
    }

    /// The element type on disk.
    pub fn dtype(self) -> Dtype {
        match self {
            Float::F32 => Dtype::F32,
            Float::F16 => Dtype::F16,
            Float::BF16 => Dtype::BF16,
        }
    }

    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        self.dtype().align()
    }

    /// Reads little-endian elements; exact. `out` takes `bytes.len() / self.bytes()` numbers.
    #[inline(always)]
    pub fn read(self, bytes: &[u8], out: &mut [f32]) {
        match self {
            Float::F32 => {
                let words = bytes.as_chunks::<4>().0;
                out.iter_mut().zip(words).for_each(|(o, b)| *o = f32::from_le_bytes(*b));
            }
            Float::BF16 => {
                let words = bytes.as_chunks::<2>().0;
                let widen = |b: &[u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16);
                out.iter_mut().zip(words).for_each(|(o, b)| *o = widen(b));
            }
            Float::F16 => read_f16(bytes, out),
        }
    }

    /// All elements of `bytes`.
    pub fn to_f32(self, bytes: &[u8]) -> Vec<f32> {
        let mut out = vec![0.0; bytes.len() / self.bytes()];
        self.read(bytes, &mut out);
        out
    }

    /// Little-endian elements, each rounded once to nearest even.
    pub fn to_bytes(self, values: &[f32]) -> Vec<u8> {
        let mut out = vec![0; values.len() * self.bytes()];
        match self {
            Float::F32 => {
                let words = out.as_chunks_mut::<4>().0;
                words.iter_mut().zip(values).for_each(|(o, v)| *o = v.to_le_bytes());
            }
            Float::BF16 => {
                let words = out.as_chunks_mut::<2>().0;
                words.iter_mut().zip(values).for_each(|(o, v)| *o = bf16::from_f32(*v).to_le_bytes());
            }
            Float::F16 => {
                let mut half = vec![f16::ZERO; values.len()];
                half.convert_from_f32_slice(values);
                let words = out.as_chunks_mut::<2>().0;
                words.iter_mut().zip(half).for_each(|(o, v)| *o = v.to_le_bytes());
            }
        }
        out
    }
}

/// In pieces, through the conversion instructions that `half` finds.
fn read_f16(bytes: &[u8], out: &mut [f32]) {
    let mut piece = [f16::ZERO; 128];
    for (words, out) in bytes.as_chunks::<2>().0.chunks(128).zip(out.chunks_mut(128)) {
        let piece = &mut piece[..words.len()];
        piece.iter_mut().zip(words).for_each(|(p, b)| *p = f16::from_le_bytes(*b));
        piece.convert_to_f32_slice(out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_16_bit_number_comes_back() {
        let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        for float in [Float::F16, Float::BF16] {
            let values = float.to_f32(&bytes);
            let back = float.to_bytes(&values);
            for (i, v) in values.iter().enumerate().filter(|(_, v)| !v.is_nan()) {
                assert_eq!(back[2 * i..2 * i + 2], bytes[2 * i..2 * i + 2], "{float:?} {v}");
            }
        }
        assert_eq!(Float::F16.to_f32(&0x3c01u16.to_le_bytes()), [1.0 + 1.0 / 1024.0]);
    }
}

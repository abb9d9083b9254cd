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
    pub fn read(self, bytes: &[u8], out: &mut [f32]) {
        match self {
            Float::F32 => widen::<Single>(bytes.as_chunks().0, out),
            Float::F16 => widen::<Half>(bytes.as_chunks().0, out),
            Float::BF16 => widen::<Brain>(bytes.as_chunks().0, out),
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

fn widen<E: Element>(elements: &[E::Raw], out: &mut [f32]) {
    out.iter_mut().zip(elements).for_each(|(o, e)| *o = E::widen(*e));
}

/// An element type known when a kernel is compiled.
pub(crate) trait Element {
    /// Its bytes.
    type Raw: Copy;
    /// The elements of `bytes`.
    fn elements(bytes: &[u8]) -> &[Self::Raw];
    /// The number; exact, without branches.
    fn widen(raw: Self::Raw) -> f32;
}

/// [`Float::F32`].
pub(crate) struct Single;
/// [`Float::F16`].
pub(crate) struct Half;
/// [`Float::BF16`].
pub(crate) struct Brain;

impl Element for Single {
    type Raw = [u8; 4];

    #[inline(always)]
    fn elements(bytes: &[u8]) -> &[[u8; 4]] {
        bytes.as_chunks().0
    }

    #[inline(always)]
    fn widen(raw: [u8; 4]) -> f32 {
        f32::from_le_bytes(raw)
    }
}

impl Element for Brain {
    type Raw = [u8; 2];

    #[inline(always)]
    fn elements(bytes: &[u8]) -> &[[u8; 2]] {
        bytes.as_chunks().0
    }

    #[inline(always)]
    fn widen(raw: [u8; 2]) -> f32 {
        f32::from_bits(u32::from(u16::from_le_bytes(raw)) << 16)
    }
}

impl Element for Half {
    type Raw = [u8; 2];

    #[inline(always)]
    fn elements(bytes: &[u8]) -> &[[u8; 2]] {
        bytes.as_chunks().0
    }

    /// Exponent and mantissa moved to their places in f32 give the number times 2^-112, subnormals too;
    /// infinity and NaN keep an exponent of ones.
    #[inline(always)]
    fn widen(raw: [u8; 2]) -> f32 {
        const TWO_TO_112: f32 = f32::from_bits((112 + 127) << 23);
        let bits = u32::from(u16::from_le_bytes(raw));
        let magnitude = f32::from_bits((bits & 0x7fff) << 13) * TWO_TO_112;
        let special = if bits & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
        f32::from_bits(magnitude.to_bits() | special | (bits & 0x8000) << 16)
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
            let nan = values.iter().filter(|v| v.is_nan()).count();
            assert_eq!(nan, if float == Float::F16 { 2 * 1023 } else { 2 * 127 });
            for (i, v) in values.iter().enumerate().filter(|(_, v)| !v.is_nan()) {
                assert_eq!(back[2 * i..2 * i + 2], bytes[2 * i..2 * i + 2], "{float:?} {v}");
            }
        }
        assert_eq!(Float::F16.to_f32(&0x3c01u16.to_le_bytes()), [1.0 + 1.0 / 1024.0]);
    }
}

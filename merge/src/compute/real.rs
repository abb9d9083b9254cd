//! The two number types that merging computes in: f32 for bf16 tensors, f64 for all that is finer.

use verify::Dtype;

use crate::adapter::stored::element;

/// f32 or f64.
pub trait Real: Copy + Send + Sync + 'static + PartialEq + std::fmt::Debug {
    /// 0.
    const ZERO: Self;
    /// The nearest value.
    fn of(value: f64) -> Self;
    /// `self * b + c`, rounded once.
    fn mul_add(self, b: Self, c: Self) -> Self;
}

impl Real for f32 {
    const ZERO: f32 = 0.0;

    #[inline(always)]
    fn of(value: f64) -> f32 {
        value as f32
    }

    #[inline(always)]
    fn mul_add(self, b: f32, c: f32) -> f32 {
        f32::mul_add(self, b, c)
    }
}

impl Real for f64 {
    const ZERO: f64 = 0.0;

    #[inline(always)]
    fn of(value: f64) -> f64 {
        value
    }

    #[inline(always)]
    fn mul_add(self, b: f64, c: f64) -> f64 {
        f64::mul_add(self, b, c)
    }
}

/// Appends `value` to `out` in `dtype`, rounded once, to nearest even.
pub fn encode(value: f64, dtype: Dtype, out: &mut Vec<u8>) {
    match dtype {
        Dtype::BF16 => out.extend(half::bf16::from_f32(round_to_odd(value)).to_le_bytes()),
        Dtype::F16 => out.extend(half::f16::from_f32(round_to_odd(value)).to_le_bytes()),
        _ => out.extend((value as f32).to_le_bytes()),
    }
}

/// The values of little-endian bytes of a plain float dtype.
pub fn decode(bytes: &[u8], dtype: Dtype) -> Vec<f64> {
    let width = dtype.bits() / 8;
    (0..bytes.len() / width).map(|i| f64::from(element(bytes, dtype, i))).collect()
}

/// f64 to f32 cut off, with the last bit set where anything was cut: rounding that to a narrower type is
/// the same as rounding the f64 once. (Boldo and Melquiond, "When double rounding is odd", 2005.)
fn round_to_odd(value: f64) -> f32 {
    let near = value as f32;
    let back = f64::from(near);
    if back == value || value.is_nan() {
        return near;
    }
    let toward_zero = if back.abs() > value.abs() { near.to_bits() - 1 } else { near.to_bits() };
    f32::from_bits(toward_zero | 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bits(value: f64, dtype: Dtype) -> u16 {
        let mut out = Vec::new();
        encode(value, dtype, &mut out);
        u16::from_le_bytes([out[0], out[1]])
    }

    #[test]
    fn value_just_over_a_tie_rounds_up() {
        // 1 + 2^-8 lies between two bf16; rounding to f32 first would forget 2^-40 and go to even.
        let tie = 1.0 + f64::powi(2.0, -8);
        assert_eq!(bits(tie, Dtype::BF16), 0x3f80);
        assert_eq!(bits(tie + f64::powi(2.0, -40), Dtype::BF16), 0x3f81);
        let tie = 1.0 + f64::powi(2.0, -11);
        assert_eq!(bits(tie, Dtype::F16), 0x3c00);
        assert_eq!(bits(tie + f64::powi(2.0, -40), Dtype::F16), 0x3c01);
    }

    proptest! {
        #[test]
        fn result_is_a_nearest_bf16(v in -1e30f64..1e30) {
            let got = f64::from(half::bf16::from_bits(bits(v, Dtype::BF16)).to_f32());
            for step in [-1i16, 1] {
                let other = half::bf16::from_bits(bits(v, Dtype::BF16).wrapping_add_signed(step)).to_f32();
                prop_assert!((v - got).abs() <= (v - f64::from(other)).abs());
            }
        }
    }
}

//! The two number types that merging computes in, and the three that weights are stored in.

use verify::Dtype;

/// f32 or f64: f32 for sums that end in bf16, f64 for all that is finer.
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

/// How an element is stored.
pub trait Stored {
    /// Bytes of an element.
    const BYTES: usize;
    /// The value of little-endian bytes, exactly.
    fn load(bytes: &[u8]) -> f32;
    /// The bits of the nearest stored value, ties to even, in the low bytes.
    fn bits(value: f32) -> u32;
    /// The same from f64, rounded once.
    fn bits_of_f64(value: f64) -> u32;
    /// True for the bits of NaN and infinity.
    fn is_broken(bits: u32) -> bool;
}

/// bfloat16.
pub struct Bf16;
/// IEEE half precision.
pub struct F16;
/// IEEE single precision.
pub struct F32;

impl Stored for Bf16 {
    const BYTES: usize = 2;

    #[inline(always)]
    fn load(bytes: &[u8]) -> f32 {
        f32::from_bits(u32::from(u16::from_le_bytes([bytes[0], bytes[1]])) << 16)
    }

    #[inline(always)]
    fn bits(value: f32) -> u32 {
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7fff).wrapping_add((bits >> 16) & 1) >> 16;
        // Adding could carry a NaN's payload away: keep its top, set the quiet bit.
        let nan = (bits >> 16) | 0x40;
        if bits & 0x7fff_ffff > 0x7f80_0000 { nan } else { rounded }
    }

    #[inline(always)]
    fn bits_of_f64(value: f64) -> u32 {
        Self::bits(round_to_odd(value))
    }

    #[inline(always)]
    fn is_broken(bits: u32) -> bool {
        bits & 0x7f80 == 0x7f80
    }
}

/// Conversions without branches, after F. Giesen, "half to float done quick" and its reverse.
impl Stored for F16 {
    const BYTES: usize = 2;

    #[inline(always)]
    fn load(bytes: &[u8]) -> f32 {
        let half = u32::from(u16::from_le_bytes([bytes[0], bytes[1]]));
        let magnitude = (half & 0x7fff) << 13;
        let exponent = magnitude & (0x7c00 << 13);
        let normal = magnitude + ((127 - 15) << 23);
        let broken = normal + ((128 - 16) << 23);
        let tiny = (f32::from_bits(normal + (1 << 23)) - f32::from_bits(113 << 23)).to_bits();
        let bits = if exponent == 0x7c00 << 13 { broken } else { normal };
        let bits = if exponent == 0 { tiny } else { bits };
        f32::from_bits(bits | ((half & 0x8000) << 16))
    }

    #[inline(always)]
    fn bits(value: f32) -> u32 {
        let all = value.to_bits();
        let sign = all & 0x8000_0000;
        let bits = all ^ sign;
        let broken = if bits > 0x7f80_0000 { 0x7e00 } else { 0x7c00 };
        // Adding 0.5 puts the last kept bit of a value below the normal range where f32 itself rounds.
        let tiny = (f32::from_bits(bits) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
        let even = (bits >> 13) & 1;
        let normal = bits.wrapping_sub((127 - 15) << 23).wrapping_add(0xfff + even) >> 13;
        let half = if bits < 113 << 23 { tiny } else { normal };
        let half = if bits >= (127 + 16) << 23 { broken } else { half };
        half | (sign >> 16)
    }

    #[inline(always)]
    fn bits_of_f64(value: f64) -> u32 {
        Self::bits(round_to_odd(value))
    }

    #[inline(always)]
    fn is_broken(bits: u32) -> bool {
        bits & 0x7c00 == 0x7c00
    }
}

impl Stored for F32 {
    const BYTES: usize = 4;

    #[inline(always)]
    fn load(bytes: &[u8]) -> f32 {
        f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    #[inline(always)]
    fn bits(value: f32) -> u32 {
        value.to_bits()
    }

    #[inline(always)]
    fn bits_of_f64(value: f64) -> u32 {
        (value as f32).to_bits()
    }

    #[inline(always)]
    fn is_broken(bits: u32) -> bool {
        bits & 0x7f80_0000 == 0x7f80_0000
    }
}

/// f64 to f32 cut off, with the last bit set where anything was cut: rounding that to a narrower type is
/// the same as rounding the f64 once. (Boldo and Melquiond, "When double rounding is odd", 2005.)
#[inline(always)]
fn round_to_odd(value: f64) -> f32 {
    let near = value as f32;
    let back = f64::from(near);
    let toward_zero = near.to_bits() - u32::from(back.abs() > value.abs());
    f32::from_bits(if back == value { near.to_bits() } else { toward_zero | 1 })
}

/// Appends `value` to `out` in `dtype`, rounded once, to nearest even.
pub fn encode(value: f64, dtype: Dtype, out: &mut Vec<u8>) {
    match dtype {
        Dtype::BF16 => out.extend(&Bf16::bits_of_f64(value).to_le_bytes()[..2]),
        Dtype::F16 => out.extend(&F16::bits_of_f64(value).to_le_bytes()[..2]),
        _ => out.extend(F32::bits_of_f64(value).to_le_bytes()),
    }
}

/// The values of little-endian bytes of a plain float dtype.
pub fn decode(bytes: &[u8], dtype: Dtype) -> Vec<f64> {
    let load = match dtype {
        Dtype::BF16 => Bf16::load,
        Dtype::F16 => F16::load,
        _ => F32::load,
    };
    bytes.chunks_exact(dtype.bits() / 8).map(|b| f64::from(load(b))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn value_just_over_a_tie_rounds_up() {
        // 1 + 2^-8 lies between two bf16; rounding to f32 first would forget 2^-40 and go to even.
        let tie = 1.0 + f64::powi(2.0, -8);
        assert_eq!(Bf16::bits_of_f64(tie), 0x3f80);
        assert_eq!(Bf16::bits_of_f64(tie + f64::powi(2.0, -40)), 0x3f81);
        let tie = 1.0 + f64::powi(2.0, -11);
        assert_eq!(F16::bits_of_f64(tie), 0x3c00);
        assert_eq!(F16::bits_of_f64(tie + f64::powi(2.0, -40)), 0x3c01);
    }

    #[test]
    fn every_half_is_read_and_written_back() {
        for bits in 0..=u16::MAX {
            let (want, got) = (half::f16::from_bits(bits).to_f32(), F16::load(&bits.to_le_bytes()));
            assert!(want == got || want.is_nan() && got.is_nan(), "{bits:#x}: {want} {got}");
            assert!(want.is_nan() || F16::bits(got) == u32::from(bits), "{bits:#x}");
            assert_eq!(F16::is_broken(u32::from(bits)), !want.is_finite());
        }
    }

    proptest! {
        #[test]
        fn rounding_is_that_of_half(bits: u32, exponent in 90u32..150) {
            // Any value, and one of the range where halves lie.
            for bits in [bits, bits & 0x807f_ffff | exponent << 23] {
                let v = f32::from_bits(bits);
                prop_assert_eq!(Bf16::bits(v), u32::from(half::bf16::from_f32(v).to_bits()));
                if !v.is_nan() {
                    prop_assert_eq!(F16::bits(v), u32::from(half::f16::from_f32(v).to_bits()), "{}", v);
                }
                let v = f64::from(v);
                prop_assert_eq!(Bf16::bits_of_f64(v) , Bf16::bits(v as f32));
            }
        }

        #[test]
        fn result_is_a_nearest_bf16(v in -1e30f64..1e30) {
            let bits = Bf16::bits_of_f64(v) as u16;
            let value = |b: u16| f64::from(Bf16::load(&b.to_le_bytes()));
            for step in [-1i16, 1] {
                prop_assert!((v - value(bits)).abs() <= (v - value(bits.wrapping_add_signed(step))).abs());
            }
        }
    }
}

//! FP8 E4M3 (the "fn" form of the OCP 8-bit format: 4 exponent bits with bias 7, 3 mantissa bits, no
//! infinities, the single NaN `S.1111.111`, largest value 448) to and from f32.

use super::simd::{Kernel, Tier};

/// The largest value.
pub const MAX: f32 = 448.0;

/// True for the two codes that are NaN.
pub fn is_nan(code: u8) -> bool {
    code & 0x7f == 0x7f
}

/// The value of every code.
pub const VALUES: [f32; 256] = {
    let mut table = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        table[code] = value(code as u8);
        code += 1;
    }
    table
};

const fn value(code: u8) -> f32 {
    let (exponent, mantissa) = ((code >> 3) as u32 & 15, code & 7);
    let magnitude = match (exponent, mantissa) {
        (15, 7) => f32::NAN,
        (0, m) => m as f32 / 512.0,
        // 2^(e-7) * (1 + m/8), assembled from f32's own exponent, whose bias is 127.
        (e, m) => f32::from_bits((e + 120) << 23) * (1.0 + m as f32 / 8.0),
    };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

/// The value of a code; NaN for 0x7F and 0xFF.
pub fn decode(code: u8) -> f32 {
    VALUES[usize::from(code)]
}

/// The nearest code, ties to even, magnitudes beyond 448 clamped to it. Callers refuse NaN before; no
/// input gives a NaN code.
pub fn encode(x: f32) -> u8 {
    let sign = if x.is_sign_negative() { 0x80 } else { 0 };
    let a = x.abs();
    let magnitude = if a.is_nan() || a >= MAX {
        0x7e
    } else if a < 1.0 / 64.0 {
        // Below the smallest normal, codes count steps of 2^-9; step 8 is the smallest normal itself.
        (a * 512.0).round_ties_even() as u8
    } else {
        let exponent = (a.to_bits() >> 23) as i32 - 127;
        let eighths = (a * (3 - exponent).exp2()).round_ties_even() as i32; // 8 ..= 16
        ((exponent + 7) * 8 + eighths - 8) as u8
    };
    sign | magnitude
}

trait Exp2 {
    fn exp2(self) -> f32;
}

impl Exp2 for i32 {
    /// 2^self for exponents of normal f32.
    fn exp2(self) -> f32 {
        f32::from_bits(((self + 127) as u32) << 23)
    }
}

/// [`encode`] over slices of one length, vectorised.
pub fn encode_slice(values: &[f32], codes: &mut [u8]) {
    Tier::best().run(EncodeSlice { values, codes });
}

struct EncodeSlice<'a> {
    values: &'a [f32],
    codes: &'a mut [u8],
}

impl Kernel for EncodeSlice<'_> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        for (code, &v) in self.codes.iter_mut().zip(self.values) {
            *code = round(v).code;
        }
    }
}

/// What is left of numbers that are kept as codes times `scale`: each becomes the nearest such number, at most 448
/// scales from zero. NaN stays NaN.
pub fn round_trip(values: &mut [f32], scale: f32) {
    Tier::best().run(RoundTrip { values, scale });
}

struct RoundTrip<'a> {
    values: &'a mut [f32],
    scale: f32,
}

impl Kernel for RoundTrip<'_> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        for v in self.values {
            let kept = (round(*v / self.scale).size * self.scale).copysign(*v);
            *v = if v.is_nan() { *v } else { kept };
        }
    }
}

/// What [`round`] gives.
pub(crate) struct Rounded {
    /// The code.
    pub code: u8,
    /// The size of its value.
    pub size: f32,
    /// Distance of the code's value from the input.
    pub error: f32,
}

/// [`encode`] without branches, so that a loop over it is vectorised; same codes.
#[inline(always)]
pub(crate) fn round(x: f32) -> Rounded {
    const MAX_BITS: u32 = MAX.to_bits();
    const SMALLEST_NORMAL: u32 = (1.0f32 / 64.0).to_bits();
    // One unit in the last place of 2^14 is 2^-9, the step of the subnormal codes: adding rounds to it.
    const SHIFT: f32 = 16384.0;
    let sign = x.to_bits() >> 24 & 0x80;
    let exact = x.to_bits() & 0x7fff_ffff;
    let a = exact.min(MAX_BITS);
    let normal = (a + 0x7_ffff + (a >> 20 & 1)) >> 20;
    let shifted = f32::from_bits(a) + SHIFT;
    let small = a < SMALLEST_NORMAL;
    // f32's exponent bias is larger by 120.
    let code = if small { shifted.to_bits() - SHIFT.to_bits() } else { normal.wrapping_sub(120 << 3) };
    let size = if small { shifted - SHIFT } else { f32::from_bits(normal << 20) };
    Rounded { code: (code | sign) as u8, size, error: (size - f32::from_bits(exact)).abs() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bf16(bits: u16) -> f32 {
        f32::from_bits(u32::from(bits) << 16)
    }

    /// By search over the table: the nearest value, of two equally near ones that with an even code.
    fn nearest(x: f32) -> u8 {
        let a = f64::from(x.abs()).min(448.0);
        let distance = |c: u8| (f64::from(VALUES[usize::from(c)]) - a).abs();
        let better = |&c: &u8, &d: &u8| distance(c).total_cmp(&distance(d)).then((c & 1).cmp(&(d & 1)));
        (0..0x7f).min_by(better).unwrap() | if x.is_sign_negative() { 0x80 } else { 0 }
    }

    fn on_all_tiers(values: &[f32]) -> Vec<Vec<u8>> {
        let run = |tier: Tier| {
            let mut codes = vec![0; values.len()];
            tier.run(EncodeSlice { values, codes: &mut codes });
            codes
        };
        Tier::all().into_iter().map(run).collect()
    }

    #[test]
    fn every_bf16_gets_the_nearest_code_on_every_tier() {
        let values: Vec<f32> = (0..=u16::MAX).map(bf16).collect();
        let codes = on_all_tiers(&values);
        for (i, &v) in values.iter().enumerate() {
            let want = if v.is_nan() { 0x7e | (v.to_bits() >> 24) as u8 & 0x80 } else { nearest(v) };
            assert_eq!(encode(v), want, "{v}");
            codes.iter().for_each(|c| assert_eq!(c[i], want, "{v}"));
        }
    }

    #[test]
    fn every_code_but_nan_comes_back() {
        for code in (0..=255u8).filter(|&c| !is_nan(c)) {
            assert_eq!(encode(decode(code)), code);
        }
        assert!(decode(0x7f).is_nan() && decode(0xff).is_nan());
        assert_eq!((decode(0x7e), decode(0x01), decode(0x08)), (448.0, 1.0 / 512.0, 1.0 / 64.0));
    }

    #[test]
    fn round_trip_clamps_the_far_and_keeps_nan() {
        let mut values = [1e9, f32::NEG_INFINITY, f32::NAN, -0.0, 0.7];
        round_trip(&mut values, 0.5);
        assert_eq!(values[..2], [224.0, -224.0]);
        assert!(values[2].is_nan() && values[3] == 0.0 && values[4] == 0.6875);
    }

    #[test]
    fn midpoints_go_to_the_even_code() {
        for code in 0..0x7eu8 {
            let middle = (decode(code) + decode(code + 1)) / 2.0;
            assert_eq!(encode(middle), code + (code & 1), "{middle}");
            assert_eq!(encode(middle.next_down()), code);
            assert_eq!(encode(middle.next_up()), code + 1);
        }
    }

    proptest! {
        #[test]
        fn scalar_and_vector_forms_agree(bits in proptest::collection::vec(any::<u32>(), 1..70)) {
            let values: Vec<f32> = bits.into_iter().map(f32::from_bits).collect();
            let want: Vec<u8> = values.iter().map(|&v| encode(v)).collect();
            for codes in on_all_tiers(&values) {
                prop_assert_eq!(&codes, &want);
            }
        }

        #[test]
        fn round_trip_is_code_times_scale_on_every_tier(
            numbers in proptest::collection::vec(-1e3f32..1e3, 1..70), scale in 1e-4f32..10.0,
        ) {
            let want: Vec<f32> = numbers.iter().map(|x| decode(encode(x / scale)) * scale).collect();
            for tier in Tier::all() {
                let mut values = numbers.clone();
                tier.run(RoundTrip { values: &mut values, scale });
                prop_assert_eq!(&values, &want);
            }
        }

        #[test]
        fn error_is_the_distance_of_the_code(x in -460f32..460.0) {
            let r = round(x);
            prop_assert_eq!(r.error, (decode(r.code) - x).abs());
        }
    }
}

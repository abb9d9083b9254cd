//! The lanes as four NEON registers: lanes 0..4, 4..8, 8..12, 12..16.

use std::arch::aarch64::*;

use half::f16;

use super::{Kernel, Lanes};

/// Four registers.
#[derive(Clone, Copy)]
pub struct Neon([float32x4_t; 4]);

#[target_feature(enable = "neon")]
pub fn run<K: Kernel>(kernel: K) -> K::Out {
    kernel.run::<Neon>()
}

// SAFETY (all blocks below): NEON is part of every aarch64; pointers come from array references of exactly the
// length read or written, by instructions that need no alignment.
impl Lanes for Neon {
    const WIDE: bool = false;

    #[inline(always)]
    fn splat(x: f32) -> Self {
        // SAFETY: above.
        Neon([unsafe { vdupq_n_f32(x) }; 4])
    }

    #[inline(always)]
    fn load(x: &[f32; 16]) -> Self {
        // SAFETY: above.
        Neon(std::array::from_fn(|i| unsafe { vld1q_f32(x.as_ptr().add(4 * i)) }))
    }

    #[inline(always)]
    fn store(self, to: &mut [f32; 16]) {
        for (i, x) in self.0.into_iter().enumerate() {
            // SAFETY: above.
            unsafe { vst1q_f32(to.as_mut_ptr().add(4 * i), x) }
        }
    }

    #[inline(always)]
    fn from_f32(bytes: &[u8; 64]) -> Self {
        // SAFETY: above.
        Neon(std::array::from_fn(|i| unsafe { vreinterpretq_f32_u8(vld1q_u8(bytes.as_ptr().add(16 * i))) }))
    }

    #[inline(always)]
    fn from_bf16(bytes: &[u8; 32]) -> Self {
        // SAFETY: above.
        Neon(std::array::from_fn(|i| unsafe {
            let two = vreinterpret_u16_u8(vld1_u8(bytes.as_ptr().add(8 * i)));
            vreinterpretq_f32_u32(vshll_n_u16::<16>(two))
        }))
    }

    #[inline(always)]
    fn from_f16(bytes: &[u8; 32]) -> Self {
        let (two, _) = bytes.as_chunks::<2>();
        Self::load(&std::array::from_fn(|i| f16::from_le_bytes(two[i]).to_f32()))
    }

    #[inline(always)]
    fn from_e4m3(bytes: &[u8; 64]) -> [Self; 4] {
        let mut out = [Self::splat(0.0); 4];
        for part in 0..4 {
            // SAFETY: above.
            unsafe {
                // Two codes to a 16-bit word: the upper is moved and masked into a bfloat16 as it stands, then the lower.
                let pairs = vreinterpretq_s16_u8(vld1q_u8(bytes.as_ptr().add(16 * part)));
                let keep = vdupq_n_s16(0x87f0u16 as i16);
                let odd = vreinterpretq_u32_s16(vandq_s16(vshrq_n_s16::<4>(pairs), keep));
                let even = vandq_s16(vshrq_n_s16::<4>(vshlq_n_s16::<8>(pairs)), keep);
                let even = vreinterpretq_u32_s16(even);
                let upper = vdupq_n_u32(0xffff_0000);
                out[0].0[part] = vreinterpretq_f32_u32(vshlq_n_u32::<16>(even));
                out[1].0[part] = vreinterpretq_f32_u32(vshlq_n_u32::<16>(odd));
                out[2].0[part] = vreinterpretq_f32_u32(vandq_u32(even, upper));
                out[3].0[part] = vreinterpretq_f32_u32(vandq_u32(odd, upper));
            }
        }
        out
    }

    #[inline(always)]
    fn from_u4(bytes: &[u8; 32]) -> [Self; 4] {
        let mut out = [Self::splat(0.0); 4];
        for part in 0..4 {
            // SAFETY: above.
            unsafe {
                let fours = vmovl_u16(vreinterpret_u16_u8(vld1_u8(bytes.as_ptr().add(8 * part))));
                let low = vdupq_n_u32(15);
                out[0].0[part] = vcvtq_f32_u32(vandq_u32(fours, low));
                out[1].0[part] = vcvtq_f32_u32(vandq_u32(vshrq_n_u32::<4>(fours), low));
                out[2].0[part] = vcvtq_f32_u32(vandq_u32(vshrq_n_u32::<8>(fours), low));
                out[3].0[part] = vcvtq_f32_u32(vshrq_n_u32::<12>(fours));
            }
        }
        out
    }

    #[inline(always)]
    fn from_u8(bytes: &[u8; 64]) -> [Self; 4] {
        let mut out = [Self::splat(0.0); 4];
        for part in 0..4 {
            // SAFETY: above.
            unsafe {
                let fours = vreinterpretq_u32_u8(vld1q_u8(bytes.as_ptr().add(16 * part)));
                let low = vdupq_n_u32(255);
                out[0].0[part] = vcvtq_f32_u32(vandq_u32(fours, low));
                out[1].0[part] = vcvtq_f32_u32(vandq_u32(vshrq_n_u32::<8>(fours), low));
                out[2].0[part] = vcvtq_f32_u32(vandq_u32(vshrq_n_u32::<16>(fours), low));
                out[3].0[part] = vcvtq_f32_u32(vshrq_n_u32::<24>(fours));
            }
        }
        out
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: above.
        Neon(std::array::from_fn(|i| unsafe { vaddq_f32(self.0[i], other.0[i]) }))
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        // SAFETY: above.
        Neon(std::array::from_fn(|i| unsafe { vsubq_f32(self.0[i], other.0[i]) }))
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        // SAFETY: above.
        Neon(std::array::from_fn(|i| unsafe { vmulq_f32(self.0[i], other.0[i]) }))
    }

    #[inline(always)]
    fn fma(self, a: Self, b: Self) -> Self {
        // SAFETY: above.
        Neon(std::array::from_fn(|i| unsafe { vfmaq_f32(self.0[i], a.0[i], b.0[i]) }))
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        // SAFETY: above.
        unsafe {
            let [a, b, c, d] = self.0;
            let four = vaddq_f32(vaddq_f32(a, c), vaddq_f32(b, d));
            let two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
            vget_lane_f32::<0>(two) + vget_lane_f32::<1>(two)
        }
    }
}

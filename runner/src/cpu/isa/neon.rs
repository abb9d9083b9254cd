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
    fn from_e4m3(bytes: &[u8; 16]) -> Self {
        // SAFETY: above.
        unsafe {
            let codes = vreinterpretq_s8_u8(vld1q_u8(bytes.as_ptr()));
            let (a, b) = (vmovl_s8(vget_low_s8(codes)), vmovl_s8(vget_high_s8(codes)));
            let parts = [vget_low_s16(a), vget_high_s16(a), vget_low_s16(b), vget_high_s16(b)];
            Neon(parts.map(|part| {
                let wide = vshlq_n_s32::<20>(vmovl_s16(part));
                vreinterpretq_f32_s32(vandq_s32(wide, vdupq_n_s32(0x87f0_0000u32 as i32)))
            }))
        }
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: above.
        Neon(std::array::from_fn(|i| unsafe { vaddq_f32(self.0[i], other.0[i]) }))
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

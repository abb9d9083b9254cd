//! The lanes as one AVX-512 register.

use std::arch::x86_64::*;

use super::{Kernel, Lanes};

/// One register.
#[derive(Clone, Copy)]
pub struct Avx512(__m512);

/// True where the machine has all that is used here.
pub fn is_present() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma,f16c")]
pub fn run<K: Kernel>(kernel: K) -> K::Out {
    kernel.run::<Avx512>()
}

// SAFETY (all blocks below): `Isa::run` calls kernels on these lanes only where `is_present`; pointers come from
// array references of exactly the length read or written, by instructions that need no alignment.
impl Lanes for Avx512 {
    const WIDE: bool = true;

    #[inline(always)]
    fn splat(x: f32) -> Self {
        // SAFETY: above.
        Avx512(unsafe { _mm512_set1_ps(x) })
    }

    #[inline(always)]
    fn load(x: &[f32; 16]) -> Self {
        // SAFETY: above.
        Avx512(unsafe { _mm512_loadu_ps(x.as_ptr()) })
    }

    #[inline(always)]
    fn store(self, to: &mut [f32; 16]) {
        // SAFETY: above.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), self.0) }
    }

    #[inline(always)]
    fn from_f32(bytes: &[u8; 64]) -> Self {
        // SAFETY: above.
        Avx512(unsafe { _mm512_loadu_ps(bytes.as_ptr().cast()) })
    }

    #[inline(always)]
    fn from_bf16(bytes: &[u8; 32]) -> Self {
        // SAFETY: above.
        Avx512(unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(bytes.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        })
    }

    #[inline(always)]
    fn from_f16(bytes: &[u8; 32]) -> Self {
        // SAFETY: above.
        Avx512(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(bytes.as_ptr().cast())) })
    }

    #[inline(always)]
    fn from_e4m3(bytes: &[u8; 64]) -> [Self; 4] {
        // SAFETY: above.
        unsafe {
            // Two codes to a 16-bit word: the upper is moved and masked into a bfloat16 as it stands, then the lower.
            let pairs = _mm512_loadu_si512(bytes.as_ptr().cast());
            let keep = _mm512_set1_epi16(0x87f0u16 as i16);
            let odd = _mm512_and_si512(_mm512_srai_epi16::<4>(pairs), keep);
            let even = _mm512_and_si512(_mm512_srai_epi16::<4>(_mm512_slli_epi16::<8>(pairs)), keep);
            // Two bfloat16 to a 32-bit word.
            let upper = _mm512_set1_epi32(0xffff_0000u32 as i32);
            [
                Avx512(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(even))),
                Avx512(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(odd))),
                Avx512(_mm512_castsi512_ps(_mm512_and_si512(even, upper))),
                Avx512(_mm512_castsi512_ps(_mm512_and_si512(odd, upper))),
            ]
        }
    }

    #[inline(always)]
    fn from_u4(bytes: &[u8; 32]) -> [Self; 4] {
        // SAFETY: above.
        unsafe {
            let fours = _mm512_cvtepu16_epi32(_mm256_loadu_si256(bytes.as_ptr().cast()));
            let low = _mm512_set1_epi32(15);
            [
                Avx512(_mm512_cvtepi32_ps(_mm512_and_si512(fours, low))),
                Avx512(_mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32::<4>(fours), low))),
                Avx512(_mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32::<8>(fours), low))),
                Avx512(_mm512_cvtepi32_ps(_mm512_srli_epi32::<12>(fours))),
            ]
        }
    }

    #[inline(always)]
    fn from_u8(bytes: &[u8; 64]) -> [Self; 4] {
        // SAFETY: above.
        unsafe {
            let fours = _mm512_loadu_si512(bytes.as_ptr().cast());
            let low = _mm512_set1_epi32(255);
            [
                Avx512(_mm512_cvtepi32_ps(_mm512_and_si512(fours, low))),
                Avx512(_mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32::<8>(fours), low))),
                Avx512(_mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32::<16>(fours), low))),
                Avx512(_mm512_cvtepi32_ps(_mm512_srli_epi32::<24>(fours))),
            ]
        }
    }

    #[inline(always)]
    fn scaled_u4(bytes: &[u8; 32], [_, _, table]: [Self; 3]) -> [Self; 4] {
        // SAFETY: above.
        unsafe {
            // The look-up minds the low four bits of each lane only.
            let fours = _mm512_cvtepu16_epi32(_mm256_loadu_si256(bytes.as_ptr().cast()));
            [
                Avx512(_mm512_permutexvar_ps(fours, table.0)),
                Avx512(_mm512_permutexvar_ps(_mm512_srli_epi32::<4>(fours), table.0)),
                Avx512(_mm512_permutexvar_ps(_mm512_srli_epi32::<8>(fours), table.0)),
                Avx512(_mm512_permutexvar_ps(_mm512_srli_epi32::<12>(fours), table.0)),
            ]
        }
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: above.
        Avx512(unsafe { _mm512_add_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        // SAFETY: above.
        Avx512(unsafe { _mm512_sub_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        // SAFETY: above.
        Avx512(unsafe { _mm512_mul_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn fma(self, a: Self, b: Self) -> Self {
        // SAFETY: above.
        Avx512(unsafe { _mm512_fmadd_ps(a.0, b.0, self.0) })
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        // SAFETY: above.
        unsafe {
            let eight = _mm256_add_ps(_mm512_castps512_ps256(self.0), _mm512_extractf32x8_ps::<1>(self.0));
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }

    #[inline(always)]
    fn sum_each([a, b, c, d]: [Self; 4]) -> [f32; 4] {
        // SAFETY: above.
        unsafe {
            // Quarters of a register: low halves beside each other and high halves beside each other are added, then so
            // for the quarters that this leaves, until each quarter is one of the four.
            let halves = |x: Self, y: Self| {
                let low = _mm512_shuffle_f32x4::<0x44>(x.0, y.0);
                _mm512_add_ps(low, _mm512_shuffle_f32x4::<0xee>(x.0, y.0))
            };
            let (ab, cd) = (halves(a, b), halves(c, d));
            let even = _mm512_shuffle_f32x4::<0x88>(ab, cd);
            let four = _mm512_add_ps(even, _mm512_shuffle_f32x4::<0xdd>(ab, cd));
            let two = _mm512_add_ps(four, _mm512_permute_ps::<0x4e>(four));
            let one = _mm512_add_ps(two, _mm512_permute_ps::<0xb1>(two));
            let first_of_each = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
            let sums = _mm512_castps512_ps128(_mm512_permutexvar_ps(first_of_each, one));
            let mut to = [0.0; 4];
            _mm_storeu_ps(to.as_mut_ptr(), sums);
            to
        }
    }
}

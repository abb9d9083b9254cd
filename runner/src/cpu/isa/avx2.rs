//! The lanes as two AVX registers: lanes 0..8 and 8..16.

use std::arch::x86_64::*;

use super::{Kernel, Lanes};

/// Two registers.
#[derive(Clone, Copy)]
pub struct Avx2(__m256, __m256);

/// True where the machine has all that is used here.
pub fn is_present() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
}

#[target_feature(enable = "avx2,fma,f16c")]
pub fn run<K: Kernel>(kernel: K) -> K::Out {
    kernel.run::<Avx2>()
}

// SAFETY (all blocks below): `Isa::run` calls kernels on these lanes only where `is_present`; pointers come from
// array references of exactly the length read or written, by instructions that need no alignment.
impl Lanes for Avx2 {
    const WIDE: bool = false;

    #[inline(always)]
    fn splat(x: f32) -> Self {
        // SAFETY: above.
        let x = unsafe { _mm256_set1_ps(x) };
        Avx2(x, x)
    }

    #[inline(always)]
    fn load(x: &[f32; 16]) -> Self {
        let p = x.as_ptr();
        // SAFETY: above.
        unsafe { Avx2(_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))) }
    }

    #[inline(always)]
    fn store(self, to: &mut [f32; 16]) {
        let p = to.as_mut_ptr();
        // SAFETY: above.
        unsafe {
            _mm256_storeu_ps(p, self.0);
            _mm256_storeu_ps(p.add(8), self.1);
        }
    }

    #[inline(always)]
    fn from_f32(bytes: &[u8; 64]) -> Self {
        let p = bytes.as_ptr();
        // SAFETY: above.
        unsafe { Avx2(_mm256_loadu_ps(p.cast()), _mm256_loadu_ps(p.add(32).cast())) }
    }

    #[inline(always)]
    fn from_bf16(bytes: &[u8; 32]) -> Self {
        let p = bytes.as_ptr();
        // SAFETY: above.
        unsafe {
            let a = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            let b = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.add(16).cast()));
            Avx2(
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(a)),
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(b)),
            )
        }
    }

    #[inline(always)]
    fn from_f16(bytes: &[u8; 32]) -> Self {
        let p = bytes.as_ptr();
        // SAFETY: above.
        unsafe {
            Avx2(
                _mm256_cvtph_ps(_mm_loadu_si128(p.cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(p.add(16).cast())),
            )
        }
    }

    #[inline(always)]
    fn from_e4m3(bytes: &[u8; 64]) -> [Self; 4] {
        let p = bytes.as_ptr();
        // SAFETY: above.
        unsafe {
            let ([a, b, c, d], [e, f, g, h]) = (thirty_two(p), thirty_two(p.add(32)));
            [Avx2(a, e), Avx2(b, f), Avx2(c, g), Avx2(d, h)]
        }
    }

    #[inline(always)]
    fn from_u4(bytes: &[u8; 32]) -> [Self; 4] {
        let p = bytes.as_ptr();
        // SAFETY: above.
        unsafe {
            let a = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            let b = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.add(16).cast()));
            [
                Avx2(low_four(a), low_four(b)),
                Avx2(low_four(_mm256_srli_epi32::<4>(a)), low_four(_mm256_srli_epi32::<4>(b))),
                Avx2(low_four(_mm256_srli_epi32::<8>(a)), low_four(_mm256_srli_epi32::<8>(b))),
                Avx2(low_four(_mm256_srli_epi32::<12>(a)), low_four(_mm256_srli_epi32::<12>(b))),
            ]
        }
    }

    #[inline(always)]
    fn from_u8(bytes: &[u8; 64]) -> [Self; 4] {
        let p = bytes.as_ptr();
        // SAFETY: above.
        unsafe {
            let (a, b) = (_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(32).cast()));
            [
                Avx2(low_eight(a), low_eight(b)),
                Avx2(low_eight(_mm256_srli_epi32::<8>(a)), low_eight(_mm256_srli_epi32::<8>(b))),
                Avx2(low_eight(_mm256_srli_epi32::<16>(a)), low_eight(_mm256_srli_epi32::<16>(b))),
                Avx2(low_eight(_mm256_srli_epi32::<24>(a)), low_eight(_mm256_srli_epi32::<24>(b))),
            ]
        }
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: above.
        unsafe { Avx2(_mm256_add_ps(self.0, other.0), _mm256_add_ps(self.1, other.1)) }
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        // SAFETY: above.
        unsafe { Avx2(_mm256_sub_ps(self.0, other.0), _mm256_sub_ps(self.1, other.1)) }
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        // SAFETY: above.
        unsafe { Avx2(_mm256_mul_ps(self.0, other.0), _mm256_mul_ps(self.1, other.1)) }
    }

    #[inline(always)]
    fn fma(self, a: Self, b: Self) -> Self {
        // SAFETY: above.
        unsafe { Avx2(_mm256_fmadd_ps(a.0, b.0, self.0), _mm256_fmadd_ps(a.1, b.1, self.1)) }
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        // SAFETY: above.
        unsafe {
            let eight = _mm256_add_ps(self.0, self.1);
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }
}

/// e4m3 codes `4 i + k` in lane `i` of the `k`-th, as in [`Lanes::from_e4m3`].
///
/// # Safety
/// On AVX2, with 32 bytes at `p`.
#[inline(always)]
unsafe fn thirty_two(p: *const u8) -> [__m256; 4] {
    // SAFETY: the caller's.
    unsafe {
        // Two codes to a 16-bit word: the upper is moved and masked into a bfloat16 as it stands, then the lower.
        let pairs = _mm256_loadu_si256(p.cast());
        let keep = _mm256_set1_epi16(0x87f0u16 as i16);
        let odd = _mm256_and_si256(_mm256_srai_epi16::<4>(pairs), keep);
        let even = _mm256_and_si256(_mm256_srai_epi16::<4>(_mm256_slli_epi16::<8>(pairs)), keep);
        let upper = _mm256_set1_epi32(0xffff_0000u32 as i32);
        [
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(even)),
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(odd)),
            _mm256_castsi256_ps(_mm256_and_si256(even, upper)),
            _mm256_castsi256_ps(_mm256_and_si256(odd, upper)),
        ]
    }
}

/// The low four bits of each lane as a number.
///
/// # Safety
/// On AVX2.
#[inline(always)]
unsafe fn low_four(x: __m256i) -> __m256 {
    // SAFETY: the caller's.
    unsafe { _mm256_cvtepi32_ps(_mm256_and_si256(x, _mm256_set1_epi32(15))) }
}

/// The low eight bits of each lane as a number.
///
/// # Safety
/// On AVX2.
#[inline(always)]
unsafe fn low_eight(x: __m256i) -> __m256 {
    // SAFETY: the caller's.
    unsafe { _mm256_cvtepi32_ps(_mm256_and_si256(x, _mm256_set1_epi32(255))) }
}

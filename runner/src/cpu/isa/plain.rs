//! The lanes in plain Rust: the twin of every other set.

use half::{bf16, f16};

use super::Lanes;

/// Sixteen values in an array.
#[derive(Clone, Copy)]
pub struct Plain([f32; 16]);

impl Lanes for Plain {
    const WIDE: bool = false;

    #[inline(always)]
    fn splat(x: f32) -> Self {
        Plain([x; 16])
    }

    #[inline(always)]
    fn load(x: &[f32; 16]) -> Self {
        Plain(*x)
    }

    #[inline(always)]
    fn store(self, to: &mut [f32; 16]) {
        *to = self.0;
    }

    #[inline(always)]
    fn from_f32(bytes: &[u8; 64]) -> Self {
        let (four, _) = bytes.as_chunks::<4>();
        Plain(std::array::from_fn(|i| f32::from_le_bytes(four[i])))
    }

    #[inline(always)]
    fn from_bf16(bytes: &[u8; 32]) -> Self {
        let (two, _) = bytes.as_chunks::<2>();
        Plain(std::array::from_fn(|i| bf16::from_le_bytes(two[i]).to_f32()))
    }

    #[inline(always)]
    fn from_f16(bytes: &[u8; 32]) -> Self {
        let (two, _) = bytes.as_chunks::<2>();
        Plain(std::array::from_fn(|i| f16::from_le_bytes(two[i]).to_f32()))
    }

    #[inline(always)]
    fn from_e4m3(bytes: &[u8; 64]) -> [Self; 4] {
        let number = |code: u8| f32::from_bits((code.cast_signed() as u32) << 20 & 0x87f0_0000);
        std::array::from_fn(|k| Plain(std::array::from_fn(|i| number(bytes[4 * i + k]))))
    }

    #[inline(always)]
    fn from_u4(bytes: &[u8; 32]) -> [Self; 4] {
        let number = |at: usize| f32::from(bytes[at / 2] >> (4 * (at % 2)) & 15);
        std::array::from_fn(|k| Plain(std::array::from_fn(|i| number(4 * i + k))))
    }

    #[inline(always)]
    fn from_u8(bytes: &[u8; 64]) -> [Self; 4] {
        std::array::from_fn(|k| Plain(std::array::from_fn(|i| f32::from(bytes[4 * i + k]))))
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Plain(std::array::from_fn(|i| self.0[i] + other.0[i]))
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        Plain(std::array::from_fn(|i| self.0[i] - other.0[i]))
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        Plain(std::array::from_fn(|i| self.0[i] * other.0[i]))
    }

    #[inline(always)]
    fn fma(self, a: Self, b: Self) -> Self {
        Plain(std::array::from_fn(|i| a.0[i].mul_add(b.0[i], self.0[i])))
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        let mut x = self.0;
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                x[i] += x[i + half];
            }
        }
        x[0]
    }
}

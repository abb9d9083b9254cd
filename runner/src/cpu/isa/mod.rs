//! Sixteen f32 lanes on every instruction set, with the same bits.
//!
//! A kernel is written once over [`Lanes`] and run by [`Isa::run`] on the widest set the machine has. Every
//! operation of a lane is IEEE (fused multiply-add, no reordering) and sums fold in one fixed tree, so AVX2,
//! AVX-512, NEON and [`plain`] agree bit for bit; [`plain`] is the twin that the tests hold the others to.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
pub mod plain;

/// Lanes of one [`Lanes`] value.
pub const LANES: usize = 16;

/// Sixteen f32 values. Methods are only called inside [`Isa::run`], which checked the instruction set.
pub trait Lanes: Copy {
    /// True where 24 sums fit into registers beside their operands, else 6 do.
    const WIDE: bool;

    /// All lanes `x`.
    fn splat(x: f32) -> Self;
    /// From memory.
    fn load(x: &[f32; 16]) -> Self;
    /// To memory.
    fn store(self, to: &mut [f32; 16]);
    /// From sixteen little-endian f32, aligned or not.
    fn from_f32(bytes: &[u8; 64]) -> Self;
    /// From sixteen little-endian bfloat16.
    fn from_bf16(bytes: &[u8; 32]) -> Self;
    /// From sixteen little-endian IEEE half floats.
    fn from_f16(bytes: &[u8; 32]) -> Self;
    /// From sixty-four e4m3fn codes, number `4 i + k` to lane `i` of the `k`-th, divided by 2^120, the difference of the
    /// two types' biases: sign, exponent and mantissa moved to where f32 has them, which keeps subnormal codes right.
    /// 0x7F and 0xFF, the NaN, come out as 480.
    fn from_e4m3(bytes: &[u8; 64]) -> [Self; 4];
    /// From sixty-four 4-bit codes, the low half of each byte first, number `4 i + k` to lane `i` of the `k`-th: 0 to 15.
    fn from_u4(bytes: &[u8; 32]) -> [Self; 4];
    /// From sixty-four bytes, number `4 i + k` to lane `i` of the `k`-th: 0 to 255.
    fn from_u8(bytes: &[u8; 64]) -> [Self; 4];
    /// `(code - zero) * scale` of the codes of [`Self::from_u4`]; lane `c` of `table` is that of code `c`.
    #[inline(always)]
    fn scaled_u4(bytes: &[u8; 32], [zero, scale, _table]: [Self; 3]) -> [Self; 4] {
        let [a, b, c, d] = Self::from_u4(bytes);
        [a.sub(zero).mul(scale), b.sub(zero).mul(scale), c.sub(zero).mul(scale), d.sub(zero).mul(scale)]
    }
    /// `self + other`.
    fn add(self, other: Self) -> Self;
    /// `self - other`.
    fn sub(self, other: Self) -> Self;
    /// `self * other`.
    fn mul(self, other: Self) -> Self;
    /// `a * b + self` with one rounding.
    fn fma(self, a: Self, b: Self) -> Self;
    /// Lane `i` plus lane `i + 8`, then `+ 4`, `+ 2`, `+ 1`.
    fn sum(self) -> f32;
    /// The sums of four, each as by [`Self::sum`].
    #[inline(always)]
    fn sum_each([a, b, c, d]: [Self; 4]) -> [f32; 4] {
        [a.sum(), b.sum(), c.sum(), d.sum()]
    }
}

/// Has the line at `address` brought into the cache while the processor goes on; any address will do.
#[inline(always)]
pub fn fetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint that every x86-64 has, which faults nowhere.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Something to compute on lanes.
pub trait Kernel {
    /// What comes out.
    type Out;
    /// The computation. Implementations are `#[inline(always)]`, or the compiler would not use the set's
    /// instructions.
    fn run<L: Lanes>(self) -> Self::Out;
}

/// An instruction set this machine has. Values other than `Plain` exist only after detection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Isa(Set);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Set {
    Plain,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "aarch64")]
    Neon,
}

impl Isa {
    /// Plain Rust, everywhere.
    pub const PLAIN: Isa = Isa(Set::Plain);

    /// All sets that this machine has, the fastest last.
    pub fn available() -> Vec<Isa> {
        #[allow(unused_mut)]
        let mut sets = vec![Isa(Set::Plain)];
        #[cfg(target_arch = "x86_64")]
        {
            if avx2::is_present() {
                sets.push(Isa(Set::Avx2));
            }
            if avx512::is_present() {
                sets.push(Isa(Set::Avx512));
            }
        }
        #[cfg(target_arch = "aarch64")]
        sets.push(Isa(Set::Neon));
        sets
    }

    /// The fastest set of this machine.
    pub fn best() -> Isa {
        Self::available().last().copied().unwrap_or(Isa::PLAIN)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self.0 {
            Set::Plain => "plain",
            #[cfg(target_arch = "x86_64")]
            Set::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Set::Avx512 => "avx512",
            #[cfg(target_arch = "aarch64")]
            Set::Neon => "neon",
        }
    }

    /// Runs `kernel` on this set.
    #[inline]
    pub fn run<K: Kernel>(self, kernel: K) -> K::Out {
        match self.0 {
            Set::Plain => kernel.run::<plain::Plain>(),
            // SAFETY: the value exists only where `available` found the features.
            #[cfg(target_arch = "x86_64")]
            Set::Avx2 => unsafe { avx2::run(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Set::Avx512 => unsafe { avx512::run(kernel) },
            // SAFETY: NEON is part of every aarch64.
            #[cfg(target_arch = "aarch64")]
            Set::Neon => unsafe { neon::run(kernel) },
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Every operation on one set of inputs; results as bits.
    struct All<'a> {
        a: &'a [f32; 16],
        b: &'a [f32; 16],
        bytes: &'a [u8; 64],
    }

    impl Kernel for All<'_> {
        type Out = Vec<u32>;
        #[inline(always)]
        fn run<L: Lanes>(self) -> Vec<u32> {
            let (a, b) = (L::load(self.a), L::load(self.b));
            let half = self.bytes.first_chunk().unwrap();
            let of_bytes = [L::from_f32(self.bytes), L::from_bf16(half), L::from_f16(half)];
            let codes =
                L::from_e4m3(self.bytes).into_iter().chain(L::from_u4(half)).chain(L::from_u8(self.bytes));
            let mut table = [0.0; 16];
            for (code, x) in table.iter_mut().enumerate() {
                *x = (code as f32 - self.a[0]) * self.b[0];
            }
            let factors = [L::splat(self.a[0]), L::splat(self.b[0]), L::load(&table)];
            let codes = codes.chain(L::scaled_u4(half, factors));
            let mut out = Vec::new();
            let ops = [a.add(b), a.sub(b), a.mul(b), a.fma(b, a), L::splat(self.a[3])];
            for l in ops.into_iter().chain(of_bytes).chain(codes) {
                let mut to = [0.0; 16];
                l.store(&mut to);
                // Which NaN it is may differ between instruction sets.
                out.extend(to.map(|x| if x.is_nan() { u32::MAX } else { x.to_bits() }));
            }
            out.push(a.sum().to_bits());
            out.extend(L::sum_each([a, b, a.mul(b), a.add(b)]).map(f32::to_bits));
            out
        }
    }

    proptest! {
        #[test]
        fn every_set_gives_the_bits_of_the_plain_one(
            a in prop::array::uniform16(-1e3f32..1e3),
            b in prop::array::uniform16(-1e-3f32..1e3),
            bytes in prop::array::uniform32(any::<[u8; 2]>()),
        ) {
            let bytes: [u8; 64] = bytes.concat().try_into().unwrap();
            let run = |isa: Isa| isa.run(All { a: &a, b: &b, bytes: &bytes });
            for isa in Isa::available() {
                prop_assert_eq!(run(isa), run(Isa::PLAIN), "{}", isa.name());
            }
        }
    }

    /// Sixty-four codes as numbers, in their own order.
    fn in_order<L: Lanes>(lanes: [L; 4]) -> [f32; 64] {
        let mut out = [0.0; 64];
        for (k, lanes) in lanes.into_iter().enumerate() {
            let mut sixteen = [0.0; 16];
            lanes.store(&mut sixteen);
            (0..16).for_each(|i| out[4 * i + k] = sixteen[i]);
        }
        out
    }

    #[test]
    fn four_bit_codes_stand_low_half_first() {
        struct Read(u8);
        impl Kernel for Read {
            type Out = [f32; 64];
            #[inline(always)]
            fn run<L: Lanes>(self) -> [f32; 64] {
                in_order(L::from_u4(&std::array::from_fn(|i| {
                    (i as u8).wrapping_mul(0x22).wrapping_add(self.0)
                })))
            }
        }
        for isa in Isa::available() {
            for first in [0x10, 0xf7] {
                let byte = |i: usize| (i as u8).wrapping_mul(0x22).wrapping_add(first);
                let want: [f32; 64] = std::array::from_fn(|i| f32::from(byte(i / 2) >> (4 * (i % 2)) & 15));
                assert_eq!(isa.run(Read(first)), want, "{}", isa.name());
            }
        }
    }

    #[test]
    fn bytes_are_read_in_their_order() {
        struct Read(u8);
        impl Kernel for Read {
            type Out = [f32; 64];
            #[inline(always)]
            fn run<L: Lanes>(self) -> [f32; 64] {
                in_order(L::from_u8(&std::array::from_fn(|i| i as u8 + self.0)))
            }
        }
        for isa in Isa::available() {
            for first in [0, 64, 128, 192] {
                let want: [f32; 64] = std::array::from_fn(|i| f32::from(i as u8 + first));
                assert_eq!(isa.run(Read(first)), want, "{}", isa.name());
            }
        }
    }

    #[test]
    fn every_e4m3_code_is_read_as_the_format_says() {
        struct Read(u8);
        impl Kernel for Read {
            type Out = [f32; 64];
            #[inline(always)]
            fn run<L: Lanes>(self) -> [f32; 64] {
                in_order(L::from_e4m3(&std::array::from_fn(|i| i as u8 + self.0)))
            }
        }
        for isa in Isa::available() {
            for first in [0, 64, 128, 192] {
                for (code, got) in (first..=255u8).zip(isa.run(Read(first))) {
                    let (e, m) = (i32::from(code >> 3 & 15), f32::from(code & 7));
                    let size = if e == 0 { m / 512.0 } else { (1.0 + m / 8.0) * 2f32.powi(e - 7) };
                    let want = if code < 128 { size } else { -size };
                    assert_eq!(got * 2f32.powi(120), want, "{} {code:#x}", isa.name());
                }
            }
        }
    }
}

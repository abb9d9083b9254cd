//! Rows of `left · right`, and the merge of bf16 rows, in the instruction sets of the machine.
//!
//! There is one body of each kernel; it is compiled plainly and, inlined, with AVX2 + FMA and with AVX-512.
//! Every element is summed over the rank in order with fused multiply-adds, so all forms give the same bits
//! whatever the tiling, the chunk or the machine.

use super::real::Real;

/// Columns of one packed panel of the right factor.
pub const PANEL: usize = 32;

/// Which form of the kernels is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Plain Rust: what the others are tested against, and the form on other processors.
    Scalar,
    /// AVX2 and FMA.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 F, BW, VL, DQ.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Form {
    /// The fastest form that this processor runs.
    pub fn best() -> Self {
        Self::available().last().copied().unwrap_or(Form::Scalar)
    }

    /// All forms that this processor runs, the fastest last.
    pub fn available() -> Vec<Self> {
        let mut forms = vec![Form::Scalar];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                forms.push(Form::Avx2);
                if ["avx512f", "avx512bw", "avx512vl", "avx512dq"].iter().all(|f| has(f)) {
                    forms.push(Form::Avx512);
                }
            }
        }
        forms
    }
}

#[cfg(target_arch = "x86_64")]
fn has(feature: &str) -> bool {
    match feature {
        "avx512f" => is_x86_feature_detected!("avx512f"),
        "avx512bw" => is_x86_feature_detected!("avx512bw"),
        "avx512vl" => is_x86_feature_detected!("avx512vl"),
        _ => is_x86_feature_detected!("avx512dq"),
    }
}

/// Adds `left · right` to `delta`: left [rows, rank], right packed in panels [cols / PANEL][rank][PANEL],
/// delta [rows, cols], cols a multiple of [`PANEL`].
pub fn product<T: Real>(form: Form, left: &[T], rank: usize, right: &[T], delta: &mut [T]) {
    match form {
        Form::Scalar => product_body::<T, 2>(left, rank, right, delta),
        // SAFETY: `Form::available` gives these forms only where the processor has the features.
        #[cfg(target_arch = "x86_64")]
        Form::Avx2 => unsafe { product_avx2(left, rank, right, delta) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Form::Avx512 => unsafe { product_avx512(left, rank, right, delta) },
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn product_avx2<T: Real>(left: &[T], rank: usize, right: &[T], delta: &mut [T]) {
    product_body::<T, 2>(left, rank, right, delta);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn product_avx512<T: Real>(left: &[T], rank: usize, right: &[T], delta: &mut [T]) {
    product_body::<T, 4>(left, rank, right, delta);
}

#[inline(always)]
fn product_body<T: Real, const ROWS: usize>(left: &[T], rank: usize, right: &[T], delta: &mut [T]) {
    let rows = left.len() / rank;
    let cols = delta.len() / rows.max(1);
    for (p, panel) in right.chunks_exact(rank * PANEL).enumerate() {
        let mut row = 0;
        while row + ROWS <= rows {
            tile::<T, ROWS>(&left[row * rank..], rank, panel, &mut delta[row * cols..], (cols, p * PANEL));
            row += ROWS;
        }
        while row < rows {
            tile::<T, 1>(&left[row * rank..], rank, panel, &mut delta[row * cols..], (cols, p * PANEL));
            row += 1;
        }
    }
}

/// A block of `ROWS` x `PANEL` sums, held in registers over the whole rank.
#[inline(always)]
fn tile<T: Real, const ROWS: usize>(
    left: &[T],
    rank: usize,
    panel: &[T],
    delta: &mut [T],
    (stride, at): (usize, usize),
) {
    let mut sums = [[T::ZERO; PANEL]; ROWS];
    for (r, sum) in sums.iter_mut().enumerate() {
        sum.copy_from_slice(&delta[r * stride + at..][..PANEL]);
    }
    for (j, right) in panel.chunks_exact(PANEL).enumerate() {
        for (r, sum) in sums.iter_mut().enumerate() {
            let l = left[r * rank + j];
            for (s, &x) in sum.iter_mut().zip(right) {
                *s = l.mul_add(x, *s);
            }
        }
    }
    for (r, sum) in sums.iter().enumerate() {
        delta[r * stride + at..][..PANEL].copy_from_slice(sum);
    }
}

/// Figures over merged elements.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Sums {
    /// Σ delta².
    pub delta: f64,
    /// Σ base².
    pub base: f64,
    /// Elements whose bits changed.
    pub changed: u64,
    /// Largest |delta|.
    pub largest: f32,
    /// True where an output is NaN or infinite.
    pub broken: bool,
}

const LANES: usize = 16;

/// What the base's bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Base {
    /// bf16.
    Bf16,
    /// f32, such as dequantized weights.
    F32,
}

/// One bf16 row: `out = round(base + delta)`, to nearest even, and the figures about it.
pub fn merge_bf16(form: Form, base: (Base, &[u8]), delta: &[f32], out: &mut [u8]) -> Sums {
    match form {
        Form::Scalar => merge_bf16_body(base, delta, out),
        // SAFETY: `Form::available` gives these forms only where the processor has the features.
        #[cfg(target_arch = "x86_64")]
        Form::Avx2 => unsafe { merge_bf16_avx2(base, delta, out) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Form::Avx512 => unsafe { merge_bf16_avx512(base, delta, out) },
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn merge_bf16_avx2(base: (Base, &[u8]), delta: &[f32], out: &mut [u8]) -> Sums {
    merge_bf16_body(base, delta, out)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn merge_bf16_avx512(base: (Base, &[u8]), delta: &[f32], out: &mut [u8]) -> Sums {
    merge_bf16_body(base, delta, out)
}

#[inline(always)]
fn merge_bf16_body((kind, base): (Base, &[u8]), delta: &[f32], out: &mut [u8]) -> Sums {
    match kind {
        Base::Bf16 => merge_row::<2>(base, delta, out),
        Base::F32 => merge_row::<4>(base, delta, out),
    }
}

/// `WIDTH` is the number of bytes of a base element. Sums are kept in [`LANES`] lanes (element i in lane
/// i mod 16) and folded in order at the end of the row, which fixes the order for every form.
#[inline(always)]
fn merge_row<const WIDTH: usize>(base: &[u8], delta: &[f32], out: &mut [u8]) -> Sums {
    let mut lanes = Lanes::default();
    let whole = out.len() / (2 * LANES) * LANES;
    let blocks = base.chunks_exact(WIDTH * LANES).zip(delta.chunks_exact(LANES));
    for ((b, d), o) in blocks.zip(out.chunks_exact_mut(2 * LANES)) {
        lanes.block::<WIDTH>(b, d, o);
    }
    // The end of the row, filled up with zeros: they change no figure.
    let rest = out.len() / 2 - whole;
    if rest > 0 {
        let (mut b, mut d, mut o) = ([0u8; 4 * LANES], [0f32; LANES], [0u8; 2 * LANES]);
        b[..WIDTH * rest].copy_from_slice(&base[WIDTH * whole..]);
        d[..rest].copy_from_slice(&delta[whole..whole + rest]);
        lanes.block::<WIDTH>(&b, &d, &mut o);
        out[2 * whole..].copy_from_slice(&o[..2 * rest]);
    }
    lanes.fold()
}

#[derive(Default)]
struct Lanes {
    delta: [f32; LANES],
    base: [f32; LANES],
    changed: [u32; LANES],
    largest: [f32; LANES],
    broken: [u32; LANES],
}

impl Lanes {
    #[inline(always)]
    fn block<const WIDTH: usize>(&mut self, base: &[u8], delta: &[f32], out: &mut [u8]) {
        for i in 0..LANES {
            let (b, old) = match WIDTH {
                2 => {
                    let bits = u32::from(u16::from_le_bytes([base[2 * i], base[2 * i + 1]]));
                    (f32::from_bits(bits << 16), bits)
                }
                _ => {
                    let at = 4 * i;
                    let b = f32::from_le_bytes([base[at], base[at + 1], base[at + 2], base[at + 3]]);
                    (b, bf16_bits(b))
                }
            };
            let d = delta[i];
            let new = bf16_bits(b + d);
            self.changed[i] += u32::from(new != old);
            self.broken[i] |= u32::from(new & 0x7f80 == 0x7f80);
            self.delta[i] = d.mul_add(d, self.delta[i]);
            self.base[i] = b.mul_add(b, self.base[i]);
            let size = d.abs();
            self.largest[i] = if size > self.largest[i] { size } else { self.largest[i] };
            [out[2 * i], out[2 * i + 1]] = (new as u16).to_le_bytes();
        }
    }

    #[inline(always)]
    fn fold(self) -> Sums {
        Sums {
            delta: self.delta.iter().map(|&x| f64::from(x)).sum(),
            base: self.base.iter().map(|&x| f64::from(x)).sum(),
            changed: self.changed.iter().map(|&x| u64::from(x)).sum(),
            largest: self.largest.iter().fold(0.0, |a, &b| if b > a { b } else { a }),
            broken: self.broken.iter().any(|&b| b != 0),
        }
    }
}

/// f32 to bf16, to nearest even, in the low half of the result. NaN stays NaN.
#[inline(always)]
fn bf16_bits(v: f32) -> u32 {
    let bits = v.to_bits();
    let rounded = (bits.wrapping_add(0x7fff).wrapping_add((bits >> 16) & 1)) >> 16;
    // Adding could carry a NaN's payload away: keep its top, set the quiet bit.
    let nan = (bits >> 16) | 0x40;
    if bits & 0x7fff_ffff > 0x7f80_0000 { nan } else { rounded }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn values(n: usize, seed: u32) -> Vec<f32> {
        let mut x = seed | 1;
        (0..n)
            .map(|_| {
                x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (x >> 8) as f32 / 8_388_608.0 - 1.0
            })
            .collect()
    }

    fn packed_product<T: Real>(form: Form, rows: usize, rank: usize) -> Vec<T> {
        let cols = 3 * PANEL;
        let of = |v: Vec<f32>| v.into_iter().map(|x| T::of(f64::from(x))).collect::<Vec<T>>();
        let (left, right) = (of(values(rows * rank, 7)), of(values(cols * rank, 9)));
        let mut delta = of(values(rows * cols, 11));
        product(form, &left, rank, &right, &mut delta);
        delta
    }

    #[test]
    fn all_forms_of_the_product_give_the_same_bits() {
        for (rows, rank) in [(1, 1), (2, 4), (5, 7), (9, 16), (3, 64)] {
            for form in Form::available() {
                let want = packed_product::<f32>(Form::Scalar, rows, rank);
                assert_eq!(want, packed_product::<f32>(form, rows, rank), "{form:?} f32");
                let want = packed_product::<f64>(Form::Scalar, rows, rank);
                assert_eq!(want, packed_product::<f64>(form, rows, rank), "{form:?} f64");
            }
        }
    }

    #[test]
    fn product_sums_over_the_rank_in_order() {
        let (rank, left) = (3, [2.0f64, 3.0, 4.0]);
        let right: Vec<f64> = (0..3 * PANEL).map(|i| i as f64).collect();
        let mut delta = vec![1.0; PANEL];
        product(Form::best(), &left, rank, &right, &mut delta);
        for (c, d) in delta.iter().enumerate() {
            assert_eq!(*d, 1.0 + 2.0 * right[c] + 3.0 * right[PANEL + c] + 4.0 * right[2 * PANEL + c]);
        }
    }

    #[test]
    fn all_forms_of_the_merge_give_the_same_bits_and_figures() {
        for n in [1, 15, 16, 17, 100] {
            let values_of = values(n, 3);
            let narrow: Vec<u8> =
                values_of.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect();
            let wide: Vec<u8> = values_of.iter().flat_map(|v| v.to_le_bytes()).collect();
            let delta = values(n.next_multiple_of(PANEL), 5);
            for base in [(Base::Bf16, &narrow[..]), (Base::F32, &wide[..])] {
                let mut want = vec![0; 2 * n];
                let sums = merge_bf16(Form::Scalar, base, &delta, &mut want);
                for form in Form::available() {
                    let mut got = vec![0; 2 * n];
                    assert_eq!(merge_bf16(form, base, &delta, &mut got), sums, "{form:?}");
                    assert_eq!(want, got);
                }
            }
        }
    }

    #[test]
    fn f32_base_is_rounded_once_after_the_sum() {
        let base: Vec<u8> = [1.0f32 + f32::powi(2.0, -9)].iter().flat_map(|v| v.to_le_bytes()).collect();
        let mut out = [0; 2];
        let delta = [f32::powi(2.0, -9) + f32::powi(2.0, -20); PANEL];
        let sums = merge_bf16(Form::best(), (Base::F32, &base), &delta, &mut out);
        assert_eq!((out, sums.changed), (0x3f81u16.to_le_bytes(), 1));
    }

    #[test]
    fn overflow_is_marked() {
        let base = half::bf16::MAX.to_le_bytes();
        let sums = merge_bf16(Form::best(), (Base::Bf16, &base), &[f32::MAX; PANEL], &mut [0; 2]);
        assert!(sums.broken);
    }

    proptest! {
        #[test]
        fn rounding_is_that_of_half(bits: u32) {
            let v = f32::from_bits(bits);
            prop_assert_eq!(bf16_bits(v) as u16, half::bf16::from_f32(v).to_bits());
        }
    }
}

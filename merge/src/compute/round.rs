//! The end of a merge, row by row: base plus change, rounded once, and the figures about it.

use verify::Dtype;

use super::form::{Form, Kernel};
use super::real::{Bf16, F16, F32, Stored};

/// Figures over the elements of a row.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Sums {
    /// Σ (new - old)², before rounding.
    pub delta: f64,
    /// Σ old².
    pub base: f64,
    /// Elements whose stored value changed.
    pub changed: u64,
    /// Largest |new - old|.
    pub largest: f64,
    /// True where an output is NaN or infinite.
    pub broken: bool,
}

/// Bytes and what they are: BF16, F16 or F32.
pub type Row<'a> = (Dtype, &'a [u8]);

/// `row = bf16(row + delta)` in its place, the row in BF16, the sum in f32.
pub fn merge_bf16(form: Form, row: &mut [u8], delta: &[f32]) -> Sums {
    form.run(MergeInPlace { row, delta })
}

/// `out = bf16(base + delta)`, the base in F32, the sum in f32.
pub fn merge_f32_to_bf16(form: Form, base: &[u8], delta: &[f32], out: &mut [u8]) -> Sums {
    form.run(Merge { base, delta, out })
}

/// `sums += source`.
pub fn add(form: Form, (dtype, source): Row<'_>, sums: &mut [f64]) {
    match dtype {
        Dtype::BF16 => form.run(Add { source, sums, stored: Bf16 }),
        Dtype::F16 => form.run(Add { source, sums, stored: F16 }),
        _ => form.run(Add { source, sums, stored: F32 }),
    }
}

/// `out = round(values)`, compared with the row of the base.
pub fn finish(form: Form, values: &[f64], (old, base): Row<'_>, (new, out): (Dtype, &mut [u8])) -> Sums {
    match old {
        Dtype::BF16 => finish_from(form, (values, base, Bf16), (new, out)),
        Dtype::F16 => finish_from(form, (values, base, F16), (new, out)),
        _ => finish_from(form, (values, base, F32), (new, out)),
    }
}

fn finish_from<B: Stored>(
    form: Form,
    (values, base, old): (&[f64], &[u8], B),
    (new, out): (Dtype, &mut [u8]),
) -> Sums {
    match new {
        Dtype::BF16 => form.run(Finish { values, base, out, stored: (old, Bf16) }),
        Dtype::F16 => form.run(Finish { values, base, out, stored: (old, F16) }),
        _ => form.run(Finish { values, base, out, stored: (old, F32) }),
    }
}

/// Sums are kept in lanes (element i in lane i mod 16) and folded in order at the end of the row, which
/// fixes the order for every form.
const LANES: usize = 16;

struct MergeInPlace<'a> {
    row: &'a mut [u8],
    delta: &'a [f32],
}

impl Kernel for MergeInPlace<'_> {
    type Out = Sums;

    #[inline(always)]
    fn run<const ROWS: usize>(self) -> Sums {
        let MergeInPlace { row, delta } = self;
        let mut lanes = MergeLanes::default();
        let mut base = [0u8; 2 * LANES];
        let whole = row.len() / (2 * LANES) * LANES;
        for (block, d) in row.chunks_exact_mut(2 * LANES).zip(delta.chunks_exact(LANES)) {
            base.copy_from_slice(block);
            lanes.block::<Bf16>(&base, d, block);
        }
        let rest = &mut row[2 * whole..];
        base[..rest.len()].copy_from_slice(rest);
        lanes.rest::<Bf16>(&base[..rest.len()], &delta[whole..], rest);
        lanes.fold()
    }
}

struct Merge<'a> {
    base: &'a [u8],
    delta: &'a [f32],
    out: &'a mut [u8],
}

impl Kernel for Merge<'_> {
    type Out = Sums;

    #[inline(always)]
    fn run<const ROWS: usize>(self) -> Sums {
        let Merge { base, delta, out } = self;
        let mut lanes = MergeLanes::default();
        let whole = out.len() / (2 * LANES) * LANES;
        let blocks = base.chunks_exact(4 * LANES).zip(delta.chunks_exact(LANES));
        for ((b, d), o) in blocks.zip(out.chunks_exact_mut(2 * LANES)) {
            lanes.block::<F32>(b, d, o);
        }
        lanes.rest::<F32>(&base[4 * whole..], &delta[whole..], &mut out[2 * whole..]);
        lanes.fold()
    }
}

#[derive(Default)]
struct MergeLanes {
    delta: [f32; LANES],
    base: [f32; LANES],
    changed: [u32; LANES],
    largest: [f32; LANES],
    broken: [u32; LANES],
}

impl MergeLanes {
    #[inline(always)]
    fn block<B: Stored>(&mut self, base: &[u8], delta: &[f32], out: &mut [u8]) {
        for i in 0..LANES {
            let b = B::load(&base[B::BYTES * i..][..B::BYTES]);
            let d = delta[i];
            let new = Bf16::bits(b + d);
            self.changed[i] += u32::from(new != Bf16::bits(b));
            self.broken[i] |= u32::from(Bf16::is_broken(new));
            self.delta[i] = d.mul_add(d, self.delta[i]);
            self.base[i] = b.mul_add(b, self.base[i]);
            let size = d.abs();
            self.largest[i] = if size > self.largest[i] { size } else { self.largest[i] };
            [out[2 * i], out[2 * i + 1]] = (new as u16).to_le_bytes();
        }
    }

    /// The end of a row, filled up with zeros: they change no figure.
    #[inline(always)]
    fn rest<B: Stored>(&mut self, base: &[u8], delta: &[f32], out: &mut [u8]) {
        let count = out.len() / 2;
        if count > 0 {
            let (mut b, mut d, mut o) = ([0u8; 4 * LANES], [0f32; LANES], [0u8; 2 * LANES]);
            b[..base.len()].copy_from_slice(base);
            d[..count].copy_from_slice(&delta[..count]);
            self.block::<B>(&b, &d, &mut o);
            out.copy_from_slice(&o[..2 * count]);
        }
    }

    #[inline(always)]
    fn fold(self) -> Sums {
        let mut sums = Sums::default();
        for i in 0..LANES {
            sums.delta += f64::from(self.delta[i]);
            sums.base += f64::from(self.base[i]);
            sums.changed += u64::from(self.changed[i]);
            sums.largest = sums.largest.max(f64::from(self.largest[i]));
            sums.broken |= self.broken[i] != 0;
        }
        sums
    }
}

struct Add<'a, S> {
    source: &'a [u8],
    sums: &'a mut [f64],
    #[allow(dead_code, reason = "names the type")]
    stored: S,
}

impl<S: Stored> Kernel for Add<'_, S> {
    type Out = ();

    #[inline(always)]
    fn run<const ROWS: usize>(self) {
        for (sum, bytes) in self.sums.iter_mut().zip(self.source.chunks_exact(S::BYTES)) {
            *sum += f64::from(S::load(bytes));
        }
    }
}

struct Finish<'a, B, O> {
    values: &'a [f64],
    base: &'a [u8],
    out: &'a mut [u8],
    #[allow(dead_code, reason = "names the types")]
    stored: (B, O),
}

impl<B: Stored, O: Stored> Kernel for Finish<'_, B, O> {
    type Out = Sums;

    #[inline(always)]
    fn run<const ROWS: usize>(self) -> Sums {
        let Finish { values, base, out, .. } = self;
        let mut lanes = FinishLanes::default();
        let whole = values.len() / LANES * LANES;
        let blocks = values.chunks_exact(LANES).zip(base.chunks_exact(B::BYTES * LANES));
        for ((v, b), o) in blocks.zip(out.chunks_exact_mut(O::BYTES * LANES)) {
            lanes.block::<B, O>(v, b, o);
        }
        let rest = values.len() - whole;
        if rest > 0 {
            let (mut v, mut b, mut o) = ([0f64; LANES], [0u8; 4 * LANES], [0u8; 4 * LANES]);
            v[..rest].copy_from_slice(&values[whole..]);
            b[..B::BYTES * rest].copy_from_slice(&base[B::BYTES * whole..]);
            lanes.block::<B, O>(&v, &b, &mut o);
            out[O::BYTES * whole..].copy_from_slice(&o[..O::BYTES * rest]);
        }
        lanes.fold()
    }
}

#[derive(Default)]
struct FinishLanes {
    delta: [f64; LANES],
    base: [f64; LANES],
    changed: [u32; LANES],
    largest: [f64; LANES],
    broken: [u32; LANES],
}

impl FinishLanes {
    #[inline(always)]
    fn block<B: Stored, O: Stored>(&mut self, values: &[f64], base: &[u8], out: &mut [u8]) {
        for i in 0..LANES {
            let b = f64::from(B::load(&base[B::BYTES * i..][..B::BYTES]));
            let d = values[i] - b;
            let new = O::bits_of_f64(values[i]);
            self.changed[i] += u32::from(new != O::bits_of_f64(b));
            self.broken[i] |= u32::from(O::is_broken(new));
            self.delta[i] = d.mul_add(d, self.delta[i]);
            self.base[i] = b.mul_add(b, self.base[i]);
            let size = d.abs();
            self.largest[i] = if size > self.largest[i] { size } else { self.largest[i] };
            match O::BYTES {
                2 => [out[2 * i], out[2 * i + 1]] = (new as u16).to_le_bytes(),
                _ => out[4 * i..][..4].copy_from_slice(&new.to_le_bytes()),
            }
        }
    }

    #[inline(always)]
    fn fold(self) -> Sums {
        let mut sums = Sums::default();
        for i in 0..LANES {
            sums.delta += self.delta[i];
            sums.base += self.base[i];
            sums.changed += u64::from(self.changed[i]);
            sums.largest = sums.largest.max(self.largest[i]);
            sums.broken |= self.broken[i] != 0;
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compute::real::{decode, encode};
    use crate::compute::values;

    const FLOATS: [Dtype; 3] = [Dtype::BF16, Dtype::F16, Dtype::F32];

    fn stored(values: &[f32], dtype: Dtype) -> Vec<u8> {
        let mut out = Vec::new();
        values.iter().for_each(|v| encode(f64::from(*v), dtype, &mut out));
        out
    }

    #[test]
    fn all_forms_of_the_merge_give_the_same_bits_and_figures() {
        for n in [1, 15, 16, 17, 100] {
            let (base, delta) = (values(n, 3), values(n, 5));
            let (narrow, wide) = (stored(&base, Dtype::BF16), stored(&base, Dtype::F32));
            let run = |form| {
                let (mut row, mut out) = (narrow.clone(), vec![0; 2 * n]);
                let of_row = merge_bf16(form, &mut row, &delta);
                (of_row, row, merge_f32_to_bf16(form, &wide, &delta, &mut out), out)
            };
            Form::available().into_iter().for_each(|f| assert_eq!(run(f), run(Form::Scalar), "{f:?}"));
        }
    }

    #[test]
    fn merge_in_place_is_the_exact_merge_where_f32_is_exact() {
        let (base, delta) = ([1.0, -2.5, 0.0, 100.0], [0.25f32, 2.5, -1.0, 0.001]);
        let mut row = stored(&base, Dtype::BF16);
        let values: Vec<f64> = base.iter().zip(&delta).map(|(b, d)| f64::from(*b) + f64::from(*d)).collect();
        let mut want = vec![0; 8];
        let exact = finish(Form::Scalar, &values, (Dtype::BF16, &row), (Dtype::BF16, &mut want));
        let sums = merge_bf16(Form::best(), &mut row, &delta);
        assert_eq!((row, sums.changed, exact.changed), (want, 3, 3));
    }

    #[test]
    fn all_forms_of_the_exact_merge_give_the_same_bits_and_figures() {
        for (old, new) in FLOATS.into_iter().flat_map(|o| FLOATS.map(|n| (o, n))) {
            let base = stored(&values(37, 3), old);
            let run = |form| {
                let mut sums: Vec<f64> = values(37, 5).into_iter().map(f64::from).collect();
                add(form, (old, &base), &mut sums);
                let mut out = vec![0; 37 * new.bits() / 8];
                let figures = finish(form, &sums, (old, &base), (new, &mut out));
                (sums, out, figures)
            };
            Form::available()
                .into_iter()
                .for_each(|f| assert_eq!(run(f), run(Form::Scalar), "{f:?} {old} {new}"));
        }
    }

    #[test]
    fn figures_are_those_of_the_row() {
        let base = stored(&[3.0, 4.0], Dtype::F32);
        let mut out = [0; 4];
        let sums = finish(Form::best(), &[3.0, 2.0], (Dtype::F32, &base), (Dtype::BF16, &mut out));
        assert_eq!(decode(&out, Dtype::BF16), [3.0, 2.0]);
        assert_eq!(sums, Sums { delta: 4.0, base: 25.0, changed: 1, largest: 2.0, broken: false });
    }

    #[test]
    fn overflow_is_marked() {
        let mut row = half::bf16::MAX.to_le_bytes();
        assert!(merge_bf16(Form::best(), &mut row, &[f32::MAX]).broken);
        let sums = finish(Form::best(), &[70000.0], (Dtype::F16, &[0; 2]), (Dtype::F16, &mut [0; 2]));
        assert!(sums.broken);
    }

    #[test]
    fn f32_base_is_rounded_once_after_the_sum() {
        let base = stored(&[1.0 + f32::powi(2.0, -9)], Dtype::F32);
        let (mut out, delta) = ([0; 2], [f32::powi(2.0, -9) + f32::powi(2.0, -20)]);
        let sums = merge_f32_to_bf16(Form::best(), &base, &delta, &mut out);
        assert_eq!((out, sums.changed), (0x3f81u16.to_le_bytes(), 1));
    }
}

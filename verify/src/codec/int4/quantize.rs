//! Round to nearest, group by group, by the rules of compressed-tensors and of AutoAWQ.
//!
//! A scale is rounded to the type that it is stored in before codes are computed, so that codes fit what loaders
//! multiply by; the zero is found with the scale before that, as both libraries do.

use std::fmt;

use half::{bf16, f16};

use super::Bits;
use crate::codec::Float;
use crate::codec::simd::{Kernel, Tier};

/// How groups are quantized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// Which zeros there are.
    pub zeros: Zeros,
    /// Width of codes.
    pub bits: Bits,
    /// The type that scales are stored in.
    pub scales: Float,
}

/// Which zeros there are, and whose formula is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Zeros {
    /// compressed-tensors, symmetric: the zero is the middle code and is not stored. `scale = absmax / 7.5`.
    Middle,
    /// compressed-tensors, asymmetric: `scale = (hi - lo) / 15`, `code = round(w / scale + zero)`.
    Stored,
    /// AutoAWQ: `scale = max(hi - lo, 1e-5) / 15`, `code = round(w / scale) + zero`.
    AutoAwq,
}

/// What the weights of a group share.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Group {
    /// As it is stored.
    pub scale: f32,
    /// The code of zero.
    pub zero: u8,
}

/// A matrix in codes.
#[derive(Debug, Clone, PartialEq)]
pub struct Quantized {
    /// `[rows, cols]`.
    pub codes: Vec<u8>,
    /// `[rows, cols / group]`, numbers that [`Rule::scales`] holds exactly.
    pub scales: Vec<f32>,
    /// `[rows, cols / group]`.
    pub zeros: Vec<u8>,
}

/// Weights that cannot be quantized.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Refused {
    /// An element is NaN or infinite.
    NotFinite {
        /// Its index in what was given.
        at: usize,
    },
    /// A group so wide that its scale, or a number that it stands for, is infinite.
    TooWide {
        /// Index of the group's first element in what was given.
        at: usize,
    },
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::NotFinite { at } => write!(f, "element {at} is not finite"),
            Refused::TooWide { at } => {
                write!(f, "the group from element {at} on needs a scale beyond its type")
            }
        }
    }
}

impl Quantized {
    /// The numbers that loaders make of it, `[rows, cols]`, in groups of `group` columns.
    pub fn values(&self, group: usize) -> Vec<f32> {
        let groups = self.codes.chunks(group.max(1)).zip(self.scales.iter().zip(&self.zeros));
        groups
            .flat_map(|(codes, (&scale, &zero))| {
                codes.iter().map(move |&code| Group { scale, zero }.value(code))
            })
            .collect()
    }
}

impl Group {
    /// The number that a code stands for.
    pub fn value(self, code: u8) -> f32 {
        f32::from(i16::from(code) - i16::from(self.zero)) * self.scale
    }
}

/// Quantizes whole rows: `weights` are any number of groups after one another (columns are a multiple of `group`).
///
/// # Errors
/// [`Refused`] for the first group that cannot be quantized.
pub fn quantize(weights: &[f32], group: usize, rule: Rule) -> Result<Quantized, Refused> {
    let groups = weights.len() / group.max(1);
    let mut out = Quantized {
        codes: vec![0; weights.len()],
        scales: Vec::with_capacity(groups),
        zeros: Vec::with_capacity(groups),
    };
    Tier::best().run(Encode { weights, group, rule, out: &mut out })?;
    Ok(out)
}

/// Quantizes one group into `codes`, which has the same length.
///
/// # Errors
/// [`Refused`].
pub fn quantize_group(weights: &[f32], rule: Rule, codes: &mut [u8]) -> Result<Group, Refused> {
    Tier::best().run(EncodeGroup { weights, rule, codes })
}

/// Replaces weights by the numbers that they have once quantized: what a search for scales compares. The same
/// numbers as [`quantize`] and [`Quantized::values`], without codes.
///
/// # Errors
/// [`Refused`]; groups before the refused one are already replaced.
pub fn round(weights: &mut [f32], group: usize, rule: Rule) -> Result<(), Refused> {
    Tier::best().run(Round { weights, group, rule })
}

struct Encode<'a> {
    weights: &'a [f32],
    group: usize,
    rule: Rule,
    out: &'a mut Quantized,
}

impl Kernel for Encode<'_> {
    type Out = Result<(), Refused>;

    #[inline(always)]
    fn run(self) -> Self::Out {
        let size = self.group.max(1);
        let groups = self.weights.chunks(size).zip(self.out.codes.chunks_mut(size)).enumerate();
        for (number, (weights, codes)) in groups {
            let group = self.rule.group(weights).map_err(|e| e.moved_by(number * size))?;
            self.rule.encode(weights, group, codes);
            self.out.scales.push(group.scale);
            self.out.zeros.push(group.zero);
        }
        Ok(())
    }
}

struct EncodeGroup<'a> {
    weights: &'a [f32],
    rule: Rule,
    codes: &'a mut [u8],
}

impl Kernel for EncodeGroup<'_> {
    type Out = Result<Group, Refused>;

    #[inline(always)]
    fn run(self) -> Self::Out {
        let group = self.rule.group(self.weights)?;
        self.rule.encode(self.weights, group, self.codes);
        Ok(group)
    }
}

struct Round<'a> {
    weights: &'a mut [f32],
    group: usize,
    rule: Rule,
}

impl Kernel for Round<'_> {
    type Out = Result<(), Refused>;

    #[inline(always)]
    fn run(self) -> Self::Out {
        let size = self.group.max(1);
        for (number, weights) in self.weights.chunks_mut(size).enumerate() {
            let group = self.rule.group(weights).map_err(|e| e.moved_by(number * size))?;
            let coder = self.rule.coder(group);
            let zero = f32::from(group.zero);
            for w in weights {
                // Codes are whole numbers below 256: exact in f32.
                *w = (f32::from(coder.code(*w)) - zero) * group.scale;
            }
        }
        Ok(())
    }
}

impl Refused {
    fn moved_by(self, before: usize) -> Self {
        match self {
            Refused::NotFinite { at } => Refused::NotFinite { at: at + before },
            Refused::TooWide { at } => Refused::TooWide { at: at + before },
        }
    }
}

impl Rule {
    /// Scale and zero of a group.
    #[inline(always)]
    fn group(self, weights: &[f32]) -> Result<Group, Refused> {
        let (lo, hi) = extremes(weights)?;
        let (max, middle) = (f32::from(self.bits.max()), self.bits.middle());
        let scale = match self.zeros {
            Zeros::Middle => hi.max(-lo) / (max / 2.0),
            Zeros::Stored => (hi - lo) / max,
            Zeros::AutoAwq => (hi - lo).max(1e-5) / max,
        };
        let stored = stored(scale, self.scales);
        // Also where the outermost code's number would be infinite.
        if (stored * max).is_infinite() {
            return Err(Refused::TooWide { at: 0 });
        }
        if self.zeros != Zeros::AutoAwq && stored < smallest(self.scales) {
            // As the library does for zeros: any positive scale is right, and 0 would be divided by.
            return Ok(Group { scale: epsilon(self.scales), zero: middle });
        }
        let low = f32::from(middle);
        let zero = match self.zeros {
            Zeros::Middle => low,
            Zeros::Stored => (-low - lo / scale).round_ties_even().clamp(-low, max - low) + low,
            Zeros::AutoAwq => (-(lo / scale).round_ties_even()).clamp(0.0, max),
        };
        Ok(Group { scale: stored, zero: zero as u8 })
    }

    #[inline(always)]
    fn encode(self, weights: &[f32], group: Group, codes: &mut [u8]) {
        let coder = self.coder(group);
        for (code, &w) in codes.iter_mut().zip(weights) {
            *code = coder.code(w);
        }
    }

    #[inline(always)]
    fn coder(self, group: Group) -> Coder {
        let (zero, max, low) =
            (f32::from(group.zero), f32::from(self.bits.max()), f32::from(self.bits.middle()));
        match self.zeros {
            // The sum is rounded where compressed-tensors rounds it: counted from -8.
            Zeros::Middle | Zeros::Stored => Coder {
                scale: group.scale,
                before: zero - low,
                after: 0.0,
                lowest: -low,
                highest: max - low,
                shift: self.bits.middle(),
            },
            Zeros::AutoAwq => {
                Coder { scale: group.scale, before: 0.0, after: zero, lowest: 0.0, highest: max, shift: 0 }
            }
        }
    }
}

/// `clamp(round(w / scale + before) + after, lowest, highest) + shift`, without branches.
struct Coder {
    scale: f32,
    before: f32,
    after: f32,
    lowest: f32,
    highest: f32,
    shift: u8,
}

impl Coder {
    #[inline(always)]
    fn code(&self, w: f32) -> u8 {
        // One unit in the last place of this number is 1: adding rounds to a whole number, ties to even, and leaves
        // it in the low bits. Quotients are far below 2^22: a scale is never much less than its share of the group.
        const WHOLE: f32 = 12_582_912.0;
        let whole = ((w / self.scale + self.before) + WHOLE) - WHOLE + self.after;
        let low = if whole < self.lowest { self.lowest } else { whole };
        let within = if low > self.highest { self.highest } else { low };
        ((within + WHOLE).to_bits() as u8).wrapping_add(self.shift)
    }
}

/// The least and the largest of a group and zero.
#[inline(always)]
fn extremes(weights: &[f32]) -> Result<(f32, f32), Refused> {
    const LANES: usize = 16;
    let (mut lo, mut hi, mut magnitude) = ([0.0f32; LANES], [0.0f32; LANES], [0u32; LANES]);
    let (whole, rest) = weights.as_chunks::<LANES>();
    let mut last = [0.0; LANES];
    last[..rest.len()].copy_from_slice(rest);
    for values in whole.iter().chain([&last]) {
        for i in 0..LANES {
            let v = values[i];
            lo[i] = if v < lo[i] { v } else { lo[i] };
            hi[i] = if v > hi[i] { v } else { hi[i] };
            magnitude[i] = magnitude[i].max(v.to_bits() & 0x7fff_ffff);
        }
    }
    // Magnitudes order as integers, with infinity and NaN on top.
    if magnitude.iter().any(|&m| m >= f32::INFINITY.to_bits()) {
        let at = weights.iter().position(|v| !v.is_finite()).unwrap_or_default();
        return Err(Refused::NotFinite { at });
    }
    Ok((lo.into_iter().fold(0.0, f32::min), hi.into_iter().fold(0.0, f32::max)))
}

/// `scale` as its type holds it.
#[inline(always)]
fn stored(scale: f32, float: Float) -> f32 {
    match float {
        Float::F32 => scale,
        Float::F16 => f16::from_f32(scale).to_f32(),
        Float::BF16 => bf16::from_f32(scale).to_f32(),
    }
}

/// Scales below it have too few bits to divide by; their groups are zero for all that a model can tell.
fn smallest(float: Float) -> f32 {
    match float {
        Float::F32 | Float::BF16 => f32::MIN_POSITIVE,
        // 16 steps of the smallest half.
        Float::F16 => 1.0 / (1 << 20) as f32,
    }
}

/// The distance from 1 to the next number, which compressed-tensors writes as the scale of a group of zeros.
fn epsilon(float: Float) -> f32 {
    match float {
        Float::F32 => f32::EPSILON,
        Float::F16 => f16::EPSILON.to_f32(),
        Float::BF16 => bf16::EPSILON.to_f32(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rule(zeros: Zeros, bits: Bits, scales: Float) -> Rule {
        Rule { zeros, bits, scales }
    }

    const ZEROS: [Zeros; 3] = [Zeros::Middle, Zeros::Stored, Zeros::AutoAwq];
    const FLOATS: [Float; 3] = [Float::F32, Float::F16, Float::BF16];

    #[test]
    fn formulas_are_those_of_the_libraries() {
        let one = |weights: &[f32], zeros| {
            let mut codes = vec![0; weights.len()];
            let group = quantize_group(weights, rule(zeros, Bits::Four, Float::F32), &mut codes).unwrap();
            (group.scale, group.zero, codes)
        };
        // Symmetric: absmax / 7.5; 7.5 steps round to 8 and are held at 7.
        assert_eq!(one(&[-7.5, 7.5, 0.4, 2.5, 3.5], Zeros::Middle), (1.0, 8, vec![0, 15, 8, 10, 12]));
        // Asymmetric: the sum with the zero is rounded, so 2.5 - 5 goes to -2 (code 6), not to 2 - 5.
        assert_eq!(one(&[-3.0, 12.0, 2.5, 0.0], Zeros::Stored), (1.0, 3, vec![0, 15, 6, 3]));
        // AutoAWQ: the quotient is rounded, then the zero is added.
        assert_eq!(one(&[-3.0, 12.0, 2.5, 0.0], Zeros::AutoAwq), (1.0, 3, vec![0, 15, 5, 3]));
        // Zero belongs to every group, so that it stays exact.
        assert_eq!(one(&[15.0, 10.0], Zeros::Stored), (1.0, 0, vec![15, 10]));
        assert_eq!(one(&[-15.0, -10.0], Zeros::AutoAwq), (1.0, 15, vec![0, 5]));
        let mut codes = [0; 2];
        let eight = rule(Zeros::Middle, Bits::Eight, Float::F32);
        let group = quantize_group(&[127.5, -127.5], eight, &mut codes).unwrap();
        assert_eq!((group.scale, group.zero, codes), (1.0, 128, [255, 0]));
    }

    #[test]
    fn group_of_zeros_has_a_positive_scale_and_stays_zero() {
        for (float, epsilon) in FLOATS.into_iter().zip([f32::EPSILON, 1.0 / 1024.0, 1.0 / 128.0]) {
            for zeros in ZEROS {
                let q = quantize(&[0.0, -0.0, 0.0], 3, rule(zeros, Bits::Four, float)).unwrap();
                assert_eq!(q.values(3), [0.0; 3]);
                assert!(q.scales[0] > 0.0);
                if zeros != Zeros::AutoAwq {
                    assert_eq!(q.scales, [epsilon]);
                }
            }
        }
    }

    #[test]
    fn what_is_not_finite_is_refused_with_its_place() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN] {
            for at in [0, 15, 16, 31, 33, 70] {
                let mut weights = vec![1.0; 72];
                weights[at] = bad;
                for zeros in ZEROS {
                    let rule = rule(zeros, Bits::Four, Float::BF16);
                    assert_eq!(quantize(&weights, 36, rule), Err(Refused::NotFinite { at }));
                    assert_eq!(round(&mut weights.clone(), 36, rule), Err(Refused::NotFinite { at }));
                }
            }
        }
    }

    #[test]
    fn scale_beyond_its_type_is_refused() {
        let mut weights = vec![1.0; 8];
        weights[5] = 65_520.0 * 7.5;
        let f16 = rule(Zeros::Middle, Bits::Four, Float::F16);
        assert_eq!(quantize(&weights, 4, f16), Err(Refused::TooWide { at: 4 }));
        weights[5] = 65_504.0 * 7.5;
        assert_eq!(quantize(&weights, 4, f16).unwrap().scales[1], 65_504.0);
        let wide = [f32::MAX, f32::MIN];
        for zeros in ZEROS {
            let refused = quantize(&wide, 2, rule(zeros, Bits::Four, Float::F32));
            assert_eq!(refused, Err(Refused::TooWide { at: 0 }));
        }
    }

    /// Plainly, as the formulas are written.
    fn plain(w: f32, group: Group, rule: Rule) -> u8 {
        let (max, middle) = (f32::from(rule.bits.max()), f32::from(rule.bits.middle()));
        let zero = f32::from(group.zero);
        match rule.zeros {
            Zeros::AutoAwq => ((w / group.scale).round_ties_even() + zero).clamp(0.0, max) as u8,
            _ => {
                let q = (w / group.scale + (zero - middle)).round_ties_even().clamp(-middle, max - middle);
                (q + middle) as u8
            }
        }
    }

    fn rules() -> impl Strategy<Value = Rule> {
        let bits = prop_oneof![Just(Bits::Four), Just(Bits::Eight)];
        (0usize..3, bits, 0usize..3).prop_map(|(z, bits, f)| rule(ZEROS[z], bits, FLOATS[f]))
    }

    proptest! {
        #[test]
        fn error_is_within_the_bound(
            rule in rules(),
            exponent in -30i32..14,
            weights in proptest::collection::vec(-1f32..1.0, 1..200),
        ) {
            let weights: Vec<f32> = weights.iter().map(|w| w * (exponent as f32).exp2()).collect();
            let mut codes = vec![0; weights.len()];
            let group = quantize_group(&weights, rule, &mut codes).unwrap();
            // Half a step; half a step more where a rounded zero moves the range; and the range that is lost when the
            // scale is rounded down, by at most half a unit in its last place (of 16 units and more: halves).
            let ulp = match rule.scales {
                Float::F32 => 1.0 / (1u32 << 24) as f32,
                Float::BF16 => 1.0 / 256.0,
                Float::F16 if group.scale >= 6.2e-5 => 1.0 / 2048.0,
                Float::F16 => 0.5 / (1 << 24) as f32 / group.scale,
            };
            let halves = if rule.zeros == Zeros::Middle { 0.5 } else { 1.0 };
            let bound = group.scale * (halves + f32::from(rule.bits.max()) * ulp + 1e-4);
            for (&w, &code) in weights.iter().zip(&codes) {
                prop_assert!((group.value(code) - w).abs() <= bound, "{w} as {} of {group:?}", group.value(code));
                prop_assert_eq!(code, plain(w, group, rule));
                prop_assert!(code <= rule.bits.max());
            }
            prop_assert!(group.scale > 0.0 && group.scale.is_finite());
            prop_assert_eq!(rule.scales.to_f32(&rule.scales.to_bytes(&[group.scale])), vec![group.scale]);
        }

        #[test]
        fn all_forms_and_instruction_sets_agree(
            rule in rules(),
            groups in 1usize..5,
            size in 1usize..70,
            seed in any::<u32>(),
        ) {
            let weights: Vec<f32> = (0..groups * size)
                .map(|i| (seed.wrapping_add(i as u32).wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 23) as f32 - 1.0)
                .collect();
            let want = quantize(&weights, size, rule).unwrap();
            for tier in Tier::all() {
                let mut out = Quantized { codes: vec![0; weights.len()], scales: Vec::new(), zeros: Vec::new() };
                tier.run(Encode { weights: &weights, group: size, rule, out: &mut out }).unwrap();
                prop_assert_eq!(&out, &want);
                let mut rounded = weights.clone();
                tier.run(Round { weights: &mut rounded, group: size, rule }).unwrap();
                prop_assert_eq!(rounded, want.values(size));
            }
            for (n, weights) in weights.chunks(size).enumerate() {
                let mut codes = vec![0; size];
                let group = quantize_group(weights, rule, &mut codes).unwrap();
                prop_assert_eq!((group.scale, group.zero), (want.scales[n], want.zeros[n]));
                prop_assert_eq!(&codes, &want.codes[n * size..][..size]);
            }
        }

        #[test]
        fn any_bits_are_quantized_or_refused(rule in rules(), bits in proptest::collection::vec(any::<u32>(), 1..40)) {
            let weights: Vec<f32> = bits.into_iter().map(f32::from_bits).collect();
            match quantize(&weights, weights.len(), rule) {
                Ok(q) => prop_assert!(q.values(weights.len()).iter().all(|v| v.is_finite())),
                Err(Refused::NotFinite { at }) => prop_assert!(!weights[at].is_finite()),
                Err(Refused::TooWide { .. }) => prop_assert!(weights.iter().all(|w| w.is_finite())),
            }
        }
    }
}

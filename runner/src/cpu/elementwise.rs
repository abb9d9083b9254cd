//! What works on each number or each row alone: norms, activations, rotation, softmax.
//!
//! The exponential is a polynomial of our own: the same bits on every machine, and wide enough to vectorise.

use rayon::prelude::*;
use verify::codec::e4m3;

use super::Array;
use super::isa::{Isa, Kernel, LANES, Lanes};

/// `x / sqrt(mean(x^2) + eps) * weight` over each run of the weight's width.
pub fn rms_norm(isa: Isa, x: &Array, weight: &[f32], eps: f32) -> Array {
    let mut y = x.clone();
    y.values_mut().par_chunks_mut(piece_of(weight.len())).for_each(|piece| {
        for run in piece.chunks_exact_mut(weight.len()) {
            let scale = 1.0 / (isa.run(SumOfSquares(run)) / weight.len() as f32 + eps).sqrt();
            run.iter_mut().zip(weight).for_each(|(x, w)| *x = *x * scale * w);
        }
    });
    y
}

/// `x += y`.
pub fn add(x: &mut [f32], y: &[f32]) {
    x.par_chunks_mut(PIECE).zip(y.par_chunks(PIECE)).for_each(|(x, y)| {
        x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
    });
}

/// `y += bias` in every row.
pub fn add_bias(y: &mut Array, bias: &Array) {
    let width = y.cols();
    for row in y.values_mut().chunks_exact_mut(width) {
        row.iter_mut().zip(bias.values()).for_each(|(y, b)| *y += b);
    }
}

/// `x *= sigmoid(gate)`; a gate of one column holds for its whole row.
pub fn gate(isa: Isa, x: &mut Array, gate: &Array) {
    let mut factors = gate.values().to_vec();
    isa.run(Sigmoid(&mut factors));
    let shared = x.cols() / gate.cols();
    for (x, factor) in x.values_mut().chunks_exact_mut(shared).zip(factors) {
        x.iter_mut().for_each(|x| *x *= factor);
    }
}

/// `gate = silu(gate) * up`.
pub fn swiglu(isa: Isa, gate: &mut [f32], up: &[f32]) {
    gate.par_chunks_mut(PIECE).zip(up.par_chunks(PIECE)).for_each(|(gate, up)| isa.run(SwiGlu(gate, up)));
}

/// `x * sigmoid(x)` in place.
pub fn silu(isa: Isa, x: &mut [f32]) {
    isa.run(Silu(x));
}

/// What FP8 (e4m3) keeps of `x`, each row in as many equal parts as there are `scales`.
pub fn round_to_fp8(x: &mut Array, scales: &[f32]) {
    let part = (x.cols() / scales.len()).max(1);
    // With one scale rows do not matter: large pieces keep threads busy.
    let piece = if scales.len() == 1 { PIECE } else { part };
    x.values_mut().par_chunks_mut(piece).enumerate().for_each(|(n, piece)| {
        e4m3::round_trip(piece, scales[n % scales.len()]);
    });
}

/// Numbers that a thread takes at a time.
const PIECE: usize = 1 << 14;

/// About as many in whole rows of `width`.
fn piece_of(width: usize) -> usize {
    (PIECE / width.max(1)).max(1) * width.max(1)
}

/// Turns entries `i` and `i + half` of each head by the row's angle `i`; `angles` holds `half` cosines and sines.
pub fn rotate(x: &mut Array, dim: usize, angles: &Array) {
    let width = x.cols();
    let rows = x.values_mut().par_chunks_exact_mut(width).with_min_len(piece_of(width) / width.max(1));
    rows.zip(angles.values().par_chunks_exact(angles.cols())).for_each(|(row, angles)| {
        let half = angles.len() / 2;
        let (cos, sin) = angles.split_at(half);
        for head in row.chunks_exact_mut(dim) {
            let (a, rest) = head.split_at_mut(half);
            for i in 0..half {
                let (x, y) = (a[i], rest[i]);
                a[i] = x * cos[i] - y * sin[i];
                rest[i] = y * cos[i] + x * sin[i];
            }
        }
    });
}

/// Softmax in place; the order of the sum is fixed by the length.
#[inline(always)]
pub fn softmax<L: Lanes>(x: &mut [f32]) {
    let mut top = f32::NEG_INFINITY;
    for x in &*x {
        top = top.max(*x);
    }
    for x in &mut *x {
        *x = exp(*x - top);
    }
    let scale = 1.0 / sum::<L>(x);
    for x in x {
        *x *= scale;
    }
}

/// Sum in lane order.
#[inline(always)]
fn sum<L: Lanes>(x: &[f32]) -> f32 {
    let (chunks, rest) = x.as_chunks::<LANES>();
    let mut lanes = L::splat(0.0);
    for x in chunks {
        lanes = lanes.add(L::load(x));
    }
    if !rest.is_empty() {
        lanes = lanes.add(L::load(&filled(rest)));
    }
    lanes.sum()
}

/// `x . y` in lane order.
#[inline(always)]
pub fn dot<L: Lanes>(x: &[f32], y: &[f32]) -> f32 {
    let ((xs, x_rest), (ys, y_rest)) = (x.as_chunks::<LANES>(), y.as_chunks::<LANES>());
    let mut lanes = L::splat(0.0);
    for (x, y) in xs.iter().zip(ys) {
        lanes = lanes.fma(L::load(x), L::load(y));
    }
    if !x_rest.is_empty() {
        lanes = lanes.fma(L::load(&filled(x_rest)), L::load(&filled(y_rest)));
    }
    lanes.sum()
}

#[inline(always)]
fn filled(rest: &[f32]) -> [f32; LANES] {
    let mut full = [0.0; LANES];
    full[..rest.len()].copy_from_slice(rest);
    full
}

/// e^x within 2 units in the last place; 0 below -87.3, infinite above 88.3.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // Adding 1.5 * 2^23 rounds to a whole number and leaves it in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    // ln 2 in two parts, the first exact in products with n.
    let r = n.mul_add(-0.693_359_4, x);
    let r = n.mul_add(2.121_944_4e-4, r);
    // Taylor's series on |r| <= ln(2) / 2, the last term fitted.
    let mut p = 1.987_569_1e-4f32;
    for c in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = p.mul_add(r, c);
    }
    let y = (r * r).mul_add(p, r) + 1.0;
    let power = f32::from_bits(shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23);
    let y = y * power;
    if x < -87.3 {
        0.0
    } else if x > 88.3 {
        f32::INFINITY
    } else {
        y
    }
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

struct SumOfSquares<'a>(&'a [f32]);

impl Kernel for SumOfSquares<'_> {
    type Out = f32;
    #[inline(always)]
    fn run<L: Lanes>(self) -> f32 {
        dot::<L>(self.0, self.0)
    }
}

struct Sigmoid<'a>(&'a mut [f32]);

impl Kernel for Sigmoid<'_> {
    type Out = ();
    #[inline(always)]
    fn run<L: Lanes>(self) {
        for x in self.0 {
            *x = sigmoid(*x);
        }
    }
}

struct Silu<'a>(&'a mut [f32]);

impl Kernel for Silu<'_> {
    type Out = ();
    #[inline(always)]
    fn run<L: Lanes>(self) {
        for x in self.0 {
            *x *= sigmoid(*x);
        }
    }
}

struct SwiGlu<'a>(&'a mut [f32], &'a [f32]);

impl Kernel for SwiGlu<'_> {
    type Out = ();
    #[inline(always)]
    fn run<L: Lanes>(self) {
        for (x, up) in self.0.iter_mut().zip(self.1) {
            *x = *x * sigmoid(*x) * up;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponential_is_within_two_units() {
        for i in -87_000..88_000 {
            let x = i as f32 / 1000.0 + 1.7e-4;
            let (got, want) = (exp(x), f64::from(x).exp());
            let unit = want * f64::from(f32::EPSILON);
            assert!((f64::from(got) - want).abs() <= 2.0 * unit, "{x}: {got} {want}");
        }
        assert_eq!((exp(-1e9), exp(1e9), exp(0.0)), (0.0, f32::INFINITY, 1.0));
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn every_set_gives_the_same_activations() {
        let x: Vec<f32> = (0..1000).map(|i| (i as f32 - 500.0) / 7.0).collect();
        let run = |isa: Isa| {
            let mut y = x.clone();
            swiglu(isa, &mut y, &x);
            y.iter().map(|y| y.to_bits()).collect::<Vec<_>>()
        };
        for isa in Isa::available() {
            assert_eq!(run(isa), run(Isa::PLAIN), "{}", isa.name());
        }
    }

    #[test]
    fn softmax_of_equal_numbers_is_even() {
        struct Softmax<'a>(&'a mut [f32]);
        impl Kernel for Softmax<'_> {
            type Out = ();
            #[inline(always)]
            fn run<L: Lanes>(self) {
                softmax::<L>(self.0);
            }
        }
        let mut x = [1000.0; 8];
        Isa::best().run(Softmax(&mut x));
        assert_eq!(x, [0.125; 8]);
    }

    #[test]
    fn rotation_pairs_halves_of_the_rotated_part() {
        // A quarter turn of the first pair; entries beyond the rotated part stay.
        let mut x = Array::new(1, 6, vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        rotate(&mut x, 6, &Array::new(1, 4, vec![0.0, 1.0, 1.0, 0.0]));
        assert_eq!(x.values(), [-3.0, 2.0, 1.0, 4.0, 5.0, 6.0]);
    }
}

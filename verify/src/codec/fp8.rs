//! FP8 weights with scales over a grid: `W[r, c] = code[r, c] * scale[r / grid rows, c / grid columns]`.
//!
//! The block grid is the `fp8` format of transformers and vLLM (there the scales are called
//! `weight_scale_inv`, and multiply all the same); channel and tensor grids are those of compressed-tensors.

use super::e4m3;
use super::float::{Brain, Element, Float, Half, Single};
use super::simd::{Kernel, Tier};

/// Which weights of a matrix share a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grid {
    /// Blocks of 128 x 128; the last ones of a row or column may be smaller.
    Block,
    /// A row, which is an output channel.
    Channel,
    /// The whole matrix.
    Tensor,
}

/// Side of a block of [`Grid::Block`].
pub const BLOCK: usize = 128;

impl Grid {
    /// Rows and columns of the scales of a `rows` x `cols` matrix.
    pub fn scales(self, rows: usize, cols: usize) -> (usize, usize) {
        match self {
            Grid::Block => (rows.div_ceil(BLOCK), cols.div_ceil(BLOCK)),
            Grid::Channel => (rows, 1),
            Grid::Tensor => (1, 1),
        }
    }

    /// Rows after which a chunk of rows may end without cutting a block.
    pub fn row_multiple(self) -> usize {
        match self {
            Grid::Block => BLOCK,
            Grid::Channel | Grid::Tensor => 1,
        }
    }

    /// Rows and columns under one scale.
    fn block(self, cols: usize) -> (usize, usize) {
        match self {
            Grid::Block => (BLOCK, BLOCK),
            Grid::Channel => (1, cols.max(1)),
            Grid::Tensor => (usize::MAX, cols.max(1)),
        }
    }
}

/// Rows of a matrix as they lie in a file.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    /// Whole rows, little-endian.
    pub bytes: &'a [u8],
    /// Their element type.
    pub float: Float,
    /// Elements of a row.
    pub cols: usize,
}

impl Rows<'_> {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.bytes.len() / (self.cols * self.float.bytes()).max(1)
    }

    /// The first element that is NaN or infinite, as (row, column).
    pub fn first_not_finite(&self) -> Option<(usize, usize)> {
        let values = self.float.to_f32(self.bytes);
        let at = values.iter().position(|v| !v.is_finite())?;
        Some((at / self.cols, at % self.cols))
    }
}

/// An element of the input is NaN or infinite; [`Rows::first_not_finite`] tells which.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotFinite;

/// Quantized rows.
#[derive(Debug, Clone, Default)]
pub struct Quantized {
    /// One byte per element.
    pub codes: Vec<u8>,
    /// Scales of the grid, row-major.
    pub scales: Vec<f32>,
    /// What was lost.
    pub loss: Loss,
}

/// What quantizing lost, in units of the weights.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Loss {
    /// Sum of the squared errors.
    pub squared_error: f64,
    /// Sum of the squared weights.
    pub squared_weight: f64,
    /// Largest absolute error.
    pub largest: f64,
    /// Blocks of zeros only.
    pub zero_blocks: u64,
    /// Blocks that are not zero but so small that their scale had to be raised, so that elements become zero.
    pub tiny_blocks: u64,
}

/// Which numbers scales may be. Codes are always computed from the scale that is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScaleValues {
    /// Any f32.
    F32,
    /// Numbers that BF16 holds exactly, so that loaders which keep scales in the model's dtype lose nothing.
    Bf16,
}

/// The scale for a block whose largest magnitude is `amax`: `amax / 448`, at least the smallest normal
/// f32; 1 for a block of zeros, because a converter that divides by a zero scale makes NaN of it.
pub fn scale_of(amax: f32, values: ScaleValues) -> f32 {
    let scale = match amax == 0.0 {
        true => 1.0,
        false => (amax / e4m3::MAX).max(f32::MIN_POSITIVE),
    };
    match values {
        ScaleValues::F32 => scale,
        ScaleValues::Bf16 => half::bf16::from_f32(scale).to_f32(),
    }
}

/// Quantizes `rows` with a scale for each block of `grid`; the rows start at a multiple of
/// [`Grid::row_multiple`]. For [`Grid::Tensor`] they are the whole matrix; see [`quantize_with`].
///
/// # Errors
/// [`NotFinite`].
pub fn quantize(rows: Rows<'_>, grid: Grid, values: ScaleValues) -> Result<Quantized, NotFinite> {
    Tier::best().run(Quantize { rows, grid, scale: Scale::Own(values) })
}

/// Quantizes `rows` with one scale, found before from the [`amax`] of all rows that share it.
///
/// # Errors
/// [`NotFinite`].
pub fn quantize_with(rows: Rows<'_>, scale: f32) -> Result<Quantized, NotFinite> {
    Tier::best().run(Quantize { rows, grid: Grid::Tensor, scale: Scale::Given(scale) })
}

/// The largest magnitude of `rows`.
///
/// # Errors
/// [`NotFinite`].
pub fn amax(rows: Rows<'_>) -> Result<f32, NotFinite> {
    Tier::best().run(Amax(rows))
}

/// Codes and scales to numbers. `scales` are those of the whole matrix, `codes` its rows from `first_row` on.
/// A NaN code gives NaN.
pub fn dequantize(codes: &[u8], scales: &[f32], grid: Grid, (first_row, cols): (usize, usize)) -> Vec<f32> {
    let (block_rows, block_cols) = grid.block(cols);
    let across = grid.scales(1, cols).1;
    let mut out = Vec::with_capacity(codes.len());
    for (r, row) in codes.chunks(cols.max(1)).enumerate() {
        let scales = &scales[(first_row + r) / block_rows * across..][..across];
        for (codes, &scale) in row.chunks(block_cols).zip(scales) {
            out.extend(codes.iter().map(|&c| e4m3::decode(c) * scale));
        }
    }
    out
}

/// Of [`Sums`].
pub const LANES: usize = 16;

struct Quantize<'a> {
    rows: Rows<'a>,
    grid: Grid,
    scale: Scale,
}

#[derive(Clone, Copy)]
enum Scale {
    Own(ScaleValues),
    Given(f32),
}

impl Kernel for Quantize<'_> {
    type Out = Result<Quantized, NotFinite>;

    #[inline(always)]
    fn run(self) -> Self::Out {
        match self.rows.float {
            Float::F32 => self.run_on::<Single>(),
            Float::F16 => self.run_on::<Half>(),
            Float::BF16 => self.run_on::<Brain>(),
        }
    }
}

impl Quantize<'_> {
    #[inline(always)]
    fn run_on<E: Element>(self) -> Result<Quantized, NotFinite> {
        let cols = self.rows.cols;
        let values = E::elements(self.rows.bytes);
        let count = self.rows.count();
        let (block_rows, block_cols) = self.grid.block(cols);
        let mut out = Quantized { codes: vec![0; count * cols], ..Default::default() };
        for top in (0..count).step_by(block_rows) {
            let height = block_rows.min(count - top);
            for left in (0..cols).step_by(block_cols) {
                let width = block_cols.min(cols - left);
                let mut max = Max::default();
                for r in top..top + height {
                    max.add::<E>(&values[r * cols + left..][..width]);
                }
                let amax = max.finite()?;
                let scale = match self.scale {
                    Scale::Own(values) => scale_of(amax, values),
                    Scale::Given(scale) => scale,
                };
                let mut sums = Sums::default();
                for r in top..top + height {
                    let at = r * cols + left;
                    sums.encode::<E>(&values[at..][..width], scale, &mut out.codes[at..][..width]);
                }
                out.scales.push(scale);
                out.loss.add(&sums, scale, amax);
            }
        }
        Ok(out)
    }
}

struct Amax<'a>(Rows<'a>);

impl Kernel for Amax<'_> {
    type Out = Result<f32, NotFinite>;

    #[inline(always)]
    fn run(self) -> Self::Out {
        let mut max = Max::default();
        match self.0.float {
            Float::F32 => max.add::<Single>(Single::elements(self.0.bytes)),
            Float::F16 => max.add::<Half>(Half::elements(self.0.bytes)),
            Float::BF16 => max.add::<Brain>(Brain::elements(self.0.bytes)),
        }
        max.finite()
    }
}

/// The largest magnitude so far. Magnitudes of floats order as integers, with NaN and infinity on top.
#[derive(Default)]
struct Max([u32; LANES]);

impl Max {
    #[inline(always)]
    fn add<E: Element>(&mut self, values: &[E::Raw]) {
        let (whole, rest) = values.as_chunks::<LANES>();
        let mut lanes = self.0;
        for values in whole {
            for i in 0..LANES {
                lanes[i] = lanes[i].max(E::widen(values[i]).to_bits() & 0x7fff_ffff);
            }
        }
        for &v in rest {
            lanes[0] = lanes[0].max(E::widen(v).to_bits() & 0x7fff_ffff);
        }
        self.0 = lanes;
    }

    #[inline(always)]
    fn finite(&self) -> Result<f32, NotFinite> {
        let mut max = 0;
        for lane in self.0 {
            max = max.max(lane);
        }
        if max < f32::INFINITY.to_bits() { Ok(f32::from_bits(max)) } else { Err(NotFinite) }
    }
}

/// Error figures of a block in units of its scale, where f32 can neither overflow nor underflow. The
/// number of lanes is fixed, so that the sums are the same with every instruction set, and on a GPU.
#[derive(Debug, Default)]
pub struct Sums {
    /// Squared errors; element `i` of a row of the block goes to lane `i % 16`.
    pub squared_error: [f32; LANES],
    /// Squared weights.
    pub squared_weight: [f32; LANES],
    /// The largest error.
    pub largest: [f32; LANES],
}

impl Sums {
    #[inline(always)]
    fn encode<E: Element>(&mut self, values: &[E::Raw], scale: f32, codes: &mut [u8]) {
        let (values, values_rest) = values.as_chunks::<LANES>();
        let (codes, codes_rest) = codes.as_chunks_mut::<LANES>();
        let mut widened = [0.0; LANES];
        for (values, codes) in values.iter().zip(codes) {
            for i in 0..LANES {
                widened[i] = E::widen(values[i]);
            }
            self.encode_lanes(&widened, scale, codes);
        }
        if !values_rest.is_empty() {
            let (mut padded, mut codes) = ([0.0; LANES], [0; LANES]);
            for (padded, &v) in padded.iter_mut().zip(values_rest) {
                *padded = E::widen(v);
            }
            self.encode_lanes(&padded, scale, &mut codes);
            codes_rest.copy_from_slice(&codes[..codes_rest.len()]);
        }
    }

    #[inline(always)]
    fn encode_lanes(&mut self, values: &[f32; LANES], scale: f32, codes: &mut [u8; LANES]) {
        for i in 0..LANES {
            let quotient = values[i] / scale;
            let rounded = e4m3::round(quotient);
            codes[i] = rounded.code;
            self.squared_error[i] += rounded.error * rounded.error;
            self.squared_weight[i] += quotient * quotient;
            let largest = self.largest[i];
            self.largest[i] = if rounded.error > largest { rounded.error } else { largest };
        }
    }
}

impl Loss {
    /// Takes in a block whose scale is `scale` and whose largest magnitude is `amax`.
    pub fn add(&mut self, sums: &Sums, scale: f32, amax: f32) {
        let total = |lanes: &[f32; LANES]| lanes.iter().map(|&l| f64::from(l)).sum::<f64>();
        let scale = f64::from(scale);
        self.squared_error += total(&sums.squared_error) * scale * scale;
        self.squared_weight += total(&sums.squared_weight) * scale * scale;
        let largest = sums.largest.iter().fold(0.0f32, |a, &b| a.max(b));
        self.largest = self.largest.max(f64::from(largest) * scale);
        self.zero_blocks += u64::from(amax == 0.0);
        self.tiny_blocks += u64::from(amax != 0.0 && amax / e4m3::MAX < f32::MIN_POSITIVE);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rows_of(bytes: &[u8], cols: usize) -> Rows<'_> {
        Rows { bytes, float: Float::F32, cols }
    }

    fn quantized(values: &[f32], cols: usize, grid: Grid) -> Quantized {
        quantize(rows_of(&Float::F32.to_bytes(values), cols), grid, ScaleValues::F32).unwrap()
    }

    /// The rule of the format, element by element.
    fn plainly(values: &[f32], cols: usize, grid: Grid) -> (Vec<u8>, Vec<f32>) {
        let rows = values.len() / cols;
        let (down, across) = grid.scales(rows, cols);
        let (block_rows, block_cols) = grid.block(cols);
        let place = |i: usize| i / cols / block_rows * across + i % cols / block_cols;
        let mut amax = vec![0.0f32; down * across];
        values.iter().enumerate().for_each(|(i, v)| amax[place(i)] = amax[place(i)].max(v.abs()));
        let scales: Vec<f32> = amax.into_iter().map(|a| scale_of(a, ScaleValues::F32)).collect();
        let codes = values.iter().enumerate().map(|(i, v)| e4m3::encode(v / scales[place(i)])).collect();
        (codes, scales)
    }

    fn matrix() -> impl Strategy<Value = (Vec<f32>, usize)> {
        (1usize..300, 1usize..300, -30i32..30, any::<u64>()).prop_map(|(rows, cols, exponent, seed)| {
            let mut state = seed | 1;
            let mut next = || {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                ((state >> 40) as f32 / (1 << 23) as f32 - 1.0) * (exponent as f32).exp2()
            };
            ((0..rows * cols).map(|_| next()).collect(), cols)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        #[test]
        fn codes_and_scales_follow_the_rule_on_every_tier((values, cols) in matrix(), which in 0usize..3) {
            let grid = [Grid::Block, Grid::Channel, Grid::Tensor][which];
            let (codes, scales) = plainly(&values, cols, grid);
            let bytes = Float::F32.to_bytes(&values);
            let first = quantized(&values, cols, grid);
            for tier in Tier::all() {
                let q = tier.run(Quantize { rows: rows_of(&bytes, cols), grid, scale: Scale::Own(ScaleValues::F32) }).unwrap();
                prop_assert_eq!(&q.codes, &codes);
                prop_assert_eq!(&q.scales, &scales);
                prop_assert_eq!(q.loss, first.loss);
            }
        }

        #[test]
        fn error_is_at_most_a_28th_of_the_blocks_largest((values, cols) in matrix()) {
            let q = quantized(&values, cols, Grid::Block);
            let back = dequantize(&q.codes, &q.scales, Grid::Block, (0, cols));
            let across = cols.div_ceil(BLOCK);
            let mut largest = 0.0f64;
            for (i, (a, b)) in values.iter().zip(&back).enumerate() {
                let scale = q.scales[i / cols / BLOCK * across + i % cols / BLOCK];
                // The product and the difference are rounded too, to a part of the value itself.
                let bound = scale * e4m3::MAX / 28.0 + a.abs() * 2.0 * f32::EPSILON;
                prop_assert!((a - b).abs() <= bound, "{a} {b} {bound}");
                largest = largest.max(f64::from((a - b).abs()));
            }
            prop_assert!((q.loss.largest - largest).abs() <= largest * 1e-4 + 1e-30);
        }

        #[test]
        fn bands_give_the_same_bytes_as_the_whole((values, cols) in matrix(), band in 1usize..3) {
            let whole = quantized(&values, cols, Grid::Block);
            let (mut codes, mut scales) = (Vec::new(), Vec::new());
            for rows in values.chunks(band * BLOCK * cols) {
                let q = quantized(rows, cols, Grid::Block);
                codes.extend(q.codes);
                scales.extend(q.scales);
            }
            prop_assert_eq!(codes, whole.codes);
            prop_assert_eq!(scales, whole.scales);
        }

        #[test]
        fn dequantized_rows_are_those_of_the_whole((values, cols) in matrix(), at in 0usize..300) {
            let rows = values.len() / cols;
            let at = at % rows;
            for grid in [Grid::Block, Grid::Channel, Grid::Tensor] {
                let q = quantized(&values, cols, grid);
                let whole = dequantize(&q.codes, &q.scales, grid, (0, cols));
                let part = dequantize(&q.codes[at * cols..], &q.scales, grid, (at, cols));
                prop_assert_eq!(&whole[at * cols..], &part[..]);
            }
        }
    }

    #[test]
    fn block_of_zeros_has_scale_one() {
        let q = quantized(&[0.0, -0.0, 0.0], 3, Grid::Block);
        assert_eq!((q.scales[0], q.loss.zero_blocks), (1.0, 1));
        assert!(q.codes.iter().all(|c| c & 0x7f == 0));
    }

    #[test]
    fn tiny_block_keeps_a_normal_scale() {
        let q = quantized(&[1e-39, 0.0], 2, Grid::Block);
        assert_eq!((q.scales[0], q.loss.tiny_blocks), (f32::MIN_POSITIVE, 1));
        assert_eq!(q.codes, [e4m3::encode(1e-39 / f32::MIN_POSITIVE), 0]);
    }

    #[test]
    fn huge_block_has_no_nan_code() {
        let q = quantized(&[f32::MAX, -f32::MAX, 1.0], 3, Grid::Block);
        assert_eq!(q.codes[..2], [0x7e, 0xfe]);
        assert!(q.loss.squared_error.is_finite());
    }

    #[test]
    fn nan_and_infinity_are_refused_and_found() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = vec![1.0; 400];
            values[233] = bad;
            let bytes = Float::F32.to_bytes(&values);
            let rows = rows_of(&bytes, 20);
            assert_eq!(quantize(rows, Grid::Block, ScaleValues::F32).unwrap_err(), NotFinite);
            assert_eq!(amax(rows).unwrap_err(), NotFinite);
            assert_eq!(rows.first_not_finite(), Some((11, 13)));
        }
    }

    #[test]
    fn matrix_without_columns_gives_nothing() {
        for grid in [Grid::Block, Grid::Channel, Grid::Tensor] {
            assert!(quantized(&[], 0, grid).codes.is_empty());
            assert!(dequantize(&[], &[1.0], grid, (0, 0)).is_empty());
        }
    }

    #[test]
    fn codes_follow_the_rounded_scale() {
        let values = [1.0f32, 0.7, 0.3];
        let bytes = Float::F32.to_bytes(&values);
        let q = quantize(rows_of(&bytes, 3), Grid::Channel, ScaleValues::Bf16).unwrap();
        let scale = half::bf16::from_f32(1.0 / 448.0).to_f32();
        assert_eq!(q.scales, [scale]);
        assert_eq!(q.codes, values.map(|v| e4m3::encode(v / scale)));
    }

    #[test]
    fn given_scale_is_used() {
        let bytes = Float::F32.to_bytes(&[1.0, 2.0]);
        let q = quantize_with(rows_of(&bytes, 2), 0.5).unwrap();
        assert_eq!((q.codes, q.scales), (vec![e4m3::encode(2.0), e4m3::encode(4.0)], vec![0.5]));
    }
}

//! FP8 codes and calibration statistics.

use super::{read, write};
use crate::cuda::{Arg, Launch};
use verify::codec::Float;
use verify::codec::fp8::ScaleValues;

pub(super) fn suffix(float: Float) -> &'static str {
    match float {
        Float::F32 => "f32",
        Float::F16 => "f16",
        Float::BF16 => "bf16",
    }
}

/// Codes, scales and losses of a matrix.
#[derive(Debug, Clone, Copy)]
pub struct Fp8Quantize<P> {
    /// Of the weights.
    pub float: Float,
    /// `[rows, cols]`.
    pub w: P,
    /// Outputs.
    pub rows: u32,
    /// Inputs.
    pub cols: u32,
    /// Rows and columns under a scale.
    pub block: [u32; 2],
    /// Which numbers scales may be.
    pub values: ScaleValues,
    /// `[1]`: the only scale, found before.
    pub given: Option<P>,
    /// u8 `[rows, cols]`.
    pub codes: P,
    /// `[ceil(rows / block[0]), ceil(cols / block[1])]`.
    pub scales: P,
    /// u32, as the scales: bits of the largest magnitude; not below those of infinity where a weight is not finite.
    pub amaxes: P,
    /// `[scales, 3, 16]`: lanes of the squared errors, the squared quotients, the largest error.
    pub loss: P,
}

impl<P: Copy> Fp8Quantize<P> {
    /// The launch.
    pub fn launch(&self) -> Launch<P> {
        let args = vec![
            read(self.w),
            Arg::U32(self.rows),
            Arg::U32(self.cols),
            Arg::U32(self.block[0]),
            Arg::U32(self.block[1]),
            Arg::U32(u32::from(self.values == ScaleValues::Bf16)),
            Arg::Read(self.given),
            write(self.codes),
            write(self.scales),
            write(self.amaxes),
            write(self.loss),
        ];
        let grid = [self.cols.div_ceil(self.block[1]), self.rows.div_ceil(self.block[0]), 1];
        Launch::new(format!("fp8_quantize_{}", suffix(self.float)), grid, [256, 1, 1], args)
    }
}

/// The largest magnitudes of a matrix, stretch by stretch.
#[derive(Debug, Clone, Copy)]
pub struct Fp8Amax<P> {
    /// Of the weights.
    pub float: Float,
    /// `[n]`.
    pub w: P,
    /// Weights.
    pub n: u64,
    /// u32 `[ceil(n / 65536)]`, bits.
    pub amaxes: P,
}

impl<P: Copy> Fp8Amax<P> {
    /// The launch.
    pub fn launch(&self) -> Launch<P> {
        let args = vec![read(self.w), Arg::U64(self.n), write(self.amaxes)];
        let grid = [self.n.div_ceil(65536) as u32, 1, 1];
        Launch::new(format!("fp8_amax_{}", suffix(self.float)), grid, [256, 1, 1], args)
    }
}

/// Adds a batch to each column's sum of magnitudes and largest magnitude.
#[derive(Debug, Clone, Copy)]
pub struct ColumnStats<P> {
    /// `[tokens, cols]`.
    pub x: P,
    /// Tokens.
    pub tokens: u32,
    /// Columns.
    pub cols: u32,
    /// `[cols]`.
    pub sums: P,
    /// `[cols]`.
    pub tops: P,
}

impl<P: Copy> ColumnStats<P> {
    /// The launch.
    pub fn launch(&self) -> Launch<P> {
        let args = vec![
            read(self.x),
            Arg::U32(self.tokens),
            Arg::U32(self.cols),
            write(self.sums),
            write(self.tops),
        ];
        Launch::new("column_stats", [self.cols.div_ceil(256), 1, 1], [256, 1, 1], args)
    }
}

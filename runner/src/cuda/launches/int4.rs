//! 4-bit codes, and the pieces of AWQ's search.

use super::quantize::suffix;
use super::{ScaleKind, read, write};
use crate::cuda::{Arg, Launch};
use verify::codec::Float;

/// How a group's scale and zero follow from its weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Int4Rule {
    /// Symmetric: the zero is 8.
    Middle = 0,
    /// compressed-tensors, with stored zeros.
    Stored = 1,
    /// AutoAWQ.
    AutoAwq = 2,
}

/// Codes, scales and zeros of a matrix, its columns multiplied first.
#[derive(Debug, Clone, Copy)]
pub struct Int4Quantize<P> {
    /// Of the weights.
    pub float: Float,
    /// `[rows, cols]`.
    pub w: P,
    /// `[cols]`: what columns are multiplied with.
    pub s: Option<P>,
    /// At most 65535.
    pub rows: u32,
    /// Inputs.
    pub cols: u32,
    /// A divisor of `cols`.
    pub group: u32,
    /// Scales and zeros.
    pub rule: Int4Rule,
    /// What scales are rounded to.
    pub scale_kind: ScaleKind,
    /// u8 `[rows, cols]`, 0 to 15.
    pub codes: P,
    /// f32 `[rows, cols / group]`.
    pub scales: P,
    /// u8 `[rows, cols / group]`.
    pub zeros: P,
    /// u32 `[rows, cols / group]`: 1 where a weight is not finite, 2 where the scale is too large for its type.
    pub faults: P,
    /// `[rows, cols]`: the weights that the codes stand for, divided by `s` again.
    pub back: Option<P>,
}

impl<P: Copy> Int4Quantize<P> {
    /// The launch.
    pub fn launch(&self) -> Launch<P> {
        let args = vec![
            read(self.w),
            Arg::Read(self.s),
            Arg::U32(self.cols),
            Arg::U32(self.group),
            Arg::U32(self.rule as u32),
            Arg::U32(self.scale_kind as u32),
            write(self.codes),
            write(self.scales),
            write(self.zeros),
            write(self.faults),
            Arg::Write(self.back),
        ];
        let grid = [(self.cols / self.group).div_ceil(8), self.rows, 1];
        Launch::new(format!("int4_quantize_{}", suffix(self.float)), grid, [32, 8, 1], args)
    }
}

/// How much of its group's largest weight each weight is, summed over stretches of rows.
#[derive(Debug, Clone, Copy)]
pub struct WeightShares<P> {
    /// Of the weights.
    pub float: Float,
    /// `[rows, cols]`.
    pub w: P,
    /// Outputs.
    pub rows: u32,
    /// Inputs.
    pub cols: u32,
    /// A divisor of `cols`, at most 1024.
    pub group: u32,
    /// Rows of a stretch.
    pub length: u32,
    /// `[ceil(rows / length), cols]`.
    pub parts: P,
}

impl<P: Copy> WeightShares<P> {
    /// The launch.
    pub fn launch(&self) -> Launch<P> {
        let args = vec![
            read(self.w),
            Arg::U32(self.rows),
            Arg::U32(self.cols),
            Arg::U32(self.group),
            Arg::U32(self.length),
            write(self.parts),
        ];
        let grid = [self.cols / self.group, self.rows.div_ceil(self.length), 1];
        let block = [self.group.next_multiple_of(32), 1, 1];
        Launch::new(format!("weight_shares_{}", suffix(self.float)), grid, block, args)
    }
}

/// Squared difference, stretch by stretch.
#[derive(Debug, Clone, Copy)]
pub struct SquaredDifference<P> {
    /// `[n]`.
    pub a: P,
    /// `[n]`.
    pub b: P,
    /// Numbers.
    pub n: u64,
    /// f64 `[ceil(n / 65536)]`.
    pub parts: P,
}

impl<P: Copy> SquaredDifference<P> {
    /// The launch.
    pub fn launch(&self) -> Launch<P> {
        let args = vec![read(self.a), read(self.b), Arg::U64(self.n), write(self.parts)];
        Launch::new("squared_difference", [self.n.div_ceil(65536) as u32, 1, 1], [256, 1, 1], args)
    }
}

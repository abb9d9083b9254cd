//! Linear layers of few tokens, rows of tables, repacking.

use super::{Weights, read, write};
use crate::cuda::{Arg, Launch};

/// Rows of a table as f32.
#[derive(Debug, Clone, Copy)]
pub struct Embed<P> {
    /// `[rows, cols]`.
    pub table: Weights<P>,
    /// u32 `[count]`, below the table's rows.
    pub ids: P,
    /// `[count, cols]`.
    pub out: P,
    /// Rows wanted.
    pub count: u32,
}

impl<P: Copy> Embed<P> {
    /// The launch.
    pub fn launch(&self) -> Launch<P> {
        let args = vec![self.table.arg(), read(self.ids), write(self.out)];
        Launch::new(self.table.kernel("embed"), [self.count, 1, 1], [128, 1, 1], args)
    }
}

/// `y[v] = w[ids[v]] x[v / per] + bias`.
#[derive(Debug, Clone, Copy)]
pub struct Gemv<P> {
    /// The layer, or one for each expert.
    pub w: Weights<P>,
    /// `[visits / per, cols]`.
    pub x: P,
    /// u32 `[visits]`: which matrix; the first where there are none.
    pub ids: Option<P>,
    /// Visits that share an input.
    pub per: u32,
    /// `[rows]`.
    pub bias: Option<P>,
    /// `[visits, rows]`.
    pub y: P,
    /// At most 65535.
    pub visits: u32,
}

impl<P: Copy> Gemv<P> {
    /// The launch.
    pub fn launch(&self) -> Launch<P> {
        let args = vec![
            self.w.arg(),
            read(self.x),
            Arg::Read(self.ids),
            Arg::U32(self.per),
            Arg::Read(self.bias),
            write(self.y),
        ];
        Launch::new(self.w.kernel("gemv"), [self.w.rows.div_ceil(8), self.visits, 1], [32, 8, 1], args)
    }
}

/// Codes of AutoAWQ's `gemm` layout to rows of int4 codes.
#[derive(Debug, Clone, Copy)]
pub struct AwqCodes<P> {
    /// u32 `[cols, rows / 8]`.
    pub qweight: P,
    /// Outputs, a multiple of 8.
    pub rows: u32,
    /// Inputs.
    pub cols: u32,
    /// Bytes of a row of `codes`, see [`super::WeightFormat::stride`].
    pub stride: u32,
    /// `[rows, stride]` bytes, zero before.
    pub codes: P,
}

impl<P: Copy> AwqCodes<P> {
    /// The launch.
    pub fn launch(&self) -> Launch<P> {
        let args = vec![
            read(self.qweight),
            Arg::U32(self.rows),
            Arg::U32(self.cols),
            Arg::U32(self.stride),
            write(self.codes),
        ];
        let grid = [self.cols.div_ceil(8).div_ceil(32), self.rows / 8, 1];
        Launch::new("awq_codes", grid, [32, 8, 1], args)
    }
}

/// Zeros and scales of AutoAWQ's `gemm` layout to those of int4.
#[derive(Debug, Clone, Copy)]
pub struct AwqZeros<P> {
    /// u32 `[groups, rows / 8]`.
    pub qzeros: P,
    /// 16-bit floats `[groups, rows]`.
    pub scales: P,
    /// Outputs, a multiple of 8.
    pub rows: u32,
    /// Groups of inputs.
    pub groups: u32,
    /// u32 `[rows / 8, groups]`.
    pub zeros: P,
    /// 16-bit floats `[rows, groups]`.
    pub out_scales: P,
}

impl<P: Copy> AwqZeros<P> {
    /// The launch.
    pub fn launch(&self) -> Launch<P> {
        let args = vec![
            read(self.qzeros),
            read(self.scales),
            Arg::U32(self.rows),
            Arg::U32(self.groups),
            write(self.zeros),
            write(self.out_scales),
        ];
        let words = self.rows / 8 * self.groups;
        Launch::new("awq_zeros", [words.div_ceil(256), 1, 1], [256, 1, 1], args)
    }
}

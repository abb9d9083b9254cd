//! What AWQ decides on, bit for bit as the CPU.

use super::quantize::suffix;
use super::{ScaleKind, read, write};
use crate::cuda::{Arg, Launch};
use verify::codec::Float;

/// `y = x W^T` in the CPU's order of sums, for pieces that lie beside each other.
#[derive(Debug, Clone, Copy)]
pub struct LanesProduct<P> {
    /// Of the weights.
    pub float: Float,
    /// `[tokens, cols]`, the next token `x_stride` further on.
    pub x: P,
    /// `[rows, cols]`, the next row `w_stride` further on.
    pub w: P,
    /// Output `r` of token `t` at `t * y_strides[0] + r * y_strides[1]`.
    pub y: P,
    /// At most 2097120.
    pub tokens: u32,
    /// Outputs.
    pub rows: u32,
    /// Inputs.
    pub cols: u32,
    /// Numbers between tokens.
    pub x_stride: u64,
    /// Weights between rows.
    pub w_stride: u64,
    /// Numbers between tokens, and between outputs.
    pub y_strides: [u64; 2],
    /// At most 65535.
    pub pieces: u32,
    /// From one piece to the next in `x`, `w` and `y`.
    pub steps: [u32; 3],
}

impl<P: Copy> LanesProduct<P> {
    /// Of whole matrices without gaps: `x` and its tokens, `w` with its type, rows and columns, `y` `[tokens, rows]`.
    pub fn plain((x, tokens): (P, u32), (w, float, [rows, cols]): (P, Float, [u32; 2]), y: P) -> Self {
        let (x_stride, w_stride) = (cols.into(), cols.into());
        let (y_strides, pieces, steps) = ([rows.into(), 1], 1, [0; 3]);
        LanesProduct { float, x, w, y, tokens, rows, cols, x_stride, w_stride, y_strides, pieces, steps }
    }

    /// The launch.
    pub fn launch(&self) -> Launch<P> {
        let shape = vec![
            Arg::U32(self.tokens),
            Arg::U32(self.rows),
            Arg::U32(self.cols),
            Arg::U32(self.steps[0]),
            Arg::U64(self.x_stride),
            Arg::U64(self.w_stride),
            Arg::U64(self.steps[1].into()),
            Arg::U64(self.y_strides[0]),
            Arg::U64(self.y_strides[1]),
            Arg::U64(self.steps[2].into()),
        ];
        let args = vec![read(self.x), read(self.w), write(self.y), Arg::Struct(shape)];
        let grid = [self.rows.div_ceil(16), self.tokens.div_ceil(32), self.pieces];
        Launch::new(format!("lanes_product_{}", suffix(self.float)), grid, [32, 8, 1], args)
    }
}

/// Adds `x^T x` of some columns.
#[derive(Debug, Clone, Copy)]
pub struct Gram<P> {
    /// `[tokens, cols]`.
    pub x: P,
    /// Tokens.
    pub tokens: u32,
    /// Columns there are.
    pub cols: u32,
    /// The first column.
    pub first: u32,
    /// How many columns.
    pub width: u32,
    /// `[width, width]`, symmetric.
    pub sums: P,
}

impl<P: Copy> Gram<P> {
    /// The launch.
    pub fn launch(&self) -> Launch<P> {
        let sizes = [self.tokens, self.cols, self.first, self.width].map(Arg::U32);
        let args = [read(self.x)].into_iter().chain(sizes).chain([write(self.sums)]).collect();
        let tiles = self.width.div_ceil(64);
        Launch::new("gram", [tiles, tiles, 1], [256, 1, 1], args)
    }
}

/// The squared size of every column.
#[derive(Debug, Clone, Copy)]
pub struct ColumnSquares<P> {
    /// `[rows, cols]`.
    pub y: P,
    /// Rows.
    pub rows: u32,
    /// Columns.
    pub cols: u32,
    /// f64 `[cols]`.
    pub sums: P,
}

impl<P: Copy> ColumnSquares<P> {
    /// The launch.
    pub fn launch(&self) -> Launch<P> {
        let args = vec![read(self.y), Arg::U32(self.rows), Arg::U32(self.cols), write(self.sums)];
        Launch::new("column_squares", [self.cols.div_ceil(256), 1, 1], [256, 1, 1], args)
    }
}

/// A matrix in groups, each under one grid.
#[derive(Debug, Clone, Copy)]
pub struct Groups {
    /// Outputs.
    pub rows: u32,
    /// Inputs, a multiple of `group`.
    pub cols: u32,
    /// Columns under a grid, a multiple of 32.
    pub group: u32,
    /// The largest code: 15 or 255.
    pub largest: f32,
    /// Whether zeros stand in the middle.
    pub symmetric: bool,
    /// What scales are rounded to.
    pub scale_kind: ScaleKind,
}

impl Groups {
    /// How many groups there are.
    pub fn count(&self) -> u64 {
        u64::from(self.rows) * u64::from(self.cols / self.group)
    }

    fn format<P>(&self) -> Arg<P> {
        Arg::Struct(vec![
            Arg::F32(self.largest),
            Arg::U32(self.symmetric.into()),
            Arg::U32(self.scale_kind as u32),
            Arg::U32(self.group),
        ])
    }

    /// With a warp for each group.
    fn warps<P>(&self, kernel: impl Into<String>, args: Vec<Arg<P>>) -> Launch<P> {
        Launch::new(kernel, [self.count().div_ceil(8) as u32, 1, 1], [32, 8, 1], args)
    }
}

/// How far off weights are whose columns are scaled, rounded and scaled back.
#[derive(Debug, Clone, Copy)]
pub struct GridRound<P> {
    /// Of the weights.
    pub float: Float,
    /// `[rows, cols]`.
    pub w: P,
    /// `[cols]`.
    pub s: P,
    /// Shape and format.
    pub groups: Groups,
    /// `[rows, cols]`.
    pub errors: P,
}

impl<P: Copy> GridRound<P> {
    /// The launch.
    pub fn launch(&self) -> Launch<P> {
        let args = vec![
            read(self.w),
            read(self.s),
            Arg::U32(self.groups.cols),
            Arg::U64(self.groups.count()),
            self.groups.format(),
            write(self.errors),
        ];
        self.groups.warps(format!("grid_round_{}", suffix(self.float)), args)
    }
}

/// Grids over narrowed ranges, and what rounding to them changes.
#[derive(Debug, Clone, Copy)]
pub struct GridTry<P> {
    /// `[rows, cols]`, columns already scaled by `s`.
    pub w: P,
    /// `[cols]`.
    pub s: P,
    /// Shape and format.
    pub groups: Groups,
    /// What ranges are multiplied with.
    pub ratio: f32,
    /// `[rows, cols / group]`.
    pub scales: P,
    /// `[rows, cols / group]`.
    pub zeros: P,
    /// `[rows, cols]`.
    pub off: Option<P>,
}

impl<P: Copy> GridTry<P> {
    /// The launch.
    pub fn launch(&self) -> Launch<P> {
        let args = vec![
            read(self.w),
            read(self.s),
            Arg::U32(self.groups.cols),
            Arg::U64(self.groups.count()),
            self.groups.format(),
            Arg::F32(self.ratio),
            write(self.scales),
            write(self.zeros),
            Arg::Write(self.off),
        ];
        self.groups.warps("grid_try", args)
    }
}

/// Keeps tried grids where they lose less.
#[derive(Debug, Clone, Copy)]
pub struct GridKeep<P> {
    /// `[groups, group]`.
    pub off: P,
    /// `[groups, group]`: `off` times the moments.
    pub through: P,
    /// How many groups.
    pub groups: u64,
    /// Numbers of a group, a multiple of 16.
    pub group: u32,
    /// Scales and zeros of what was tried.
    pub tried: [P; 2],
    /// Those of the whole ranges.
    pub whole: [P; 2],
    /// The least errors so far.
    pub errors: P,
    /// Scales and zeros that are kept.
    pub kept: [P; 2],
}

impl<P: Copy> GridKeep<P> {
    /// The launch.
    pub fn launch(&self) -> Launch<P> {
        let args = vec![
            read(self.off),
            read(self.through),
            Arg::U64(self.groups),
            Arg::U32(self.group),
            read(self.tried[0]),
            read(self.tried[1]),
            read(self.whole[0]),
            read(self.whole[1]),
            write(self.errors),
            write(self.kept[0]),
            write(self.kept[1]),
        ];
        Launch::new("grid_keep", [self.groups.div_ceil(16) as u32, 1, 1], [256, 1, 1], args)
    }
}

/// Nearest codes.
#[derive(Debug, Clone, Copy)]
pub struct GridCodes<P> {
    /// `[rows, cols]`.
    pub w: P,
    /// Shape and format.
    pub groups: Groups,
    /// Scales and zeros, `[rows, cols / group]`.
    pub grids: [P; 2],
    /// u8 `[rows, cols]`.
    pub codes: P,
}

impl<P: Copy> GridCodes<P> {
    /// The launch.
    pub fn launch(&self) -> Launch<P> {
        let n = self.groups.count() * u64::from(self.groups.group);
        let args = vec![
            read(self.w),
            read(self.grids[0]),
            read(self.grids[1]),
            Arg::U64(n),
            Arg::U32(self.groups.group),
            Arg::F32(self.groups.largest),
            write(self.codes),
        ];
        Launch::new("grid_codes", [n.div_ceil(256) as u32, 1, 1], [256, 1, 1], args)
    }
}

/// What rounding changed in neighbouring columns, seen by the unscaled inputs.
#[derive(Debug, Clone, Copy)]
pub struct DescentOff<P> {
    /// `[rows, cols]`, columns already scaled by `s`.
    pub w: P,
    /// `[cols]`.
    pub s: P,
    /// u8 `[rows, cols]`.
    pub codes: P,
    /// Scales and zeros, `[rows, cols / group]`.
    pub grids: [P; 2],
    /// Shape and format.
    pub groups: Groups,
    /// The first column.
    pub first: u32,
    /// How many.
    pub width: u32,
    /// `[rows, width]`.
    pub off: P,
}

impl<P: Copy> DescentOff<P> {
    /// The launch.
    pub fn launch(&self) -> Launch<P> {
        let n = u64::from(self.groups.rows) * u64::from(self.width);
        let args = vec![
            read(self.w),
            read(self.s),
            read(self.codes),
            read(self.grids[0]),
            read(self.grids[1]),
            Arg::U32(self.groups.cols),
            Arg::U32(self.groups.group),
            Arg::U32(self.first),
            Arg::U32(self.width),
            Arg::U64(n),
            write(self.off),
        ];
        Launch::new("descent_off", [n.div_ceil(256) as u32, 1, 1], [256, 1, 1], args)
    }
}

/// Moves codes downhill.
#[derive(Debug, Clone, Copy)]
pub struct Descent<P> {
    /// `[width, width]`, damped.
    pub gram: P,
    /// `[cols]`.
    pub s: P,
    /// `[rows, cols / group]`.
    pub scales: P,
    /// Shape and format.
    pub groups: Groups,
    /// The first column.
    pub first: u32,
    /// How many, a multiple of 32.
    pub width: u32,
    /// `[rows, width]`: `gram` times what rounding changed; overwritten.
    pub slope: P,
    /// u8 `[rows, cols]`.
    pub codes: P,
}

impl<P: Copy> Descent<P> {
    /// The launch.
    pub fn launch(&self) -> Launch<P> {
        let g = self.groups;
        let sizes = [g.rows, g.cols, g.group, self.first, self.width].map(Arg::U32);
        let mut args = vec![read(self.gram), read(self.s), read(self.scales)];
        args.extend(sizes);
        args.extend([Arg::F32(g.largest), write(self.slope), write(self.codes)]);
        Launch::new("descent", [g.rows.div_ceil(4), 1, 1], [32, 4, 1], args)
    }
}

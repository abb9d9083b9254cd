//! Kernels with a thread for each number.

use super::{read, write};
use crate::cuda::{Arg, Launch};

fn launch<P>(kernel: &str, n: u64, args: Vec<Arg<P>>) -> Launch<P> {
    Launch::new(kernel, [n.div_ceil(256) as u32, 1, 1], [256, 1, 1], args)
}

/// `x += y`.
#[derive(Debug, Clone, Copy)]
pub struct Add<P> {
    /// `[n]`.
    pub x: P,
    /// `[n]`.
    pub y: P,
    /// Numbers.
    pub n: u64,
}

impl<P: Copy> Add<P> {
    /// The launch.
    pub fn launch(&self) -> Launch<P> {
        launch("add", self.n, vec![write(self.x), read(self.y), Arg::U64(self.n)])
    }
}

/// `y += bias` in every row.
#[derive(Debug, Clone, Copy)]
pub struct Bias<P> {
    /// `[rows, width]`.
    pub y: P,
    /// `[width]`.
    pub bias: P,
    /// Numbers of a row.
    pub width: u32,
    /// Numbers of `y`.
    pub n: u64,
}

impl<P: Copy> Bias<P> {
    /// The launch.
    pub fn launch(&self) -> Launch<P> {
        launch("bias", self.n, vec![write(self.y), read(self.bias), Arg::U32(self.width), Arg::U64(self.n)])
    }
}

/// Clamps to `-limit..=limit`.
#[derive(Debug, Clone, Copy)]
pub struct Clamp<P> {
    /// `[n]`.
    pub x: P,
    /// Not negative.
    pub limit: f32,
    /// Numbers.
    pub n: u64,
}

impl<P: Copy> Clamp<P> {
    /// The launch.
    pub fn launch(&self) -> Launch<P> {
        launch("clamp", self.n, vec![write(self.x), Arg::F32(self.limit), Arg::U64(self.n)])
    }
}

/// `x *= sigmoid(gate)`.
#[derive(Debug, Clone, Copy)]
pub struct Gate<P> {
    /// `[n]`.
    pub x: P,
    /// `[n / shared]`.
    pub gate: P,
    /// Numbers under one gate.
    pub shared: u32,
    /// Numbers of `x`.
    pub n: u64,
}

impl<P: Copy> Gate<P> {
    /// The launch.
    pub fn launch(&self) -> Launch<P> {
        launch("gate", self.n, vec![write(self.x), read(self.gate), Arg::U32(self.shared), Arg::U64(self.n)])
    }
}

/// `gate = silu(gate) * up`.
#[derive(Debug, Clone, Copy)]
pub struct Swiglu<P> {
    /// `[n]`.
    pub gate: P,
    /// `[n]`.
    pub up: P,
    /// Numbers.
    pub n: u64,
}

impl<P: Copy> Swiglu<P> {
    /// The launch.
    pub fn launch(&self) -> Launch<P> {
        launch("swiglu", self.n, vec![write(self.gate), read(self.up), Arg::U64(self.n)])
    }
}

/// Some rows, in the given order.
#[derive(Debug, Clone, Copy)]
pub struct Rows<P> {
    /// `[.., width]`.
    pub x: P,
    /// u32 `[count]`.
    pub rows: P,
    /// `[count, width]`.
    pub out: P,
    /// Numbers of a row.
    pub width: u32,
    /// Rows wanted.
    pub count: u32,
}

impl<P: Copy> Rows<P> {
    /// The launch.
    pub fn launch(&self) -> Launch<P> {
        let n = u64::from(self.count) * u64::from(self.width);
        let args = vec![read(self.x), read(self.rows), write(self.out), Arg::U32(self.width), Arg::U64(n)];
        launch("rows", n, args)
    }
}

/// Some columns, in the given order.
#[derive(Debug, Clone, Copy)]
pub struct Columns<P> {
    /// `[rows, width]`.
    pub x: P,
    /// u32 `[count]`, below `width`.
    pub columns: P,
    /// `[rows, count]`.
    pub out: P,
    /// Rows.
    pub rows: u32,
    /// Columns there are.
    pub width: u32,
    /// Columns wanted.
    pub count: u32,
}

impl<P: Copy> Columns<P> {
    /// The launch.
    pub fn launch(&self) -> Launch<P> {
        let n = u64::from(self.rows) * u64::from(self.count);
        let args = vec![
            read(self.x),
            read(self.columns),
            write(self.out),
            Arg::U32(self.width),
            Arg::U32(self.count),
            Arg::U64(n),
        ];
        launch("columns", n, args)
    }
}

/// What FP8 (e4m3) codes times a scale keep.
#[derive(Debug, Clone, Copy)]
pub struct Fp8Kept<P> {
    /// `[n]`.
    pub x: P,
    /// `[width / part]`, positive.
    pub scales: P,
    /// Numbers of a row.
    pub width: u32,
    /// Neighbours under one scale, a divisor of `width`.
    pub part: u32,
    /// Numbers.
    pub n: u64,
    /// `[n]`; may be `x`.
    pub out: P,
}

impl<P: Copy> Fp8Kept<P> {
    /// The launch.
    pub fn launch(&self) -> Launch<P> {
        let [width, part] = [self.width, self.part].map(Arg::U32);
        let args = vec![read(self.x), read(self.scales), width, part, Arg::U64(self.n), write(self.out)];
        launch("fp8_kept", self.n, args)
    }
}

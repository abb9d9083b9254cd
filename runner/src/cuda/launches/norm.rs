//! RMSNorms.

use super::{read, write};
use crate::cuda::{Arg, Launch};

/// A block for each run: whole warps, no more than the run can use.
fn block(width: u32) -> [u32; 3] {
    [width.div_ceil(4).next_multiple_of(32).clamp(32, 512), 1, 1]
}

/// `y = x / rms(x) * weight`.
#[derive(Debug, Clone, Copy)]
pub struct RmsNorm<P> {
    /// `[runs, width]`.
    pub x: P,
    /// `[width]`, the 1 of zero-centred ones added.
    pub weight: P,
    /// `[runs, width]`.
    pub y: P,
    /// Runs.
    pub runs: u32,
    /// Numbers of a run.
    pub width: u32,
    /// Inside the root.
    pub eps: f32,
}

impl<P: Copy> RmsNorm<P> {
    /// The launch.
    pub fn launch(&self) -> Launch<P> {
        let args =
            vec![read(self.x), read(self.weight), write(self.y), Arg::U32(self.width), Arg::F32(self.eps)];
        Launch::new("rmsnorm", [self.runs, 1, 1], block(self.width), args)
    }
}

/// `x += add`, then `y = x / rms(x) * weight`.
#[derive(Debug, Clone, Copy)]
pub struct RmsNormAdd<P> {
    /// `[runs, width]`, the sum afterwards.
    pub x: P,
    /// `[runs, width]`.
    pub add: P,
    /// `[width]`.
    pub weight: P,
    /// `[runs, width]`.
    pub y: P,
    /// Runs.
    pub runs: u32,
    /// Numbers of a run.
    pub width: u32,
    /// Inside the root.
    pub eps: f32,
}

impl<P: Copy> RmsNormAdd<P> {
    /// The launch.
    pub fn launch(&self) -> Launch<P> {
        let args = vec![
            write(self.x),
            read(self.add),
            read(self.weight),
            write(self.y),
            Arg::U32(self.width),
            Arg::F32(self.eps),
        ];
        Launch::new("rmsnorm_add", [self.runs, 1, 1], block(self.width), args)
    }
}

/// `y = y / rms(y) * weight * act(z)`.
#[derive(Debug, Clone, Copy)]
pub struct RmsNormGated<P> {
    /// `[runs, width]`.
    pub y: P,
    /// `[runs, width]`.
    pub z: P,
    /// `[width]`.
    pub weight: P,
    /// Runs.
    pub runs: u32,
    /// Numbers of a run.
    pub width: u32,
    /// Inside the root.
    pub eps: f32,
    /// The activation.
    pub gate: crate::backend::GateActivation,
}

impl<P: Copy> RmsNormGated<P> {
    /// The launch.
    pub fn launch(&self) -> Launch<P> {
        let sigmoid = self.gate == crate::backend::GateActivation::Sigmoid;
        let args = vec![
            write(self.y),
            read(self.z),
            read(self.weight),
            Arg::U32(self.width),
            Arg::F32(self.eps),
            Arg::U32(u32::from(sigmoid)),
        ];
        Launch::new("rmsnorm_gated", [self.runs, 1, 1], block(self.width), args)
    }
}

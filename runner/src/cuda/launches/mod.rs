//! How each kernel is launched: one struct for each, named like it, with what it works on. Formulas stand at the head
//! of the kernels' files.
//!
//! Addresses are of f32 values where not said otherwise. A launch with nothing to do is the caller's to leave out: a
//! grid of no blocks is an error to CUDA.

mod attention;
mod awq;
mod delta;
mod elementwise;
mod experts;
mod int4;
mod norm;
mod product;
mod quantize;
mod sample;
mod weights;

pub use attention::{Attention, AttentionCombine, KvKind, KvWrite, Rope};
pub use awq::{
    ColumnSquares, Descent, DescentOff, Gram, GridCodes, GridKeep, GridRound, GridTry, Groups, LanesProduct,
};
pub use delta::{Conv, DeltaGates, DeltaRule, DeltaShape, UnitNorm};
pub use elementwise::{Add, Bias, Clamp, Columns, Fp8Kept, Gate, Rows, Swiglu};
pub use experts::{Combine, Down, GateUp, Grouped, Router, Shared, SortVisits, Tile};
pub use int4::{Int4Quantize, Int4Rule, SquaredDifference, WeightShares};
pub use norm::{RmsNorm, RmsNormAdd, RmsNormGated};
pub use product::{AwqCodes, AwqZeros, Embed, Gemv};
pub use quantize::{ColumnStats, Fp8Amax, Fp8Quantize};
pub use sample::{Argmax, Sample};
pub use weights::{ScaleKind, WeightFormat, Weights};

use super::Arg;

fn read<P: Copy>(p: P) -> Arg<P> {
    Arg::Read(Some(p))
}

fn write<P: Copy>(p: P) -> Arg<P> {
    Arg::Write(Some(p))
}

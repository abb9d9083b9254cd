//! Who turns weights into codes.

use std::sync::Arc;

use runner::cuda::fp8::{Fault, Fp8Coder};
use verify::codec::fp8::{self, Grid, Quantized, Rows, ScaleValues};
use verify::{Error, Result};

/// The processor or a GPU; both give the same bytes and the same losses.
#[derive(Debug, Clone, Default)]
pub enum Coder {
    /// The processor.
    #[default]
    Cpu,
    /// A GPU.
    Cuda(Arc<Fp8Coder>),
}

impl Coder {
    pub(super) fn quantize(
        &self,
        rows: Rows<'_>,
        grid: Grid,
        values: ScaleValues,
    ) -> std::result::Result<Quantized, Fault> {
        match self {
            Coder::Cpu => Ok(fp8::quantize(rows, grid, values)?),
            Coder::Cuda(gpu) => gpu.quantize(rows, grid, values),
        }
    }

    /// Codes and scales of `rows`, for whoever has no rewrite to do.
    ///
    /// # Errors
    /// Exit 3 where a weight is not finite, exit 6 where the GPU fails.
    pub fn rows(&self, rows: Rows<'_>, grid: Grid, values: ScaleValues) -> Result<Quantized> {
        self.quantize(rows, grid, values).map_err(|fault| match fault {
            Fault::NotFinite => Error::input("a weight is NaN or infinite"),
            Fault::Gpu(e) => e,
        })
    }

    pub(super) fn quantize_with(&self, rows: Rows<'_>, scale: f32) -> std::result::Result<Quantized, Fault> {
        match self {
            Coder::Cpu => Ok(fp8::quantize_with(rows, scale)?),
            Coder::Cuda(gpu) => gpu.quantize_with(rows, scale),
        }
    }

    pub(super) fn amax(&self, rows: Rows<'_>) -> std::result::Result<f32, Fault> {
        match self {
            Coder::Cpu => Ok(fp8::amax(rows)?),
            Coder::Cuda(gpu) => gpu.amax(rows),
        }
    }
}

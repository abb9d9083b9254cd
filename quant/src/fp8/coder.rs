//! Who turns weights into codes.

use std::sync::Arc;

use runner::cuda::fp8::{Fault, Fp8Coder};
use verify::codec::fp8::{self, Grid, Quantized, Rows, ScaleValues};

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
    ) -> Result<Quantized, Fault> {
        match self {
            Coder::Cpu => Ok(fp8::quantize(rows, grid, values)?),
            Coder::Cuda(gpu) => gpu.quantize(rows, grid, values),
        }
    }

    pub(super) fn quantize_with(&self, rows: Rows<'_>, scale: f32) -> Result<Quantized, Fault> {
        match self {
            Coder::Cpu => Ok(fp8::quantize_with(rows, scale)?),
            Coder::Cuda(gpu) => gpu.quantize_with(rows, scale),
        }
    }

    pub(super) fn amax(&self, rows: Rows<'_>) -> Result<f32, Fault> {
        match self {
            Coder::Cpu => Ok(fp8::amax(rows)?),
            Coder::Cuda(gpu) => gpu.amax(rows),
        }
    }
}

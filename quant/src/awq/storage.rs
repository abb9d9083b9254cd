//! How codes, scales and zeros lie in a checkpoint.

use verify::checkpoint::TensorSpec;
use verify::codec::Float;
use verify::codec::int4::{Bits, Layout, Matrix, Quantized};
use verify::{Error, Result, Shown};

use super::grid::{Grid, IntFormat};
use crate::calibration::Tensors;

/// Layout and grids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Storage {
    /// Names and order.
    pub layout: Layout,
    /// Grids.
    pub format: IntFormat,
}

impl Storage {
    /// What stands for the matrix `module` `[rows, cols]`.
    pub fn specs(self, module: &str, shape: [usize; 2]) -> Vec<TensorSpec> {
        let parts = self.layout.parts(self.matrix(shape)).into_iter();
        parts.map(|p| TensorSpec::new(format!("{module}.{}", p.leaf), p.dtype, p.shape)).collect()
    }

    /// Why a matrix cannot be stored so, if it cannot.
    pub fn obstacle(self, [rows, cols]: [usize; 2]) -> Option<String> {
        let (per, group) = (self.bits().per_word(), self.format.group);
        match () {
            () if rows == 0 || cols == 0 => Some("it has no elements".into()),
            () if !cols.is_multiple_of(group) => {
                Some(format!("{cols} inputs are not made of whole groups of {group}"))
            }
            () if !self.format.symmetric && !rows.is_multiple_of(per) => {
                Some(format!("{rows} outputs do not fill words of {per} zeros"))
            }
            () => None,
        }
    }

    /// The tensors of [`Self::specs`]: codes `[rows, cols]` and grids `[rows, cols / group]` packed.
    ///
    /// # Errors
    /// Exit 3 where a scale is beyond its type.
    pub fn tensors(self, module: &str, shape: [usize; 2], codes: Vec<u8>, grids: &[Grid]) -> Result<Tensors> {
        if let Some(bad) = grids.iter().find(|g| !g.scale.is_finite()) {
            return Err(Error::input(format!("module `{}` cannot be quantized", Shown(module)))
                .found(format!("a scale of {} in {}", bad.scale, self.format.scale.dtype()))
                .hint("leave it out with --ignore, or choose --format compressed-tensors"));
        }
        let scales = grids.iter().map(|g| g.scale).collect();
        let zeros = grids.iter().map(|g| g.zero as u8).collect();
        let bytes = self.layout.encode(self.matrix(shape), &Quantized { codes, scales, zeros });
        Ok(self.specs(module, shape).into_iter().zip(bytes).collect())
    }

    /// For the report.
    pub fn describe(self) -> String {
        let name = match self.layout {
            Layout::PackQuantized => "compressed-tensors pack-quantized",
            Layout::AwqGemm => "AutoAWQ gemm",
        };
        let zeros = if self.format.symmetric { "symmetric" } else { "asymmetric" };
        format!("int{} in groups of {}, {zeros} ({name})", self.format.bits, self.format.group)
    }

    /// Bits that a weight takes, scales and zeros included.
    pub fn bits_per_weight(self) -> f64 {
        let zero = if self.format.symmetric { 0 } else { self.format.bits };
        let scale = 8 * self.format.scale.bytes() as u32;
        f64::from(self.format.bits) + f64::from(scale + zero) / self.format.group as f64
    }

    fn bits(self) -> Bits {
        if self.format.bits == 8 { Bits::Eight } else { Bits::Four }
    }

    fn matrix(self, [rows, cols]: [usize; 2]) -> Matrix {
        Matrix {
            rows,
            cols,
            group: self.format.group,
            bits: self.bits(),
            scales: self.format.scale,
            zeros: !self.format.symmetric,
        }
    }
}

/// The type that scales are stored in: AutoAWQ knows F16 only.
pub fn scale_type(layout: Layout, model: Float) -> Float {
    match layout {
        Layout::PackQuantized => model,
        Layout::AwqGemm => Float::F16,
    }
}

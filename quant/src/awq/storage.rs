//! How codes, scales and zeros lie in a checkpoint.

use verify::checkpoint::TensorSpec;
use verify::codec::Float;
use verify::{Dtype, Error, Result, Shown};

use super::grid::{Grid, IntFormat};
use super::pack::{pack_awq, pack_rows, pack_zero_points};

/// The names and order of what servers load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Container {
    /// compressed-tensors `pack-quantized`.
    #[default]
    CompressedTensors,
    /// AutoAWQ `gemm`.
    AutoAwq,
}

/// Container and grids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Storage {
    /// Names and order.
    pub container: Container,
    /// Grids.
    pub format: IntFormat,
}

impl Storage {
    /// What stands for the matrix `module` `[rows, cols]`.
    pub fn specs(self, module: &str, [rows, cols]: [usize; 2]) -> Vec<TensorSpec> {
        let (per, groups) = ((32 / self.format.bits) as usize, cols / self.format.group);
        let spec = |leaf: &str, dtype, shape: [usize; 2]| TensorSpec::new(format!("{module}.{leaf}"), dtype, shape);
        let scale = self.format.scale.dtype();
        match self.container {
            Container::CompressedTensors => {
                let mut all = vec![
                    spec("weight_packed", Dtype::I32, [rows, cols / per]),
                    spec("weight_scale", scale, [rows, groups]),
                ];
                if !self.format.symmetric {
                    all.push(spec("weight_zero_point", Dtype::I32, [rows / per, groups]));
                }
                all.push(TensorSpec::new(format!("{module}.weight_shape"), Dtype::I64, [2]));
                all
            }
            Container::AutoAwq => vec![
                spec("qweight", Dtype::I32, [cols, rows / per]),
                spec("qzeros", Dtype::I32, [groups, rows / per]),
                spec("scales", scale, [groups, rows]),
            ],
        }
    }

    /// Why a matrix cannot be stored so, if it cannot.
    pub fn obstacle(self, [rows, cols]: [usize; 2]) -> Option<String> {
        let (per, group) = ((32 / self.format.bits) as usize, self.format.group);
        let stored_by_rows = !self.format.symmetric || self.container == Container::AutoAwq;
        match () {
            () if rows == 0 || cols == 0 => Some("it has no elements".into()),
            () if !cols.is_multiple_of(group) => {
                Some(format!("{cols} inputs are not made of whole groups of {group}"))
            }
            () if stored_by_rows && !rows.is_multiple_of(per) => {
                Some(format!("{rows} outputs do not fill words of {per} zeros"))
            }
            () => None,
        }
    }

    /// The tensors of [`Self::specs`]: codes `[rows, cols]` and grids `[rows, cols / group]` packed.
    ///
    /// # Errors
    /// Exit 3 where a scale is beyond its type.
    pub fn tensors(
        self,
        module: &str,
        [rows, cols]: [usize; 2],
        codes: &[u8],
        grids: &[Grid],
    ) -> Result<Vec<(TensorSpec, Vec<u8>)>> {
        if let Some(bad) = grids.iter().find(|g| !g.scale.is_finite()) {
            return Err(Error::input(format!("module `{}` cannot be quantized", Shown(module)))
                .found(format!("a scale of {} in {}", bad.scale, self.format.scale.dtype()))
                .hint("leave it out with --ignore, or choose --format compressed-tensors"));
        }
        let groups = cols / self.format.group;
        let (bits, float) = (self.format.bits, self.format.scale);
        let scales: Vec<f32> = grids.iter().map(|g| g.scale).collect();
        let zeros: Vec<u8> = grids.iter().map(|g| g.zero as u8).collect();
        let words = |w: Vec<i32>| w.into_iter().flat_map(i32::to_le_bytes).collect::<Vec<u8>>();
        let bytes = match self.container {
            Container::CompressedTensors => {
                let mut all = vec![words(pack_rows(codes, rows, cols, bits)), float.to_bytes(&scales)];
                if !self.format.symmetric {
                    all.push(words(pack_zero_points(&zeros, rows, groups, bits)));
                }
                all.push([rows as i64, cols as i64].map(i64::to_le_bytes).concat());
                all
            }
            Container::AutoAwq => vec![
                words(pack_awq(&transposed(codes, rows, cols), cols, rows)),
                words(pack_awq(&transposed(&zeros, rows, groups), groups, rows)),
                float.to_bytes(&transposed(&scales, rows, groups)),
            ],
        };
        Ok(self.specs(module, [rows, cols]).into_iter().zip(bytes).collect())
    }

    /// For the report.
    pub fn describe(self) -> String {
        let name = match self.container {
            Container::CompressedTensors => "compressed-tensors pack-quantized",
            Container::AutoAwq => "AutoAWQ gemm",
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
}

/// The type that scales are stored in: AutoAWQ knows F16 only.
pub fn scale_type(container: Container, model: Float) -> Float {
    match container {
        Container::CompressedTensors => model,
        Container::AutoAwq => Float::F16,
    }
}

fn transposed<T: Copy>(values: &[T], rows: usize, cols: usize) -> Vec<T> {
    (0..cols).flat_map(|c| (0..rows).map(move |r| values[r * cols + c])).collect()
}

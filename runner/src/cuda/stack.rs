//! Matrices from the checkpoint, put together as the kernels read them.

use verify::codec::Float;

use super::launches::{ScaleKind, WeightFormat, Weights};
use crate::weights::{Format, Matrix};

/// Matrices of one shape and format behind each other, as bytes for the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stack {
    /// How they are stored.
    pub format: WeightFormat,
    /// `[matrices, rows, stride]`, rows filled with zeros; see [`WeightFormat::stride`].
    pub codes: Vec<u8>,
    /// e4m3: f32 for each block; int4: `[matrices, rows, across]`.
    pub scales: Vec<u8>,
    /// int4: u32 `[matrices, rows / 8, across]`.
    pub zeros: Vec<u8>,
    rows: usize,
    cols: usize,
    block: [usize; 2],
    each_scales: usize,
    scale_kind: ScaleKind,
}

impl Stack {
    /// `None` where there are no matrices, where they differ in shape or format, where blocks do not fit the kernels,
    /// and for AutoAWQ's layout, which is repacked on the machine.
    pub fn of(matrices: &[&Matrix]) -> Option<Self> {
        let first = *matrices.first()?;
        let (rows, cols) = (first.rows, first.cols);
        let (format, block, scale_kind) = layout(first)?;
        let mut stack = Stack {
            format,
            codes: Vec::new(),
            scales: Vec::new(),
            zeros: Vec::new(),
            rows,
            cols,
            block,
            each_scales: 0,
            scale_kind,
        };
        for matrix in matrices {
            if (matrix.rows, matrix.cols) != (rows, cols) || layout(matrix)? != (format, block, scale_kind) {
                return None;
            }
            stack.push(matrix);
        }
        stack.each_scales = match format {
            WeightFormat::E4m3 => stack.scales.len() / 4 / matrices.len(),
            WeightFormat::Int4 => rows * cols.div_ceil(block[1]),
            _ => 0,
        };
        let zeros = rows / 8 * cols.div_ceil(block[1]) * 4 * matrices.len();
        (stack.zeros.is_empty() || stack.zeros.len() == zeros).then_some(stack)
    }

    fn push(&mut self, matrix: &Matrix) {
        let bytes = matrix.bytes.as_slice();
        let (row, stride) = (matrix.format.row_bytes(self.cols), self.format.stride(self.cols));
        match row == stride {
            true => self.codes.extend_from_slice(bytes),
            false => {
                for row in bytes.chunks_exact(row.max(1)).take(self.rows) {
                    self.codes.extend_from_slice(row);
                    self.codes.resize(self.codes.len() + stride - row.len(), 0);
                }
            }
        }
        match &matrix.format {
            Format::E4m3(scales) => self.scales.extend(scales.values.iter().flat_map(|s| s.to_le_bytes())),
            Format::Int4(int4) => {
                self.scales.extend_from_slice(int4.scales.as_slice());
                self.zeros.extend(int4.zeros.iter().flat_map(|z| z.as_slice()));
            }
            _ => {}
        }
    }

    /// Where they lie on the machine.
    pub fn weights<P: Copy>(&self, codes: P, scales: Option<P>, zeros: Option<P>) -> Weights<P> {
        Weights {
            format: self.format,
            codes,
            scales,
            zeros,
            each: (self.rows * self.format.stride(self.cols)) as u64,
            rows: self.rows as u32,
            cols: self.cols as u32,
            block: self.block.map(|b| b as u32),
            each_scales: self.each_scales as u32,
            scale_kind: self.scale_kind,
        }
    }
}

/// Format, rows and columns under a scale, type of int4's scales.
fn layout(matrix: &Matrix) -> Option<(WeightFormat, [usize; 2], ScaleKind)> {
    let whole = [matrix.rows.max(1), matrix.cols.max(1)];
    Some(match &matrix.format {
        Format::F32 => (WeightFormat::F32, whole, ScaleKind::F32),
        Format::F16 => (WeightFormat::F16, whole, ScaleKind::F32),
        Format::Bf16 => (WeightFormat::Bf16, whole, ScaleKind::F32),
        Format::E4m3(s) => {
            let fits = s.across <= 1 || s.block[1].is_multiple_of(16);
            fits.then_some((WeightFormat::E4m3, s.block, ScaleKind::F32))?
        }
        Format::Int4(i) => {
            let kind = match i.float {
                Float::F32 => ScaleKind::F32,
                Float::F16 => ScaleKind::F16,
                Float::BF16 => ScaleKind::Bf16,
            };
            (i.across <= 1 || i.group.is_multiple_of(8)).then_some((
                WeightFormat::Int4,
                [1, i.group],
                kind,
            ))?
        }
        // No kernel reads bytes with groups.
        Format::Int8(_) | Format::Awq(_) => return None,
    })
}

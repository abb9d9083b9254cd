//! How a quantized matrix lies in a checkpoint: names, types, shapes and bytes of its tensors.

use super::{Bits, Quantized, pack};
use crate::codec::Float;
use crate::dtype::Dtype;

/// Whose tensors they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// `pack-quantized` of compressed-tensors: codes along rows.
    PackQuantized,
    /// `gemm` of AutoAWQ: inputs outside, outputs inside.
    AwqGemm,
}

/// One tensor of a module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// What follows the module's path in its name.
    pub leaf: &'static str,
    /// Element type.
    pub dtype: Dtype,
    /// Shape.
    pub shape: Vec<usize>,
}

/// A matrix `[rows, cols]` = `[out, in]` as it is to be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Matrix {
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// Columns under one scale; divides `cols`.
    pub group: usize,
    /// Width of codes.
    pub bits: Bits,
    /// Type of scales.
    pub scales: Float,
    /// Whether zeros are stored. AutoAWQ's always are.
    pub zeros: bool,
}

impl Layout {
    /// The tensors of a module, in the order in which [`Self::encode`] gives their bytes.
    pub fn parts(self, m: Matrix) -> Vec<Part> {
        let (n, groups) = (m.bits.per_word(), m.cols / m.group.max(1));
        let part = |leaf, dtype, shape: &[usize]| Part { leaf, dtype, shape: shape.to_vec() };
        match self {
            Layout::PackQuantized => {
                let mut parts = vec![
                    part("weight_packed", Dtype::I32, &[m.rows, m.cols.div_ceil(n)]),
                    part("weight_scale", m.scales.dtype(), &[m.rows, groups]),
                    part("weight_shape", Dtype::I64, &[2]),
                ];
                if m.zeros {
                    parts.push(part("weight_zero_point", Dtype::I32, &[m.rows.div_ceil(n), groups]));
                }
                parts
            }
            Layout::AwqGemm => vec![
                part("qweight", Dtype::I32, &[m.cols, m.rows / n]),
                part("qzeros", Dtype::I32, &[groups, m.rows / n]),
                part("scales", m.scales.dtype(), &[groups, m.rows]),
            ],
        }
    }

    /// The bytes of [`Self::parts`].
    pub fn encode(self, m: Matrix, q: &Quantized) -> Vec<Vec<u8>> {
        let groups = m.cols / m.group.max(1);
        match self {
            Layout::PackQuantized => {
                let shape = [m.rows, m.cols].map(|n| (n as i64).to_le_bytes());
                let mut parts = vec![
                    bytes(&pack::pack_rows(&q.codes, m.rows, m.cols, m.bits)),
                    m.scales.to_bytes(&q.scales),
                    shape.concat(),
                ];
                if m.zeros {
                    parts.push(bytes(&pack::pack_zero_points(&q.zeros, m.rows, groups, m.bits)));
                }
                parts
            }
            Layout::AwqGemm => {
                let codes = pack::transposed(&q.codes, m.rows, m.cols);
                let zeros = pack::transposed(&q.zeros, m.rows, groups);
                let scales = pack::transposed(&q.scales, m.rows, groups);
                vec![
                    bytes(&pack::pack_awq(&codes, m.cols, m.rows, m.bits)),
                    bytes(&pack::pack_awq(&zeros, groups, m.rows, m.bits)),
                    m.scales.to_bytes(&scales),
                ]
            }
        }
    }

    /// The twin of [`Self::encode`]: `None` where a part has another length than [`Self::parts`] says.
    pub fn decode(self, m: Matrix, parts: &[&[u8]]) -> Option<Quantized> {
        let specs = self.parts(m);
        let len = |p: &Part| p.dtype.bytes(p.shape.iter().product());
        let fits =
            parts.len() == specs.len() && specs.iter().zip(parts).all(|(p, b)| len(p) == Some(b.len()));
        if !fits || self == Layout::AwqGemm && !m.rows.is_multiple_of(m.bits.per_word()) {
            return None;
        }
        let groups = m.cols / m.group.max(1);
        Some(match self {
            Layout::PackQuantized => Quantized {
                codes: pack::unpack_rows(&words(parts[0]), m.rows, m.cols, m.bits),
                scales: m.scales.to_f32(parts[1]),
                zeros: match m.zeros {
                    true => pack::unpack_zero_points(&words(parts[3]), m.rows, groups, m.bits),
                    false => vec![m.bits.middle(); m.rows * groups],
                },
            },
            Layout::AwqGemm => {
                let codes = pack::unpack_awq(&words(parts[0]), m.cols, m.rows, m.bits);
                let zeros = pack::unpack_awq(&words(parts[1]), groups, m.rows, m.bits);
                Quantized {
                    codes: pack::transposed(&codes, m.cols, m.rows),
                    scales: pack::transposed(&m.scales.to_f32(parts[2]), groups, m.rows),
                    zeros: pack::transposed(&zeros, groups, m.rows),
                }
            }
        })
    }
}

fn bytes(words: &[i32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

fn words(bytes: &[u8]) -> Vec<i32> {
    bytes.as_chunks().0.iter().map(|w| i32::from_le_bytes(*w)).collect()
}

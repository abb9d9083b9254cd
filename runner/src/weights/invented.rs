//! Weights of no checkpoint: random numbers of any shape, for measuring speed.

use std::sync::{Arc, Mutex, PoisonError};

use half::bf16;
use verify::codec::Float;
use verify::codec::fp8::{BLOCK, Grid};
use verify::{Error, Result, TensorIndex};

use super::{Bytes, Format, Int4, Matrix, Scales, Store};

/// How linear layers are stored; the embedding, the head and the routers are always bf16.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InventedFormat {
    /// 16 bit.
    Bf16,
    /// e4m3 in blocks of 128 x 128.
    Fp8,
    /// Four bits in groups of 128, with zeros.
    Int4,
}

/// Makes weights up.
pub struct Invented {
    format: InventedFormat,
    /// Whether every matrix has memory of its own, as on a machine that reads them from there.
    apart: bool,
    numbers: Arc<Vec<u8>>,
    codes: Arc<Vec<u8>>,
    made: Mutex<Made>,
    none: TensorIndex,
}

/// Bytes that were made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Made {
    /// Of routed experts.
    pub experts: u64,
    /// Of the embedding's table, of which a token reads one row.
    pub table: u64,
    /// Of all other matrices.
    pub others: u64,
    /// Numbers of routed experts' matrices.
    pub expert_numbers: u64,
    /// Numbers of the other matrices but the table.
    pub other_numbers: u64,
}

/// Bytes of the random numbers that all matrices are cut from.
const SUPPLY: usize = 64 << 20;

impl Invented {
    /// Always the same numbers.
    pub fn new(format: InventedFormat, apart: bool) -> Self {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u32
        };
        // Small, so that no activation runs away.
        let number = |bits: u32| bf16::from_f32((bits as f32 / u32::MAX as f32 - 0.5) * 0.05).to_le_bytes();
        let numbers: Vec<u8> = (0..SUPPLY / 2).flat_map(|_| number(next())).collect();
        // Without the codes of NaN.
        let codes: Vec<u8> = (0..SUPPLY / 4).flat_map(|_| next().to_le_bytes()).map(|b| b & 0xbf).collect();
        Invented {
            format,
            apart,
            numbers: numbers.into(),
            codes: codes.into(),
            made: Mutex::default(),
            none: TensorIndex::default(),
        }
    }

    /// What was made so far.
    pub fn made(&self) -> Made {
        *self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A small tensor: numbers about 1.
    pub(super) fn vector(len: usize) -> Vec<f32> {
        (0..len).map(|i| 0.75 + (i % 64) as f32 / 128.0).collect()
    }

    /// The matrix of module `name`; `table` is the embedding's.
    pub(super) fn matrix(&self, name: String, [rows, cols]: [usize; 2], table: bool) -> Matrix {
        let leaf = name.rsplit('.').next().unwrap_or_default();
        let plain =
            table || ["gate", "shared_expert_gate", "lm_head", "in_proj_a", "in_proj_b"].contains(&leaf);
        let fits = cols.is_multiple_of(BLOCK) && rows.is_multiple_of(8);
        let (format, bytes) = match self.format {
            InventedFormat::Fp8 if !plain && fits => {
                let (down, across) = Grid::Block.scales(rows, cols);
                let values = vec![1e-4; down * across].into();
                (
                    Format::E4m3(Scales { values, block: [BLOCK, BLOCK], across, inputs: None }),
                    self.some(&self.codes, rows * cols),
                )
            }
            InventedFormat::Int4 if !plain && fits => {
                let across = cols / BLOCK;
                let int4 = Int4 {
                    scales: Bytes::owned(Float::BF16.to_bytes(&vec![1e-3; rows * across])),
                    float: Float::BF16,
                    zeros: Some(self.some(&self.codes, rows / 8 * across * 4)),
                    group: BLOCK,
                    across,
                };
                (Format::Int4(int4), self.some(&self.codes, rows * cols / 2))
            }
            _ => (Format::Bf16, self.some(&self.numbers, rows * cols * 2)),
        };
        let size = bytes.as_slice().len() as u64 + factors(&format);
        let numbers = (rows * cols) as u64;
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        match (table, name.contains(".experts.")) {
            (true, _) => made.table += size,
            (false, true) => {
                made.experts += size;
                made.expert_numbers += numbers;
            }
            (false, false) => {
                made.others += size;
                made.other_numbers += numbers;
            }
        }
        Matrix { name: name.into(), rows, cols, bytes, format }
    }

    fn some(&self, supply: &Arc<Vec<u8>>, len: usize) -> Bytes {
        if len <= supply.len() && !self.apart {
            return Bytes::shared(Arc::clone(supply)).part(0..len);
        }
        Bytes::owned(supply.iter().copied().cycle().take(len).collect())
    }
}

/// Bytes of scales and zeros.
fn factors(format: &Format) -> u64 {
    match format {
        Format::E4m3(scales) => 4 * scales.values.len() as u64,
        Format::Int4(int4) => {
            let zeros = int4.zeros.as_ref().map_or(0, |z| z.as_slice().len());
            (int4.scales.as_slice().len() + zeros) as u64
        }
        _ => 0,
    }
}

/// No tensor is stored: a [`super::Source`] asks for each by its shape.
impl Store for Invented {
    fn index(&self) -> &TensorIndex {
        &self.none
    }

    fn bytes(&self, _: usize) -> Result<Bytes> {
        Err(Error::input("weights that are made up have no tensors")
            .hint("this is a fault of prep: please report it"))
    }
}

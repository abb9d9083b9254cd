//! A weight matrix as it lies on disk.

use std::ops::Range;
use std::sync::Arc;

use half::{bf16, f16};
use verify::MappedCheckpoint;
use verify::codec::Float;
use verify::codec::int4::Bits;

/// Bytes of a tensor: part of a mapped file, or in memory. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Bytes {
    kind: Kind,
    range: Range<usize>,
}

#[derive(Debug, Clone)]
enum Kind {
    Mapped { map: Arc<MappedCheckpoint>, tensor: usize },
    Memory(Arc<Vec<u8>>),
}

impl Bytes {
    /// The bytes of tensor number `tensor` of `map`.
    pub fn mapped(map: Arc<MappedCheckpoint>, tensor: usize) -> Self {
        let range = 0..map.bytes_at(tensor).len();
        Bytes { kind: Kind::Mapped { map, tensor }, range }
    }

    /// Bytes made in memory.
    pub fn owned(bytes: Vec<u8>) -> Self {
        Bytes::shared(bytes.into())
    }

    /// Bytes in memory that others may hold too.
    pub fn shared(bytes: Arc<Vec<u8>>) -> Self {
        Bytes { range: 0..bytes.len(), kind: Kind::Memory(bytes) }
    }

    /// Part `range` of these bytes.
    pub fn part(&self, range: Range<usize>) -> Self {
        let range = self.range.start + range.start..self.range.start + range.end;
        Bytes { kind: self.kind.clone(), range }
    }

    /// The bytes; of no particular alignment.
    pub fn as_slice(&self) -> &[u8] {
        let all = match &self.kind {
            Kind::Mapped { map, tensor } => map.bytes_at(*tensor),
            Kind::Memory(bytes) => bytes,
        };
        &all[self.range.clone()]
    }
}

/// How the bytes of a matrix stand for numbers; all little-endian.
#[derive(Debug, Clone)]
pub enum Format {
    /// IEEE single.
    F32,
    /// IEEE half.
    F16,
    /// bfloat16.
    Bf16,
    /// FP8 e4m3fn codes; a weight is `code * scale`.
    E4m3(Scales),
    /// Four bits, two in a byte along a row, low half first; a weight is `(code - zero) * scale`. The `pack-quantized`
    /// format of compressed-tensors.
    Int4(Int4),
    /// Eight bits, a byte along a row for each; a weight is `(code - zero) * scale`. The `pack-quantized` format of
    /// compressed-tensors, whose words are such bytes.
    Int8(Int4),
    /// Four bits, but `[cols, rows]`: inputs outside, outputs inside, eight to a word in the order of
    /// [`Awq::ORDER`]. The `gemm` format of AutoAWQ.
    Awq(Awq),
}

impl Format {
    /// Bytes of a row of `cols` weights. (Of AWQ's, which has no rows, the share of one.)
    pub fn row_bytes(&self, cols: usize) -> usize {
        match self {
            Format::F32 => cols * 4,
            Format::F16 | Format::Bf16 => cols * 2,
            Format::E4m3(_) | Format::Int8(_) => cols,
            Format::Int4(_) | Format::Awq(_) => cols.div_ceil(2),
        }
    }
}

/// One scale for each block of a matrix: 128 x 128, a row (1 x cols) or the whole (rows x cols).
#[derive(Debug, Clone)]
pub struct Scales {
    /// Row-major `[ceil(rows / block[0]), ceil(cols / block[1])]`.
    pub values: Arc<[f32]>,
    /// Rows and columns of a block; multiples of 32 and 64 where there is more than one block in a row.
    pub block: [usize; 2],
    /// Blocks beside each other.
    pub across: usize,
    /// The scale that inputs are rounded to FP8 with, where the checkpoint has one. Those that a server finds while it
    /// goes lose less and are not imitated.
    pub inputs: Option<f32>,
}

impl Scales {
    /// The scales of row `row`, one for each block along it.
    pub fn of_row(&self, row: usize) -> &[f32] {
        &self.values[row / self.block[0] * self.across..][..self.across]
    }
}

/// Scales and zeros of [`Format::Int4`] and [`Format::Int8`], left in the file.
#[derive(Debug, Clone)]
pub struct Int4 {
    /// `[rows, cols / group]`.
    pub scales: Bytes,
    /// Their type.
    pub float: Float,
    /// 32-bit words `[rows / n, cols / group]`, as many rows to a word as it holds codes; where there are none every zero
    /// is the middle code.
    pub zeros: Option<Bytes>,
    /// Columns under one scale, a multiple of 32.
    pub group: usize,
    /// Groups of a row.
    pub across: usize,
}

impl Int4 {
    /// With its bytes at hand, of codes of this width.
    pub fn factors(&self, bits: Bits) -> Int4Factors<'_> {
        Int4Factors {
            bits,
            scales: Floats { float: self.float, bytes: self.scales.as_slice() },
            zeros: self.zeros.as_ref().map(|zeros| zeros.as_slice().as_chunks().0),
            group: self.group,
            across: self.across,
        }
    }
}

/// Zeros and scales of an [`Int4`] matrix, for kernels: finding a tensor's bytes takes longer than using them.
#[derive(Debug, Clone, Copy)]
pub struct Int4Factors<'a> {
    bits: Bits,
    scales: Floats<'a>,
    zeros: Option<&'a [[u8; 4]]>,
    /// As in [`Int4`].
    pub group: usize,
    /// As in [`Int4`].
    pub across: usize,
}

impl Int4Factors<'_> {
    /// Zero and scale of group `group` of row `row`.
    #[inline(always)]
    pub fn of(&self, row: usize, group: usize) -> [f32; 2] {
        let scale = self.scales.at(row * self.across + group);
        let (per, bits) = (self.bits.per_word(), self.bits.count());
        let zero = match self.zeros {
            None => u32::from(self.bits.middle()),
            Some(zeros) => {
                let word = u32::from_le_bytes(zeros[row / per * self.across + group]);
                word >> (bits * (row % per)) & u32::from(self.bits.max())
            }
        };
        [zero as f32, scale]
    }
}

/// Numbers in the file.
#[derive(Debug, Clone, Copy)]
pub struct Floats<'a> {
    float: Float,
    bytes: &'a [u8],
}

impl Floats<'_> {
    /// Number `at`.
    #[inline(always)]
    pub fn at(&self, at: usize) -> f32 {
        match self.float {
            Float::F32 => f32::from_le_bytes(self.bytes.as_chunks().0[at]),
            Float::F16 => f16::from_le_bytes(self.bytes.as_chunks().0[at]).to_f32(),
            Float::BF16 => bf16::from_le_bytes(self.bytes.as_chunks().0[at]).to_f32(),
        }
    }
}

/// Scales and zeros of [`Format::Awq`], left in the file.
#[derive(Debug, Clone)]
pub struct Awq {
    /// `[cols / group, rows]`.
    pub scales: Bytes,
    /// Their type.
    pub float: Float,
    /// 32-bit words `[cols / group, rows / 8]`, packed as the codes.
    pub zeros: Bytes,
    /// Inputs under one scale.
    pub group: usize,
}

impl Awq {
    /// Nibble `j` of word `c` belongs to output `8 c + ORDER[j]`.
    pub const ORDER: [usize; 8] = verify::codec::int4::pack::AWQ_FOUR;

    /// The scales `[cols / group, rows]`, at hand.
    pub fn scales(&self) -> Floats<'_> {
        Floats { float: self.float, bytes: self.scales.as_slice() }
    }
}

/// A matrix `[rows, cols]` = `[out, in]`, row-major.
#[derive(Debug, Clone)]
pub struct Matrix {
    /// Its tensor's name, for messages and calibration.
    pub name: Arc<str>,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// `rows * cols` numbers.
    pub bytes: Bytes,
    /// How they stand there.
    pub format: Format,
}

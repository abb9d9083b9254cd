//! A weight matrix as it lies on disk.

use std::ops::Range;
use std::sync::Arc;

use verify::MappedCheckpoint;

use crate::cpu::isa::plain::e4m3;

/// Bytes of a tensor: part of a mapped file, or made in memory (calibration, tests). Cheap to clone.
#[derive(Debug, Clone)]
pub struct Bytes(Kind);

#[derive(Debug, Clone)]
enum Kind {
    Mapped { map: Arc<MappedCheckpoint>, tensor: usize, range: Range<usize> },
    Owned(Arc<[u8]>),
}

impl Bytes {
    /// Bytes `range` of tensor number `tensor` of `map`.
    pub fn mapped(map: Arc<MappedCheckpoint>, tensor: usize, range: Range<usize>) -> Self {
        Bytes(Kind::Mapped { map, tensor, range })
    }

    /// Bytes in memory.
    pub fn owned(bytes: Vec<u8>) -> Self {
        Bytes(Kind::Owned(bytes.into()))
    }

    /// A part of these bytes.
    pub fn part(&self, part: Range<usize>) -> Self {
        match &self.0 {
            Kind::Mapped { map, tensor, range } => {
                let range = range.start + part.start..range.start + part.end;
                Bytes(Kind::Mapped { map: Arc::clone(map), tensor: *tensor, range })
            }
            Kind::Owned(bytes) => Bytes::owned(bytes[part].to_vec()),
        }
    }

    /// The bytes; of no particular alignment.
    pub fn as_slice(&self) -> &[u8] {
        match &self.0 {
            Kind::Mapped { map, tensor, range } => &map.bytes_at(*tensor)[range.clone()],
            Kind::Owned(bytes) => bytes,
        }
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
}

impl Format {
    /// Bytes of one weight.
    pub fn width(&self) -> usize {
        match self {
            Format::F32 => 4,
            Format::F16 | Format::Bf16 => 2,
            Format::E4m3(_) => 1,
        }
    }
}

/// One scale for each block of a matrix: 128 x 128, a row (1 x cols) or the whole (rows x cols).
#[derive(Debug, Clone)]
pub struct Scales {
    /// Row-major `[ceil(rows / block[0]), ceil(cols / block[1])]`.
    pub values: Arc<[f32]>,
    /// Rows and columns of a block.
    pub block: [usize; 2],
    /// Blocks beside each other.
    pub across: usize,
    /// Where the matrix's first row stands in the grid, for a part of a matrix.
    pub first_row: usize,
}

impl Scales {
    /// The scales of row `row`, one for each block along it.
    pub fn of_row(&self, row: usize) -> &[f32] {
        &self.values[(self.first_row + row) / self.block[0] * self.across..][..self.across]
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

impl Matrix {
    /// The matrix of some of its rows, reading the same bytes.
    pub fn rows(&self, rows: Range<usize>) -> Self {
        let row = self.cols * self.format.width();
        let mut format = self.format.clone();
        if let Format::E4m3(scales) = &mut format {
            scales.first_row += rows.start;
        }
        let bytes = self.bytes.part(rows.start * row..rows.end * row);
        Matrix { rows: rows.len(), bytes, format, name: Arc::clone(&self.name), cols: self.cols }
    }

    /// The same numbers where kernels can work with them: a scale of 128 and more, which no sane model has, would
    /// overflow when the kernels fold e4m3's exponent bias into it, so such a matrix is written out in f32.
    pub(super) fn within_kernel_range(self) -> Self {
        let Format::E4m3(scales) = &self.format else { return self };
        if scales.values.iter().all(|s| *s < 128.0) {
            return self;
        }
        let codes = self.bytes.as_slice().chunks_exact(self.cols).enumerate();
        let numbers = codes.flat_map(|(row, codes)| {
            let blocks = codes.chunks(scales.block[1]).zip(scales.of_row(row));
            blocks.flat_map(|(codes, scale)| codes.iter().map(move |c| e4m3(*c) * scale))
        });
        let bytes = Bytes::owned(numbers.flat_map(f32::to_le_bytes).collect());
        Matrix { bytes, format: Format::F32, ..self }
    }

    /// Bytes read to use it once, scales included.
    pub fn byte_len(&self) -> usize {
        let scales = match &self.format {
            Format::E4m3(s) => s.values.len() * 4,
            _ => 0,
        };
        self.rows * self.cols * self.format.width() + scales
    }
}

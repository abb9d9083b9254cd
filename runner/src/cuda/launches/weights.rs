//! Weights on the machine, `struct Weights` of kernels/lib/weights.cuh.

use crate::cuda::Arg;

/// How the codes stand for numbers; each has kernels of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WeightFormat {
    /// IEEE single.
    F32,
    /// IEEE half.
    F16,
    /// bfloat16.
    Bf16,
    /// FP8 e4m3fn with a scale for each block.
    E4m3,
    /// Four bits, the low half of a byte first, with a scale and a zero for each group.
    Int4,
}

impl WeightFormat {
    /// All of them.
    pub const ALL: [WeightFormat; 5] =
        [WeightFormat::F32, WeightFormat::F16, WeightFormat::Bf16, WeightFormat::E4m3, WeightFormat::Int4];

    /// As it stands at the end of kernels' names.
    pub fn suffix(self) -> &'static str {
        match self {
            WeightFormat::F32 => "f32",
            WeightFormat::F16 => "f16",
            WeightFormat::Bf16 => "bf16",
            WeightFormat::E4m3 => "e4m3",
            WeightFormat::Int4 => "int4",
        }
    }

    /// Bytes from a row of `cols` numbers to the next: rows begin at multiples of sixteen and are filled with zeros.
    pub fn stride(self, cols: usize) -> usize {
        let bytes = match self {
            WeightFormat::F32 => cols * 4,
            WeightFormat::F16 | WeightFormat::Bf16 => cols * 2,
            WeightFormat::E4m3 => cols,
            WeightFormat::Int4 => cols.div_ceil(2),
        };
        bytes.next_multiple_of(16)
    }
}

/// Element type of the scales of [`WeightFormat::Int4`]; those of e4m3 are f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScaleKind {
    /// IEEE single.
    F32 = 0,
    /// IEEE half.
    F16 = 1,
    /// bfloat16.
    Bf16 = 2,
}

/// One or more matrices `[rows, cols]` of one shape behind each other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weights<P> {
    /// How they are stored.
    pub format: WeightFormat,
    /// `[matrices, rows, stride]` bytes, at a multiple of 16.
    pub codes: P,
    /// e4m3: f32 `[matrices, ceil(rows / block[0]), across]`; int4: `[matrices, rows, across]`.
    pub scales: Option<P>,
    /// int4: u32 `[matrices, rows / 8, across]`; where there are none all are 8.
    pub zeros: Option<P>,
    /// Bytes from one matrix to the next.
    pub each: u64,
    /// Outputs.
    pub rows: u32,
    /// Inputs.
    pub cols: u32,
    /// Rows and columns under a scale: e4m3 columns a multiple of 16 or all, int4 of 8 or all.
    pub block: [u32; 2],
    /// Scales from one matrix to the next; matrices of zeros follow each other likewise.
    pub each_scales: u32,
    /// Of int4's scales.
    pub scale_kind: ScaleKind,
}

impl<P: Copy> Weights<P> {
    /// Scales beside each other.
    pub fn across(&self) -> u32 {
        self.cols.div_ceil(self.block[1]).max(1)
    }

    /// True where the tile kernel takes them: its steps of 32 columns lie under one scale.
    pub fn fit_tiles(&self) -> bool {
        !matches!(self.format, WeightFormat::E4m3 | WeightFormat::Int4)
            || self.across() == 1
            || self.block[1].is_multiple_of(32)
    }

    /// The same, lying elsewhere.
    pub fn put<Q>(self, codes: Q, scales: Option<Q>, zeros: Option<Q>) -> Weights<Q> {
        Weights {
            codes,
            scales,
            zeros,
            format: self.format,
            each: self.each,
            rows: self.rows,
            cols: self.cols,
            block: self.block,
            each_scales: self.each_scales,
            scale_kind: self.scale_kind,
        }
    }

    pub(super) fn arg(&self) -> Arg<P> {
        let shift = if self.block[1].is_power_of_two() { self.block[1].trailing_zeros() } else { 32 };
        let stride = self.format.stride(self.cols as usize) as u32;
        let words = [
            self.rows,
            self.cols,
            stride,
            self.block[0],
            self.block[1],
            self.across(),
            self.each_scales,
            self.rows / 8 * self.across(),
            self.scale_kind as u32,
            shift,
        ];
        let mut fields = vec![
            Arg::Read(Some(self.codes)),
            Arg::Read(self.scales),
            Arg::Read(self.zeros),
            Arg::U64(self.each),
        ];
        fields.extend(words.map(Arg::U32));
        Arg::Struct(fields)
    }

    pub(super) fn kernel(&self, stem: &str) -> String {
        format!("{stem}_{}", self.format.suffix())
    }
}

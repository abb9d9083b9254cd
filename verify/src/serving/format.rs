//! Formats of weights and of the key and value cache, as the memory table reckons them.

use serde::{Serialize, Serializer};

/// How the linears that servers quantize are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightFormat {
    /// BF16 or F16.
    Bits16,
    /// One byte a weight; with a F32 scale for each block of 128 x 128, or for each row.
    Fp8 {
        /// Blocks, not rows.
        block: bool,
    },
    /// Four bits a weight, and for each group of a row a 16-bit scale and a 4-bit zero point.
    Int4 {
        /// Weights that share a scale.
        group: usize,
    },
    /// Eight bits a weight, and for each group of a row a 16-bit scale and an 8-bit zero point.
    Int8 {
        /// Weights that share a scale.
        group: usize,
    },
    /// A quantization that prep does not know.
    Other,
}

impl WeightFormat {
    /// Side of an FP8 block.
    pub const BLOCK: usize = 128;

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            WeightFormat::Bits16 => "bf16",
            WeightFormat::Fp8 { .. } => "FP8",
            WeightFormat::Int4 { .. } => "W4A16",
            WeightFormat::Int8 { .. } => "W8A16",
            WeightFormat::Other => "as found",
        }
    }

    /// Bytes of a quantized `rows` x `cols` matrix with its scales; `None` where the format cannot hold the shape.
    pub fn bytes(self, rows: usize, cols: usize) -> Option<u64> {
        let elements = rows as u64 * cols as u64;
        match self {
            WeightFormat::Bits16 => Some(2 * elements),
            WeightFormat::Fp8 { block: true } => {
                let whole = rows.is_multiple_of(Self::BLOCK) && cols.is_multiple_of(Self::BLOCK);
                let blocks = (rows / Self::BLOCK * (cols / Self::BLOCK)) as u64;
                whole.then_some(elements + 4 * blocks)
            }
            WeightFormat::Fp8 { block: false } => Some(elements + 4 * rows as u64),
            WeightFormat::Int4 { group } => {
                let whole = cols.is_multiple_of(group) && rows.is_multiple_of(8);
                let groups = elements / group.max(1) as u64;
                // Codes; scales of 2 bytes; zero points of half a byte.
                whole.then_some(elements / 2 + 2 * groups + groups / 2)
            }
            WeightFormat::Int8 { group } => {
                let whole = cols.is_multiple_of(group) && rows.is_multiple_of(4);
                // Codes; scales of 2 bytes; zero points of one.
                whole.then_some(elements + 3 * (elements / group.max(1) as u64))
            }
            WeightFormat::Other => None,
        }
    }
}

impl Serialize for WeightFormat {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(self.name())
    }
}

/// How keys and values are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheFormat {
    /// Two bytes an entry.
    Bf16,
    /// One byte an entry; scales are one number a layer.
    Fp8,
}

impl CacheFormat {
    /// Bytes of an entry.
    pub fn bytes(self) -> u64 {
        match self {
            CacheFormat::Bf16 => 2,
            CacheFormat::Fp8 => 1,
        }
    }

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            CacheFormat::Bf16 => "bf16",
            CacheFormat::Fp8 => "FP8",
        }
    }
}

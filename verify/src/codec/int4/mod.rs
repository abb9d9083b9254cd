//! Weights in 4 or 8 bit integers with a scale and a zero for every group of columns:
//! `W[r, c] = (code[r, c] - zero[r, c / group]) * scale[r, c / group]`.
//!
//! ```text
//!   weights ──quantize──▶ codes, scales, zeros ──Layout──▶ tensors of compressed-tensors (`pack-quantized`)
//!   (f32, rows)           (one byte per code)      pack    or of AutoAWQ (`gemm`)
//! ```
//!
//! Codes and zeros are unsigned here as they are stored: what compressed-tensors counts from -8 is kept as 0 to 15.

pub mod config;
pub mod layout;
pub mod pack;
pub mod quantize;
#[cfg(test)]
mod references;

pub use config::Int4Config;
pub use layout::{Layout, Matrix, Part};
pub use quantize::{Group, Quantized, Refused, Rule, Zeros, quantize, quantize_group, round};

/// How wide a code is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bits {
    /// Codes 0 to 15.
    Four,
    /// Codes 0 to 255.
    Eight,
}

impl Bits {
    /// The width that a config names, where it is one of the two.
    pub fn of(bits: u64) -> Option<Self> {
        match bits {
            4 => Some(Bits::Four),
            8 => Some(Bits::Eight),
            _ => None,
        }
    }

    /// As a number.
    pub fn count(self) -> usize {
        match self {
            Bits::Four => 4,
            Bits::Eight => 8,
        }
    }

    /// Codes in a 32-bit word.
    pub fn per_word(self) -> usize {
        32 / self.count()
    }

    /// The largest code.
    pub fn max(self) -> u8 {
        match self {
            Bits::Four => 15,
            Bits::Eight => 255,
        }
    }

    /// The code that stands for zero where no zeros are stored.
    pub fn middle(self) -> u8 {
        match self {
            Bits::Four => 8,
            Bits::Eight => 128,
        }
    }
}

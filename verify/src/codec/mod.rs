//! Bytes to numbers and back: plain floats, and the formats that quantized checkpoints store.

pub mod e4m3;
pub mod float;
pub mod fp8;
mod simd;

pub use float::Float;

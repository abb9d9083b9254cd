//! Bytes to numbers and back: plain floats, and the formats that quantized checkpoints store.

pub mod dequantize;
pub mod e4m3;
pub mod float;
pub mod fp8;
pub mod fp8_config;
pub mod int4;
mod simd;

pub use dequantize::Dequantize;
pub use float::Float;
pub use fp8_config::Fp8Config;

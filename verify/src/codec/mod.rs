//! Quantized storage: bytes to numbers and back.

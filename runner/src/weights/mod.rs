//! Weights where they lie: a mapped file, a range of it, and how its bytes stand for numbers.

mod invented;
mod matrix;
mod quantization;
mod source;
mod store;

pub use invented::{Invented, InventedFormat, Made};
pub use matrix::{Awq, Bytes, Floats, Format, Int4, Int4Factors, Matrix, Scales};
pub use quantization::Quantization;
pub use source::Source;
pub use store::{ReadStore, Store};

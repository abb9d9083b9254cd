//! Computing the rows of one merged tensor.

pub mod dora;
pub mod job;
pub mod kernel;
pub mod piece;
pub mod real;

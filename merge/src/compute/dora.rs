//! DoRA: the merged matrix is scaled to trained magnitudes.
//!
//! Source: PEFT `DoraLinearLayer` and `DoraEmbeddingLayer`: `W' = (m / ‖V‖) V`, V = W + ΔW, no epsilon.

use std::sync::OnceLock;

use verify::{Error, Result, Shown};

/// The magnitudes of one tensor.
#[derive(Debug)]
pub struct Dora {
    /// Magnitude per row or column.
    pub magnitude: Vec<f64>,
    /// Which it is.
    pub axis: Axis,
    /// Norms of all columns, once they are known.
    pub norms: OnceLock<Result<Vec<f64>>>,
}

/// What the norm runs over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Axis {
    /// One norm per stored row: linear layers.
    Rows,
    /// One norm per stored column: Conv1D and embeddings. Needs the whole tensor first.
    Columns,
}

impl Dora {
    /// A DoRA scale.
    pub fn new(magnitude: Vec<f64>, axis: Axis) -> Self {
        Dora { magnitude, axis, norms: OnceLock::new() }
    }

    /// Scales row number `at`.
    ///
    /// # Errors
    /// Exit 3 for a norm of zero.
    pub fn scale_row(&self, at: usize, row: &mut [f64], tensor: &str) -> Result<()> {
        let norm = sum_of_squares(row).sqrt();
        if norm == 0.0 {
            return Err(zero(tensor, "row", at));
        }
        let factor = self.magnitude[at] / norm;
        row.iter_mut().for_each(|v| *v *= factor);
        Ok(())
    }

    /// Scales the elements of a row by the norms of their columns.
    ///
    /// # Errors
    /// Exit 3 for a norm of zero.
    pub fn scale_columns(&self, norms: &[f64], row: &mut [f64], tensor: &str) -> Result<()> {
        for (at, v) in row.iter_mut().enumerate() {
            if norms[at] == 0.0 {
                return Err(zero(tensor, "column", at));
            }
            *v *= self.magnitude[at] / norms[at];
        }
        Ok(())
    }
}

/// In eight lanes, folded in order: one order of summation, and no chain from element to element.
fn sum_of_squares(row: &[f64]) -> f64 {
    let mut lanes = [0.0; 8];
    for block in row.chunks(8) {
        for (lane, v) in lanes.iter_mut().zip(block) {
            *lane += v * v;
        }
    }
    lanes.iter().sum()
}

fn zero(tensor: &str, what: &str, at: usize) -> Error {
    Error::input(format!("DoRA cannot scale tensor `{}`", Shown(tensor)))
        .found(format!("{what} {at} has norm 0"))
        .expected("a norm that can be divided by")
        .hint("check that base and adapter belong together")
}

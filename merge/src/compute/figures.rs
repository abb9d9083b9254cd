//! What is known about the merged elements of a tensor, carried through the engine as notes.

use verify::checkpoint::TensorSpec;
use verify::rewrite::Note;
use verify::{Error, Result, Shown};

use super::round::Sums;

/// Figures over elements.
#[derive(Debug, Clone, Copy, Default)]
pub struct Figures {
    /// Elements.
    pub elements: f64,
    /// Elements whose stored value is not what it was.
    pub changed: f64,
    /// Σ (new - old)², before rounding.
    pub delta: f64,
    /// Σ old².
    pub base: f64,
    /// Elements of the base that are NaN or infinite.
    pub broken: f64,
    /// Largest |new - old|.
    pub largest: f64,
}

impl Figures {
    /// The figures as a note about rows of `tensor` from `row` on.
    pub fn note(&self, tensor: &str, row: usize) -> Note {
        let sums = vec![self.elements, self.changed, self.delta, self.base, self.broken];
        Note { tensor: tensor.to_string(), row, sums, maxima: vec![self.largest] }
    }

    /// The figures of a note.
    pub fn of(note: &Note) -> Self {
        let sum = |i: usize| note.sums.get(i).copied().unwrap_or(0.0);
        Figures {
            elements: sum(0),
            changed: sum(1),
            delta: sum(2),
            base: sum(3),
            broken: sum(4),
            largest: note.maxima.first().copied().unwrap_or(0.0),
        }
    }

    /// Adds those of a merged row.
    pub fn add(&mut self, row: Sums) {
        self.changed += row.changed as f64;
        self.delta += row.delta;
        self.base += row.base;
        self.largest = self.largest.max(row.largest);
    }

    /// Counts results that are not finite because the base is not.
    ///
    /// # Errors
    /// Exit 3 where the base is finite, or has no such element: the merge overflowed.
    pub fn add_broken(
        &mut self,
        tensor: &TensorSpec,
        row: usize,
        (base, out): (&[f64], &[f64]),
    ) -> Result<()> {
        for (col, value) in out.iter().enumerate().filter(|(_, v)| !v.is_finite()) {
            if base.get(col).is_none_or(|b| b.is_finite()) {
                return Err(Error::input(format!("tensor `{}` overflows when merged", Shown(&tensor.name)))
                    .found(format!("{value} at row {row}, column {col}"))
                    .expected(format!("values that {} can hold", tensor.dtype))
                    .hint("check that base and adapter belong together, and the adapter's weight"));
            }
            self.broken += 1.0;
        }
        Ok(())
    }
}

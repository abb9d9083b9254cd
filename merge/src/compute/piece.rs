//! A product of two small matrices that is added to a block of a tensor: what every kind of LoRA comes down to.

use std::ops::Range;

use super::form::Form;
use super::product::{Factors, Onto, PANEL, product};
use super::real::Real;
use crate::adapter::stored::View;

/// `scale * left · right` on the rows `rows` and the columns `cols` of a tensor seen as a matrix.
#[derive(Debug, Clone)]
pub struct Piece {
    /// Rows of the tensor.
    pub rows: Range<usize>,
    /// Columns of the tensor.
    pub cols: Columns,
    /// (rows, rank).
    pub left: View,
    /// (rank, columns).
    pub right: View,
    /// Rank.
    pub rank: usize,
    /// Scale, the adapter's weight included.
    pub scale: f64,
    /// Number of the adapter that it comes from.
    pub adapter: usize,
}

/// `count` columns from `first` on, every `step`-th.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Columns {
    /// First column.
    pub first: usize,
    /// Distance: 2 where gate and up are interleaved.
    pub step: usize,
    /// Number of columns.
    pub count: usize,
}

impl Columns {
    /// The first `count` columns.
    pub fn all(count: usize) -> Self {
        Columns { first: 0, step: 1, count }
    }

    fn meets(self, other: Columns) -> bool {
        let end = |c: Columns| c.first + c.step * (c.count - 1);
        let apart = self.first > end(other) || other.first > end(self);
        let interleaved =
            self.step == other.step && !self.first.abs_diff(other.first).is_multiple_of(self.step);
        !apart && !interleaved
    }
}

impl Piece {
    /// True where both change an element.
    pub fn meets(&self, other: &Piece) -> bool {
        self.rows.start < other.rows.end && other.rows.start < self.rows.end && self.cols.meets(other.cols)
    }

    /// True where both add the same values to the same elements.
    pub fn same_as(&self, other: &Piece) -> bool {
        let shape = |p: &Piece| (p.rows.clone(), p.cols, p.rank, p.scale.to_bits());
        shape(self) == shape(other)
            && self.left.same_values(&other.left, (self.rows.len(), self.rank))
            && self.right.same_values(&other.right, (self.rank, self.cols.count))
    }
}

/// A piece made ready for some rows of a tensor that is `width` columns wide.
pub struct Packed<T> {
    left: Vec<T>,
    right: Vec<T>,
    rank: usize,
    first: usize,
}

impl<T: Real> Packed<T> {
    /// Gathers the factors for `rows`, which the piece must cover; the scale goes into the left one.
    pub fn new(piece: &Piece, rows: Range<usize>, width: usize) -> Self {
        let rank = piece.rank;
        let local = rows.start - piece.rows.start..rows.end - piece.rows.start;
        let mut left = Vec::with_capacity(local.len() * rank);
        piece.left.each(local, 0..rank, |_, _, v| left.push(T::of(piece.scale * f64::from(v))));
        let mut right = vec![T::ZERO; width.next_multiple_of(PANEL) * rank];
        let Columns { first, step, count } = piece.cols;
        piece.right.each(0..rank, 0..count, |j, c, v| {
            let col = first + c * step;
            right[(col / PANEL * rank + j) * PANEL + col % PANEL] = T::of(f64::from(v));
        });
        Packed { left, right, rank, first: rows.start }
    }

    fn product(&self, rows: Range<usize>, onto: Onto, delta: &mut [T]) {
        let local = (rows.start - self.first) * self.rank..(rows.end - self.first) * self.rank;
        let factors = Factors { left: &self.left[local], right: &self.right, rank: self.rank };
        product(Form::best(), factors, onto, delta);
    }
}

/// The sum of all `packed` for `rows`, into `delta`: (rows, width rounded up to [`PANEL`]).
pub fn sum<T: Real>(packed: &[Packed<T>], rows: Range<usize>, width: usize, delta: &mut Vec<T>) {
    delta.resize(rows.len() * width.next_multiple_of(PANEL), T::ZERO);
    match packed {
        [] => delta.fill(T::ZERO),
        [first, others @ ..] => {
            first.product(rows.clone(), Onto::Nothing, delta);
            others.iter().for_each(|p| p.product(rows.clone(), Onto::Sums, delta));
        }
    }
}

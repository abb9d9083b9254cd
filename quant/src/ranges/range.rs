//! How large numbers get, their root mean square, and whether more data would hold larger ones.

use rayon::prelude::*;
use runner::cpu::Array;

/// Numbers that a thread looks at together; sums are added up in their order.
const PIECE: usize = 1 << 14;

/// The sizes of all numbers that came by.
#[derive(Debug, Clone, Default)]
pub struct Range {
    /// The largest so far, as bits: those of NaN and infinity are larger than all others.
    largest: u32,
    squares: f64,
    count: u64,
    /// What was the largest when half of the data was through.
    first: Option<f32>,
    /// Numbers of the second half, and those among them that are larger than all of the first.
    second: u64,
    above: u64,
}

impl Range {
    /// Adds all numbers of `x`.
    pub fn add(&mut self, x: &Array) {
        let limit = self.first.unwrap_or(f32::INFINITY);
        let pieces = x.values().par_chunks(PIECE).map(|piece| Piece::of(piece, limit));
        for piece in pieces.collect::<Vec<_>>() {
            self.largest = self.largest.max(piece.largest);
            self.squares += piece.squares;
            self.above += piece.above;
        }
        self.count += x.values().len() as u64;
        if self.first.is_some() {
            self.second += x.values().len() as u64;
        }
    }

    /// Adds what another saw. Counts nothing for [`Self::clipped`].
    pub fn absorb(&mut self, other: &Range) {
        self.largest = self.largest.max(other.largest);
        self.squares += other.squares;
        self.count += other.count;
    }

    /// Half of the data is through. Told again, or before anything came, it means nothing.
    pub fn halfway(&mut self) {
        if self.count > 0 {
            self.first.get_or_insert(f32::from_bits(self.largest));
        }
    }

    /// The largest size; `None` where something was no number.
    pub fn largest(&self) -> Option<f32> {
        Some(f32::from_bits(self.largest)).filter(|v| v.is_finite())
    }

    /// Root of the mean square.
    pub fn rms(&self) -> f64 {
        (self.squares / self.count.max(1) as f64).sqrt()
    }

    /// The share of the second half that is larger than all of the first: about what new data will have clipped. `None`
    /// where there were no halves.
    pub fn clipped(&self) -> Option<f64> {
        (self.second > 0).then(|| self.above as f64 / self.second as f64)
    }
}

struct Piece {
    largest: u32,
    squares: f64,
    above: u64,
}

impl Piece {
    fn of(values: &[f32], limit: f32) -> Self {
        let size = |v: &f32| v.to_bits() & 0x7fff_ffff;
        Piece {
            largest: values.iter().map(size).max().unwrap_or(0),
            squares: values.iter().map(|v| f64::from(*v) * f64::from(*v)).sum(),
            above: values.iter().map(|v| u64::from(v.abs() > limit)).sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(values: &[f32]) -> Array {
        Array::new(1, values.len(), values.to_vec())
    }

    #[test]
    fn largest_and_root_mean_square_are_those_of_all_numbers() {
        let mut range = Range::default();
        range.add(&row(&[3.0, -4.0]));
        let mut other = Range::default();
        other.add(&row(&[0.0, -5.0]));
        range.absorb(&other);
        assert_eq!((range.largest(), range.rms()), (Some(5.0), 12.5f64.sqrt()));
        assert_eq!(range.clipped(), None);
    }

    #[test]
    fn what_lies_beyond_the_first_half_is_counted() {
        let mut range = Range::default();
        range.halfway();
        range.add(&row(&[1.0, -2.0]));
        range.halfway();
        range.add(&row(&[2.0, -2.5, 9.0, 0.0]));
        range.halfway();
        range.add(&row(&[3.0, 3.0, 3.0, 8.0]));
        assert_eq!((range.largest(), range.clipped()), (Some(9.0), Some(6.0 / 8.0)));
    }

    #[test]
    fn a_single_nan_or_infinity_is_seen() {
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut range = Range::default();
            range.add(&row(&[1.0, bad, 1e30]));
            assert_eq!(range.largest(), None);
        }
        assert_eq!(Range::default().largest(), Some(0.0));
    }
}

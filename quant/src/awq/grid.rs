//! Integer grids: the weights under one scale as codes `0 ..= 2^bits - 1`, a weight being `(code - zero) * scale`.

use half::{bf16, f16};
use runner::cpu::isa::{Isa, Kernel, Lanes};
use verify::codec::Float;

/// How groups of weights are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IntFormat {
    /// Bits of a code, at most 8.
    pub bits: u32,
    /// True where the zero is in the middle and not stored.
    pub symmetric: bool,
    /// Columns under one scale, a multiple of 16.
    pub group: usize,
    /// Type in which scales are stored: codes are computed from the rounded scale.
    pub scale: Float,
}

/// Scale and zero of one group.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Grid {
    /// Positive, as it is stored.
    pub scale: f32,
    /// A whole number, `0 ..= 2^bits - 1`.
    pub zero: f32,
}

impl IntFormat {
    /// The largest code.
    pub fn largest(self) -> f32 {
        ((1u32 << self.bits) - 1) as f32
    }

    /// The grid over `low ..= high`, which hold 0 between them.
    ///
    /// Symmetric grids reach half a step further than their largest code (compressed-tensors: absmax / 7.5).
    pub fn grid(self, low: f32, high: f32) -> Grid {
        let width = if self.symmetric { 2.0 * high.max(-low) } else { high - low };
        let scale = self.stored(width / self.largest());
        Grid { scale, zero: self.zero_for(low, scale) }
    }

    /// The zero of a grid that begins at `low`.
    fn zero_for(self, low: f32, scale: f32) -> f32 {
        match self.symmetric {
            true => (1u32 << (self.bits - 1)) as f32,
            false => nearest(-low / scale).clamp(0.0, self.largest()),
        }
    }

    /// `scale` as it is stored; a group without any width gets the type's epsilon, as compressed-tensors writes it.
    pub fn stored(self, scale: f32) -> f32 {
        let (stored, epsilon) = match self.scale {
            Float::F32 => (scale, f32::EPSILON),
            Float::F16 => (f16::from_f32(scale).to_f32(), f16::EPSILON.to_f32()),
            Float::BF16 => (bf16::from_f32(scale).to_f32(), bf16::EPSILON.to_f32()),
        };
        if stored > 0.0 { stored } else { epsilon }
    }

    /// The grids of `row`, group by group, each reaching from its smallest to its largest weight.
    pub fn grids(self, isa: Isa, row: &[f32]) -> Vec<Grid> {
        let group = |values: &[f32]| {
            let (low, high) = isa.run(Range(values));
            self.grid(low, high)
        };
        row.chunks(self.group).map(group).collect()
    }
}

/// To the nearest whole number, ties to even; for numbers below 2^22.
#[inline(always)]
pub fn nearest(x: f32) -> f32 {
    const HALF_WAY: f32 = 12_582_912.0; // 1.5 * 2^23: there the floats are the whole numbers.
    (x + HALF_WAY) - HALF_WAY
}

#[inline(always)]
fn code(x: f32, grid: Grid, largest: f32) -> f32 {
    (nearest(x / grid.scale) + grid.zero).max(0.0).min(largest)
}

/// Smallest and largest of some numbers and 0.
pub struct Range<'a>(pub &'a [f32]);

impl Kernel for Range<'_> {
    type Out = (f32, f32);

    #[inline(always)]
    fn run<L: Lanes>(self) -> (f32, f32) {
        let (mut low, mut high) = ([0.0f32; 16], [0.0f32; 16]);
        let (chunks, rest) = self.0.as_chunks::<16>();
        for chunk in chunks {
            for i in 0..16 {
                low[i] = if chunk[i] < low[i] { chunk[i] } else { low[i] };
                high[i] = if chunk[i] > high[i] { chunk[i] } else { high[i] };
            }
        }
        for x in rest {
            low[0] = low[0].min(*x);
            high[0] = high[0].max(*x);
        }
        (low.into_iter().fold(0.0, f32::min), high.into_iter().fold(0.0, f32::max))
    }
}

/// Replaces numbers by those that their codes stand for.
pub struct RoundTrip<'a> {
    /// Whole groups.
    pub row: &'a mut [f32],
    /// Their grids.
    pub grids: &'a [Grid],
    /// The format.
    pub format: IntFormat,
}

impl Kernel for RoundTrip<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let largest = self.format.largest();
        for (values, grid) in self.row.chunks_mut(self.format.group).zip(self.grids) {
            for x in values {
                *x = (code(*x, *grid, largest) - grid.zero) * grid.scale;
            }
        }
    }
}

/// The codes of numbers.
pub struct Codes<'a> {
    /// Whole groups.
    pub row: &'a [f32],
    /// Their grids.
    pub grids: &'a [Grid],
    /// The format.
    pub format: IntFormat,
    /// A code for each number.
    pub to: &'a mut [u8],
}

impl Kernel for Codes<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let (largest, group) = (self.format.largest(), self.format.group);
        let groups = self.row.chunks(group).zip(self.to.chunks_mut(group));
        for ((values, to), grid) in groups.zip(self.grids) {
            for (x, to) in values.iter().zip(to) {
                *to = code(*x, *grid, largest) as u8;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOUR: IntFormat = IntFormat { bits: 4, symmetric: false, group: 16, scale: Float::BF16 };

    fn codes(format: IntFormat, row: &[f32]) -> (Vec<u8>, Vec<Grid>) {
        let grids = format.grids(Isa::best(), row);
        let mut to = vec![0; row.len()];
        Isa::best().run(Codes { row, grids: &grids, format, to: &mut to });
        (to, grids)
    }

    #[test]
    fn asymmetric_grid_reaches_from_smallest_to_largest() {
        let row: Vec<f32> = (0..16).map(|i| i as f32 - 5.0).collect();
        let (codes, grids) = codes(FOUR, &row);
        assert_eq!(grids, [Grid { scale: 1.0, zero: 5.0 }]);
        assert_eq!(codes, (0..16).collect::<Vec<u8>>());
    }

    #[test]
    fn zero_is_always_within_so_that_it_stays_exact() {
        let row: Vec<f32> = (0..16).map(|i| 3.0 + i as f32 / 4.0).collect();
        assert_eq!(FOUR.grids(Isa::best(), &row)[0].zero, 0.0);
    }

    #[test]
    fn symmetric_grid_is_absmax_over_seven_and_a_half() {
        let format = IntFormat { symmetric: true, ..FOUR };
        let mut row = vec![0.0; 16];
        (row[0], row[1]) = (-7.5, 3.0);
        let (codes, grids) = codes(format, &row);
        assert_eq!(grids, [Grid { scale: 1.0, zero: 8.0 }]);
        // -7.5 ties to the even -8.
        assert_eq!(codes[..3], [0, 11, 8]);
    }

    #[test]
    fn codes_come_from_the_scale_as_stored() {
        let mut row = vec![0.0; 16];
        row[0] = 1.0;
        row[1] = 0.7;
        let grid = FOUR.grids(Isa::best(), &row)[0];
        assert_eq!(grid.scale, bf16::from_f32(1.0 / 15.0).to_f32());
        assert_ne!(grid.scale, 1.0 / 15.0);
    }

    #[test]
    fn group_of_zeros_has_a_positive_scale() {
        let (codes, grids) = codes(FOUR, &[0.0; 16]);
        assert_eq!(grids[0].scale, bf16::EPSILON.to_f32());
        assert!(codes.iter().all(|c| f32::from(*c) == grids[0].zero));
    }

    #[test]
    fn every_instruction_set_gives_the_same_numbers() {
        let row: Vec<f32> = (0..64).map(|i| ((i * 7919 % 251) as f32 - 100.0) / 37.0).collect();
        let trip = |isa: Isa| {
            let mut row = row.clone();
            let grids = FOUR.grids(isa, &row);
            isa.run(RoundTrip { row: &mut row, grids: &grids, format: FOUR });
            row
        };
        Isa::available().into_iter().for_each(|isa| assert_eq!(trip(isa), trip(Isa::PLAIN)));
    }
}

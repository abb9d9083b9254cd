//! Weights as numbers: scaled, rounded to a grid and back, and how far that is off.

use std::ops::Range;

use rayon::prelude::*;
use runner::cpu::isa::Isa;
use runner::weights::{Bytes, Format, Matrix};
use verify::codec::Float;
use verify::{Error, Shown};

use super::grid::{IntFormat, RoundTrip};

/// Rows that a thread takes at a time.
const ROWS: usize = 16;

/// The float type of a matrix; `None` for one that is quantized already.
pub fn float_of(m: &Matrix) -> Option<Float> {
    match m.format {
        Format::F32 => Some(Float::F32),
        Format::F16 => Some(Float::F16),
        Format::Bf16 => Some(Float::BF16),
        _ => None,
    }
}

/// Rows `first..` of a plain matrix into `to`, whole rows.
pub fn read(m: &Matrix, first: usize, to: &mut [f32]) {
    let float = float_of(m).unwrap_or(Float::F32);
    let row = m.cols * float.bytes();
    float.read(&m.bytes.as_slice()[first * row..][..to.len() / m.cols.max(1) * row], to);
}

/// All numbers of a plain matrix.
pub fn numbers(m: &Matrix) -> Vec<f32> {
    numbers_of(m, 0..m.rows)
}

/// The numbers of some rows.
pub fn numbers_of(m: &Matrix, rows: Range<usize>) -> Vec<f32> {
    let mut some = vec![0.0; rows.len() * m.cols];
    some.par_chunks_mut(ROWS * m.cols).enumerate().for_each(|(n, to)| read(m, rows.start + n * ROWS, to));
    some
}

/// What stands for `m` when its columns are scaled by `s`, rounded to the format's grids and scaled back: `Q(W s) / s`;
/// minus `m` itself where the error alone is wanted.
pub fn rounded(isa: Isa, m: &Matrix, s: &[f32], format: IntFormat, as_what: Give) -> Matrix {
    let inverse: Vec<f32> = s.iter().map(|s| 1.0 / s).collect();
    let float = match as_what {
        // The weights themselves in 16 bit: a rounding that is small beside the one that is looked at.
        Give::Weights => Float::BF16,
        Give::Error => Float::F32,
    };
    let mut bytes = vec![0u8; m.rows * m.cols * float.bytes()];
    bytes.par_chunks_mut(ROWS * m.cols * float.bytes()).enumerate().for_each(|(n, to)| {
        let mut row = vec![0.0; to.len() / float.bytes()];
        read(m, n * ROWS, &mut row);
        let original = row.clone();
        for row in row.chunks_exact_mut(m.cols) {
            row.iter_mut().zip(s).for_each(|(w, s)| *w *= s);
            let grids = format.grids(isa, row);
            isa.run(RoundTrip { row, grids: &grids, format });
            row.iter_mut().zip(&inverse).for_each(|(w, i)| *w *= i);
        }
        if as_what == Give::Error {
            row.iter_mut().zip(original).for_each(|(w, o)| *w -= o);
        }
        to.copy_from_slice(&float.to_bytes(&row));
    });
    let format = if float == Float::F32 { Format::F32 } else { Format::Bf16 };
    Matrix { name: m.name.clone(), rows: m.rows, cols: m.cols, bytes: Bytes::owned(bytes), format }
}

/// What [`rounded`] gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Give {
    /// The weights, in 16 bit.
    Weights,
    /// Their difference to the original, in f32.
    Error,
}

/// Mean over all rows of the matrices of `|W| / (largest of its group + 1e-6)`, by column: how much of its group's
/// range a column takes (AWQ's `w_mean`).
pub fn shares(matrices: &[&Matrix], group: usize) -> Vec<f32> {
    let cols = matrices.first().map_or(0, |m| m.cols);
    let mut total = vec![0.0f64; cols];
    let mut rows = 0;
    for m in matrices {
        rows += m.rows;
        let parts: Vec<Vec<f32>> = (0..m.rows.div_ceil(ROWS))
            .into_par_iter()
            .map(|n| {
                let mut values = vec![0.0; ROWS.min(m.rows - n * ROWS) * cols];
                read(m, n * ROWS, &mut values);
                let mut sums = vec![0.0f32; cols];
                for row in values.chunks_exact(cols) {
                    for (sums, row) in sums.chunks_mut(group).zip(row.chunks(group)) {
                        let most = row.iter().fold(0.0f32, |m, w| if w.abs() > m { w.abs() } else { m });
                        let inverse = 1.0 / (most + 1e-6);
                        sums.iter_mut().zip(row).for_each(|(s, w)| *s += w.abs() * inverse);
                    }
                }
                sums
            })
            .collect();
        for sums in parts {
            total.iter_mut().zip(sums).for_each(|(t, s)| *t += f64::from(s));
        }
    }
    total.into_iter().map(|t| (t / rows.max(1) as f64) as f32).collect()
}

/// The refusal of the first of `weights` that holds a number that is none.
pub fn not_finite<'a>(weights: impl IntoIterator<Item = &'a Matrix>) -> Option<Error> {
    let place = |m: &Matrix| Some((m.name.clone(), numbers(m).iter().position(|w| !w.is_finite())? / m.cols));
    let (name, row) = weights.into_iter().find_map(place)?;
    Some(
        Error::input(format!("`{}` cannot be quantized", Shown(&name)))
            .found(format!("NaN or infinity in row {row}"))
            .expected("finite weights")
            .hint("fetch the model again, or merge it again from its parts; --fp8 --allow-nonfinite copies such modules as they are"),
    )
}

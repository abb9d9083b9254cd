//! The grid of every group: from its smallest to its largest weight, or narrower where the inputs say that this
//! loses less.

use rayon::prelude::*;
use runner::Cpu;
use runner::backend::{Backend, Linear};
use runner::cpu::Array;
use runner::cpu::isa::{Isa, Kernel, LANES, Lanes};
use runner::weights::{Bytes, Format, Matrix};
use verify::Result;
use verify::codec::Float;

use super::grid::{Grid, IntFormat, Range, RoundTrip};
use super::moments::Moments;

/// How far a range may be narrowed.
pub const RATIOS: [f32; 10] = [1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.55];

/// For every row of `weights` `[rows, cols]`, whose columns are already scaled by `s`, the grids of least error on inputs of
/// these moments: `[rows, cols / group]`. Each group is judged for itself.
pub fn grids(
    cpu: &Cpu,
    weights: &[f32],
    s: &[f32],
    moments: &Moments,
    format: IntFormat,
) -> Result<Vec<Grid>> {
    let (cols, group) = (s.len(), format.group);
    let rows = weights.len() / cols;
    let places = moments.blocks().iter().flat_map(|b| (0..b.columns).step_by(group).map(move |at| (b, at)));
    let columns: Vec<Vec<Grid>> = places
        .collect::<Vec<_>>()
        .into_par_iter()
        .map(|(block, at)| {
            let n = (block.first + at) / group;
            let part: Vec<f32> =
                weights.chunks_exact(cols).flat_map(|row| &row[n * group..][..group]).copied().collect();
            of_group(cpu, &part, &s[n * group..][..group], &block.part(at, group), format)
        })
        .collect::<Result<_>>()?;
    Ok((0..rows).flat_map(|r| columns.iter().map(move |c| c[r])).collect())
}

fn of_group(cpu: &Cpu, part: &[f32], s: &[f32], gram: &[f32], format: IntFormat) -> Result<Vec<Grid>> {
    let group = s.len();
    let products = Linear::<Cpu> {
        weight: Matrix {
            name: "gram".into(),
            rows: group,
            cols: group,
            bytes: Bytes::owned(Float::F32.to_bytes(gram)),
            format: Format::F32,
        },
        bias: None,
    };
    let ranges: Vec<(f32, f32)> = part.chunks_exact(group).map(|row| cpu.isa().run(Range(row))).collect();
    let mut best: Vec<(Grid, f32)> = vec![(Grid { scale: 1.0, zero: 0.0 }, f32::INFINITY); ranges.len()];
    for ratio in RATIOS {
        let tried: Vec<Grid> = ranges.iter().map(|(l, h)| format.grid(l * ratio, h * ratio)).collect();
        let off = differences(cpu.isa(), part, s, &tried, format);
        let [through] = cpu.linear(&off, [&products])?;
        for (n, (off, through)) in off.each_row().zip(through.each_row()).enumerate() {
            let error = cpu.isa().run(Dot(off, through));
            if error < best[n].1 {
                best[n] = (tried[n], error);
            }
        }
    }
    // Where no error is a number (inputs beyond f32's range squared) the whole range is kept.
    let whole = ranges.iter().map(|(l, h)| format.grid(*l, *h));
    Ok(best.into_iter().zip(whole).map(|((g, e), whole)| if e.is_finite() { g } else { whole }).collect())
}

/// What rounding changes in each weight, seen by the unscaled inputs.
fn differences(isa: Isa, part: &[f32], s: &[f32], grids: &[Grid], format: IntFormat) -> Array {
    let inverse: Vec<f32> = s.iter().map(|s| 1.0 / s).collect();
    let mut off = part.to_vec();
    for ((row, original), grid) in off.chunks_exact_mut(s.len()).zip(part.chunks_exact(s.len())).zip(grids) {
        isa.run(RoundTrip { row, grids: std::slice::from_ref(grid), format });
        isa.run(Unscale { row, original, inverse: &inverse });
    }
    Array::new(grids.len(), s.len(), off)
}

/// `(row - original) * inverse`.
struct Unscale<'a> {
    row: &'a mut [f32],
    original: &'a [f32],
    inverse: &'a [f32],
}

impl Kernel for Unscale<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Unscale { row, original, inverse } = self;
        for i in 0..row.len().min(original.len()).min(inverse.len()) {
            row[i] = (row[i] - original[i]) * inverse[i];
        }
    }
}

/// The sum of products of two rows of whole lanes.
struct Dot<'a>(&'a [f32], &'a [f32]);

impl Kernel for Dot<'_> {
    type Out = f32;

    #[inline(always)]
    fn run<L: Lanes>(self) -> f32 {
        let mut sum = L::splat(0.0);
        let (a, b) = (self.0.as_chunks::<LANES>().0, self.1.as_chunks::<LANES>().0);
        for i in 0..a.len().min(b.len()) {
            sum = sum.fma(L::load(&a[i]), L::load(&b[i]));
        }
        sum.sum()
    }
}

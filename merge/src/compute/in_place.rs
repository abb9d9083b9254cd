//! bf16 rows merged where they lie, sums in f32: nearly all of a merge is this.

use std::ops::Range;

use verify::Result;
use verify::checkpoint::TensorReader;

use super::figures::Figures;
use super::form::Form;
use super::job::{Job, TILE};
use super::piece::{Packed, sum};
use super::product::PANEL;
use super::real::decode;
use super::round::merge_bf16;

/// Merges `bytes`, the rows `rows` of the base, into rows of the result.
///
/// # Errors
/// Exit 3 where a result is not finite though the base is.
pub fn merge(job: &Job, rows: &Range<usize>, bytes: &mut [u8], input: &dyn TensorReader) -> Result<Figures> {
    let (cols, row_bytes) = (job.output.cols(), job.output.row_bytes());
    let width = cols.next_multiple_of(PANEL);
    let mut figures = Figures { elements: (rows.len() * cols) as f64, ..Figures::default() };
    let mut delta: Vec<f32> = Vec::with_capacity(TILE * width);
    for segment in job.segments(rows.clone()) {
        let packed: Vec<Packed<f32>> =
            job.pieces_in(&segment).map(|p| Packed::new(p, segment.clone(), cols)).collect();
        if packed.is_empty() {
            continue;
        }
        for start in segment.clone().step_by(TILE) {
            let tile = start..(start + TILE).min(segment.end);
            sum(&packed, tile.clone(), width, &mut delta);
            for (row, delta) in tile.zip(delta.chunks_exact(width)) {
                let out = &mut bytes[(row - rows.start) * row_bytes..][..row_bytes];
                let sums = merge_bf16(Form::best(), out, delta);
                if sums.broken {
                    let base = input.read_rows(&job.base.name, row..row + 1)?;
                    let values = (&decode(&base, job.base.dtype)[..], &decode(out, job.output.dtype)[..]);
                    figures.add_broken(&job.output, row, values)?;
                }
                figures.add(sums);
            }
        }
    }
    Ok(figures)
}

//! A range of rows of a merged tensor, for all that cannot be done in place: other dtypes than bf16, whole
//! tensors, DoRA, token rows.

use std::ops::Range;

use verify::checkpoint::TensorReader;
use verify::{Dtype, Result};

use super::dora::Axis;
use super::figures::Figures;
use super::form::Form;
use super::job::{Job, TILE};
use super::piece::{Packed, sum};
use super::product::PANEL;
use super::real::decode;
use super::round::{Sums, finish, merge_f32_to_bf16};

/// The rows while they are computed.
pub struct Chunk<'a> {
    job: &'a Job,
    first: usize,
    base: Vec<u8>,
    whole: Option<Vec<u8>>,
    out: Vec<u8>,
    figures: Figures,
}

impl<'a> Chunk<'a> {
    /// Rows from `first` on; `base` are those that the base has.
    pub fn new(job: &'a Job, first: usize, base: Vec<u8>) -> Self {
        Chunk { job, first, base, whole: None, out: Vec::new(), figures: Figures::default() }
    }

    /// The bytes of `rows`, and the figures about them.
    ///
    /// # Errors
    /// Exit 3 where a result is not finite though the base is.
    pub fn compute(mut self, rows: Range<usize>, input: &dyn TensorReader) -> Result<(Vec<u8>, Figures)> {
        self.whole = self.job.whole.as_ref().map(|w| w.read_rows(rows.clone())).transpose()?;
        self.out.reserve(rows.len() * self.job.output.row_bytes());
        for segment in self.job.segments(rows) {
            self.segment(segment, input)?;
        }
        Ok((self.out, self.figures))
    }

    fn segment(&mut self, rows: Range<usize>, input: &dyn TensorReader) -> Result<()> {
        let job = self.job;
        self.figures.elements += (rows.len() * job.output.cols()) as f64;
        if let Ok(at) = job.token_rows.binary_search_by_key(&rows.start, |t| t.0) {
            let (_, tensor, from) = &job.token_rows[at];
            let values = decode(&tensor.read_rows(*from..*from + 1)?, tensor.spec.dtype);
            return self.put(rows.start, &values);
        }
        let of_base = job.whole.is_none() && job.dora.is_none();
        if of_base && job.base.dtype == job.output.dtype && job.pieces_in(&rows).next().is_none() {
            let bytes = self.base_range(rows);
            self.out.extend_from_slice(&self.base[bytes]);
            return Ok(());
        }
        match of_base && job.base.dtype == Dtype::F32 && job.output.dtype == Dtype::BF16 {
            true => self.merge_f32_to_bf16(rows),
            false => self.merge_exact(rows, input),
        }
    }

    fn base_range(&self, rows: Range<usize>) -> Range<usize> {
        let row = self.job.base.row_bytes();
        (rows.start - self.first) * row..(rows.end - self.first) * row
    }

    /// Dequantized weights in, bf16 out, sums in f32.
    fn merge_f32_to_bf16(&mut self, rows: Range<usize>) -> Result<()> {
        let cols = self.job.output.cols();
        let width = cols.next_multiple_of(PANEL);
        let packed: Vec<Packed<f32>> =
            self.job.pieces_in(&rows).map(|p| Packed::new(p, rows.clone(), cols)).collect();
        let mut delta = Vec::with_capacity(TILE * width);
        for start in rows.clone().step_by(TILE) {
            let tile = start..(start + TILE).min(rows.end);
            sum(&packed, tile.clone(), width, &mut delta);
            for (row, delta) in tile.zip(delta.chunks_exact(width)) {
                let (bytes, at) = (self.base_range(row..row + 1), self.out.len());
                self.out.resize(at + 2 * cols, 0);
                let sums = merge_f32_to_bf16(Form::best(), &self.base[bytes], delta, &mut self.out[at..]);
                self.count(row, at, sums)?;
            }
        }
        Ok(())
    }

    /// Everything else, sums in f64.
    fn merge_exact(&mut self, rows: Range<usize>, input: &dyn TensorReader) -> Result<()> {
        let job = self.job;
        let norms = match &job.dora {
            Some(dora) if dora.axis == Axis::Columns => Some(job.column_norms(dora, input)?),
            _ => None,
        };
        let row_bytes = job.output.cols() * job.source_dtype().bits() / 8;
        let bytes = (rows.start - self.first) * row_bytes..(rows.end - self.first) * row_bytes;
        let source = self.whole.as_ref().unwrap_or(&self.base)[bytes].to_vec();
        job.each_sum(rows, &source, &mut |row, values| {
            match (&job.dora, norms) {
                (Some(dora), Some(norms)) => dora.scale_columns(norms, values, &job.output.name)?,
                (Some(dora), None) => dora.scale_row(row, values, &job.output.name)?,
                (None, _) => {}
            }
            self.put(row, values)
        })
    }

    /// Rounds a row and appends it, with the figures about it.
    fn put(&mut self, row: usize, values: &[f64]) -> Result<()> {
        let at = self.out.len();
        let (base, output) = (&self.job.base, &self.job.output);
        self.out.resize(at + output.row_bytes(), 0);
        let bytes = self.base_range(row..row + 1);
        let out = (output.dtype, &mut self.out[at..]);
        let sums = if row < base.rows() {
            finish(Form::best(), values, (base.dtype, &self.base[bytes]), out)
        } else {
            let sums = finish(Form::best(), values, (Dtype::BF16, &vec![0; 2 * values.len()]), out);
            Sums { changed: values.len() as u64, ..sums }
        };
        self.count(row, at, sums)
    }

    /// Adds the figures of `row`, whose output begins at byte `at`.
    fn count(&mut self, row: usize, at: usize, sums: Sums) -> Result<()> {
        if sums.broken {
            let out = decode(&self.out[at..], self.job.output.dtype);
            let base = match row < self.job.base.rows() {
                true => decode(&self.base[self.base_range(row..row + 1)], self.job.base.dtype),
                false => Vec::new(),
            };
            self.figures.add_broken(&self.job.output, row, (&base, &out))?;
        }
        self.figures.add(sums);
        Ok(())
    }
}

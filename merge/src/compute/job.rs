//! One merged tensor: where its rows come from and what is done to them.
//!
//! Order: whole replacement, then LoRA and DoRA, then token rows; one rounding at the end.

use std::ops::Range;
use std::sync::Arc;

use verify::checkpoint::{TensorReader, TensorSpec};
use verify::rewrite::{Applied, Note, rows_per_chunk};
use verify::{Dtype, Error, Result, Shown};

use super::dora::{Axis, Dora};
use super::form::Form;
use super::piece::{Packed, Piece};
use super::product::PANEL;
use super::real::decode;
use super::round::{Sums, add, finish, merge_to_bf16};
use crate::adapter::stored::Stored;

/// What makes one output tensor.
#[derive(Debug)]
pub struct Job {
    /// The tensor that comes out.
    pub output: TensorSpec,
    /// The base tensor that it is compared with, and whose rows it is made from unless `whole` says otherwise.
    pub base: TensorSpec,
    /// A tensor of an adapter in the base's place.
    pub whole: Option<Arc<Stored>>,
    /// Products to add.
    pub pieces: Vec<Piece>,
    /// Scaling after that.
    pub dora: Option<Arc<Dora>>,
    /// Rows that are replaced last: row, tensor, row of that tensor. Sorted by row.
    pub token_rows: Vec<(usize, Arc<Stored>, usize)>,
}

/// Rows that are computed together, which bounds the scratch memory.
const TILE: usize = 8;

impl Job {
    /// Rows of one chunk.
    pub fn step(&self) -> usize {
        rows_per_chunk(self.output.row_bytes().max(self.base.row_bytes()), 1)
    }

    /// Computes `rows`.
    ///
    /// # Errors
    /// Exit 3 where a result is not finite though the base is.
    pub fn apply(&self, rows: Range<usize>, input: &dyn TensorReader) -> Result<Applied> {
        let base_rows = rows.start.min(self.base.rows())..rows.end.min(self.base.rows());
        let base = input.read_rows(&self.base.name, base_rows)?;
        let whole = self.whole.as_ref().map(|w| w.read_rows(rows.clone())).transpose()?;
        let mut chunk = Chunk {
            job: self,

            first: rows.start,
            base,
            whole,
            out: Vec::with_capacity(rows.len() * self.output.row_bytes()),
            figures: Figures::default(),
        };
        for segment in self.segments(rows.clone()) {
            chunk.segment(segment, input)?;
        }
        let note = self.changes().then(|| chunk.figures.note(&self.output.name, rows.start));
        Ok(Applied { outputs: vec![chunk.out], note })
    }

    /// True where the output is not simply the base.
    pub fn changes(&self) -> bool {
        self.whole.is_some() || !self.pieces.is_empty() || self.dora.is_some() || !self.token_rows.is_empty()
    }

    /// `rows` cut where a piece begins or ends, so that each part has the same pieces in all its rows.
    fn segments(&self, rows: Range<usize>) -> Vec<Range<usize>> {
        let mut cuts = vec![rows.start, rows.end];
        cuts.extend(self.pieces.iter().flat_map(|p| [p.rows.start, p.rows.end]));
        cuts.extend(self.token_rows.iter().flat_map(|t| [t.0, t.0 + 1]));
        cuts.retain(|c| rows.start <= *c && *c <= rows.end);
        cuts.sort_unstable();
        cuts.dedup();
        cuts.windows(2).map(|w| w[0]..w[1]).collect()
    }

    fn pieces_in<'a>(&'a self, rows: &'a Range<usize>) -> impl Iterator<Item = &'a Piece> {
        self.pieces.iter().filter(|p| p.rows.start <= rows.start && rows.end <= p.rows.end)
    }

    fn source_dtype(&self) -> Dtype {
        self.whole.as_ref().map_or(self.base.dtype, |w| w.spec.dtype)
    }

    /// Norms of the columns of V, by one pass over the tensor; the first chunk that asks makes it.
    fn column_norms<'a>(&self, dora: &'a Dora, input: &dyn TensorReader) -> Result<&'a [f64]> {
        let norms = dora.norms.get_or_init(|| {
            let mut sums = vec![0.0f64; self.output.cols()];
            let all = self.output.rows();
            for start in (0..all).step_by(self.step()) {
                let rows = start..(start + self.step()).min(all);
                let source = match &self.whole {
                    Some(w) => w.read_rows(rows.clone())?,
                    None => input.read_rows(&self.base.name, rows.clone())?,
                };
                self.each_sum(rows, &source, &mut |_, row| {
                    sums.iter_mut().zip(&*row).for_each(|(s, v)| *s += v * v);
                    Ok(())
                })?;
            }
            Ok(sums.into_iter().map(f64::sqrt).collect())
        });
        norms.as_deref().map_err(Clone::clone)
    }

    /// Calls `take(row, values)` with W + ΔW in f64 for all of `rows`, whose source bytes are given.
    fn each_sum(
        &self,
        rows: Range<usize>,
        source: &[u8],
        take: &mut dyn FnMut(usize, &mut [f64]) -> Result<()>,
    ) -> Result<()> {
        let (cols, dtype) = (self.output.cols(), self.source_dtype());
        let width = cols.next_multiple_of(PANEL);
        let row_bytes = cols * dtype.bits() / 8;
        let mut delta = Vec::new();
        for segment in self.segments(rows.clone()) {
            let packed: Vec<Packed<f64>> =
                self.pieces_in(&segment).map(|p| Packed::new(p, segment.clone(), cols)).collect();
            for start in segment.clone().step_by(TILE) {
                let tile = start..(start + TILE).min(segment.end);
                delta.clear();
                delta.resize(tile.len() * width, 0.0);
                packed.iter().for_each(|p| p.add(Form::best(), tile.clone(), &mut delta));
                for (row, sums) in tile.zip(delta.chunks_exact_mut(width)) {
                    let at = (row - rows.start) * row_bytes;
                    let sums = &mut sums[..cols];
                    add(Form::best(), (dtype, &source[at..at + row_bytes]), sums);
                    take(row, sums)?;
                }
            }
        }
        Ok(())
    }
}

/// What is known about the merged elements of a tensor.
#[derive(Debug, Clone, Copy, Default)]
pub struct Figures {
    /// Elements.
    pub elements: f64,
    /// Elements that are not what they were.
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
    fn note(&self, tensor: &str, row: usize) -> Note {
        let sums = vec![self.elements, self.changed, self.delta, self.base, self.broken];
        Note { tensor: tensor.to_string(), row, sums, maxima: vec![self.largest] }
    }

    /// The figures of a note made by [`Job::apply`].
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
}

/// A range of rows while it is computed.
struct Chunk<'a> {
    job: &'a Job,
    first: usize,
    base: Vec<u8>,
    whole: Option<Vec<u8>>,
    out: Vec<u8>,
    figures: Figures,
}

impl Chunk<'_> {
    fn segment(&mut self, rows: Range<usize>, input: &dyn TensorReader) -> Result<()> {
        let job = self.job;
        self.figures.elements += (rows.len() * job.output.cols()) as f64;
        if let Ok(at) = job.token_rows.binary_search_by_key(&rows.start, |t| t.0) {
            let (_, tensor, from) = &job.token_rows[at];
            let values = decode(&tensor.read_rows(*from..*from + 1)?, tensor.spec.dtype);
            return self.put(rows.start, &values);
        }
        let plain = job.whole.is_none() && job.dora.is_none();
        if plain && job.base.dtype == job.output.dtype && job.pieces_in(&rows).next().is_none() {
            let (from, to) = self.base_range(rows);
            self.out.extend_from_slice(&self.base[from..to]);
            return Ok(());
        }
        match (plain && job.output.dtype == Dtype::BF16, job.base.dtype) {
            (true, Dtype::BF16 | Dtype::F32) => self.merge_to_bf16(rows),
            _ => self.merge_exact(rows, input),
        }
    }

    fn base_range(&self, rows: Range<usize>) -> (usize, usize) {
        let row = self.job.base.row_bytes();
        ((rows.start - self.first) * row, (rows.end - self.first) * row)
    }

    /// bf16 out, sums in f32: the usual case, and the fast one.
    fn merge_to_bf16(&mut self, rows: Range<usize>) -> Result<()> {
        let cols = self.job.output.cols();
        let width = cols.next_multiple_of(PANEL);
        let packed: Vec<Packed<f32>> =
            self.job.pieces_in(&rows).map(|p| Packed::new(p, rows.clone(), cols)).collect();
        let mut delta = Vec::with_capacity(TILE * width);
        for start in rows.clone().step_by(TILE) {
            let tile = start..(start + TILE).min(rows.end);
            delta.clear();
            delta.resize(tile.len() * width, 0.0);
            packed.iter().for_each(|p| p.add(Form::best(), tile.clone(), &mut delta));
            for (row, delta) in tile.zip(delta.chunks_exact(width)) {
                let (from, to) = self.base_range(row..row + 1);
                let at = self.out.len();
                self.out.resize(at + 2 * cols, 0);
                let base = (self.job.base.dtype, &self.base[from..to]);
                let sums = merge_to_bf16(Form::best(), base, delta, &mut self.out[at..]);
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
        let source = match &self.whole {
            Some(whole) => whole[bytes].to_vec(),
            None => self.base[bytes].to_vec(),
        };
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
        let out = (output.dtype, &mut self.out[at..]);
        let sums = if row < base.rows() {
            let bytes = (row - self.first) * base.row_bytes()..(row + 1 - self.first) * base.row_bytes();
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
                true => {
                    let (from, to) = self.base_range(row..row + 1);
                    decode(&self.base[from..to], self.job.base.dtype)
                }
                false => Vec::new(),
            };
            self.check_finite(row, &base, &out)?;
        }
        let figures = &mut self.figures;
        figures.changed += sums.changed as f64;
        figures.delta += sums.delta;
        figures.base += sums.base;
        figures.largest = figures.largest.max(sums.largest);
        Ok(())
    }

    /// A result that is not finite is the base's fault (reported) or the merge's (refused).
    fn check_finite(&mut self, row: usize, base: &[f64], out: &[f64]) -> Result<()> {
        for (col, value) in out.iter().enumerate().filter(|(_, v)| !v.is_finite()) {
            if base.get(col).is_none_or(|b| b.is_finite()) {
                let name = &self.job.output.name;
                return Err(Error::input(format!("tensor `{}` overflows when merged", Shown(name)))
                    .found(format!("{value} at row {row}, column {col}"))
                    .expected(format!("values that {} can hold", self.job.output.dtype))
                    .hint("check that base and adapter belong together, and the adapter's weight"));
            }
            self.figures.broken += 1.0;
        }
        Ok(())
    }
}

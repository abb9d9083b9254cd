//! One merged tensor: where its rows come from and what is done to them.
//!
//! Order: whole replacement, then LoRA and DoRA, then token rows; one rounding at the end.

use std::ops::Range;
use std::sync::Arc;

use verify::checkpoint::{TensorReader, TensorSpec};
use verify::rewrite::{Applied, rows_per_chunk};
use verify::{Dtype, Result};

use super::chunk::Chunk;
use super::dora::Dora;
use super::form::Form;
use super::in_place;
use super::piece::{Packed, Piece, sum};
use super::product::PANEL;
use super::round::add;
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
pub const TILE: usize = 8;

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
        let mut base = input.read_rows(&self.base.name, base_rows)?;
        let (output, figures) = match self.is_plain() && self.base.dtype == Dtype::BF16 {
            true => {
                let figures = in_place::merge(self, &rows, &mut base, input)?;
                (base, figures)
            }
            false => Chunk::new(self, rows.start, base).compute(rows.clone(), input)?,
        };
        let note = self.changes().then(|| figures.note(&self.output.name, rows.start));
        Ok(Applied { outputs: vec![output], note })
    }

    /// True where products are added to a base of the output's dtype, and nothing else is done.
    fn is_plain(&self) -> bool {
        let only_products = self.whole.is_none() && self.dora.is_none() && self.token_rows.is_empty();
        only_products && self.base.dtype == self.output.dtype
    }

    /// True where the output is not simply the base.
    pub fn changes(&self) -> bool {
        self.whole.is_some() || !self.pieces.is_empty() || self.dora.is_some() || !self.token_rows.is_empty()
    }

    /// `rows` cut where a piece begins or ends, so that each part has the same pieces in all its rows.
    pub fn segments(&self, rows: Range<usize>) -> Vec<Range<usize>> {
        let mut cuts = vec![rows.start, rows.end];
        cuts.extend(self.pieces.iter().flat_map(|p| [p.rows.start, p.rows.end]));
        cuts.extend(self.token_rows.iter().flat_map(|t| [t.0, t.0 + 1]));
        cuts.retain(|c| rows.start <= *c && *c <= rows.end);
        cuts.sort_unstable();
        cuts.dedup();
        cuts.windows(2).map(|w| w[0]..w[1]).collect()
    }

    /// The pieces that cover `rows`, one of [`Self::segments`].
    pub fn pieces_in<'a>(&'a self, rows: &'a Range<usize>) -> impl Iterator<Item = &'a Piece> {
        self.pieces.iter().filter(|p| p.rows.start <= rows.start && rows.end <= p.rows.end)
    }

    /// Dtype of the rows that the products are added to.
    pub fn source_dtype(&self) -> Dtype {
        self.whole.as_ref().map_or(self.base.dtype, |w| w.spec.dtype)
    }

    /// Norms of the columns of V, by one pass over the tensor; the first chunk that asks makes it.
    pub fn column_norms<'a>(&self, dora: &'a Dora, input: &dyn TensorReader) -> Result<&'a [f64]> {
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
    pub fn each_sum(
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
                sum(&packed, tile.clone(), width, &mut delta);
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

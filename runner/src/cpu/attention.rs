//! Causal attention over the keys and values of each sequence.

use std::cell::RefCell;

use rayon::prelude::*;

use super::Array;
use super::elementwise::{dot, softmax};
use super::isa::{Isa, Kernel, LANES, Lanes};
use crate::backend::{Heads, Span};

/// Keys and values of one sequence in one layer, f32 `[positions, pairs * stride]`; a head is filled up with zeros to
/// whole lanes.
#[derive(Debug, Clone)]
pub struct Kv {
    keys: Vec<f32>,
    values: Vec<f32>,
    row: usize,
}

impl Kv {
    /// Empty.
    pub fn new(heads: Heads) -> Self {
        Kv { keys: Vec::new(), values: Vec::new(), row: heads.pairs * stride(heads) }
    }

    fn append(&mut self, span: Span, k: &[f32], v: &[f32], heads: Heads) {
        for (cache, new) in [(&mut self.keys, k), (&mut self.values, v)] {
            cache.resize(span.start * self.row, 0.0);
            for head in new.chunks_exact(heads.dim) {
                cache.extend_from_slice(head);
                cache.resize(cache.len().next_multiple_of(LANES), 0.0);
            }
        }
    }
}

fn stride(heads: Heads) -> usize {
    heads.dim.next_multiple_of(LANES)
}

/// Appends `k` and `v`, then `softmax(q . k / sqrt(dim)) v` over all positions up to each token's own.
pub fn attend(isa: Isa, [q, k, v]: [Array; 3], heads: Heads, spans: &[Span], caches: Vec<&mut Kv>) -> Array {
    let mut tasks = Vec::new();
    let mut out = Array::zeros(q.rows(), heads.queries * heads.dim);
    let group = heads.queries / heads.pairs;
    let mut outs = out.values_mut().chunks_exact_mut(group * heads.dim);
    let mut row = 0;
    for (span, kv) in spans.iter().zip(caches) {
        let rows = row..row + span.len;
        kv.append(*span, part(&k, &rows), part(&v, &rows), heads);
        let kv: &Kv = kv;
        for (at, row) in rows.clone().enumerate() {
            for pair in 0..heads.pairs {
                let Some(out) = outs.next() else { break };
                let q = &q.row(row)[pair * group * heads.dim..][..group * heads.dim];
                tasks.push(Task { q, kv, heads, pair, positions: span.start + at + 1, out });
            }
        }
        row = rows.end;
    }
    tasks.into_par_iter().for_each(|task| SCORES.with_borrow_mut(|s| isa.run(Attend { task, scores: s })));
    out
}

fn part<'a>(x: &'a Array, rows: &std::ops::Range<usize>) -> &'a [f32] {
    &x.values()[rows.start * x.cols()..rows.end * x.cols()]
}

/// One token's query heads that share a key-value head.
struct Task<'a> {
    /// `[group, dim]`
    q: &'a [f32],
    kv: &'a Kv,
    heads: Heads,
    pair: usize,
    positions: usize,
    /// `[group, dim]`
    out: &'a mut [f32],
}

thread_local! {
    static SCORES: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

struct Attend<'a> {
    task: Task<'a>,
    scores: &'a mut Vec<f32>,
}

impl Kernel for Attend<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Task { q, kv, heads, pair, positions, out } = self.task;
        let (dim, at) = (heads.dim, pair * stride(heads));
        let scale = 1.0 / (dim as f32).sqrt();
        self.scores.resize(positions, 0.0);
        for (q, out) in q.chunks_exact(dim).zip(out.chunks_exact_mut(dim)) {
            for (score, k) in self.scores.iter_mut().zip(kv.keys.chunks_exact(kv.row)) {
                *score = dot::<L>(q, &k[at..at + dim]) * scale;
            }
            softmax::<L>(self.scores);
            weighted_sum::<L>(self.scores, &kv.values[at..], kv.row, out);
        }
    }
}

/// `out = sum over positions of weight * value`, in the order of positions.
#[inline(always)]
fn weighted_sum<L: Lanes>(weights: &[f32], values: &[f32], row: usize, out: &mut [f32]) {
    const WIDE: usize = 4;
    let mut at = 0;
    for out in out.chunks_mut(WIDE * LANES) {
        let mut sums = [L::splat(0.0); WIDE];
        let lanes = out.len().div_ceil(LANES);
        for (weight, value) in weights.iter().zip(values.chunks(row)) {
            let weight = L::splat(*weight);
            let (value, _) = value[at..].as_chunks::<LANES>();
            if lanes == WIDE {
                for (sum, v) in sums.iter_mut().zip(&value[..WIDE]) {
                    *sum = sum.fma(weight, L::load(v));
                }
            } else {
                for (sum, v) in sums.iter_mut().zip(&value[..lanes]) {
                    *sum = sum.fma(weight, L::load(v));
                }
            }
        }
        for (sum, out) in sums.into_iter().zip(out.chunks_mut(LANES)) {
            let mut full = [0.0; LANES];
            sum.store(&mut full);
            out.copy_from_slice(&full[..out.len()]);
        }
        at += WIDE * LANES;
    }
}

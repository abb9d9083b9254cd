//! Causal attention over the keys and values of each sequence.
//!
//! Keys lie in blocks of sixteen positions, so that the lanes run over positions and a score is a plain sum in the order
//! of a head's entries; values lie position by position, and are added in that order. Neither order depends on where a
//! prompt was cut.

use std::cell::RefCell;

use rayon::prelude::*;

use super::Array;
use super::elementwise::softmax;
use super::isa::{Isa, Kernel, LANES, Lanes};
use crate::backend::{Heads, Span};

/// Keys and values of one sequence in one layer.
#[derive(Debug, Clone)]
pub struct Kv {
    heads: Heads,
    /// `[block, pair, dim]` of sixteen positions each; beyond the last position zero.
    keys: Vec<[f32; LANES]>,
    /// `[position, pair, lane]`, a head filled up with zeros to whole lanes.
    values: Vec<[f32; LANES]>,
}

impl Kv {
    /// Empty.
    pub fn new(heads: Heads) -> Self {
        Kv { heads, keys: Vec::new(), values: Vec::new() }
    }

    /// Lanes of a value head.
    fn lanes(&self) -> usize {
        self.heads.dim.div_ceil(LANES)
    }

    fn append(&mut self, span: Span, k: &[f32], v: &[f32]) {
        let Heads { pairs, dim, .. } = self.heads;
        let end = span.start + span.len;
        self.keys.resize(end.div_ceil(LANES) * pairs * dim, [0.0; LANES]);
        for (position, k) in (span.start..).zip(k.chunks_exact(pairs * dim)) {
            let block = &mut self.keys[position / LANES * pairs * dim..][..pairs * dim];
            block.iter_mut().zip(k).for_each(|(to, k)| to[position % LANES] = *k);
        }
        self.values.truncate(span.start * pairs * self.lanes());
        for part in v.chunks_exact(dim).flat_map(|head| head.chunks(LANES)) {
            let mut lane = [0.0; LANES];
            lane[..part.len()].copy_from_slice(part);
            self.values.push(lane);
        }
    }
}

/// Tokens whose heads go through the keys together.
const TOKENS: usize = 4;
/// Positions whose values stay in the first cache meanwhile.
const TILE: usize = 64;

/// Appends `k` and `v`, then `softmax(q . k / sqrt(dim)) v` over all positions up to each token's own.
pub fn attend(isa: Isa, [q, k, v]: [Array; 3], heads: Heads, spans: &[Span], caches: Vec<&mut Kv>) -> Array {
    let mut tasks = Vec::new();
    let mut row = 0;
    for (span, kv) in spans.iter().zip(caches) {
        let part = |x: &Array| row * x.cols()..(row + span.len) * x.cols();
        kv.append(*span, &k.values()[part(&k)], &v.values()[part(&v)]);
        let kv: &Kv = kv;
        for first in (0..span.len).step_by(TOKENS) {
            let tokens = TOKENS.min(span.len - first);
            for pair in 0..heads.pairs {
                tasks.push(Task { q: &q, row: row + first, tokens, position: span.start + first, kv, pair });
            }
        }
        row += span.len;
    }
    let results: Vec<Vec<f32>> = tasks
        .par_iter()
        .map(|task| SCORES.with_borrow_mut(|scores| isa.run(Attend { task, scores })))
        .collect();
    let mut out = Array::zeros(q.rows(), heads.queries * heads.dim);
    let width = heads.queries / heads.pairs * heads.dim;
    for (task, result) in tasks.iter().zip(results) {
        for (t, heads) in result.chunks_exact(width).enumerate() {
            let at = (task.row + t) * q.cols() + task.pair * width;
            out.values_mut()[at..at + width].copy_from_slice(heads);
        }
    }
    out
}

/// The query heads of some tokens that share a key-value head.
struct Task<'a> {
    q: &'a Array,
    /// Row of the first token.
    row: usize,
    tokens: usize,
    /// Position of the first token.
    position: usize,
    kv: &'a Kv,
    pair: usize,
}

thread_local! {
    static SCORES: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

struct Attend<'a> {
    task: &'a Task<'a>,
    /// `[tokens, group, positions]`, the positions filled up to whole blocks.
    scores: &'a mut Vec<f32>,
}

impl Kernel for Attend<'_> {
    /// `[tokens, group, dim]`
    type Out = Vec<f32>;

    #[inline(always)]
    fn run<L: Lanes>(self) -> Vec<f32> {
        let Attend { task, scores } = self;
        let Heads { queries, pairs, dim } = task.kv.heads;
        let group = queries / pairs;
        let blocks = (task.position + task.tokens).div_ceil(LANES);
        let row = blocks * LANES;
        scores.resize(task.tokens * group * row, 0.0);
        for block in 0..blocks {
            let keys = &task.kv.keys[(block * pairs + task.pair) * dim..][..dim];
            for t in 0..task.tokens {
                let q = &task.q.row(task.row + t)[task.pair * group * dim..][..group * dim];
                let to = &mut scores[t * group * row + block * LANES..];
                score_heads::<L>(q, keys, to, row);
            }
        }
        let lanes = task.kv.lanes();
        let mut sums = vec![[0.0; LANES]; task.tokens * group * lanes];
        for (h, scores) in scores.chunks_exact_mut(row).enumerate().take(task.tokens * group) {
            softmax::<L>(&mut scores[..task.position + h / group + 1]);
        }
        for tile in (0..task.position + task.tokens).step_by(TILE) {
            for t in 0..task.tokens {
                // Positions up to the token's own only.
                let end = (tile + TILE).min(task.position + t + 1);
                if tile < end {
                    let weights = &scores[t * group * row..][..group * row];
                    let sums = &mut sums[t * group * lanes..][..group * lanes];
                    let values = &task.kv.values[task.pair * lanes..];
                    add_values::<L>(&Tile { weights, row, values, pairs, first: tile, end }, sums, lanes);
                }
            }
        }
        let mut out = Vec::with_capacity(task.tokens * group * dim);
        for head in sums.chunks_exact(lanes) {
            out.extend_from_slice(&head.as_flattened()[..dim]);
        }
        out
    }
}

/// Scores of sixteen positions for all heads of `q` `[group, dim]`; those of a head go to `to[head * row..]`.
#[inline(always)]
fn score_heads<L: Lanes>(q: &[f32], keys: &[[f32; LANES]], to: &mut [f32], row: usize) {
    let dim = keys.len();
    let scale = 1.0 / (dim as f32).sqrt();
    let group = q.len() / dim;
    let mut head = 0;
    while head < group {
        let (q, to) = (&q[head * dim..], &mut to[head * row..]);
        head += match group - head {
            1 => score_some::<L, 1>(q, keys, to, row, scale),
            2 | 3 => score_some::<L, 2>(q, keys, to, row, scale),
            _ => score_some::<L, 4>(q, keys, to, row, scale),
        };
    }
}

#[inline(always)]
fn score_some<L: Lanes, const H: usize>(
    q: &[f32],
    keys: &[[f32; LANES]],
    to: &mut [f32],
    row: usize,
    scale: f32,
) -> usize {
    let dim = keys.len();
    let mut sums = [L::splat(0.0); H];
    let mut qs = [&q[..dim]; H];
    for h in 0..H {
        qs[h] = &q[h * dim..][..dim];
    }
    for (d, keys) in keys.iter().enumerate() {
        let keys = L::load(keys);
        for h in 0..H {
            sums[h] = sums[h].fma(L::splat(qs[h][d]), keys);
        }
    }
    for h in 0..H {
        if let Some(to) = to[h * row..].first_chunk_mut::<LANES>() {
            sums[h].mul(L::splat(scale)).store(to);
        }
    }
    H
}

/// Some positions' values and their weights for the heads of one token.
struct Tile<'a> {
    /// `[group, row]`
    weights: &'a [f32],
    row: usize,
    /// From the pair's first lane on; a position is `pairs * lanes` long.
    values: &'a [[f32; LANES]],
    pairs: usize,
    first: usize,
    end: usize,
}

/// `sums[head] += weight * value`, position by position.
#[inline(always)]
fn add_values<L: Lanes>(tile: &Tile, sums: &mut [[f32; LANES]], lanes: usize) {
    let group = sums.len() / lanes;
    let mut head = 0;
    while head < group {
        let heads = if group - head >= 2 { 2 } else { 1 };
        let mut lane = 0;
        while lane < lanes {
            let wide = if lanes - lane >= 4 { 4 } else { 1 };
            match (heads, wide) {
                (2, 4) => add_some::<L, 2, 4>(tile, sums, lanes, [head, lane]),
                (2, _) => add_some::<L, 2, 1>(tile, sums, lanes, [head, lane]),
                (_, 4) => add_some::<L, 1, 4>(tile, sums, lanes, [head, lane]),
                (_, _) => add_some::<L, 1, 1>(tile, sums, lanes, [head, lane]),
            }
            lane += wide;
        }
        head += heads;
    }
}

#[inline(always)]
fn add_some<L: Lanes, const H: usize, const W: usize>(
    tile: &Tile,
    sums: &mut [[f32; LANES]],
    lanes: usize,
    [head, lane]: [usize; 2],
) {
    let mut held = [[L::splat(0.0); W]; H];
    for h in 0..H {
        for w in 0..W {
            held[h][w] = L::load(&sums[(head + h) * lanes + lane + w]);
        }
    }
    let mut weights = [tile.weights; H];
    for (h, weights) in weights.iter_mut().enumerate() {
        *weights = &tile.weights[(head + h) * tile.row..][tile.first..tile.end];
    }
    let step = tile.pairs * lanes;
    for (i, values) in tile.values[tile.first * step..].chunks(step).take(tile.end - tile.first).enumerate() {
        let values = &values[lane..lane + W];
        for w in 0..W {
            let value = L::load(&values[w]);
            for h in 0..H {
                held[h][w] = held[h][w].fma(L::splat(weights[h][i]), value);
            }
        }
    }
    for h in 0..H {
        for w in 0..W {
            held[h][w].store(&mut sums[(head + h) * lanes + lane + w]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(rows: usize, cols: usize, salt: usize) -> Array {
        let value = |i: usize| ((i * 7919 + salt * 31 + 13) as f32 * 0.37).sin();
        Array::new(rows, cols, (0..rows * cols).map(value).collect())
    }

    fn rows(x: &Array, part: std::ops::Range<usize>) -> Array {
        let values = part.clone().flat_map(|r| x.row(r)).copied().collect();
        Array::new(part.len(), x.cols(), values)
    }

    /// Feeds `tokens` tokens in pieces of `piece`.
    fn fed(isa: Isa, heads: Heads, tokens: usize, piece: usize) -> Vec<f32> {
        let qkv = [heads.queries, heads.pairs, heads.pairs];
        let qkv: Vec<Array> = (0..3).map(|i| random(tokens, qkv[i] * heads.dim, i)).collect();
        let mut kv = Kv::new(heads);
        let mut out = Vec::new();
        for start in (0..tokens).step_by(piece) {
            let len = piece.min(tokens - start);
            let part = [0, 1, 2].map(|i| rows(&qkv[i], start..start + len));
            let y = attend(isa, part, heads, &[Span { start, len }], vec![&mut kv]);
            out.extend_from_slice(y.values());
        }
        out
    }

    const SHAPES: [Heads; 4] = [
        Heads { queries: 6, pairs: 2, dim: 8 },
        Heads { queries: 4, pairs: 4, dim: 64 },
        Heads { queries: 8, pairs: 1, dim: 80 },
        Heads { queries: 5, pairs: 1, dim: 32 },
    ];

    #[test]
    fn every_cut_and_every_set_gives_the_same_bits() {
        for heads in SHAPES {
            let whole = fed(Isa::PLAIN, heads, 83, 83);
            for isa in Isa::available() {
                for piece in [1, 5, 16, 83] {
                    assert_eq!(fed(isa, heads, 83, piece), whole, "{heads:?} {} {piece}", isa.name());
                }
            }
        }
    }

    #[test]
    fn attention_is_what_the_formula_says() {
        for heads in SHAPES {
            let Heads { queries, pairs, dim } = heads;
            let [q, k, v] = [(queries, 0), (pairs, 1), (pairs, 2)].map(|(n, salt)| random(70, n * dim, salt));
            let got = fed(Isa::best(), heads, 70, 70);
            for (t, h) in [(0, 0), (1, queries - 1), (40, 1), (69, queries - 1)] {
                let pair = h / (queries / pairs);
                let dot = |p: usize| -> f64 {
                    let (q, k) = (&q.row(t)[h * dim..][..dim], &k.row(p)[pair * dim..][..dim]);
                    q.iter().zip(k).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum()
                };
                let e: Vec<f64> = (0..=t).map(|p| (dot(p) / (dim as f64).sqrt()).exp()).collect();
                let all: f64 = e.iter().sum();
                for d in 0..dim {
                    let want: f64 = e
                        .iter()
                        .enumerate()
                        .map(|(p, e)| e / all * f64::from(v.row(p)[pair * dim + d]))
                        .sum();
                    let got = f64::from(got[(t * queries + h) * dim + d]);
                    assert!((got - want).abs() < 1e-5, "{heads:?} token {t} head {h}: {got} {want}");
                }
            }
        }
    }
}

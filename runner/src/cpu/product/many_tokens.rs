//! Prompts and batches: several tokens, a panel of rows unpacked once for all of them.
//!
//! Weights and tokens are both laid out as the innermost loop reads them, one after the other: rows a power of two
//! apart would all fall into the same set of the cache.

use std::cell::RefCell;

use super::Task;
use super::codes::{Chunk, Unpack};
use crate::cpu::Array;
use crate::cpu::isa::{Isa, Kernel, LANES, Lanes};

/// Rows unpacked together; also the unit of work of a thread.
pub const PANEL: usize = 16;

/// Tokens as the kernels read them: filled up with zeros to whole chunks, in strips of a few tokens each, a strip
/// chunk by chunk. One token is a strip of its own, hence a plain row.
pub struct Packed {
    /// Number of tokens.
    pub tokens: usize,
    /// All strips, `[chunk, token of the strip]` each.
    pub chunks: Vec<Chunk>,
    strips: Vec<usize>,
}

impl Packed {
    /// Packs `x` `[tokens, in]` for the kernels of `isa`.
    pub fn new(isa: Isa, x: &Array) -> Self {
        let n = x.cols().div_ceil(LANES);
        let mut packed =
            Packed { tokens: x.rows(), chunks: vec![Chunk::ZERO; n * x.rows()], strips: Vec::new() };
        let most = if isa.run(IsWide) { WIDE[1] } else { NARROW[1] };
        let mut at = 0;
        while at < x.rows() {
            // Even strips: 8 tokens are 4 and 4, not 6 and 2.
            let left = x.rows() - at;
            let taken = left.div_ceil(left.div_ceil(most));
            for t in 0..taken {
                let to = packed.chunks[at * n + t..].chunks_mut(taken);
                for (to, from) in to.zip(x.row(at + t).chunks(LANES)) {
                    to[0].0[..from.len()].copy_from_slice(from);
                }
            }
            packed.strips.push(taken);
            at += taken;
        }
        packed
    }
}

/// Rows and tokens whose sums fit into registers together.
const WIDE: [usize; 2] = [4, 6];
const NARROW: [usize; 2] = [2, 3];

struct IsWide;

impl Kernel for IsWide {
    type Out = bool;

    #[inline(always)]
    fn run<L: Lanes>(self) -> bool {
        L::WIDE
    }
}

thread_local! {
    static PANEL_SPACE: RefCell<Vec<Chunk>> = const { RefCell::new(Vec::new()) };
}

/// Rows times several tokens.
pub struct ManyTokens<'a> {
    task: Task<'a>,
    space: &'a mut [Chunk],
}

impl ManyTokens<'_> {
    /// Computes the task.
    pub fn run(isa: Isa, task: Task) {
        let n = task.w.cols.div_ceil(LANES);
        PANEL_SPACE.with_borrow_mut(|space| {
            if space.len() < PANEL * n {
                space.resize(PANEL * n, Chunk::ZERO);
            }
            // Rows beyond the task's hold old numbers; their products are never written.
            isa.run(ManyTokens { task, space: &mut space[..PANEL * n] });
        });
    }
}

impl Kernel for ManyTokens<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Task { w, x, first, out } = self.task;
        let rows = out.len() / x.tokens;
        let beside = if L::WIDE { WIDE[0] } else { NARROW[0] };
        Unpack { w, rows: first..first + rows, beside, to: &mut *self.space }.run::<L>();
        let mut at = 0;
        for taken in &x.strips {
            let n = self.space.len() / PANEL;
            let strip = Strip { x: &x.chunks[at * n..][..taken * n], first: at, tokens: x.tokens };
            match (L::WIDE, taken) {
                (true, 6) => strip.times::<L, 4, 6>(self.space, out),
                (true, 5) => strip.times::<L, 4, 5>(self.space, out),
                (true, 4) => strip.times::<L, 4, 4>(self.space, out),
                (true, 3) => strip.times::<L, 4, 3>(self.space, out),
                (true, 2) => strip.times::<L, 4, 2>(self.space, out),
                (true, _) => strip.times::<L, 4, 1>(self.space, out),
                (false, 3) => strip.times::<L, 2, 3>(self.space, out),
                (false, 2) => strip.times::<L, 2, 2>(self.space, out),
                (false, _) => strip.times::<L, 2, 1>(self.space, out),
            }
            at += taken;
        }
    }
}

/// A strip of tokens, which go to columns `first..` of `[rows, tokens]`.
struct Strip<'a> {
    x: &'a [Chunk],
    first: usize,
    tokens: usize,
}

impl Strip<'_> {
    /// All rows of the panel, `R` at a time, times the strip's `T` tokens.
    #[inline(always)]
    fn times<L: Lanes, const R: usize, const T: usize>(&self, panel: &[Chunk], out: &mut [f32]) {
        let (x, _) = self.x.as_chunks::<T>();
        let (panel, _) = panel.as_chunks::<R>();
        for (out, w) in out.chunks_mut(R * self.tokens).zip(panel.chunks(x.len())) {
            let sums = block::<L, R, T>(w, x);
            for (sums, row) in sums.iter().zip(out.chunks_exact_mut(self.tokens)) {
                row[self.first..self.first + T].copy_from_slice(sums);
            }
        }
    }
}

/// `R` rows times `T` tokens, all sums in registers: even chunks first, then odd ones, as one token adds them.
#[inline(always)]
fn block<L: Lanes, const R: usize, const T: usize>(w: &[[Chunk; R]], x: &[[Chunk; T]]) -> [[f32; T]; R] {
    let (w_pairs, w_last) = w.as_chunks::<2>();
    let (x_pairs, x_last) = x.as_chunks::<2>();
    let mut even = [[L::splat(0.0); T]; R];
    for (w, x) in w_pairs.iter().zip(x_pairs) {
        multiply_add(&mut even, &w[0], &x[0]);
    }
    for (w, x) in w_last.iter().zip(x_last) {
        multiply_add(&mut even, w, x);
    }
    let mut odd = [[L::splat(0.0); T]; R];
    for (w, x) in w_pairs.iter().zip(x_pairs) {
        multiply_add(&mut odd, &w[1], &x[1]);
    }
    let mut out = [[0.0; T]; R];
    for r in 0..R {
        for t in 0..T {
            out[r][t] = even[r][t].add(odd[r][t]).sum();
        }
    }
    out
}

#[inline(always)]
fn multiply_add<L: Lanes, const R: usize, const T: usize>(
    sums: &mut [[L; T]; R],
    w: &[Chunk; R],
    x: &[Chunk; T],
) {
    let mut weights = [L::splat(0.0); R];
    for r in 0..R {
        weights[r] = L::load(&w[r].0);
    }
    for t in 0..T {
        let x = L::load(&x[t].0);
        for r in 0..R {
            sums[r][t] = sums[r][t].fma(weights[r], x);
        }
    }
}

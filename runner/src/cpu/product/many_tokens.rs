//! Prompts and batches: several tokens, a panel of rows unpacked once for all of them.
//!
//! Weights and tokens are both laid out as the innermost loop reads them, one after the other: rows a power of two
//! apart would all fall into the same set of the cache.

use std::cell::RefCell;
use std::ops::Range;

use rayon::prelude::*;

use super::codes::{Chunk, Order, RUN, Unpack, chunks_of};
use super::eight::{scale_sums, scale_tokens, spoil_sums};
use crate::cpu::Array;
use crate::cpu::isa::{Isa, Kernel, LANES, Lanes};
use crate::weights::{Format, Matrix};

/// Rows unpacked together; also the unit of work of a thread.
pub const PANEL: usize = 32;

/// Tokens as the kernels read them: in the order of the weights' format, filled up with zeros to whole runs, in strips of a few tokens each, a strip
/// chunk by chunk. One token is a strip of its own, hence a plain row.
pub struct Packed {
    /// All strips, `[chunk, token of the strip]` each.
    pub chunks: Vec<Chunk>,
    strips: Vec<usize>,
}

impl Packed {
    /// Packs `x` `[tokens, in]` for the kernels of `isa`.
    pub fn new(isa: Isa, x: &Array, order: Order) -> Self {
        let n = chunks_of(x.cols());
        let most = if isa.run(IsWide) { WIDE[1] } else { NARROW[1] };
        let (mut strips, mut at) = (Vec::new(), 0);
        while at < x.rows() {
            // Even strips: 8 tokens are 4 and 4, not 6 and 2.
            let left = x.rows() - at;
            let taken = left.div_ceil(left.div_ceil(most));
            strips.push(taken);
            at += taken;
        }
        let mut chunks = vec![Chunk::ZERO; n * x.rows()];
        let (mut rest, mut at, mut jobs) = (&mut chunks[..], 0, Vec::with_capacity(strips.len()));
        for taken in &strips {
            let (strip, others) = rest.split_at_mut(n * taken);
            jobs.push((at..at + taken, strip));
            (rest, at) = (others, at + taken);
        }
        let few = (PIECE / (n * most).max(1)).max(1);
        jobs.into_par_iter().with_min_len(few).for_each(|(rows, strip)| pack(x, rows, order, strip));
        Packed { chunks, strips }
    }
}

/// Chunks that a thread packs at a time.
const PIECE: usize = 1 << 10;

/// Tokens `rows` of `x` as a strip, which holds zeros.
fn pack(x: &Array, rows: Range<usize>, order: Order, strip: &mut [Chunk]) {
    let taken = rows.len();
    for (t, row) in rows.map(|row| x.row(row)).enumerate() {
        let to = &mut strip[t..];
        match order {
            Order::Straight => {
                for (to, from) in to.chunks_mut(taken).zip(row.chunks(LANES)) {
                    to[0].0[..from.len()].copy_from_slice(from);
                }
            }
            Order::Woven => {
                let (runs, left) = row.as_chunks::<RUN>();
                for (to, run) in to.chunks_mut(4 * taken).zip(runs) {
                    weave(run, to, taken);
                }
                if !left.is_empty() {
                    let mut run = [0.0; RUN];
                    run[..left.len()].copy_from_slice(left);
                    weave(&run, &mut to[runs.len() * 4 * taken..], taken);
                }
            }
        }
    }
}

/// A run in [`Order::Woven`], its four chunks `step` apart.
fn weave(run: &[f32; RUN], to: &mut [Chunk], step: usize) {
    for k in 0..4 {
        let to = &mut to[k * step].0;
        for i in 0..LANES {
            to[i] = run[4 * i + k];
        }
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
    /// The panel, and behind it a strip of tokens times FP8's scales.
    static SPACE: RefCell<Vec<Chunk>> = const { RefCell::new(Vec::new()) };
}

/// Rows times several tokens.
pub struct ManyTokens<'a, 'b> {
    /// The matrix.
    pub w: &'a Matrix,
    /// The tokens.
    pub x: &'a Packed,
    /// The first row.
    pub first: usize,
    /// At most [`PANEL`] rows, token by token.
    pub out: &'a mut [&'b mut [f32]],
}

impl ManyTokens<'_, '_> {
    /// Computes the products.
    pub fn run(self, isa: Isa) {
        let n = chunks_of(self.w.cols);
        SPACE.with_borrow_mut(|space| {
            let len = (PANEL + WIDE[1]) * n;
            if space.len() < len {
                space.resize(len, Chunk::ZERO);
            }
            // Rows beyond the task's hold old numbers; their products are never written.
            let (panel, strip) = space[..len].split_at_mut(PANEL * n);
            isa.run(InPanel { job: self, panel, strip });
        });
    }
}

struct InPanel<'a, 'b> {
    job: ManyTokens<'a, 'b>,
    panel: &'a mut [Chunk],
    strip: &'a mut [Chunk],
}

impl Kernel for InPanel<'_, '_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let ManyTokens { w, x, first, out } = self.job;
        let rows = out.first().map_or(0, |out| out.len());
        let beside = if L::WIDE { WIDE[0] } else { NARROW[0] };
        Unpack { w, rows: first..first + rows, beside, to: &mut *self.panel }.run::<L>();
        let n = self.panel.len() / PANEL;
        let mut at = 0;
        for taken in &x.strips {
            let mut tokens = &x.chunks[at * n..][..taken * n];
            if let Format::E4m3(scales) = &w.format {
                // A panel lies within one row of blocks.
                scale_tokens::<L>(scales, first, tokens, *taken, self.strip);
                tokens = &self.strip[..taken * n];
            }
            let (strip, out) = (Strip(tokens), &mut out[at..][..*taken]);
            match (L::WIDE, taken) {
                (true, 6) => strip.times::<L, 4, 6>(self.panel, out),
                (true, 5) => strip.times::<L, 4, 5>(self.panel, out),
                (true, 4) => strip.times::<L, 4, 4>(self.panel, out),
                (true, 3) => strip.times::<L, 4, 3>(self.panel, out),
                (true, 2) => strip.times::<L, 4, 2>(self.panel, out),
                (true, _) => strip.times::<L, 4, 1>(self.panel, out),
                (false, 3) => strip.times::<L, 2, 3>(self.panel, out),
                (false, 2) => strip.times::<L, 2, 2>(self.panel, out),
                (false, _) => strip.times::<L, 2, 1>(self.panel, out),
            }
            at += taken;
        }
        if let Format::E4m3(scales) = &w.format {
            let codes = &w.bytes.as_slice()[first * w.cols..(first + rows) * w.cols];
            for out in &mut *out {
                scale_sums(scales, first, out);
            }
            spoil_sums(codes, out);
        }
    }
}

/// A strip of tokens.
struct Strip<'a>(&'a [Chunk]);

impl Strip<'_> {
    /// All rows of the panel, `R` at a time, times the strip's `T` tokens.
    #[inline(always)]
    fn times<L: Lanes, const R: usize, const T: usize>(&self, panel: &[Chunk], out: &mut [&mut [f32]]) {
        let (x, _) = self.0.as_chunks::<T>();
        let (panel, _) = panel.as_chunks::<R>();
        let rows = out[0].len();
        for (first, w) in (0..rows).step_by(R).zip(panel.chunks(x.len())) {
            let sums = block::<L, R, T>(w, x);
            let wide = R.min(rows - first);
            for t in 0..T {
                out[t][first..first + wide].copy_from_slice(&sums[t][..wide]);
            }
        }
    }
}

/// `R` rows times `T` tokens, all sums in registers: even chunks first, then odd ones, as one token adds them.
#[inline(always)]
fn block<L: Lanes, const R: usize, const T: usize>(w: &[[Chunk; R]], x: &[[Chunk; T]]) -> [[f32; R]; T] {
    let ((w_pairs, _), (x_pairs, _)) = (w.as_chunks::<2>(), x.as_chunks::<2>());
    let mut even = [[L::splat(0.0); T]; R];
    for (w, x) in w_pairs.iter().zip(x_pairs) {
        multiply_add(&mut even, &w[0], &x[0]);
    }
    let mut odd = [[L::splat(0.0); T]; R];
    for (w, x) in w_pairs.iter().zip(x_pairs) {
        multiply_add(&mut odd, &w[1], &x[1]);
    }
    let mut out = [[0.0; R]; T];
    let flat = out.as_flattened_mut();
    let at = |n: usize| even[n % R][n / R].add(odd[n % R][n / R]);
    let mut n = 0;
    while n + 4 <= R * T {
        flat[n..n + 4].copy_from_slice(&L::sum_each([at(n), at(n + 1), at(n + 2), at(n + 3)]));
        n += 4;
    }
    while n < R * T {
        flat[n] = at(n).sum();
        n += 1;
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

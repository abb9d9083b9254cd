//! Sixty-four tokens at a time, as matrix products. With `G` the running sum of the log decays inside the chunk, rows as
//! tokens, and `S` the state before the chunk:
//!
//! ```text
//!   A = strictly lower part of  beta_i (k_i . k_j) exp(G_i - G_j)
//!   (I + A) U = beta (V - exp(G) K S)                                    by forward substitution
//!   Y = exp(G) Q S + lower part with diagonal of ((q_i . k_j) exp(G_i - G_j)) U
//!   S = exp(G_last) S + sum over j of k_j exp(G_last - G_j) u_j^T
//! ```
//!
//! Yang et al. 2024, "Parallelizing linear transformers with the delta rule over sequence length", with the decay of
//! "Gated Delta Networks"; the two triangular solves of the papers are one here, the right sides being added first.

use super::{Head, exp};
use crate::backend::CHUNK;
use crate::cpu::elementwise::dot;
use crate::cpu::isa::{LANES, Lanes};

/// Outputs `[tokens, value_dim]`; leaves the state after the last token.
#[inline(always)]
pub fn run<L: Lanes>(head: &Head, state: &mut [f32]) -> Vec<f32> {
    let dv = head.value_dim;
    let row = dv.next_multiple_of(LANES);
    let mut out = Vec::with_capacity(head.beta.len() * dv);
    let mut work = Work { u: vec![0.0; CHUNK * row], y: vec![0.0; CHUNK * row], ..Work::default() };
    for first in (0..head.beta.len()).step_by(CHUNK) {
        let c = CHUNK.min(head.beta.len() - first);
        chunk::<L>(&head.part(first, c), state, &mut work);
        for y in work.y.chunks_exact(row).take(c) {
            out.extend_from_slice(&y[..dv]);
        }
    }
    out
}

/// Room that chunks share.
#[derive(Default)]
struct Work {
    /// `[chunk, row]`
    u: Vec<f32>,
    /// `[chunk, row]`
    y: Vec<f32>,
    /// `exp(G_i)` times a query, or other coefficients of a sum.
    coefficients: Vec<f32>,
}

/// Some tokens of a head.
struct Part<'a> {
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    beta: &'a [f32],
    log_decay: &'a [f32],
    key_dim: usize,
    value_dim: usize,
}

impl Head {
    #[inline(always)]
    fn part(&self, first: usize, len: usize) -> Part<'_> {
        let (dk, dv) = (self.key_dim, self.value_dim);
        Part {
            q: &self.q[first * dk..][..len * dk],
            k: &self.k[first * dk..][..len * dk],
            v: &self.v[first * dv..][..len * dv],
            beta: &self.beta[first..][..len],
            log_decay: &self.log_decay[first..][..len],
            key_dim: dk,
            value_dim: dv,
        }
    }
}

#[inline(always)]
fn chunk<L: Lanes>(p: &Part, state: &mut [f32], work: &mut Work) {
    let (c, dk, dv) = (p.beta.len(), p.key_dim, p.value_dim);
    let row = dv.next_multiple_of(LANES);
    let Work { u, y, coefficients } = work;
    let mut sums = [0.0f32; CHUNK];
    let mut sum = 0.0;
    for (to, g) in sums.iter_mut().zip(p.log_decay) {
        sum += g;
        *to = sum;
    }
    let g = &sums[..c];

    // u = beta (V - exp(G) K S), then the substitution.
    u[..c * row].fill(0.0);
    combine::<L>(p.k, dk, state, row, &mut u[..c * row]);
    for i in 0..c {
        let decay = exp(g[i]);
        for (u, v) in u[i * row..][..dv].iter_mut().zip(&p.v[i * dv..][..dv]) {
            *u = p.beta[i] * (v - decay * *u);
        }
        let (before, rest) = u.split_at_mut(i * row);
        coefficients.clear();
        for j in 0..i {
            let likeness = dot::<L>(&p.k[i * dk..][..dk], &p.k[j * dk..][..dk]);
            coefficients.push(-p.beta[i] * likeness * exp(g[i] - g[j]));
        }
        combine::<L>(coefficients, i, before, row, &mut rest[..row]);
    }

    y[..c * row].fill(0.0);
    coefficients.clear();
    for (q, g) in p.q.chunks_exact(dk).zip(g) {
        let decay = exp(*g);
        for q in q {
            coefficients.push(q * decay);
        }
    }
    combine::<L>(coefficients, dk, state, row, &mut y[..c * row]);
    for i in 0..c {
        coefficients.clear();
        for j in 0..=i {
            let likeness = dot::<L>(&p.q[i * dk..][..dk], &p.k[j * dk..][..dk]);
            coefficients.push(likeness * exp(g[i] - g[j]));
        }
        combine::<L>(coefficients, i + 1, u, row, &mut y[i * row..][..row]);
    }

    let last = g[c - 1];
    let decay = exp(last);
    for s in &mut *state {
        *s *= decay;
    }
    coefficients.clear();
    for d in 0..dk {
        for (k, g) in p.k.chunks_exact(dk).zip(g) {
            coefficients.push(k[d] * exp(last - g));
        }
    }
    combine::<L>(coefficients, c, u, row, state);
}

/// `out[i] += sum over j of coefficients[i, j] * rows[j]`, j in order; `n` coefficients for each row of `out`.
#[inline(always)]
fn combine<L: Lanes>(coefficients: &[f32], n: usize, rows: &[f32], row: usize, out: &mut [f32]) {
    if n == 0 {
        return;
    }
    for (out, c) in out.chunks_mut(4 * row).zip(coefficients.chunks(4 * n)) {
        match out.len() / row {
            4 => combine_rows::<L, 4>(c, n, rows, row, out),
            3 => combine_rows::<L, 3>(c, n, rows, row, out),
            2 => combine_rows::<L, 2>(c, n, rows, row, out),
            _ => combine_rows::<L, 1>(c, n, rows, row, out),
        }
    }
}

#[inline(always)]
fn combine_rows<L: Lanes, const R: usize>(c: &[f32], n: usize, rows: &[f32], row: usize, out: &mut [f32]) {
    let (out, _) = out.as_chunks_mut::<LANES>();
    let (rows, _) = rows.as_chunks::<LANES>();
    let width = row / LANES;
    let mut at = 0;
    while at + 2 <= width {
        combine_block::<L, R, 2>(c, n, &rows[at..], &mut out[at..], width);
        at += 2;
    }
    if at < width {
        combine_block::<L, R, 1>(c, n, &rows[at..], &mut out[at..], width);
    }
}

/// `R` rows of `out`, `W` lanes wide, in registers; rows of both lie `width` lanes apart.
#[inline(always)]
fn combine_block<L: Lanes, const R: usize, const W: usize>(
    c: &[f32],
    n: usize,
    rows: &[[f32; LANES]],
    out: &mut [[f32; LANES]],
    width: usize,
) {
    let mut sums = [[L::splat(0.0); W]; R];
    for r in 0..R {
        for w in 0..W {
            sums[r][w] = L::load(&out[r * width + w]);
        }
    }
    for (j, from) in rows.chunks(width).take(n).enumerate() {
        for w in 0..W {
            let from = L::load(&from[w]);
            for r in 0..R {
                sums[r][w] = sums[r][w].fma(L::splat(c[r * n + j]), from);
            }
        }
    }
    for r in 0..R {
        for w in 0..W {
            sums[r][w].store(&mut out[r * width + w]);
        }
    }
}

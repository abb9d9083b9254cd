//! What is known of the inputs of a linear: mean size of every column, and how the columns of a group go together.

use rayon::prelude::*;
use runner::cpu::Array;
use runner::cpu::isa::{Isa, Kernel, LANES, Lanes};

/// Moments of inputs `[tokens, in]`.
#[derive(Debug, Clone)]
pub struct Moments {
    group: usize,
    tokens: usize,
    /// Sum of |x| by column.
    sizes: Vec<f64>,
    /// Sum of x x^T of every group's columns: `[in / group, group, group]`.
    gram: Vec<f32>,
}

impl Moments {
    /// Of nothing yet. Columns beyond the last whole group have no part in the products.
    pub fn new(columns: usize, group: usize) -> Self {
        let gram = vec![0.0; columns / group * group * group];
        Moments { group, tokens: 0, sizes: vec![0.0; columns], gram }
    }

    /// Adds the rows of `x`.
    pub fn add(&mut self, isa: Isa, x: &Array) {
        self.tokens += x.rows();
        // Rows in order within a column: the sum does not depend on the threads.
        self.sizes.par_chunks_mut(256).enumerate().for_each(|(n, sizes)| {
            let mut sums = vec![0.0f32; sizes.len()];
            for row in x.each_row() {
                let row = &row[n * 256..][..sizes.len()];
                sums.iter_mut().zip(row).for_each(|(s, x)| *s += x.abs());
            }
            sizes.iter_mut().zip(sums).for_each(|(s, sum)| *s += f64::from(sum));
        });
        let group = self.group;
        self.gram
            .par_chunks_mut(group * group)
            .enumerate()
            .for_each(|(n, gram)| isa.run(Gram { x, first: n * group, group, gram }));
    }

    /// Tokens seen.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Mean of |x| by column.
    pub fn means(&self) -> Vec<f32> {
        let n = self.tokens.max(1) as f64;
        self.sizes.iter().map(|s| (s / n) as f32).collect()
    }

    /// Sum of x x^T over the columns of group `n`, `[group, group]`.
    pub fn gram(&self, n: usize) -> &[f32] {
        &self.gram[n * self.group * self.group..][..self.group * self.group]
    }
}

struct Gram<'a> {
    x: &'a Array,
    first: usize,
    group: usize,
    gram: &'a mut [f32],
}

/// Tokens added at once, so that a row of the product is loaded and stored once for all of them.
const TOKENS: usize = 8;

impl Kernel for Gram<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Gram { x, first, group, gram } = self;
        let mut strip = vec![[0.0f32; LANES]; TOKENS * group / LANES];
        for from in (0..x.rows()).step_by(TOKENS) {
            for t in 0..TOKENS {
                let to = strip[t * group / LANES..][..group / LANES].as_flattened_mut();
                // Beyond the last token zeros add nothing.
                match from + t < x.rows() {
                    true => to.copy_from_slice(&x.row(from + t)[first..first + group]),
                    false => to.fill(0.0),
                }
            }
            for (a, row) in gram.chunks_exact_mut(group).enumerate() {
                let mut factors = [L::splat(0.0); TOKENS];
                for t in 0..TOKENS {
                    factors[t] = L::splat(strip[t * group / LANES + a / LANES][a % LANES]);
                }
                let (row, _) = row.as_chunks_mut::<LANES>();
                for (b, to) in row.iter_mut().enumerate() {
                    let mut sum = L::load(to);
                    for t in 0..TOKENS {
                        sum = sum.fma(factors[t], L::load(&strip[t * group / LANES + b]));
                    }
                    sum.store(to);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_those_of_the_rows() {
        let (rows, cols, group) = (13, 64, 32);
        let value = |r: usize, c: usize| ((r * 31 + c * 7) % 19) as f32 / 8.0 - 1.0;
        let x = Array::new(rows, cols, (0..rows * cols).map(|i| value(i / cols, i % cols)).collect());
        let mut m = Moments::new(cols, group);
        m.add(Isa::best(), &x);
        let (a, b) = (3, 17);
        let want: f32 = (0..rows).map(|r| value(r, group + a) * value(r, group + b)).sum();
        assert!((m.gram(1)[a * group + b] - want).abs() < 1e-4);
        let mean: f32 = (0..rows).map(|r| value(r, 40).abs()).sum::<f32>() / rows as f32;
        assert!((m.means()[40] - mean).abs() < 1e-6);
        for isa in Isa::available() {
            let mut other = Moments::new(cols, group);
            other.add(isa, &x);
            assert_eq!(other.gram, m.gram, "{}", isa.name());
        }
    }
}

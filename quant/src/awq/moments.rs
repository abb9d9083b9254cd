//! What is known of the inputs of a linear: mean size of every column, and how columns go together.

use rayon::prelude::*;
use runner::cpu::Array;
use runner::cpu::isa::{Isa, Kernel, LANES, Lanes};

/// Columns whose products are kept at most: memory is `in * BLOCK` numbers, not `in * in`.
const BLOCK: usize = 2048;

/// Moments of inputs `[tokens, in]`.
#[derive(Debug, Clone)]
pub struct Moments {
    tokens: usize,
    /// Sum of |x| by column.
    sizes: Vec<f64>,
    blocks: Vec<Block>,
}

/// Neighbouring columns, whole groups of them.
#[derive(Debug, Clone)]
pub struct Block {
    /// The first column.
    pub first: usize,
    /// How many.
    pub columns: usize,
    /// Sum of x x^T, `[columns, columns]`.
    pub gram: Vec<f32>,
}

impl Moments {
    /// Of nothing yet. Columns beyond the last whole group have no part in the products.
    pub fn new(columns: usize, group: usize) -> Self {
        let whole = columns / group * group;
        let width = whole.div_ceil(whole.div_ceil(BLOCK).max(1)).next_multiple_of(group.max(1));
        let block = |first: usize| {
            let columns = width.min(whole - first);
            Block { first, columns, gram: vec![0.0; columns * columns] }
        };
        let blocks = (0..whole).step_by(width.max(1)).map(block).collect();
        Moments { tokens: 0, sizes: vec![0.0; columns], blocks }
    }

    /// Where `tokens` more are added by another than [`Self::add`]: the sums of |x| by column, and the blocks.
    pub fn begin_adding(&mut self, tokens: usize) -> (&mut [f64], &mut [Block]) {
        self.tokens += tokens;
        (&mut self.sizes, &mut self.blocks)
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
        for block in &mut self.blocks {
            let (first, width) = (block.first, block.columns);
            block
                .gram
                .par_chunks_mut(ROWS * width)
                .enumerate()
                .for_each(|(n, gram)| isa.run(Gram { x, first, width, row: n * ROWS, gram }));
        }
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

    /// The products, block by block.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }
}

impl Block {
    /// Sum of x x^T over the `group` columns from `at` of the block on, `[group, group]`.
    pub fn part(&self, at: usize, group: usize) -> Vec<f32> {
        let rows = self.gram.chunks_exact(self.columns).skip(at).take(group);
        rows.flat_map(|row| &row[at..at + group]).copied().collect()
    }
}

/// Rows of the products that a thread takes at a time.
const ROWS: usize = 64;

struct Gram<'a> {
    x: &'a Array,
    /// Columns `first .. first + width`.
    first: usize,
    width: usize,
    /// Rows from here on are in `gram`.
    row: usize,
    gram: &'a mut [f32],
}

/// Tokens added at once, so that a row of the product is loaded and stored once for all of them.
const TOKENS: usize = 8;

impl Kernel for Gram<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Gram { x, first, width, row, gram } = self;
        let lanes = width / LANES;
        let mut strip = vec![[0.0f32; LANES]; TOKENS * lanes];
        for from in (0..x.rows()).step_by(TOKENS) {
            for t in 0..TOKENS {
                let to = strip[t * lanes..][..lanes].as_flattened_mut();
                // Beyond the last token zeros add nothing.
                match from + t < x.rows() {
                    true => to.copy_from_slice(&x.row(from + t)[first..first + width]),
                    false => to.fill(0.0),
                }
            }
            for (a, sums) in gram.chunks_exact_mut(width).enumerate() {
                let (a, mut factors) = (row + a, [L::splat(0.0); TOKENS]);
                for t in 0..TOKENS {
                    factors[t] = L::splat(strip[t * lanes + a / LANES][a % LANES]);
                }
                let (sums, _) = sums.as_chunks_mut::<LANES>();
                for (b, to) in sums.iter_mut().enumerate() {
                    let mut sum = L::load(to);
                    for t in 0..TOKENS {
                        sum = sum.fma(factors[t], L::load(&strip[t * lanes + b]));
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
        assert!((m.blocks()[0].part(group, group)[a * group + b] - want).abs() < 1e-4);
        let mean: f32 = (0..rows).map(|r| value(r, 40).abs()).sum::<f32>() / rows as f32;
        assert!((m.means()[40] - mean).abs() < 1e-6);
        for isa in Isa::available() {
            let mut other = Moments::new(cols, group);
            other.add(isa, &x);
            assert_eq!(other.blocks[0].gram, m.blocks[0].gram, "{}", isa.name());
        }
    }
}

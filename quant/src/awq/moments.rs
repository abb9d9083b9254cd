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
            block.mirror();
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
    /// Copies what lies right of the diagonal's lanes to the left of them.
    fn mirror(&mut self) {
        let width = self.columns;
        for top in (LANES..width).step_by(LANES) {
            for left in (0..top).step_by(LANES) {
                for row in top..top + LANES {
                    for column in left..left + LANES {
                        self.gram[row * width + column] = self.gram[column * width + row];
                    }
                }
            }
        }
    }

    /// Sum of x x^T over the `group` columns from `at` of the block on, `[group, group]`.
    pub fn part(&self, at: usize, group: usize) -> Vec<f32> {
        let rows = self.gram.chunks_exact(self.columns).skip(at).take(group);
        rows.flat_map(|row| &row[at..at + group]).copied().collect()
    }
}

/// Rows of the products that a thread takes at a time; whole lanes.
const ROWS: usize = 64;
/// Rows of the products whose sums are in registers together, and lanes of columns.
const TILE: usize = 4;
/// Tokens that stay in the cache while all tiles of a thread's rows are summed up.
const TOKENS: usize = 64;

/// Rows `row ..` of the products, from the lanes on that hold the diagonal: what is left of them is their mirror image.
struct Gram<'a> {
    x: &'a Array,
    /// Columns `first .. first + width`.
    first: usize,
    width: usize,
    /// Rows from here on are in `gram`.
    row: usize,
    gram: &'a mut [f32],
}

impl Kernel for Gram<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Gram { x, first, width, row, gram } = self;
        let (lanes, begin) = (width / LANES, row / LANES);
        // `[lane, token]`, so that a tile reads tokens one after the other.
        let mut strip = vec![[0.0f32; LANES]; TOKENS * (lanes - begin)];
        for from in (0..x.rows()).step_by(TOKENS) {
            let tokens = TOKENS.min(x.rows() - from);
            for t in 0..tokens {
                let (values, _) = x.row(from + t)[first..first + width].as_chunks::<LANES>();
                for l in begin..lanes {
                    strip[(l - begin) * TOKENS + t] = values[l];
                }
            }
            let of = |l: usize| &strip[(l - begin) * TOKENS..][..tokens];
            for (n, sums) in gram.chunks_mut(TILE * width).enumerate() {
                let a = row + n * TILE;
                let mut l = a / LANES;
                let mut tile = Tile { own: of(l), at: a % LANES, sums, width, lane: l };
                while l < lanes {
                    tile.lane = l;
                    if l + TILE <= lanes {
                        tile.add::<L, TILE>([of(l), of(l + 1), of(l + 2), of(l + 3)]);
                        l += TILE;
                    } else {
                        tile.add::<L, 1>([of(l)]);
                        l += 1;
                    }
                }
            }
        }
    }
}

/// Products of [`TILE`] columns with those of some lanes.
struct Tile<'a> {
    /// The lane that holds the columns, token by token.
    own: &'a [[f32; LANES]],
    /// Where the columns begin in it.
    at: usize,
    /// `[TILE, width]`
    sums: &'a mut [f32],
    width: usize,
    /// The first of the others.
    lane: usize,
}

impl Tile<'_> {
    #[inline(always)]
    fn add<L: Lanes, const N: usize>(&mut self, others: [&[[f32; LANES]]; N]) {
        let mut sums = [[L::splat(0.0); N]; TILE];
        for (sums, row) in sums.iter_mut().zip(self.sums.chunks_exact(self.width)) {
            let (row, _) = row.as_chunks::<LANES>();
            for (sum, from) in sums.iter_mut().zip(&row[self.lane..]) {
                *sum = L::load(from);
            }
        }
        for (t, own) in self.own.iter().enumerate() {
            let mut b = [L::splat(0.0); N];
            for (b, others) in b.iter_mut().zip(others) {
                *b = L::load(&others[t]);
            }
            for (sums, a) in sums.iter_mut().zip(&own[self.at..]) {
                let a = L::splat(*a);
                for (sum, b) in sums.iter_mut().zip(b) {
                    *sum = sum.fma(a, b);
                }
            }
        }
        for (sums, row) in sums.iter().zip(self.sums.chunks_exact_mut(self.width)) {
            let (row, _) = row.as_chunks_mut::<LANES>();
            for (sum, to) in sums.iter().zip(&mut row[self.lane..]) {
                sum.store(to);
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
        // Left of the diagonal as right of it.
        assert_eq!(m.blocks()[0].gram[a * cols + b], m.blocks()[0].gram[b * cols + a]);
        assert_eq!(m.blocks()[0].gram[5 * cols + 60], m.blocks()[0].gram[60 * cols + 5]);
        let want: f32 = (0..rows).map(|r| value(r, 60) * value(r, 5)).sum();
        assert!((m.blocks()[0].gram[60 * cols + 5] - want).abs() < 1e-4);
        let mean: f32 = (0..rows).map(|r| value(r, 40).abs()).sum::<f32>() / rows as f32;
        assert!((m.means()[40] - mean).abs() < 1e-6);
        for isa in Isa::available() {
            let mut other = Moments::new(cols, group);
            other.add(isa, &x);
            assert_eq!(other.blocks[0].gram, m.blocks[0].gram, "{}", isa.name());
        }
    }
}

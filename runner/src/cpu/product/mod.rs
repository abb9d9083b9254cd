//! Matrix products `y = x W^T`, the weights read as they lie.
//!
//! Every output is one dot product over thirty-two lanes: lane `i` adds entries `i, i + 32, …` in order, then the lanes
//! fold in halves. (Two chains of additions keep up with memory where one would not.) One token reads the codes
//! straight from the file; several share a panel of rows that is unpacked once into the cache. Both give the same
//! bits, so an answer cannot depend on what else is in the batch.
//!
//! In these kernels there are loops where closures and iterator chains would be shorter: those are functions of their
//! own, compiled without the instruction set unless they happen to be inlined.

mod codes;
mod many_tokens;
mod one_token;

use rayon::prelude::*;

use super::Array;
use super::isa::{Isa, LANES};
use crate::weights::Matrix;
use codes::{Chunk, Unpack};
use many_tokens::{ManyTokens, PANEL, Packed};
use one_token::OneToken;

/// One product to compute.
#[derive(Clone, Copy)]
pub struct Job<'a> {
    /// `[tokens, in]`.
    pub x: &'a Array,
    /// `[out, in]`.
    pub w: &'a Matrix,
}

/// Bytes of weights a thread takes at a time when there is one token.
const STRETCH: usize = 64 << 10;

/// All products, in one parallel sweep: `[tokens, out]` each.
pub fn products(isa: Isa, jobs: &[Job]) -> Vec<Array> {
    // Several matrices mostly share their input.
    let mut packed: Vec<(&Array, Packed)> = Vec::new();
    for job in jobs {
        if !packed.last().is_some_and(|(x, _)| std::ptr::eq(*x, job.x)) {
            packed.push((job.x, Packed::new(isa, job.x)));
        }
    }
    // Transposed, [out, tokens], so that each thread writes a stretch of its own.
    let mut outs: Vec<Vec<f32>> = jobs.iter().map(|job| vec![0.0; job.w.rows * job.x.rows()]).collect();
    let mut tasks = Vec::new();
    let mut input = 0;
    for (job, out) in jobs.iter().zip(&mut outs) {
        input += usize::from(!std::ptr::eq(packed[input].0, job.x));
        let rows = rows_of_a_task(job);
        for (i, out) in out.chunks_mut((rows * job.x.rows()).max(1)).enumerate() {
            tasks.push(Task { w: job.w, x: &packed[input].1, first: i * rows, out });
        }
    }
    tasks.into_par_iter().for_each(|task| match task.x.tokens {
        0 => {}
        1 => isa.run(OneToken(task)),
        _ => ManyTokens::run(isa, task),
    });
    jobs.iter().zip(outs).map(|(job, out)| transposed(out, job.w.rows, job.x.rows())).collect()
}

/// Rows `tokens` of `table` as f32.
pub fn rows_of(isa: Isa, table: &Matrix, tokens: &[u32]) -> Array {
    let mut row = vec![Chunk::ZERO; table.cols.div_ceil(LANES)];
    let mut out = Vec::with_capacity(tokens.len() * table.cols);
    for token in tokens {
        isa.run(Unpack { w: table, rows: *token as usize..*token as usize + 1, beside: 1, to: &mut row });
        out.extend(row.iter().flat_map(|c| c.0).take(table.cols));
    }
    Array::new(tokens.len(), table.cols, out)
}

/// Some rows of one product.
struct Task<'a> {
    w: &'a Matrix,
    x: &'a Packed,
    /// The first of the rows.
    first: usize,
    /// `[rows, tokens]`
    out: &'a mut [f32],
}

fn rows_of_a_task(job: &Job) -> usize {
    match job.x.rows() {
        0 | 1 => (STRETCH / (job.w.cols * job.w.format.width())).max(1),
        _ => PANEL,
    }
}

fn transposed(out: Vec<f32>, rows: usize, tokens: usize) -> Array {
    if tokens <= 1 {
        return Array::new(tokens, rows, out);
    }
    let mut y = Array::zeros(tokens, rows);
    y.values_mut().par_chunks_mut(rows).enumerate().for_each(|(t, y)| {
        for (y, out) in y.iter_mut().zip(out.chunks_exact(tokens)) {
            *y = out[t];
        }
    });
    y
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};
    use proptest::prelude::*;

    use super::*;
    use crate::weights::{Bytes, Format, Scales};

    /// A matrix of pseudo-random weights in the given format.
    fn matrix(rows: usize, cols: usize, kind: usize) -> Matrix {
        let weight = |i: usize| ((i * 7919 + 13) % 251) as f32 / 128.0 - 0.97;
        let each = |f: &dyn Fn(f32) -> Vec<u8>| (0..rows * cols).flat_map(|i| f(weight(i))).collect();
        let scales = |block: [usize; 2]| {
            let across = cols.div_ceil(block[1]);
            let values = (0..rows.div_ceil(block[0]) * across).map(|i| 0.3 + i as f32 / 7.0).collect();
            Format::E4m3(Scales { values, block, across, first_row: 0 })
        };
        let codes = || (0..rows * cols).map(|i| ((i * 37) % 254) as u8).map(|c| c.min(0xfe) & !1).collect();
        let (bytes, format) = match kind {
            0 => (each(&|x| x.to_le_bytes().to_vec()), Format::F32),
            1 => (each(&|x| f16::from_f32(x).to_le_bytes().to_vec()), Format::F16),
            2 => (each(&|x| bf16::from_f32(x).to_le_bytes().to_vec()), Format::Bf16),
            3 => (codes(), scales([4, 32])),
            6 => (codes(), scales([8, 128])),
            4 => (codes(), scales([1, cols])),
            _ => (codes(), scales([rows, cols])),
        };
        Matrix { name: "w".into(), rows, cols, bytes: Bytes::owned(bytes), format }
    }

    fn input(tokens: usize, cols: usize) -> Array {
        let values = (0..tokens * cols).map(|i| ((i * 31 + 7) % 97) as f32 / 50.0 - 0.9).collect();
        Array::new(tokens, cols, values)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]

        #[test]
        fn all_sets_and_all_batches_give_the_same_bits(
            rows in 1usize..40, cols in 1usize..300, tokens in 1usize..14, kind in 0usize..7,
        ) {
            let (w, x) = (matrix(rows, cols, kind), input(tokens, cols));
            let product = |isa, x: &Array| products(isa, &[Job { x, w: &w }]).remove(0);
            let together = product(Isa::PLAIN, &x);
            for isa in Isa::available() {
                prop_assert_eq!(&product(isa, &x), &together, "{}", isa.name());
                for t in 0..tokens {
                    let alone = product(isa, &Array::new(1, cols, x.row(t).to_vec()));
                    prop_assert_eq!(alone.values(), together.row(t), "{} token {}", isa.name(), t);
                }
            }
        }

        #[test]
        fn products_are_those_of_the_numbers_read(
            rows in 1usize..20, cols in 1usize..300, tokens in 1usize..4, kind in 0usize..7,
        ) {
            let (w, x) = (matrix(rows, cols, kind), input(tokens, cols));
            let y = products(Isa::best(), &[Job { x: &x, w: &w }]).remove(0);
            let all: Vec<u32> = (0..rows as u32).collect();
            let read = rows_of(Isa::best(), &w, &all);
            for t in 0..tokens {
                for r in 0..rows {
                    let pairs = || read.row(r).iter().zip(x.row(t));
                    let want: f64 = pairs().map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
                    let size: f64 = pairs().map(|(w, x)| f64::from(w * x).abs()).sum();
                    prop_assert!((f64::from(y.row(t)[r]) - want).abs() <= 1e-5 * size + 1e-30);
                }
            }
        }
    }

    #[test]
    fn scales_stand_where_their_block_is() {
        let w = matrix(6, 40, 3);
        let read = rows_of(Isa::best(), &w, &[5]);
        let Format::E4m3(s) = &w.format else { unreachable!() };
        let code = w.bytes.as_slice()[5 * 40 + 35];
        // Row 5 lies in the second row of blocks, column 35 in the second block of two.
        assert_eq!(read.row(0)[35], crate::cpu::isa::plain::e4m3(code) * s.values[2 + 1]);
    }

    #[test]
    fn nan_codes_are_seen_in_every_batch() {
        let mut w = matrix(3, 48, 3);
        let mut bytes = w.bytes.as_slice().to_vec();
        bytes[48 + 40] = 0xff;
        w.bytes = Bytes::owned(bytes);
        for tokens in [1, 2] {
            let y = products(Isa::best(), &[Job { x: &input(tokens, 48), w: &w }]).remove(0);
            assert_eq!(
                y.row(tokens - 1).iter().map(|y| y.is_nan()).collect::<Vec<_>>(),
                [false, true, false],
                "{tokens} tokens"
            );
        }
    }

    #[test]
    fn part_of_a_matrix_keeps_its_scales() {
        let w = matrix(12, 32, 3);
        let (whole, part) = (rows_of(Isa::best(), &w, &[9]), rows_of(Isa::best(), &w.rows(6..12), &[3]));
        assert_eq!(whole, part);
    }
}

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
mod columns;
mod eight;
mod many_tokens;
mod one_token;

use std::ops::RangeInclusive;

use rayon::prelude::*;

use super::Array;
use super::isa::Isa;
use crate::weights::{Format, Matrix};
use codes::{Chunk, Order, Unpack, chunks_of};
use columns::Columns;
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

/// Bytes of weights a thread takes at a time when there is one token: enough to stream, not so much that the others
/// wait for it at the end.
const STRETCH: RangeInclusive<usize> = 16 << 10..=256 << 10;

/// All products, in one parallel sweep: `[tokens, out]` each.
pub fn products(isa: Isa, jobs: &[Job]) -> Vec<Array> {
    // Several matrices mostly share their input, and its order.
    let mut inputs: Vec<(&Array, Order)> = Vec::new();
    let mut input_of = Vec::with_capacity(jobs.len());
    for job in jobs {
        let order = Order::of(&job.w.format);
        let there = inputs.iter().rposition(|(x, o)| std::ptr::eq(*x, job.x) && *o == order);
        input_of.push(there.unwrap_or(inputs.len()));
        if there.is_none() {
            inputs.push((job.x, order));
        }
    }
    let packed: Vec<Packed> = inputs.into_par_iter().map(|(x, order)| Packed::new(isa, x, order)).collect();
    let mut outs: Vec<Array> = jobs.iter().map(|job| Array::zeros(job.x.rows(), job.w.rows)).collect();
    let bytes: usize = jobs.iter().map(|job| job.w.rows * job.w.format.row_bytes(job.w.cols)).sum();
    let stretch = (bytes / (8 * rayon::current_num_threads())).clamp(*STRETCH.start(), *STRETCH.end());
    let mut tasks = Vec::new();
    for ((job, out), input) in jobs.iter().zip(&mut outs).zip(input_of) {
        let rows = rows_of_a_task(job, stretch);
        let mine = tasks.len();
        let task = |first| {
            let out = Vec::with_capacity(job.x.rows());
            Task { job: *job, x: &packed[input], first, out }
        };
        tasks.extend((0..job.w.rows).step_by(rows).map(task));
        for token in out.values_mut().chunks_mut(job.w.rows.max(1)) {
            for (task, part) in tasks[mine..].iter_mut().zip(token.chunks_mut(rows)) {
                task.out.push(part);
            }
        }
    }
    tasks.into_par_iter().for_each(|task| task.run(isa));
    outs
}

/// Rows `tokens` of `table` as f32.
pub fn rows_of(isa: Isa, table: &Matrix, tokens: &[u32]) -> Array {
    let mut row = vec![Chunk::ZERO; chunks_of(table.cols)];
    let order = Order::of(&table.format);
    let mut out = Vec::with_capacity(tokens.len() * table.cols);
    for token in tokens {
        isa.run(Unpack { w: table, rows: *token as usize..*token as usize + 1, beside: 1, to: &mut row });
        let numbers = (0..table.cols).map(|column| {
            let [chunk, lane] = order.place(column);
            row[chunk].0[lane]
        });
        match &table.format {
            Format::E4m3(scales) => {
                let scale = |c: usize| scales.of_row(*token as usize)[c / scales.block[1]];
                out.extend(numbers.enumerate().map(|(c, x)| x * 2f32.powi(120) * scale(c)));
            }
            _ => out.extend(numbers),
        }
    }
    Array::new(tokens.len(), table.cols, out)
}

/// Some rows of one product.
struct Task<'a> {
    job: Job<'a>,
    x: &'a Packed,
    /// The first of the rows.
    first: usize,
    /// Where their outputs go, token by token.
    out: Vec<&'a mut [f32]>,
}

impl Task<'_> {
    fn run(self, isa: Isa) {
        let Task { job: Job { x: plain, w }, x, first, mut out } = self;
        match (&w.format, &mut out[..]) {
            (_, []) => {}
            (Format::Awq(awq), out) => isa.run(Columns { w, awq, x: plain, first, out }),
            (_, [out]) => isa.run(OneToken { w, x, first, out }),
            (_, out) => ManyTokens { w, x, first, out }.run(isa),
        }
    }
}

fn rows_of_a_task(job: &Job, stretch: usize) -> usize {
    match (&job.w.format, job.x.rows()) {
        (Format::Awq(_), _) => columns::OUTPUTS,
        (format, 0 | 1) => (stretch / format.row_bytes(job.w.cols)).max(1),
        _ => PANEL,
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};
    use proptest::prelude::*;
    use verify::codec::Float;

    use super::*;
    use crate::weights::{Awq, Bytes, Int4, Scales};

    /// A matrix of pseudo-random weights in one of [`KINDS`] formats; rounds its sizes up to what the format needs.
    fn matrix(rows: usize, cols: usize, kind: usize) -> Matrix {
        let (rows, cols) = match kind {
            7 => (rows, cols.next_multiple_of(8)),
            8 => (rows.next_multiple_of(8), cols.next_multiple_of(32)),
            9 => (rows.next_multiple_of(8), cols.next_multiple_of(10)),
            10 => (rows, cols.next_multiple_of(64)),
            11 | 14 => (rows.next_multiple_of(8), cols.next_multiple_of(96)),
            12 => (rows, cols.next_multiple_of(4)),
            13 => (rows.next_multiple_of(4), cols.next_multiple_of(32)),
            _ => (rows, cols),
        };
        let weight = |i: usize| ((i * 7919 + 13) % 251) as f32 / 128.0 - 0.97;
        let each = |f: &dyn Fn(f32) -> Vec<u8>| (0..rows * cols).flat_map(|i| f(weight(i))).collect();
        let scale = |i: usize| 0.3 + i as f32 / 7.0;
        let scales = |block: [usize; 2]| {
            let across = cols.div_ceil(block[1]);
            let values = (0..rows.div_ceil(block[0]) * across).map(scale).collect();
            Format::E4m3(Scales { values, block, across, inputs: None })
        };
        let of = |len: usize, f: &dyn Fn(usize) -> u8| (0..len).map(f).collect::<Vec<u8>>();
        let eight = || of(rows * cols, &|i| ((i * 37) % 254) as u8 & !1);
        let four = || of(rows * cols / 2, &|i| ((i * 151 + 7) % 256) as u8);
        let halves = |n: usize| {
            Bytes::owned((0..n).flat_map(|i| f16::from_f32(scale(i % 50)).to_le_bytes()).collect())
        };
        let zeros = |n: usize| Bytes::owned(of(n, &|i| ((i * 89 + 5) % 256) as u8));
        let int4 = |group: usize, asymmetric: bool| {
            let across = cols / group;
            let zeros = asymmetric.then(|| zeros(rows / 8 * across * 4));
            Format::Int4(Int4 { scales: halves(rows * across), float: Float::F16, zeros, group, across })
        };
        // The same scales over bytes; zeros of four rows to a word.
        let int8 = |group: usize, asymmetric: bool| {
            let across = cols / group;
            let zeros = asymmetric.then(|| zeros(rows * across));
            Format::Int8(Int4 { scales: halves(rows * across), float: Float::F16, zeros, group, across })
        };
        let bytewise = || of(rows * cols, &|i| ((i * 151 + 7) % 256) as u8);
        let (bytes, format) = match kind {
            0 => (each(&|x| x.to_le_bytes().to_vec()), Format::F32),
            1 => (each(&|x| f16::from_f32(x).to_le_bytes().to_vec()), Format::F16),
            2 => (each(&|x| bf16::from_f32(x).to_le_bytes().to_vec()), Format::Bf16),
            3 => (eight(), scales([32, 64])),
            4 => (eight(), scales([1, cols])),
            5 => (eight(), scales([rows, cols])),
            6 => (eight(), scales([32, 128])),
            7 => (four(), int4(cols, false)),
            8 => (four(), int4(32, true)),
            10 => (four(), int4(64, false)),
            11 => (four(), int4(96, true)),
            12 => (bytewise(), int8(cols, false)),
            13 => (bytewise(), int8(32, true)),
            14 => (bytewise(), int8(96, true)),
            _ => {
                let (scales, zeros) = (halves(cols / 10 * rows), zeros(cols / 10 * rows / 2));
                (four(), Format::Awq(Awq { scales, float: Float::F16, zeros, group: 10 }))
            }
        };
        Matrix { name: "w".into(), rows, cols, bytes: Bytes::owned(bytes), format }
    }

    const KINDS: usize = 15;

    /// Weight `[r, c]`, worked out one by one.
    fn number(w: &Matrix, r: usize, c: usize) -> f32 {
        let bytes = w.bytes.as_slice();
        let at = r * w.cols + c;
        let nibble = |bytes: &[u8], i: usize| i32::from(bytes[i / 2] >> (4 * (i % 2)) & 15);
        match &w.format {
            Format::F32 => f32::from_le_bytes(bytes.as_chunks().0[at]),
            Format::F16 => f16::from_le_bytes(bytes.as_chunks().0[at]).to_f32(),
            Format::Bf16 => bf16::from_le_bytes(bytes.as_chunks().0[at]).to_f32(),
            Format::E4m3(s) => {
                let block = r / s.block[0] * s.across + c / s.block[1];
                verify::codec::e4m3::decode(bytes[at]) * s.values[block]
            }
            Format::Int4(f) => {
                let group = r * f.across + c / f.group;
                let scale = f16::from_le_bytes(f.scales.as_slice().as_chunks().0[group]).to_f32();
                // Eight rows to a word, words of a line beside each other.
                let of_word = |z: &Bytes| nibble(z.as_slice(), (r / 8 * f.across + c / f.group) * 8 + r % 8);
                let zero = f.zeros.as_ref().map_or(8, of_word);
                (nibble(bytes, at) - zero) as f32 * scale
            }
            Format::Int8(f) => {
                let group = r * f.across + c / f.group;
                let scale = f16::from_le_bytes(f.scales.as_slice().as_chunks().0[group]).to_f32();
                let of_word =
                    |z: &Bytes| i32::from(z.as_slice()[(r / 4 * f.across + c / f.group) * 4 + r % 4]);
                let zero = f.zeros.as_ref().map_or(128, of_word);
                (i32::from(bytes[at]) - zero) as f32 * scale
            }
            Format::Awq(f) => {
                let place = r / 8 * 8 + Awq::ORDER.iter().position(|o| *o == r % 8).unwrap();
                let scale = f16::from_le_bytes(f.scales.as_slice().as_chunks().0[c / f.group * w.rows + r]);
                let zero = nibble(f.zeros.as_slice(), c / f.group * w.rows + place);
                (nibble(bytes, c * w.rows + place) - zero) as f32 * scale.to_f32()
            }
        }
    }

    fn input(tokens: usize, cols: usize) -> Array {
        let values = (0..tokens * cols).map(|i| ((i * 31 + 7) % 97) as f32 / 50.0 - 0.9).collect();
        Array::new(tokens, cols, values)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]

        #[test]
        fn all_sets_and_all_batches_give_the_same_bits(
            rows in 1usize..80, cols in 1usize..300, tokens in 1usize..14, kind in 0..KINDS,
        ) {
            let w = matrix(rows, cols, kind);
            let x = input(tokens, w.cols);
            let product = |isa, x: &Array| products(isa, &[Job { x, w: &w }]).remove(0);
            let together = product(Isa::PLAIN, &x);
            for isa in Isa::available() {
                prop_assert_eq!(&product(isa, &x), &together, "{}", isa.name());
                for t in 0..tokens {
                    let alone = product(isa, &Array::new(1, w.cols, x.row(t).to_vec()));
                    prop_assert_eq!(alone.values(), together.row(t), "{} token {}", isa.name(), t);
                }
            }
        }

        #[test]
        fn products_are_those_of_the_numbers_read(
            rows in 1usize..50, cols in 1usize..300, tokens in 1usize..4, kind in 0..KINDS,
        ) {
            let w = matrix(rows, cols, kind);
            let x = input(tokens, w.cols);
            let y = products(Isa::best(), &[Job { x: &x, w: &w }]).remove(0);
            for t in 0..tokens {
                for r in 0..w.rows {
                    let pairs = || (0..w.cols).map(|c| (f64::from(number(&w, r, c)), f64::from(x.row(t)[c])));
                    let want: f64 = pairs().map(|(w, x)| w * x).sum();
                    let size: f64 = pairs().map(|(w, x)| (w * x).abs()).sum();
                    prop_assert!((f64::from(y.row(t)[r]) - want).abs() <= 1e-5 * size + 1e-30);
                }
            }
        }

        #[test]
        fn rows_are_read_as_their_numbers(rows in 1usize..50, cols in 1usize..300, kind in 0..KINDS) {
            // AWQ's has no rows.
            prop_assume!(kind != 9);
            let w = matrix(rows, cols, kind);
            let row = w.rows - 1;
            let read = rows_of(Isa::best(), &w, &[row as u32]);
            let want: Vec<f32> = (0..w.cols).map(|c| number(&w, row, c)).collect();
            prop_assert_eq!(read.row(0), &want[..]);
        }
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
}

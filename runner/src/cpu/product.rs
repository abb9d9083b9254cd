//! Matrix products `y = x W^T`, the weights read as they lie.
//!
//! Every output is one dot product over sixteen lanes: lane `i` adds entries `i, i + 16, …` in order, then the lanes
//! fold. One token reads the codes straight from the file; several share a panel of rows that is unpacked once into
//! the cache. Both give the same bits, so an answer cannot depend on what else is in the batch.

use std::cell::RefCell;

use rayon::prelude::*;

use super::Array;
use super::isa::{Isa, Kernel, LANES, Lanes};
use crate::weights::{Format, Matrix, Scales};

/// One product to compute.
#[derive(Clone, Copy)]
pub struct Job<'a> {
    /// `[tokens, in]`.
    pub x: &'a Array,
    /// `[out, in]`.
    pub w: &'a Matrix,
}

/// Rows unpacked together; also the unit of work of a thread in prompts.
const PANEL: usize = 16;
/// Bytes of weights a thread takes at a time when there is one token.
const STRETCH: usize = 32 << 10;

/// All products, in one parallel sweep: `[tokens, out]` each.
pub fn products(isa: Isa, jobs: &[Job]) -> Vec<Array> {
    let padded: Vec<Option<Array>> = jobs.iter().map(|job| pad(job.x)).collect();
    // Transposed, [out, tokens], so that each thread writes a stretch of its own.
    let mut outs: Vec<Vec<f32>> = jobs.iter().map(|job| vec![0.0; job.w.rows * job.x.rows()]).collect();
    let mut tasks = Vec::new();
    for ((job, padded), out) in jobs.iter().zip(&padded).zip(&mut outs) {
        let x = padded.as_ref().unwrap_or(job.x);
        let rows = rows_of_a_task(job);
        for (i, out) in out.chunks_mut((rows * x.rows()).max(1)).enumerate() {
            tasks.push(Task { w: job.w, x, first: i * rows, out });
        }
    }
    tasks.into_par_iter().for_each(|task| PANEL_SPACE.with_borrow_mut(|space| task.run(isa, space)));
    jobs.iter().zip(outs).map(|(job, out)| transposed(out, job.w.rows, job.x.rows())).collect()
}

/// Rows `tokens` of `table` as f32.
pub fn rows_of(isa: Isa, table: &Matrix, tokens: &[u32]) -> Array {
    let width = table.cols.next_multiple_of(LANES);
    let mut out = Array::zeros(tokens.len(), width);
    for (to, token) in out.values_mut().chunks_exact_mut(width).zip(tokens) {
        isa.run(Unpack { w: table, first: *token as usize, to });
    }
    match width == table.cols {
        true => out,
        false => {
            let rows = out.each_row().flat_map(|r| &r[..table.cols]).copied().collect();
            Array::new(tokens.len(), table.cols, rows)
        }
    }
}

fn pad(x: &Array) -> Option<Array> {
    let width = x.cols().next_multiple_of(LANES);
    (width != x.cols()).then(|| x.padded(width))
}

fn rows_of_a_task(job: &Job) -> usize {
    match job.x.rows() {
        0 | 1 => (STRETCH / (job.w.cols * job.w.format.width())).next_multiple_of(4).max(4),
        _ => PANEL,
    }
}

fn transposed(out: Vec<f32>, rows: usize, tokens: usize) -> Array {
    if tokens <= 1 {
        return Array::new(tokens, rows, out);
    }
    let mut y = Array::zeros(tokens, rows);
    y.values_mut().par_chunks_mut(rows).enumerate().for_each(|(t, y)| {
        for (r, y) in y.iter_mut().enumerate() {
            *y = out[r * tokens + t];
        }
    });
    y
}

/// Some rows of one product: `out` `[rows, tokens]`.
struct Task<'a> {
    w: &'a Matrix,
    x: &'a Array,
    first: usize,
    out: &'a mut [f32],
}

thread_local! {
    static PANEL_SPACE: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

impl Task<'_> {
    fn run(self, isa: Isa, space: &mut Vec<f32>) {
        match self.x.rows() {
            0 => {}
            1 => isa.run(OneToken(self)),
            _ => {
                // Rows beyond the task's hold old numbers; their products are never written.
                space.resize(PANEL * self.x.cols(), 0.0);
                isa.run(ManyTokens { task: self, space });
            }
        }
    }
}

// In kernels there are loops where closures and iterator chains would be shorter: those are functions of their own,
// compiled without the instruction set unless they happen to be inlined.

struct OneToken<'a>(Task<'a>);

impl Kernel for OneToken<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Task { w, x, first, out } = self.0;
        let (x, _) = x.values().as_chunks::<LANES>();
        match &w.format {
            Format::F32 => straight::<L, Single>(w, first, x, out, None),
            Format::F16 => straight::<L, Half>(w, first, x, out, None),
            Format::Bf16 => straight::<L, Brain>(w, first, x, out, None),
            Format::E4m3(s) => straight::<L, Eight>(w, first, x, out, Some(s)),
        }
    }
}

struct ManyTokens<'a> {
    task: Task<'a>,
    space: &'a mut [f32],
}

impl Kernel for ManyTokens<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Task { w, x, first, out } = self.task;
        let (tokens, width) = (x.rows(), x.cols());
        let rows = out.len() / tokens;
        Unpack { w, first, to: &mut self.space[..rows * width] }.run::<L>();
        let (panel, _) = self.space.as_chunks::<LANES>();
        let (x, _) = x.values().as_chunks::<LANES>();
        panel_product::<L>(panel, x, width / LANES, [rows, tokens], out);
    }
}

/// `out[r, t]` = row `r` of `panel` times token `t` of `x`, both of `n` chunks a row.
#[inline(always)]
fn panel_product<L: Lanes>(
    panel: &[[f32; LANES]],
    x: &[[f32; LANES]],
    n: usize,
    [rows, tokens]: [usize; 2],
    out: &mut [f32],
) {
    let most = if L::WIDE { 6 } else { 3 };
    let mut t = 0;
    while t < tokens {
        // Even strips: 8 tokens are 4 and 4, not 6 and 2.
        let left = tokens - t;
        let taken = left.div_ceil(left.div_ceil(most));
        let x = &x[t * n..];
        let to = Strip { out: &mut *out, rows, tokens, first: t };
        match (L::WIDE, taken) {
            (true, 6) => strip::<L, 4, 6>(panel, x, n, to),
            (true, 5) => strip::<L, 4, 5>(panel, x, n, to),
            (true, 4) => strip::<L, 4, 4>(panel, x, n, to),
            (true, 3) => strip::<L, 4, 3>(panel, x, n, to),
            (true, 2) => strip::<L, 4, 2>(panel, x, n, to),
            (true, _) => strip::<L, 4, 1>(panel, x, n, to),
            (false, 3) => strip::<L, 2, 3>(panel, x, n, to),
            (false, 2) => strip::<L, 2, 2>(panel, x, n, to),
            (false, _) => strip::<L, 2, 1>(panel, x, n, to),
        }
        t += taken;
    }
}

/// Where a strip of tokens goes: columns `first..` of `out` `[rows, tokens]`.
struct Strip<'a> {
    out: &'a mut [f32],
    rows: usize,
    tokens: usize,
    first: usize,
}

/// All rows of the panel, `R` at a time, times `T` tokens. A panel holds a multiple of `R` rows.
#[inline(always)]
fn strip<L: Lanes, const R: usize, const T: usize>(
    panel: &[[f32; LANES]],
    x: &[[f32; LANES]],
    n: usize,
    to: Strip,
) {
    for r in (0..to.rows).step_by(R) {
        let sums = block::<L, R, T>(&panel[r * n..], x, n);
        for (sums, row) in sums.iter().zip(to.out.chunks_exact_mut(to.tokens).skip(r)) {
            row[to.first..to.first + T].copy_from_slice(sums);
        }
    }
}

/// `R` rows times `T` tokens, all sums in registers.
#[inline(always)]
fn block<L: Lanes, const R: usize, const T: usize>(
    w: &[[f32; LANES]],
    x: &[[f32; LANES]],
    n: usize,
) -> [[f32; T]; R] {
    let mut ws = [&w[..n]; R];
    for r in 0..R {
        ws[r] = &w[r * n..][..n];
    }
    let mut xs = [&x[..n]; T];
    for t in 0..T {
        xs[t] = &x[t * n..][..n];
    }
    let mut sums = [[L::splat(0.0); T]; R];
    for i in 0..n {
        let mut weights = [L::splat(0.0); R];
        for r in 0..R {
            weights[r] = L::load(&ws[r][i]);
        }
        for t in 0..T {
            let x = L::load(&xs[t][i]);
            for r in 0..R {
                sums[r][t] = sums[r][t].fma(weights[r], x);
            }
        }
    }
    let mut out = [[0.0; T]; R];
    for r in 0..R {
        for t in 0..T {
            out[r][t] = sums[r][t].sum();
        }
    }
    out
}

/// Sixteen weights as they lie in the file.
trait Codes {
    /// Their bytes.
    type Chunk;
    /// Whole chunks of a row, and what is left.
    fn chunks(row: &[u8]) -> (&[Self::Chunk], &[u8]);
    /// The left over, filled up with zeros.
    fn tail(left: &[u8]) -> Self::Chunk;
    /// As numbers, without scale.
    fn read<L: Lanes>(chunk: &Self::Chunk) -> L;
}

macro_rules! codes {
    ($name:ident, $bytes:literal, $read:ident) => {
        struct $name;

        impl Codes for $name {
            type Chunk = [u8; $bytes];

            #[inline(always)]
            fn chunks(row: &[u8]) -> (&[Self::Chunk], &[u8]) {
                row.as_chunks()
            }

            #[inline(always)]
            fn tail(left: &[u8]) -> Self::Chunk {
                let mut chunk = [0; $bytes];
                chunk[..left.len()].copy_from_slice(left);
                chunk
            }

            #[inline(always)]
            fn read<L: Lanes>(chunk: &Self::Chunk) -> L {
                L::$read(chunk)
            }
        }
    };
}

codes!(Single, 64, from_f32);
codes!(Half, 32, from_f16);
codes!(Brain, 32, from_bf16);
codes!(Eight, 16, from_e4m3);

/// One token times the rows from `first`, four at a time, without unpacking.
#[inline(always)]
fn straight<L: Lanes, C: Codes>(
    w: &Matrix,
    first: usize,
    x: &[[f32; LANES]],
    out: &mut [f32],
    scales: Option<&Scales>,
) {
    let (fours, rest) = out.as_chunks_mut::<4>();
    let mut row = first;
    for out in fours {
        *out = rows_times::<L, C, 4>(w, row, x, scales);
        row += 4;
    }
    for out in rest {
        [*out] = rows_times::<L, C, 1>(w, row, x, scales);
        row += 1;
    }
}

#[inline(always)]
fn rows_times<L: Lanes, C: Codes, const R: usize>(
    w: &Matrix,
    row: usize,
    x: &[[f32; LANES]],
    scales: Option<&Scales>,
) -> [f32; R] {
    let bytes = w.bytes.as_slice();
    let len = w.cols * w.format.width();
    let whole = w.cols / LANES;
    let mut codes: [&[C::Chunk]; R] = [&[]; R];
    for r in 0..R {
        codes[r] = &C::chunks(&bytes[(row + r) * len..][..len]).0[..whole];
    }
    let mut sums = [L::splat(0.0); R];
    match scales {
        None => {
            for (i, x) in x[..whole].iter().enumerate() {
                let x = L::load(x);
                for r in 0..R {
                    sums[r] = sums[r].fma(C::read(&codes[r][i]), x);
                }
            }
        }
        Some(scales) => {
            let step = scales.block[1].div_ceil(LANES);
            for (block, x) in x[..whole].chunks(step).enumerate() {
                let mut scale = [L::splat(0.0); R];
                let mut part = codes;
                for r in 0..R {
                    scale[r] = L::splat(scales.of_row(row + r)[block]);
                    part[r] = &codes[r][block * step..][..x.len()];
                }
                for (i, x) in x.iter().enumerate() {
                    let x = L::load(x);
                    for r in 0..R {
                        sums[r] = sums[r].fma(C::read::<L>(&part[r][i]).mul(scale[r]), x);
                    }
                }
            }
        }
    }
    if let Some(x) = x.get(whole) {
        let x = L::load(x);
        for r in 0..R {
            let left = C::chunks(&bytes[(row + r) * len..][..len]).1;
            let mut weight = C::read::<L>(&C::tail(left));
            if let Some(scale) = scales.and_then(|s| s.of_row(row + r).last()) {
                weight = weight.mul(L::splat(*scale));
            }
            sums[r] = sums[r].fma(weight, x);
        }
    }
    let mut out = [0.0; R];
    for r in 0..R {
        out[r] = sums[r].sum();
    }
    out
}

/// Rows from `first` as f32, each filled up with zeros to whole chunks.
struct Unpack<'a> {
    w: &'a Matrix,
    first: usize,
    to: &'a mut [f32],
}

impl Kernel for Unpack<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        match &self.w.format {
            Format::F32 => self.rows::<L, Single>(None),
            Format::F16 => self.rows::<L, Half>(None),
            Format::Bf16 => self.rows::<L, Brain>(None),
            Format::E4m3(scales) => self.rows::<L, Eight>(Some(scales)),
        }
    }
}

impl Unpack<'_> {
    #[inline(always)]
    fn rows<L: Lanes, C: Codes>(self, scales: Option<&Scales>) {
        let bytes = self.w.bytes.as_slice();
        let len = self.w.cols * self.w.format.width();
        let step = scales.map_or(usize::MAX, |s| s.block[1].div_ceil(LANES));
        for (r, to) in self.to.chunks_exact_mut(self.w.cols.next_multiple_of(LANES)).enumerate() {
            let row = self.first + r;
            let (chunks, left) = C::chunks(&bytes[row * len..][..len]);
            let (to, _) = to.as_chunks_mut::<LANES>();
            for (block, (codes, to)) in chunks.chunks(step).zip(to.chunks_mut(step)).enumerate() {
                match scales {
                    None => {
                        for (c, to) in codes.iter().zip(to) {
                            C::read::<L>(c).store(to);
                        }
                    }
                    Some(s) => {
                        let s = L::splat(s.of_row(row)[block]);
                        for (c, to) in codes.iter().zip(to) {
                            C::read::<L>(c).mul(s).store(to);
                        }
                    }
                }
            }
            if let Some(to) = to.get_mut(chunks.len()) {
                let mut weight = C::read::<L>(&C::tail(left));
                if let Some(scale) = scales.and_then(|s| s.of_row(row).last()) {
                    weight = weight.mul(L::splat(*scale));
                }
                weight.store(to);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};
    use proptest::prelude::*;

    use super::*;
    use crate::weights::Bytes;

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
            3 => (codes(), scales([4, 16])),
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
            rows in 1usize..40, cols in 1usize..70, tokens in 1usize..14, kind in 0usize..6,
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
            rows in 1usize..20, cols in 1usize..70, tokens in 1usize..4, kind in 0usize..6,
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
        // Row 5 lies in the second row of blocks, column 35 in the third block of three.
        assert_eq!(read.row(0)[35], super::super::isa::plain::e4m3(code) * s.values[3 + 2]);
    }

    #[test]
    fn part_of_a_matrix_keeps_its_scales() {
        let w = matrix(12, 32, 3);
        let (whole, part) = (rows_of(Isa::best(), &w, &[9]), rows_of(Isa::best(), &w.rows(6..12), &[3]));
        assert_eq!(whole, part);
    }
}

//! Weights as they lie in the file, read sixty-four at a time.

use std::ops::Range;

use verify::codec::int4::Bits;

use crate::cpu::isa::{Kernel, LANES, Lanes};
use crate::weights::{Format, Int4Factors, Matrix};

/// Weights read together.
pub const RUN: usize = 4 * LANES;

/// Sixteen numbers on a cache line of their own.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Chunk(pub [f32; LANES]);

impl Chunk {
    /// All zero.
    pub const ZERO: Chunk = Chunk([0.0; LANES]);
}

/// Chunks of `columns` numbers, filled up to whole runs.
pub fn chunks_of(columns: usize) -> usize {
    columns.div_ceil(RUN) * (RUN / LANES)
}

/// Where the numbers of a run stand in its four chunks. Weights and tokens must agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Sixteen after sixteen.
    Straight,
    /// Number `4 i + k` in lane `i` of chunk `k`: where shifts and masks put codes of eight bits or less.
    Woven,
}

impl Order {
    /// The order in which weights of this format are read.
    pub fn of(format: &Format) -> Order {
        match format {
            Format::F32 | Format::F16 | Format::Bf16 => Order::Straight,
            // AWQ has no rows: its tokens are read as they are.
            Format::Awq(_) => Order::Straight,
            Format::E4m3(_) | Format::Int4(_) | Format::Int8(_) => Order::Woven,
        }
    }

    /// Chunk and lane of column `column`.
    pub fn place(self, column: usize) -> [usize; 2] {
        match self {
            Order::Straight => [column / LANES, column % LANES],
            Order::Woven => [column / RUN * 4 + column % 4, column % RUN / 4],
        }
    }
}

/// The bytes of a run.
pub trait Run: Sized {
    /// Whole runs of a row, and what is left.
    fn split(row: &[u8]) -> (&[Self], &[u8]);
    /// The left over, filled up with zeros.
    fn filled(left: &[u8]) -> Self;
}

impl<const N: usize> Run for [u8; N] {
    #[inline(always)]
    fn split(row: &[u8]) -> (&[Self], &[u8]) {
        row.as_chunks()
    }

    #[inline(always)]
    fn filled(left: &[u8]) -> Self {
        let mut run = [0; N];
        run[..left.len()].copy_from_slice(left);
        run
    }
}

/// A way to write down sixty-four weights.
pub trait Codes {
    /// Their bytes.
    type Run: Run;
    /// True where runs of a row may lie in different [`Group`]s.
    const GROUPED: bool = false;
    /// As numbers, in the format's [`Order`].
    fn read<L: Lanes>(run: &Self::Run, group: &Group<L>) -> [L; 4];
    /// What group number `number` of row `row` shares, groups being of [`runs_of_a_group`] runs.
    #[inline(always)]
    fn group<L: Lanes>(_factors: Factors, _row: usize, _number: usize) -> Group<L> {
        Group { zero: L::splat(0.0), scale: L::splat(1.0), table: None }
    }
}

/// What weights under one scale share.
#[derive(Clone, Copy)]
pub struct Group<L> {
    zero: L,
    scale: L,
    /// `(code - zero) * scale` of each code, where all of a run is under one scale.
    table: Option<L>,
}

impl<L: Lanes> Group<L> {
    /// All of a run under one zero and scale.
    #[inline(always)]
    fn one([zero, scale]: [f32; 2]) -> Self {
        let (zero, scale) = (L::splat(zero), L::splat(scale));
        Group { zero, scale, table: Some(L::load(&CODES).sub(zero).mul(scale)) }
    }

    /// Zeros and scales of the two halves of a run.
    #[inline(always)]
    fn halves(a: [f32; 2], b: [f32; 2]) -> Self {
        // Column 4 i + k stands in lane i: half of the columns are half of the lanes.
        let (mut zero, mut scale) = ([a[0]; LANES], [a[1]; LANES]);
        zero[LANES / 2..].fill(b[0]);
        scale[LANES / 2..].fill(b[1]);
        Group { zero: L::load(&zero), scale: L::load(&scale), table: None }
    }
}

const CODES: [f32; LANES] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0];

/// What groups are made of, where a format has them.
pub type Factors<'a> = Option<Int4Factors<'a>>;

/// Those of a matrix.
pub fn factors(w: &Matrix) -> Factors<'_> {
    match &w.format {
        Format::Int4(int4) => Some(int4.factors(Bits::Four)),
        Format::Int8(int8) => Some(int8.factors(Bits::Eight)),
        _ => None,
    }
}

/// Runs of a row that share a [`Group`].
pub fn runs_of_a_group(w: &Matrix) -> usize {
    match &w.format {
        Format::Int4(i) | Format::Int8(i) if i.across > 1 && i.group.is_multiple_of(RUN) => i.group / RUN,
        Format::Int4(i) | Format::Int8(i) if i.across > 1 => 1,
        _ => w.cols.div_ceil(RUN).max(1),
    }
}

/// f32.
pub struct Single;

impl Codes for Single {
    type Run = [u8; 4 * RUN];

    #[inline(always)]
    fn read<L: Lanes>(run: &Self::Run, _: &Group<L>) -> [L; 4] {
        let (parts, _) = run.as_chunks();
        [L::from_f32(&parts[0]), L::from_f32(&parts[1]), L::from_f32(&parts[2]), L::from_f32(&parts[3])]
    }
}

/// IEEE half.
pub struct Half;

impl Codes for Half {
    type Run = [u8; 2 * RUN];

    #[inline(always)]
    fn read<L: Lanes>(run: &Self::Run, _: &Group<L>) -> [L; 4] {
        let (parts, _) = run.as_chunks();
        [L::from_f16(&parts[0]), L::from_f16(&parts[1]), L::from_f16(&parts[2]), L::from_f16(&parts[3])]
    }
}

/// bfloat16.
pub struct Brain;

impl Codes for Brain {
    type Run = [u8; 2 * RUN];

    #[inline(always)]
    fn read<L: Lanes>(run: &Self::Run, _: &Group<L>) -> [L; 4] {
        let (parts, _) = run.as_chunks();
        [L::from_bf16(&parts[0]), L::from_bf16(&parts[1]), L::from_bf16(&parts[2]), L::from_bf16(&parts[3])]
    }
}

/// FP8 e4m3. Its scales are not in the weights but in the tokens and in the sums: see `eight`.
pub struct Eight;

impl Codes for Eight {
    type Run = [u8; RUN];

    #[inline(always)]
    fn read<L: Lanes>(run: &Self::Run, _: &Group<L>) -> [L; 4] {
        L::from_e4m3(run)
    }
}

/// Four bits.
pub struct Four;

impl Codes for Four {
    type Run = [u8; RUN / 2];
    const GROUPED: bool = true;

    #[inline(always)]
    fn read<L: Lanes>(run: &Self::Run, group: &Group<L>) -> [L; 4] {
        let Group { zero, scale, table } = *group;
        if let Some(table) = table {
            return L::scaled_u4(run, [zero, scale, table]);
        }
        let [a, b, c, d] = L::from_u4(run);
        [a.sub(zero).mul(scale), b.sub(zero).mul(scale), c.sub(zero).mul(scale), d.sub(zero).mul(scale)]
    }

    #[inline(always)]
    fn group<L: Lanes>(factors: Factors, row: usize, number: usize) -> Group<L> {
        of_integers(factors, row, number)
    }
}

/// Eight bits with groups.
pub struct Byte;

impl Codes for Byte {
    type Run = [u8; RUN];
    const GROUPED: bool = true;

    #[inline(always)]
    fn read<L: Lanes>(run: &Self::Run, group: &Group<L>) -> [L; 4] {
        let Group { zero, scale, .. } = *group;
        let [a, b, c, d] = L::from_u8(run);
        [a.sub(zero).mul(scale), b.sub(zero).mul(scale), c.sub(zero).mul(scale), d.sub(zero).mul(scale)]
    }

    #[inline(always)]
    fn group<L: Lanes>(factors: Factors, row: usize, number: usize) -> Group<L> {
        of_integers(factors, row, number)
    }
}

#[inline(always)]
fn of_integers<L: Lanes>(factors: Factors, row: usize, number: usize) -> Group<L> {
    let Some(f) = factors else { return Single::group(factors, row, number) };
    if f.across == 1 || f.group.is_multiple_of(RUN) {
        return Group::one(f.of(row, number));
    }
    let [first, second] = [2 * number, 2 * number + 1].map(|half| half * (RUN / 2) / f.group);
    Group::halves(f.of(row, first), f.of(row, second.min(f.across - 1)))
}

/// Some rows as f32 in their format's [`Order`] (e4m3 as its lanes read it), each filled up with zeros to whole runs,
/// `beside` of them interleaved chunk by chunk: `to[group, chunk, row of the group]`.
pub struct Unpack<'a> {
    /// The matrix.
    pub w: &'a Matrix,
    /// Its rows.
    pub rows: Range<usize>,
    /// Rows of a group.
    pub beside: usize,
    /// Room for whole groups.
    pub to: &'a mut [Chunk],
}

impl Kernel for Unpack<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        match &self.w.format {
            Format::F32 => self.unpack::<L, Single>(),
            Format::F16 => self.unpack::<L, Half>(),
            Format::Bf16 => self.unpack::<L, Brain>(),
            Format::E4m3(_) => self.unpack::<L, Eight>(),
            Format::Int4(_) => self.unpack::<L, Four>(),
            Format::Int8(_) => self.unpack::<L, Byte>(),
            // Has no rows, and its products never unpack any.
            Format::Awq(_) => {}
        }
    }
}

impl Unpack<'_> {
    #[inline(always)]
    fn unpack<L: Lanes, C: Codes>(self) {
        let Unpack { w, rows, beside, to } = self;
        let bytes = w.bytes.as_slice();
        let (len, n) = (w.format.row_bytes(w.cols), chunks_of(w.cols));
        let (step, factors) = (runs_of_a_group(w), factors(w));
        for (r, row) in rows.enumerate() {
            let to = &mut to[r / beside * n * beside + r % beside..];
            let (runs, left) = C::Run::split(&bytes[row * len..][..len]);
            for (number, some) in runs.chunks(step).enumerate() {
                let group = C::group::<L>(factors, row, number);
                for (i, run) in some.iter().enumerate() {
                    store(C::read::<L>(run, &group), &mut to[(number * step + i) * 4 * beside..], beside);
                }
            }
            if !left.is_empty() {
                let group = C::group::<L>(factors, row, runs.len() / step);
                store(
                    C::read::<L>(&C::Run::filled(left), &group),
                    &mut to[runs.len() * 4 * beside..],
                    beside,
                );
            }
        }
    }
}

#[inline(always)]
fn store<L: Lanes>(run: [L; 4], to: &mut [Chunk], beside: usize) {
    for k in 0..4 {
        run[k].store(&mut to[k * beside].0);
    }
}

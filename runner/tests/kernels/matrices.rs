//! Pseudo-random weights in every format, for the CPU and for the kernels.

use half::{bf16, f16};
use runner::cuda::Stack;
use runner::cuda::launches::{AwqCodes, AwqZeros, ScaleKind, WeightFormat, Weights};
use runner::weights::{Awq, Bytes, Format, Int4, Matrix, Scales};
use verify::codec::Float;
use verify::codec::int4::Bits;

use super::machine::{At, Machine, random};

/// What a matrix is stored as.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    F32,
    F16,
    Bf16,
    /// Rows and columns of a block; 0 for all.
    E4m3([usize; 2]),
    /// Group (0 for a row), with zeros, scales.
    Int4(usize, bool, Float),
    /// Group.
    Awq(usize),
}

pub const KINDS: [Kind; 11] = [
    Kind::F32,
    Kind::F16,
    Kind::Bf16,
    Kind::E4m3([128, 128]),
    Kind::E4m3([1, 0]),
    Kind::E4m3([0, 0]),
    Kind::Int4(32, true, Float::BF16),
    Kind::Int4(0, false, Float::F32),
    Kind::Int4(128, false, Float::F16),
    Kind::Awq(8),
    Kind::Awq(32),
];

/// `[rows, cols]`, rounded up to what the kind needs.
pub fn matrix(rows: usize, cols: usize, kind: Kind, salt: u64) -> Matrix {
    let (rows, cols) = match kind {
        Kind::Int4(group, _, _) => (rows.next_multiple_of(8), cols.next_multiple_of(group.max(8))),
        Kind::Awq(group) => (rows.next_multiple_of(8), cols.next_multiple_of(group)),
        _ => (rows, cols),
    };
    let values = random(rows * cols, salt);
    let bits = |n: usize| random(n, salt + 1).iter().map(|v| (v.to_bits() >> 9) as u8).collect::<Vec<_>>();
    let scales = |n: usize| random(n, salt + 2).iter().map(|v| 0.02 + 0.015 * v).collect::<Vec<_>>();
    let (bytes, format) = match kind {
        Kind::F32 => (Float::F32.to_bytes(&values), Format::F32),
        Kind::F16 => (Float::F16.to_bytes(&values), Format::F16),
        Kind::Bf16 => (Float::BF16.to_bytes(&values), Format::Bf16),
        Kind::E4m3(block) => {
            let block =
                [[rows, block[0]][usize::from(block[0] > 0)], [cols, block[1]][usize::from(block[1] > 0)]];
            let across = cols.div_ceil(block[1]);
            let values = scales(rows.div_ceil(block[0]) * across).into();
            let codes = bits(rows * cols).into_iter().map(|c| if c & 0x7f == 0x7f { c & 0xf0 } else { c });
            (codes.collect(), Format::E4m3(Scales { values, block, across, inputs: None }))
        }
        Kind::Int4(group, zeros, float) => {
            let group = if group == 0 { cols } else { group };
            let across = cols / group;
            let scales = Bytes::owned(float.to_bytes(&scales(rows * across)));
            let zeros = zeros.then(|| Bytes::owned(bits(rows / 2 * across)));
            (bits(rows * cols / 2), Format::Int4(Int4 { scales, float, zeros, group, across }))
        }
        Kind::Awq(group) => {
            let groups = cols / group;
            let scales = Bytes::owned(Float::F16.to_bytes(&scales(groups * rows)));
            let zeros = Bytes::owned(bits(groups * rows / 2));
            (bits(rows * cols / 2), Format::Awq(Awq { scales, float: Float::F16, zeros, group }))
        }
    };
    Matrix { name: "w".into(), rows, cols, bytes: Bytes::owned(bytes), format }
}

/// The matrices in the machine's memory.
pub fn upload(m: &mut Machine, matrices: &[&Matrix]) -> Weights<At> {
    if let Format::Awq(_) = matrices[0].format {
        return upload_awq(m, matrices);
    }
    let stack = Stack::of(matrices).unwrap();
    let some = |m: &mut Machine, bytes: &[u8]| (!bytes.is_empty()).then(|| m.bytes(bytes));
    let codes = m.bytes(&stack.codes);
    let (scales, zeros) = (some(m, &stack.scales), some(m, &stack.zeros));
    stack.weights(codes, scales, zeros)
}

/// Through the repacking kernels.
fn upload_awq(m: &mut Machine, matrices: &[&Matrix]) -> Weights<At> {
    let (rows, cols) = (matrices[0].rows, matrices[0].cols);
    let Format::Awq(awq) = &matrices[0].format else { unreachable!() };
    let (groups, stride) = (cols / awq.group, WeightFormat::Int4.stride(cols));
    let codes = m.bytes(&vec![0; matrices.len() * rows * stride]);
    let scales = m.room(matrices.len() * rows * groups * 2);
    let zeros = m.room(matrices.len() * rows / 8 * groups * 4);
    for (i, matrix) in matrices.iter().enumerate() {
        let Format::Awq(awq) = &matrix.format else { unreachable!() };
        let (r, c) = (rows as u32, cols as u32);
        let qweight = m.bytes(matrix.bytes.as_slice());
        let codes = codes.plus(i * rows * stride);
        m.run(&AwqCodes { qweight, rows: r, cols: c, stride: stride as u32, codes }.launch());
        let (qzeros, from) = (m.bytes(awq.zeros.as_slice()), m.bytes(awq.scales.as_slice()));
        let (zeros, out_scales) = (zeros.plus(i * rows / 8 * groups * 4), scales.plus(i * rows * groups * 2));
        let groups = groups as u32;
        m.run(&AwqZeros { qzeros, scales: from, rows: r, groups, zeros, out_scales }.launch());
    }
    Weights {
        format: WeightFormat::Int4,
        codes,
        scales: Some(scales),
        zeros: Some(zeros),
        each: (rows * stride) as u64,
        rows: rows as u32,
        cols: cols as u32,
        block: [1, awq.group as u32],
        each_scales: (rows * groups) as u32,
        scale_kind: ScaleKind::F16,
    }
}

/// The matrix written out in f32, number by number.
pub fn numbers(w: &Matrix) -> Vec<f32> {
    let bytes = w.bytes.as_slice();
    let nibble = |bytes: &[u8], i: usize| i32::from(bytes[i / 2] >> (4 * (i % 2)) & 15);
    let number = |r: usize, c: usize| {
        let at = r * w.cols + c;
        match &w.format {
            Format::F32 => f32::from_le_bytes(bytes.as_chunks().0[at]),
            Format::F16 => f16::from_le_bytes(bytes.as_chunks().0[at]).to_f32(),
            Format::Bf16 => bf16::from_le_bytes(bytes.as_chunks().0[at]).to_f32(),
            Format::E4m3(s) => verify::codec::e4m3::decode(bytes[at]) * s.of_row(r)[c / s.block[1]],
            Format::Int4(f) => {
                let [zero, scale] = f.factors(Bits::Four).of(r, c / f.group);
                (nibble(bytes, at) as f32 - zero) * scale
            }
            Format::Int8(_) => unreachable!("no kernel reads it"),
            Format::Awq(f) => {
                let place = r / 8 * 8 + Awq::ORDER.iter().position(|o| *o == r % 8).unwrap();
                let zero = nibble(f.zeros.as_slice(), c / f.group * w.rows + place);
                (nibble(bytes, c * w.rows + place) - zero) as f32 * f.scales().at(c / f.group * w.rows + r)
            }
        }
    };
    (0..w.rows * w.cols).map(|i| number(i / w.cols, i % w.cols)).collect()
}

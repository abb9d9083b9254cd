//! Matrices on the GPU: one, or all experts' behind each other.

use std::sync::Arc;

use verify::codec::Float;
use verify::{Class, Error, Result};

use super::Cuda;
use crate::cpu;
use crate::cuda::driver::{At, Memory};
use crate::cuda::launches::{AwqCodes, AwqZeros, ScaleKind, WeightFormat, Weights};
use crate::cuda::stack::Stack;
use crate::weights::{Awq, Bytes, Format, Matrix};

/// Matrices of one shape and format.
#[derive(Debug, Clone)]
pub struct Stored(Arc<Parts>);

#[derive(Debug)]
struct Parts {
    like: Weights<()>,
    codes: Memory,
    scales: Option<Memory>,
    zeros: Option<Memory>,
    inputs: Option<f32>,
}

impl Stored {
    /// For launches.
    pub fn weights(&self) -> Weights<At<'_>> {
        let Parts { like, codes, scales, zeros, .. } = &*self.0;
        like.put(codes.at(0), scales.as_ref().map(|m| m.at(0)), zeros.as_ref().map(|m| m.at(0)))
    }

    /// The scale that a server rounds inputs with, where the checkpoint tells it.
    pub fn inputs(&self) -> Option<f32> {
        self.0.inputs
    }

    /// Outputs.
    pub fn rows(&self) -> usize {
        self.0.like.rows as usize
    }

    /// Inputs.
    pub fn cols(&self) -> usize {
        self.0.like.cols as usize
    }
}

/// Brings `matrices`, at least one, to the GPU.
///
/// # Errors
/// Exit 6 where they differ in what the kernels take from the first, and where they do not fit.
pub fn store(cuda: &Cuda, matrices: &[Matrix]) -> Result<Stored> {
    let Some(first) = matrices.first() else {
        return Err(Error::input("a layer has no experts"));
    };
    match &first.format {
        Format::Awq(awq) => repacked(cuda, matrices, awq.float),
        _ => stacked(cuda, matrices, first),
    }
}

/// On the host as the kernels read it. What no kernel reads is written out in f32.
fn laid_out(cuda: &Cuda, matrix: &Matrix) -> Result<Stack> {
    let written_out = || {
        let rows: Vec<u32> = (0..matrix.rows as u32).collect();
        let numbers = cpu::rows_of(cuda.isa, matrix, &rows);
        let bytes = numbers.values().iter().flat_map(|v| v.to_le_bytes()).collect();
        let format = Format::F32;
        Stack::of(&[&Matrix { bytes: Bytes::owned(bytes), format, ..matrix.clone() }])
    };
    Stack::of(&[matrix]).or_else(written_out).ok_or_else(|| differ(matrix))
}

fn differ(matrix: &Matrix) -> Error {
    Error::new(Class::Gpu, format!("`{}` differs from the other experts of its layer", matrix.name))
        .expected("one shape, one format and one scale of inputs for all")
        .hint("run with `--device cpu`")
}

fn stacked(cuda: &Cuda, matrices: &[Matrix], first: &Matrix) -> Result<Stored> {
    let count = matrices.len();
    let laid = laid_out(cuda, first)?;
    let like =
        laid.weights((), (!laid.scales.is_empty()).then_some(()), (!laid.zeros.is_empty()).then_some(()));
    let room = |bytes: usize| (bytes > 0).then(|| cuda.device.keep(bytes * count)).transpose();
    let codes = cuda.device.keep(laid.codes.len() * count)?;
    let (scales, zeros) = (room(laid.scales.len())?, room(laid.zeros.len())?);
    let mut laid = Some(laid);
    for (number, matrix) in matrices.iter().enumerate() {
        let laid = match laid.take() {
            Some(first) => first,
            None => laid_out(cuda, matrix)?,
        };
        let same = laid.weights((), like.scales, like.zeros) == like
            && laid.scales.is_empty() == scales.is_none()
            && laid.zeros.is_empty() == zeros.is_none();
        if !same || inputs_of(matrix) != inputs_of(first) {
            return Err(differ(matrix));
        }
        let write =
            |to: &Memory, bytes: &[u8]| cuda.staging.write(&cuda.device, to, number * bytes.len(), bytes);
        write(&codes, &laid.codes)?;
        scales.as_ref().map_or(Ok(()), |to| write(to, &laid.scales))?;
        zeros.as_ref().map_or(Ok(()), |to| write(to, &laid.zeros))?;
    }
    Ok(Stored(Arc::new(Parts { like, codes, scales, zeros, inputs: inputs_of(first) })))
}

fn inputs_of(matrix: &Matrix) -> Option<f32> {
    match &matrix.format {
        Format::E4m3(scales) => scales.inputs,
        _ => None,
    }
}

/// AutoAWQ's layout turned into rows by the GPU.
fn repacked(cuda: &Cuda, matrices: &[Matrix], float: Float) -> Result<Stored> {
    let first = &matrices[0];
    let (rows, cols) = (first.rows, first.cols);
    let awq_of = |matrix: &Matrix| -> Result<Awq> {
        match &matrix.format {
            Format::Awq(awq) if (matrix.rows, matrix.cols, awq.float) == (rows, cols, float) => {
                Ok(awq.clone())
            }
            _ => Err(differ(matrix)),
        }
    };
    let scale_kind = match float {
        Float::F16 => ScaleKind::F16,
        Float::BF16 => ScaleKind::Bf16,
        Float::F32 => {
            return Err(Error::input(format!("`{}` has f32 scales", first.name))
                .expected("16-bit scales in this format"));
        }
    };
    let group = awq_of(first)?.group;
    let (groups, stride) = (cols / group, WeightFormat::Int4.stride(cols));
    let like = Weights {
        format: WeightFormat::Int4,
        codes: (),
        scales: Some(()),
        zeros: Some(()),
        each: (rows * stride) as u64,
        rows: rows as u32,
        cols: cols as u32,
        block: [1, group as u32],
        each_scales: (rows * groups) as u32,
        scale_kind,
    };
    let count = matrices.len();
    let codes = cuda.device.keep(rows * stride * count)?;
    let scales = cuda.device.keep(rows * groups * 2 * count)?;
    let zeros = cuda.device.keep(rows / 8 * groups * 4 * count)?;
    codes.clear()?;
    for (number, matrix) in matrices.iter().enumerate() {
        let awq = awq_of(matrix)?;
        if awq.group != group {
            return Err(differ(matrix));
        }
        let brought = |bytes: &Bytes| {
            let room = cuda.device.take(bytes.as_slice().len())?;
            cuda.staging.write(&cuda.device, &room, 0, bytes.as_slice())?;
            Ok::<_, Error>(room)
        };
        let [qweight, qzeros, given] = [brought(&matrix.bytes)?, brought(&awq.zeros)?, brought(&awq.scales)?];
        let (rows, cols, stride) = (rows as u32, cols as u32, stride as u32);
        let to = codes.at(number * like.each as usize);
        cuda.device.run(&AwqCodes { qweight: qweight.at(0), rows, cols, stride, codes: to }.launch())?;
        let launch = AwqZeros {
            qzeros: qzeros.at(0),
            scales: given.at(0),
            rows,
            groups: groups as u32,
            zeros: zeros.at(number * zeros.bytes() / count),
            out_scales: scales.at(number * scales.bytes() / count),
        };
        cuda.device.run(&launch.launch())?;
    }
    Ok(Stored(Arc::new(Parts { like, codes, scales: Some(scales), zeros: Some(zeros), inputs: None })))
}

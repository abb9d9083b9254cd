//! The bytes: codes that are NaN, scales that are zero, negative or not finite.

use super::Fault;
use crate::checkpoint::{Checkpoint, TensorMeta, TensorReader, TensorSpec};
use crate::codec::float::Float;
use crate::codec::{Fp8Config, e4m3};
use crate::dtype::Dtype;
use crate::error::Result;
use crate::progress::Progress;
use crate::rewrite::rows_per_chunk;

pub(super) fn faults(
    format: &Fp8Config,
    checkpoint: &Checkpoint,
    progress: &dyn Progress,
) -> Result<Vec<Fault>> {
    let is_scale = |name: &str| name.rsplit_once('.').is_some_and(|(_, leaf)| leaf == format.scale_leaf());
    let tensors = || checkpoint.index().tensors().iter().map(|t| &t.spec);
    let chosen = || tensors().filter(|t| t.dtype == Dtype::F8_E4M3 || is_scale(&t.name));
    progress.begin("reading FP8 values", chosen().map(TensorSpec::byte_len).sum());
    let mut faults = Vec::new();
    for t in chosen() {
        progress.check()?;
        let fault = match t.dtype {
            Dtype::F8_E4M3 => codes(checkpoint, t)?,
            dtype => match Float::of(dtype) {
                Some(float) => scales(checkpoint, t, float)?,
                None => None,
            },
        };
        faults.extend(fault);
        progress.advance(t.byte_len());
    }
    Ok(faults)
}

fn codes(checkpoint: &Checkpoint, t: &TensorSpec) -> Result<Option<Fault>> {
    let step = rows_per_chunk(t.row_bytes(), 1);
    let (mut count, mut first) = (0usize, None);
    for top in (0..t.rows()).step_by(step) {
        let bytes = checkpoint.read_rows(&t.name, top..(top + step).min(t.rows()))?;
        let bad = bytes.iter().filter(|&&c| e4m3::is_nan(c)).count();
        if bad > 0 && first.is_none() {
            let at = bytes.iter().position(|&c| e4m3::is_nan(c)).unwrap_or_default();
            first = Some((bytes[at], top + at / t.cols(), at % t.cols()));
        }
        count += bad;
    }
    Ok(first.map(|(code, row, col)| {
        Fault::new(&t.name, format!("holds the NaN code {code:#04x}, first at [{row}, {col}], {count} in all: every answer would be NaN"))
    }))
}

/// A scale that is one number; `None` where it is not.
pub(super) fn number(checkpoint: &Checkpoint, t: &TensorMeta) -> Result<Option<f32>> {
    let Some(float) = Float::of(t.spec.dtype).filter(|_| t.spec.elements() == 1) else { return Ok(None) };
    Ok(float.to_f32(&checkpoint.read(&t.spec.name)?).first().copied())
}

pub(super) fn scales(checkpoint: &Checkpoint, t: &TensorSpec, float: Float) -> Result<Option<Fault>> {
    let values = float.to_f32(&checkpoint.read(&t.name)?);
    let bad = |v: &f32| !(v.is_finite() && *v > 0.0);
    let count = values.iter().filter(|&v| bad(v)).count();
    Ok(values.iter().position(bad).map(|at| {
        let place = format!("[{}, {}]", at / t.cols(), at % t.cols());
        let what = match values[at] {
            0.0 => "a scale of zero, which converters divide by",
            v if v.is_finite() => "a negative scale",
            _ => "a scale that is not finite",
        };
        Fault::new(&t.name, format!("holds {what}: {} at {place}, {count} such in all", values[at]))
    }))
}

//! The bytes: scales that are zero, negative or not finite, and what `weight_shape` says. Every code is a number.

use crate::checkpoint::{Checkpoint, TensorReader, TensorSpec};
use crate::codec::float::Float;
use crate::codec::int4::{Int4Config, Layout};
use crate::dtype::Dtype;
use crate::error::Result;
use crate::loadable::Fault;
use crate::loadable::values::scales;
use crate::progress::Progress;

pub(super) fn faults(
    format: &Int4Config,
    checkpoint: &Checkpoint,
    progress: &dyn Progress,
) -> Result<Vec<Fault>> {
    let leaf = match format.layout {
        Layout::PackQuantized => ".weight_scale",
        Layout::AwqGemm => ".scales",
    };
    let chosen = || {
        let tensors = checkpoint.index().tensors().iter().map(|t| &t.spec);
        tensors.filter(|t| t.name.ends_with(leaf) || t.name.ends_with(".weight_shape"))
    };
    progress.begin("reading scales", chosen().map(TensorSpec::byte_len).sum());
    let mut faults = Vec::new();
    for t in chosen() {
        progress.check()?;
        faults.extend(match Float::of(t.dtype) {
            Some(float) => scales(checkpoint, t, float)?,
            None => told_shape(format, checkpoint, t)?,
        });
        progress.advance(t.byte_len());
    }
    Ok(faults)
}

/// A `weight_shape` that is not that of its codes.
fn told_shape(format: &Int4Config, checkpoint: &Checkpoint, t: &TensorSpec) -> Result<Option<Fault>> {
    let codes = t.name.strip_suffix("_shape").and_then(|w| checkpoint.index().get(&format!("{w}_packed")));
    let (Some(codes), Dtype::I64, [2]) = (codes, t.dtype, &t.shape[..]) else { return Ok(None) };
    let [rows, across] = codes.spec.shape[..] else { return Ok(None) };
    let bytes = checkpoint.read(&t.name)?;
    let told: Vec<i64> = bytes.as_chunks().0.iter().map(|n| i64::from_le_bytes(*n)).collect();
    let held = [rows, across * format.bits.per_word()];
    let fits = told.iter().zip(held).all(|(t, h)| usize::try_from(*t) == Ok(h));
    Ok((!fits).then(|| Fault::new(&t.name, format!("says {told:?}, but the codes are {held:?}"))))
}

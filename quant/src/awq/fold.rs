//! Scales folded into what stays in 16 bit: norms and biases that are divided, routers and gates that are multiplied.

use runner::weights::Matrix;
use verify::architecture::Module;
use verify::checkpoint::{TensorReader, TensorSpec, no_tensor};
use verify::codec::Float;
use verify::{Error, Result, Shown};

use super::weights::numbers;

/// Divides the norm `module` by `scales` and rounds it to its own type. What the rounding changed is put into the
/// scales, so that readers who are multiplied by them undo it: the division is exact.
///
/// # Errors
/// Exit 3 where the norm does not exist or is no float.
pub fn norm(
    input: &dyn TensorReader,
    module: &str,
    zero_centred: bool,
    scales: &mut [f32],
) -> Result<(TensorSpec, Vec<u8>)> {
    let (spec, float) = spec_of(input, &format!("{module}.weight"))?;
    let shift = if zero_centred { 1.0 } else { 0.0 };
    let old = float.to_f32(&input.read(&spec.name)?);
    let wanted: Vec<f32> = old.iter().zip(&*scales).map(|(w, s)| (shift + w) / s - shift).collect();
    let bytes = float.to_bytes(&wanted);
    for ((s, new), old) in scales.iter_mut().zip(float.to_f32(&bytes)).zip(old) {
        let kept = (shift + old) / (shift + new);
        // A channel that the norm blocks is 0 whatever its readers do.
        *s = if kept.is_finite() && kept > 0.0 { kept } else { 1.0 };
    }
    Ok((spec, bytes))
}

/// Divides the bias of a linear whose rows are divided, where it has one.
///
/// # Errors
/// Exit 3 where it is no float.
pub fn bias(input: &dyn TensorReader, module: &str, scales: &[f32]) -> Result<Option<(TensorSpec, Vec<u8>)>> {
    let name = format!("{module}.bias");
    if !input.index().contains(&name) {
        return Ok(None);
    }
    let (spec, float) = spec_of(input, &name)?;
    let mut values = float.to_f32(&input.read(&name)?);
    values.iter_mut().zip(scales).for_each(|(b, s)| *b /= s);
    Ok(Some((spec, float.to_bytes(&values))))
}

/// The weight of a linear that is not quantized, scaled and rounded to its own type.
///
/// # Errors
/// As [`bias`].
pub fn weight(
    input: &dyn TensorReader,
    module: &Module,
    m: &Matrix,
    columns: Option<&Vec<f32>>,
    rows: Option<&Vec<f32>>,
) -> Result<(TensorSpec, Vec<u8>)> {
    let (spec, float) = spec_of(input, &module.source.tensor)?;
    let spec = TensorSpec::new(format!("{}.weight", module.name), spec.dtype, [m.rows, m.cols]);
    let ones = vec![1.0; m.cols];
    let mut values = numbers(m);
    scale(&mut values, m.cols, columns.unwrap_or(&ones), rows.map(Vec::as_slice));
    Ok((spec, float.to_bytes(&values)))
}

/// Multiplies columns and divides rows.
pub fn scale(values: &mut [f32], cols: usize, columns: &[f32], rows: Option<&[f32]>) {
    for (r, row) in values.chunks_exact_mut(cols).enumerate() {
        row.iter_mut().zip(columns).for_each(|(w, s)| *w *= s);
        if let Some(rows) = rows {
            row.iter_mut().for_each(|w| *w /= rows[r]);
        }
    }
}

fn spec_of(input: &dyn TensorReader, name: &str) -> Result<(TensorSpec, Float)> {
    let meta = input.index().get(name).ok_or_else(|| no_tensor(name))?;
    let float = Float::of(meta.spec.dtype).ok_or_else(|| {
        Error::input(format!("tensor `{}` cannot be scaled", Shown(name)))
            .found(meta.spec.dtype.name())
            .expected("F32, F16 or BF16")
    })?;
    Ok((meta.spec.clone(), float))
}

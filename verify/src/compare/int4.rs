//! Four-bit codes back to numbers, for comparing only: rows of `[out, in]` whichever way they are stored.

use serde_json::Value;

use super::values::{Rows, floats};
use crate::checkpoint::{Checkpoint, TensorReader};
use crate::codec::int4::Bits;
use crate::codec::int4::pack::{unpack_awq, unpack_rows, unpack_zero_points};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::names::Shown;

/// Rows `rows` of module `name` in the form of compressed-tensors `pack-quantized`: column `8c + j` in bits `4j`
/// of word `c`, plus 8; zero points packed alike along rows.
pub fn packed(c: &Checkpoint, name: &str, rows: Rows) -> Result<Vec<f32>> {
    let codes = words(c, &format!("{name}.weight_packed"), rows.clone())?;
    let cols = codes.len() / rows.len().max(1) * Bits::Four.per_word();
    let codes = unpack_rows(&codes, rows.len(), cols, Bits::Four);
    let scale = format!("{name}.weight_scale");
    let spec = &c.index().get(&scale).ok_or_else(|| lacks(&scale))?.spec;
    let groups = spec.cols();
    let scales = floats(spec, &c.read_rows(&scale, rows.clone())?)?;
    let zero_point = format!("{name}.weight_zero_point");
    // Words hold eight rows: zeros are read from the first row of a word on.
    let first = rows.start / 8 * 8;
    let zeros = match c.index().contains(&zero_point) {
        true => {
            let words = words(c, &zero_point, rows.start / 8..rows.end.div_ceil(8))?;
            if words.len() != (rows.end - first).div_ceil(8) * groups {
                return Err(misshapen(&zero_point));
            }
            Some(unpack_zero_points(&words, rows.end - first, groups, Bits::Four))
        }
        false => None,
    };
    let group = cols.checked_div(groups).filter(|g| *g > 0).ok_or_else(|| misshapen(&scale))?;
    let mut out = Vec::with_capacity(rows.len() * cols);
    for (i, row) in rows.clone().enumerate() {
        for col in 0..cols {
            let at = (col / group).min(groups - 1);
            let zero = zeros.as_ref().map_or(Bits::Four.middle(), |z| z[(row - first) * groups + at]);
            out.push((f32::from(codes[i * cols + col]) - f32::from(zero)) * scales[i * groups + at]);
        }
    }
    Ok(out)
}

/// A module of AutoAWQ `gemm`: `[in, out/8]` codes, `[in/group, out/8]` zeros, `[in/group, out]` scales. A row
/// of outputs lies across all of it, so it is read whole.
pub struct Awq {
    /// `[in, out]`.
    codes: Vec<u8>,
    /// `[in/group, out]`.
    zeros: Vec<u8>,
    scales: Vec<f32>,
    cols: usize,
    outputs: usize,
    group: usize,
}

impl Awq {
    /// Reads module `name`.
    pub fn read(c: &Checkpoint, name: &str) -> Result<Self> {
        let all = |leaf: &str| -> Result<(Vec<u8>, usize, usize)> {
            let name = format!("{name}.{leaf}");
            let spec = &c.index().get(&name).ok_or_else(|| lacks(&name))?.spec;
            Ok((c.read(&name)?, spec.rows(), spec.cols()))
        };
        let (codes, cols, across) = all("qweight")?;
        let (zeros, groups, _) = all("qzeros")?;
        let scale = format!("{name}.scales");
        let spec = &c.index().get(&scale).ok_or_else(|| lacks(&scale))?.spec;
        let scales = floats(spec, &c.read(&scale)?)?;
        let group = cols.checked_div(groups).filter(|g| *g > 0).ok_or_else(|| misshapen(&scale))?;
        let fits = codes.len() == cols * across * 4
            && zeros.len() == groups * across * 4
            && scales.len() == groups * across * 8
            && cols.is_multiple_of(group);
        if !fits {
            return Err(misshapen(&scale));
        }
        let outputs = across * 8;
        let codes = unpack_awq(&words_of(&codes), cols, outputs, Bits::Four);
        let zeros = unpack_awq(&words_of(&zeros), groups, outputs, Bits::Four);
        Ok(Awq { codes, zeros, scales, cols, outputs, group })
    }

    /// Rows `rows` of `[out, in]`.
    pub fn rows(&self, rows: Rows) -> Vec<f32> {
        let mut values = Vec::with_capacity(rows.len() * self.cols);
        for out in rows {
            for col in 0..self.cols {
                let (code, g) = (self.codes[col * self.outputs + out], col / self.group * self.outputs + out);
                values.push((f32::from(code) - f32::from(self.zeros[g])) * self.scales[g]);
            }
        }
        values
    }
}

fn words_of(bytes: &[u8]) -> Vec<i32> {
    bytes.as_chunks::<4>().0.iter().map(|b| i32::from_le_bytes(*b)).collect()
}

fn words(c: &Checkpoint, name: &str, rows: Rows) -> Result<Vec<i32>> {
    let spec = &c.index().get(name).ok_or_else(|| lacks(name))?.spec;
    if spec.dtype != Dtype::I32 {
        return Err(misshapen(name));
    }
    Ok(words_of(&c.read_rows(name, rows)?))
}

fn lacks(name: &str) -> Error {
    Error::input(format!("tensor `{}` is missing", Shown(name)))
        .hint("the folder is incomplete: fetch it again")
}

fn misshapen(name: &str) -> Error {
    Error::input(format!("tensor `{}` does not fit its codes", Shown(name)))
        .hint("the file is damaged or was made wrongly: fetch it again")
}

/// True where the config speaks of four bits in a form that is read here.
pub fn is_read(q: &Value) -> bool {
    let four = |v: Option<&Value>| v.and_then(Value::as_u64) == Some(4);
    match q.get("quant_method").and_then(Value::as_str) {
        Some("awq") => four(q.get("bits")),
        Some("compressed-tensors") => {
            let groups = q.get("config_groups").and_then(Value::as_object);
            let group = groups.and_then(|g| g.values().next());
            let format = group.and_then(|g| g.get("format")).or_else(|| q.get("format"));
            format.and_then(Value::as_str) == Some("pack-quantized")
                && four(group.and_then(|g| g.get("weights")).and_then(|w| w.get("num_bits")))
        }
        _ => false,
    }
}

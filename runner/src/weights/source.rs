//! A checkpoint as the families read it: by name, with the shape they expect.

use std::sync::Arc;

use half::{bf16, f16};
use verify::checkpoint::Config;
use verify::{Dtype, Error, MappedCheckpoint, Result, Shown, TensorMeta};

use super::{Bytes, Format, Matrix, Quantization, Scales};

/// Tensors of one checkpoint, or of a part of it whose names share a prefix.
#[derive(Clone)]
pub struct Source<'a> {
    map: &'a Arc<MappedCheckpoint>,
    quantization: Quantization,
    prefix: String,
}

impl<'a> Source<'a> {
    /// The whole checkpoint.
    ///
    /// # Errors
    /// Exit 3 where it is quantized by an unknown method.
    pub fn new(map: &'a Arc<MappedCheckpoint>, config: &Config) -> Result<Self> {
        let quantization = Quantization::parse(config)?;
        Ok(Source { map, quantization, prefix: String::new() })
    }

    /// The tensors below `part`: `source.within("model.layers.3")` finds `mlp.gate` as `model.layers.3.mlp.gate`.
    pub fn within(&self, part: impl AsRef<str>) -> Source<'a> {
        let prefix = format!("{}{}.", self.prefix, part.as_ref());
        Source { prefix, ..self.clone() }
    }

    /// True where the tensor is there.
    pub fn has(&self, name: &str) -> bool {
        self.map.index().contains(&self.full(name))
    }

    /// A small tensor as f32, of `len` elements whatever its shape.
    ///
    /// # Errors
    /// Exit 3 naming a tensor that is missing, of another size, or no float.
    pub fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>> {
        let (at, meta) = self.find(name, "a vector")?;
        if meta.spec.elements() != len {
            return Err(misshapen(meta, format!("{len} elements")));
        }
        floats(meta, self.map.bytes_at(at))
    }

    /// The matrix `<name>.weight` of `[out, in]`, with its scales where it is FP8.
    ///
    /// # Errors
    /// Exit 3 naming a tensor that is missing, misshapen, or of a type that cannot be used.
    pub fn matrix(&self, name: &str, [rows, cols]: [usize; 2]) -> Result<Matrix> {
        let weight = format!("{name}.weight");
        let (at, meta) = self.find(&weight, "a matrix")?;
        if meta.spec.shape != [rows, cols] {
            return Err(misshapen(meta, format!("[{rows}, {cols}]")));
        }
        let format = match meta.spec.dtype {
            Dtype::F8_E4M3 => Format::E4m3(self.scales(name, meta, [rows, cols])?),
            _ => plain_format(meta)?,
        };
        let bytes = self.bytes(at, 0..meta.spec.byte_len() as usize);
        Ok(Matrix { name: self.full(&weight).into(), rows, cols, bytes, format }.within_kernel_range())
    }

    /// The matrices `[rows, cols]` of a fused tensor `[count, rows, cols]` called `name` itself, without `.weight`.
    ///
    /// # Errors
    /// As [`Self::matrix`].
    pub fn stacked(&self, name: &str, count: usize, [rows, cols]: [usize; 2]) -> Result<Vec<Matrix>> {
        let (at, meta) = self.find(name, "fused experts")?;
        if meta.spec.shape != [count, rows, cols] {
            return Err(misshapen(meta, format!("[{count}, {rows}, {cols}]")));
        }
        let format = plain_format(meta)?;
        let len = rows * cols * format.width();
        let matrix = |i: usize| Matrix {
            name: format!("{}.{i}", self.full(name)).into(),
            rows,
            cols,
            bytes: self.bytes(at, i * len..(i + 1) * len),
            format: format.clone(),
        };
        Ok((0..count).map(matrix).collect())
    }

    fn scales(&self, name: &str, weight: &TensorMeta, [rows, cols]: [usize; 2]) -> Result<Scales> {
        let Quantization::Fp8 { block } = self.quantization else {
            return Err(Error::input(format!("tensor `{}` is FP8", Shown(&weight.spec.name)))
                .found("no `quantization_config` in config.json")
                .hint("the config does not belong to these weights: fetch both again"));
        };
        let inv = format!("{name}.weight_scale_inv");
        let scale = if self.has(&inv) { inv } else { format!("{name}.weight_scale") };
        let (at, meta) = self.find(&scale, "the scales of an FP8 matrix")?;
        let grid = [rows.div_ceil(block[0]), cols.div_ceil(block[1])];
        let (block, across) = match meta.spec.shape[..] {
            [r, c] if [r, c] == grid => (block, c),
            [r, 1] | [r] if r == rows => ([1, cols], 1),
            [] | [1] | [1, 1] => ([rows, cols], 1),
            _ => return Err(misshapen(meta, format!("{grid:?}, [{rows}, 1] or [1]"))),
        };
        let values = floats(meta, self.map.bytes_at(at))?;
        match values.iter().find(|s| !(s.is_finite() && **s > 0.0)) {
            None => Ok(Scales { values: values.into(), block, across, first_row: 0 }),
            Some(bad) => Err(Error::input(format!(
                "tensor `{}` holds a scale that is no scale",
                Shown(&meta.spec.name)
            ))
            .found(bad.to_string())
            .expected("positive numbers")
            .hint("quantize the model again")),
        }
    }

    fn bytes(&self, tensor: usize, range: std::ops::Range<usize>) -> Bytes {
        Bytes::mapped(Arc::clone(self.map), tensor, range)
    }

    fn full(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn find(&self, name: &str, what: &str) -> Result<(usize, &'a TensorMeta)> {
        let name = self.full(name);
        let index = self.map.index();
        match index.position(&name) {
            Some(at) => Ok((at, &index.tensors()[at])),
            None => Err(Error::input(format!("tensor `{}` does not exist in the checkpoint", Shown(&name)))
                .expected(what)
                .hint("config.json describes other weights than these, or a shard is missing")),
        }
    }
}

fn misshapen(meta: &TensorMeta, expected: String) -> Error {
    Error::input(format!("tensor `{}` has another shape than config.json says", Shown(&meta.spec.name)))
        .found(format!("{:?}", meta.spec.shape))
        .expected(expected)
        .hint("the config does not belong to these weights: fetch both again")
}

fn plain_format(meta: &TensorMeta) -> Result<Format> {
    match meta.spec.dtype {
        Dtype::F32 => Ok(Format::F32),
        Dtype::F16 => Ok(Format::F16),
        Dtype::BF16 => Ok(Format::Bf16),
        other => Err(unusable(meta, other)),
    }
}

fn floats(meta: &TensorMeta, bytes: &[u8]) -> Result<Vec<f32>> {
    let pairs = || bytes.as_chunks::<2>().0.iter();
    match meta.spec.dtype {
        Dtype::F32 => Ok(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()),
        Dtype::F16 => Ok(pairs().map(|b| f16::from_le_bytes(*b).to_f32()).collect()),
        Dtype::BF16 => Ok(pairs().map(|b| bf16::from_le_bytes(*b).to_f32()).collect()),
        other => Err(unusable(meta, other)),
    }
}

fn unusable(meta: &TensorMeta, dtype: Dtype) -> Error {
    Error::input(format!("tensor `{}` is of a type that the runner cannot use here", Shown(&meta.spec.name)))
        .found(dtype.name())
        .expected("F32, F16 or BF16, or F8_E4M3 with scales")
        .hint("run the unquantized checkpoint")
}

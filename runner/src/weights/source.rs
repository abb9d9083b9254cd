//! A checkpoint as the families read it: by name, with the shape they expect.

use std::ops::Range;

use verify::checkpoint::Config;
use verify::codec::Float;
use verify::codec::fp8::{BLOCK, Grid};
use verify::codec::fp8_config::Activations;
use verify::codec::int4::Bits;
use verify::{Dtype, Error, Result, Shown, TensorMeta};

use super::{Awq, Bytes, Format, Int4, Invented, Matrix, Quantization, Scales, Store};

/// Tensors of one checkpoint, or of a part of it whose names share a prefix.
#[derive(Clone)]
pub struct Source<'a> {
    store: &'a dyn Store,
    invented: Option<&'a Invented>,
    quantization: Quantization,
    prefix: String,
}

impl<'a> Source<'a> {
    /// The whole checkpoint.
    ///
    /// # Errors
    /// Exit 3 where it is quantized by an unknown method.
    pub fn new(store: &'a dyn Store, config: &Config) -> Result<Self> {
        let quantization = Quantization::parse(config)?;
        Ok(Source { store, invented: None, quantization, prefix: String::new() })
    }

    /// Whatever is asked for, made up.
    pub fn invented(made: &'a Invented) -> Self {
        Source { store: made, invented: Some(made), quantization: Quantization::None, prefix: String::new() }
    }

    /// The tensors below `part`: `source.within("model.layers.3")` finds `mlp.gate` as `model.layers.3.mlp.gate`.
    pub fn within(&self, part: impl AsRef<str>) -> Source<'a> {
        let prefix = format!("{}{}.", self.prefix, part.as_ref());
        Source { prefix, ..self.clone() }
    }

    /// True where the tensor is there.
    pub fn has(&self, name: &str) -> bool {
        self.store.index().contains(&self.full(name))
    }

    /// A small tensor as f32, of `len` elements whatever its shape.
    ///
    /// # Errors
    /// Exit 3 naming a tensor that is missing, of another size, or no float.
    pub fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>> {
        if self.invented.is_some() {
            return Ok(Invented::vector(len));
        }
        let (at, meta) = self.find(name, "a vector")?;
        if meta.spec.elements() != len {
            return Err(misshapen(meta, format!("{len} elements")));
        }
        floats(meta, self.store.bytes(at)?.as_slice())
    }

    /// The matrix `[out, in]` of module `name`: its `.weight` with scales where that is FP8, else its packed codes.
    ///
    /// # Errors
    /// Exit 3 naming a tensor that is missing, misshapen, or of a type that cannot be used.
    pub fn matrix(&self, name: &str, [rows, cols]: [usize; 2]) -> Result<Matrix> {
        if let Some(made) = self.invented {
            return Ok(made.matrix(self.full(name), [rows, cols], false));
        }
        let has = |leaf: &str| self.has(&format!("{name}.{leaf}"));
        let (leaf, shape, format) = match (&self.quantization, has("weight")) {
            (Quantization::Int4 { bits, group, zeros }, false) if has("weight_packed") => {
                let int4 = self.int4(name, [rows, cols], (*bits, group.unwrap_or(cols)), *zeros)?;
                let format = match bits {
                    Bits::Four => Format::Int4(int4),
                    Bits::Eight => Format::Int8(int4),
                };
                ("weight_packed", [rows, cols / bits.per_word()], format)
            }
            (Quantization::Awq { group }, false) if has("qweight") => {
                ("qweight", [cols, rows / 8], self.awq(name, [rows, cols], group.unwrap_or(cols))?)
            }
            _ => return self.weight(name, [rows, cols]),
        };
        let bytes = self.words(&format!("{name}.{leaf}"), shape)?;
        Ok(Matrix { name: self.full(name).into(), rows, cols, bytes, format })
    }

    /// The matrix `<name>.weight`, never packed.
    ///
    /// # Errors
    /// As [`Self::matrix`].
    pub fn weight(&self, name: &str, [rows, cols]: [usize; 2]) -> Result<Matrix> {
        if let Some(made) = self.invented {
            return Ok(made.matrix(self.full(name), [rows, cols], true));
        }
        let weight = format!("{name}.weight");
        let (at, meta) = self.find(&weight, "a matrix")?;
        if meta.spec.shape != [rows, cols] {
            return Err(misshapen(meta, format!("[{rows}, {cols}]")));
        }
        let format = match meta.spec.dtype {
            Dtype::F8_E4M3 => Format::E4m3(self.scales(name, meta, [rows, cols])?),
            _ => plain_format(meta)?,
        };
        let bytes = self.store.bytes(at)?;
        Ok(Matrix { name: self.full(name).into(), rows, cols, bytes, format })
    }

    /// Rows `part` of each matrix of the fused tensor `name` `[count, rows, cols]`, as if it were module
    /// `experts.N.<module>` of its own.
    ///
    /// # Errors
    /// As [`Self::matrix`].
    pub fn stacked(
        &self,
        name: &str,
        shape: [usize; 3],
        (module, part): (&str, Range<usize>),
    ) -> Result<Vec<Matrix>> {
        let [count, rows, cols] = shape;
        let (at, meta) = self.find(name, "fused experts")?;
        if meta.spec.shape != shape {
            return Err(misshapen(meta, format!("{shape:?}")));
        }
        let format = plain_format(meta)?;
        let row = format.row_bytes(cols);
        let all = self.store.bytes(at)?;
        let matrix = |i: usize| Matrix {
            name: self.full(&format!("experts.{i}.{module}")).into(),
            rows: part.len(),
            cols,
            bytes: all.part((i * rows + part.start) * row..(i * rows + part.end) * row),
            format: format.clone(),
        };
        Ok((0..count).map(matrix).collect())
    }

    fn scales(&self, name: &str, weight: &TensorMeta, [rows, cols]: [usize; 2]) -> Result<Scales> {
        let Quantization::Fp8(fp8) = &self.quantization else {
            return Err(Error::input(format!("tensor `{}` is FP8", Shown(&weight.spec.name)))
                .found("no FP8 `quantization_config` in config.json")
                .hint("the config does not belong to these weights: fetch both again"));
        };
        let (at, meta) = self.find(&format!("{name}.{}", fp8.scale_leaf()), "the scales of an FP8 matrix")?;
        let shapes = fp8.scale_shapes(rows, cols);
        if !shapes.contains(&meta.spec.shape) {
            return Err(misshapen(meta, format!("{:?}", shapes[0])));
        }
        let block = match fp8.grid {
            Grid::Block => [BLOCK, BLOCK],
            Grid::Channel => [1, cols],
            Grid::Tensor => [rows, cols],
        };
        let values = checked_scales(meta, self.store.bytes(at)?.as_slice())?;
        let inputs = match fp8.activations {
            Activations::Dynamic => None,
            Activations::Static => Some(self.input_scale(name)?),
        };
        Ok(Scales { values: values.into(), block, across: fp8.grid.scales(rows, cols).1, inputs })
    }

    fn input_scale(&self, name: &str) -> Result<f32> {
        let (at, meta) = self.find(&format!("{name}.input_scale"), "the scale of a matrix's inputs")?;
        match checked_scales(meta, self.store.bytes(at)?.as_slice())?[..] {
            [scale] => Ok(scale),
            _ => Err(misshapen(meta, "one number".into())),
        }
    }

    /// The scales that keys and values of the attention are cached with: one for all heads, or one for each of `heads`;
    /// `None` where there are none.
    ///
    /// # Errors
    /// Exit 3 naming a scale that is missing beside the other, misshapen, or no scale.
    pub fn cache_scales(&self, heads: usize) -> Result<Option<[Vec<f32>; 2]>> {
        // vLLM's own name of the module that holds the cache is read as well.
        let places = ["", "attn."];
        let place =
            places.into_iter().find(|p| ["k", "v"].iter().any(|x| self.has(&format!("{p}{x}_scale"))));
        let Some(place) = place else { return Ok(None) };
        let scales = |of: &str| {
            let (at, meta) =
                self.find(&format!("{place}{of}_scale"), "a scale of the key and value cache")?;
            let scales = checked_scales(meta, self.store.bytes(at)?.as_slice())?;
            match scales.len() == 1 || scales.len() == heads {
                true => Ok(scales),
                false => Err(misshapen(meta, format!("one number, or {heads}: one for each head"))),
            }
        };
        Ok(Some([scales("k")?, scales("v")?]))
    }

    fn int4(
        &self,
        name: &str,
        [rows, cols]: [usize; 2],
        (bits, group): (Bits, usize),
        zeros: bool,
    ) -> Result<Int4> {
        let per = bits.per_word();
        // Kernels step by 32 columns.
        let fits = cols.is_multiple_of(per) && (group == cols || group.is_multiple_of(32));
        if !fits || !cols.is_multiple_of(group) || zeros && !rows.is_multiple_of(per) {
            let expected = "a multiple of 32 that divides the columns";
            return Err(self.unpackable(name, [rows, cols], group, expected));
        }
        let across = cols / group;
        let (scales, float) = self.group_scales(&format!("{name}.weight_scale"), [rows, across])?;
        let zeros = match zeros {
            true => Some(self.words(&format!("{name}.weight_zero_point"), [rows / per, across])?),
            false => None,
        };
        Ok(Int4 { scales, float, zeros, group, across })
    }

    fn awq(&self, name: &str, [rows, cols]: [usize; 2], group: usize) -> Result<Format> {
        if !cols.is_multiple_of(group) || !rows.is_multiple_of(8) {
            return Err(self.unpackable(name, [rows, cols], group, "a divisor of the inputs"));
        }
        let (scales, float) = self.group_scales(&format!("{name}.scales"), [cols / group, rows])?;
        let zeros = self.words(&format!("{name}.qzeros"), [cols / group, rows / 8])?;
        Ok(Format::Awq(Awq { scales, float, zeros, group }))
    }

    fn unpackable(&self, name: &str, shape: [usize; 2], group: usize, expected: &str) -> Error {
        Error::input(format!("module `{}` cannot be packed like this", Shown(&self.full(name))))
            .found(format!("{shape:?} in groups of {group}"))
            .expected(format!("groups of {expected}, outputs in whole words"))
    }

    fn group_scales(&self, name: &str, shape: [usize; 2]) -> Result<(Bytes, Float)> {
        let (at, meta) = self.find(name, "the scales of packed weights")?;
        if meta.spec.shape != shape {
            return Err(misshapen(meta, format!("{shape:?}")));
        }
        let float = Float::of(meta.spec.dtype).ok_or_else(|| unusable(meta, meta.spec.dtype))?;
        Ok((self.store.bytes(at)?, float))
    }

    /// 32-bit words of packed codes.
    fn words(&self, name: &str, shape: [usize; 2]) -> Result<Bytes> {
        let (at, meta) = self.find(name, "packed codes")?;
        match (meta.spec.dtype, meta.spec.shape == shape) {
            (Dtype::I32 | Dtype::U32, true) => self.store.bytes(at),
            (Dtype::I32 | Dtype::U32, false) => Err(misshapen(meta, format!("{shape:?}"))),
            (other, _) => Err(unusable(meta, other)),
        }
    }

    fn full(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn find(&self, name: &str, what: &str) -> Result<(usize, &'a TensorMeta)> {
        let name = self.full(name);
        let index = self.store.index();
        match index.position(&name) {
            Some(at) => Ok((at, &index.tensors()[at])),
            None => Err(Error::input(format!("tensor `{}` does not exist in the checkpoint", Shown(&name)))
                .expected(what)
                .hint("config.json describes other weights than these, or a shard is missing")),
        }
    }
}

fn checked_scales(meta: &TensorMeta, bytes: &[u8]) -> Result<Vec<f32>> {
    let values = floats(meta, bytes)?;
    // The kernels multiply by 2^60 besides; no sane scale comes near.
    match values.iter().find(|s| !(**s > 0.0 && **s < 1e18)) {
        None => Ok(values),
        Some(bad) => {
            let what = format!("tensor `{}` holds a scale that is no scale", Shown(&meta.spec.name));
            Err(Error::input(what)
                .found(bad.to_string())
                .expected("positive numbers below 1e18")
                .hint("quantize the model again"))
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
    let float = Float::of(meta.spec.dtype).ok_or_else(|| unusable(meta, meta.spec.dtype))?;
    Ok(float.to_f32(bytes))
}

fn unusable(meta: &TensorMeta, dtype: Dtype) -> Error {
    Error::input(format!("tensor `{}` is of a type that the runner cannot use here", Shown(&meta.spec.name)))
        .found(dtype.name())
        .expected("F32, F16 or BF16, F8_E4M3 with scales, or packed codes in I32")
        .hint("run the unquantized checkpoint")
}

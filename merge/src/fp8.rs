//! A base in block FP8, seen as if it were not quantized: `W = code · scale`, in f32, as it is read.
//!
//! The result of a merge into such a base is bf16 throughout: quantizing again is a step of its own.

use std::collections::HashMap;
use std::ops::Range;

use serde_json::Value;
use verify::checkpoint::{TensorIndex, TensorMeta, TensorReader, TensorSpec};
use verify::codec::Float;
use verify::codec::fp8::{BLOCK, Grid, dequantize};
use verify::rewrite::ModelView;
use verify::{Dtype, Error, Result, Shown};

/// The dtype that dequantized tensors are written in.
pub const WRITTEN: Dtype = Dtype::BF16;

/// Tensors that end so belong to a quantized weight.
const QUANTIZED_TAILS: [&str; 7] = [
    ".qweight",
    ".weight_packed",
    ".weight_scale_inv",
    ".weight_scale",
    ".absmax",
    ".quant_map",
    ".weight_scale_2",
];
const REFUSAL: &str = "quantized base: merge into the 16-bit checkpoint, then quantize";

/// The dequantized view of a base.
#[derive(Debug)]
pub struct Fp8Base {
    /// Config without quantization, tensors without scales; FP8 weights read as F32.
    pub view: ModelView,
    /// Weight → its scales.
    scales: HashMap<String, TensorSpec>,
    /// Tensors that are not needed any more: scales of weights and of activations.
    pub dropped: Vec<String>,
}

impl Fp8Base {
    /// The dequantized view of `view`; `None` where it is not quantized.
    ///
    /// # Errors
    /// Exit 3 for every other kind of quantization, and for weights without fitting scales.
    pub fn of(view: &ModelView) -> Result<Option<Self>> {
        let mut names = view.tensors.tensors().iter().map(|t| t.spec.name.as_str());
        let Some(quantization) = view.config.quantization() else {
            return match names.find(|n| QUANTIZED_TAILS.iter().any(|t| n.ends_with(t))) {
                None => Ok(None),
                Some(name) => Err(refuse(format!("tensor `{}`", Shown(name)))),
            };
        };
        let method = quantization.get("quant_method").and_then(Value::as_str).unwrap_or("unknown");
        let block = quantization.get("weight_block_size").and_then(Value::as_array);
        let is_block = |b: &Vec<Value>| b.iter().all(|v| v.as_u64() == Some(BLOCK as u64)) && b.len() == 2;
        if method != "fp8" || !block.is_some_and(is_block) {
            return Err(refuse(format!("quantization_config in config.json, method {}", Shown(method))));
        }
        Self::dequantized(view).map(Some)
    }

    fn dequantized(input: &ModelView) -> Result<Self> {
        let mut view = input.clone();
        let (mut scales, mut dropped, mut tensors) = (HashMap::new(), Vec::new(), Vec::new());
        for t in input.tensors.tensors() {
            let spec = &t.spec;
            if spec.dtype == Dtype::F8_E4M3 {
                let scale = scale_of(spec, &input.tensors)?;
                scales.insert(spec.name.clone(), scale.clone());
                let read = TensorSpec::new(&spec.name, Dtype::F32, spec.shape.clone());
                tensors.push(TensorMeta { spec: read, shard: t.shard });
            } else if [".weight_scale_inv", ".input_scale", ".activation_scale"]
                .iter()
                .any(|s| spec.name.ends_with(s))
            {
                dropped.push(spec.name.clone());
            } else {
                tensors.push(t.clone());
            }
        }
        view.tensors = TensorIndex::new(input.tensors.shards().to_vec(), tensors)?;
        if view.config.value().get("quantization_config").is_some() {
            view.config.remove(None, "quantization_config")?;
        }
        if view.config.value().get("text_config").is_some_and(|t| t.get("quantization_config").is_some()) {
            view.config.remove(Some("text_config"), "quantization_config")?;
        }
        Ok(Fp8Base { view, scales, dropped })
    }

    /// True where `name` is stored in FP8.
    pub fn is_fp8(&self, name: &str) -> bool {
        self.scales.contains_key(name)
    }

    /// The tensors that `name` is read from.
    pub fn reads<'a>(&'a self, name: &'a str) -> Vec<&'a str> {
        std::iter::once(name).chain(self.scales.get(name).map(|s| s.name.as_str())).collect()
    }
}

fn refuse(found: String) -> Error {
    Error::input(REFUSAL).found(found).hint("give the 16-bit checkpoint as base")
}

fn scale_of<'a>(weight: &TensorSpec, index: &'a TensorIndex) -> Result<&'a TensorSpec> {
    let name = format!("{}_scale_inv", weight.name);
    let fits = |s: &&TensorSpec| {
        let grid = Grid::Block.scales(weight.rows(), weight.cols());
        weight.shape.len() == 2 && s.shape == [grid.0, grid.1] && s.dtype.is_plain_float()
    };
    index.get(&name).map(|t| &t.spec).filter(fits).ok_or_else(|| {
        Error::input(format!("FP8 tensor `{}` has no scales that fit", Shown(&weight.name)))
            .found(format!("shape {:?}", weight.shape))
            .expected(format!("`{}` with a scale for each block of {BLOCK} x {BLOCK}", Shown(&name)))
            .hint("give the 16-bit checkpoint as base")
    })
}

/// Reads a base through its [`Fp8Base`], or as it is.
pub struct BaseReader<'a> {
    /// The stored tensors.
    pub stored: &'a dyn TensorReader,
    /// How to dequantize them.
    pub fp8: Option<&'a Fp8Base>,
}

impl TensorReader for BaseReader<'_> {
    fn index(&self) -> &TensorIndex {
        self.fp8.map_or(self.stored.index(), |f| &f.view.tensors)
    }

    fn read_rows(&self, name: &str, rows: Range<usize>) -> Result<Vec<u8>> {
        let bytes = self.stored.read_rows(name, rows.clone())?;
        let Some(scale) = self.fp8.and_then(|f| f.scales.get(name)) else { return Ok(bytes) };
        if rows.is_empty() {
            return Ok(bytes);
        }
        let cols = bytes.len() / rows.len();
        let blocks = rows.start / BLOCK..rows.end.div_ceil(BLOCK);
        let values = self.stored.read_rows(&scale.name, blocks)?;
        let float = Float::of(scale.dtype).ok_or_else(|| verify::checkpoint::no_tensor(&scale.name))?;
        let values = dequantize(&bytes, &float.to_f32(&values), Grid::Block, (rows.start % BLOCK, cols));
        Ok(values.into_iter().flat_map(f32::to_le_bytes).collect())
    }
}

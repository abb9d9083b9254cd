//! An FP8 base, seen as if it were not quantized: `W = code · scale`, in f32, as it is read.
//!
//! The stage [`verify::codec::Dequantize`] would round to 16 bit before the merge adds and rounds again;
//! here there is one rounding. The result is bf16 throughout: quantizing again is a step of its own.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use serde_json::Value;
use verify::checkpoint::{TensorIndex, TensorMeta, TensorReader, TensorSpec};
use verify::codec::fp8::dequantize;
use verify::codec::{Float, Fp8Config};
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
/// Tensors that end so are scales of activations.
const ACTIVATION_TAILS: [&str; 5] = [".input_scale", ".activation_scale", ".k_scale", ".v_scale", ".q_scale"];
const REFUSAL: &str = "quantized base: merge into the 16-bit checkpoint, then quantize";

/// The dequantized view of a base.
#[derive(Debug)]
pub struct Fp8Base {
    /// Config without quantization, tensors without scales; FP8 weights read as F32.
    pub view: ModelView,
    format: Fp8Config,
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
        let Some(quantization) = view.config.quantization() else {
            let mut names = view.tensors.tensors().iter().map(|t| t.spec.name.as_str());
            return match names.find(|n| QUANTIZED_TAILS.iter().any(|t| n.ends_with(t))) {
                None => Ok(None),
                Some(name) => Err(refuse(format!("tensor `{}`", Shown(name)))),
            };
        };
        let method = quantization.get("quant_method").and_then(Value::as_str).unwrap_or("unknown");
        match Fp8Config::of(&view.config) {
            Ok(Some(format)) => Self::dequantized(view, format).map(Some),
            _ => Err(refuse(format!("quantization_config in config.json, method {}", Shown(method)))),
        }
    }

    fn dequantized(input: &ModelView, format: Fp8Config) -> Result<Self> {
        let (mut scales, mut dropped, mut tensors) = (HashMap::new(), Vec::new(), Vec::new());
        for t in input.tensors.tensors().iter().filter(|t| t.spec.dtype == Dtype::F8_E4M3) {
            scales.insert(t.spec.name.clone(), scale_of(&t.spec, &format, &input.tensors)?.clone());
        }
        let of_weights: HashSet<&str> = scales.values().map(|s| s.name.as_str()).collect();
        for t in input.tensors.tensors() {
            let spec = &t.spec;
            if scales.contains_key(&spec.name) {
                let read = TensorSpec::new(&spec.name, Dtype::F32, spec.shape.clone());
                tensors.push(TensorMeta { spec: read, shard: t.shard });
            } else if of_weights.contains(spec.name.as_str())
                || ACTIVATION_TAILS.iter().any(|s| spec.name.ends_with(s))
            {
                dropped.push(spec.name.clone());
            } else {
                tensors.push(t.clone());
            }
        }
        let mut view = input.clone();
        view.tensors = TensorIndex::new(input.tensors.shards().to_vec(), tensors)?;
        for (section, key) in [
            (None, "quantization_config"),
            (None, "compression_config"),
            (Some("text_config"), "quantization_config"),
        ] {
            let config = view.config.value();
            let object = section.map_or(Some(config), |s| config.get(s));
            if object.is_some_and(|o| o.get(key).is_some()) {
                view.config.remove(section, key)?;
            }
        }
        Ok(Fp8Base { view, format, scales, dropped })
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

fn scale_of<'a>(weight: &TensorSpec, format: &Fp8Config, index: &'a TensorIndex) -> Result<&'a TensorSpec> {
    let module = weight.name.strip_suffix(".weight").unwrap_or(&weight.name);
    let name = format!("{module}.{}", format.scale_leaf());
    let fits = |s: &&TensorSpec| {
        let shapes = format.scale_shapes(weight.rows(), weight.cols());
        weight.shape.len() == 2 && shapes.contains(&s.shape) && s.dtype.is_plain_float()
    };
    index.get(&name).map(|t| &t.spec).filter(fits).ok_or_else(|| {
        Error::input(format!("FP8 tensor `{}` has no scales that fit", Shown(&weight.name)))
            .found(format!("shape {:?}", weight.shape))
            .expected(format!("`{}` with {:?} scales", Shown(&name), format.grid))
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
        let Some((fp8, scale)) = self.fp8.and_then(|f| f.scales.get(name).map(|s| (f, s))) else {
            return Ok(bytes);
        };
        let float = Float::of(scale.dtype).ok_or_else(|| verify::checkpoint::no_tensor(&scale.name))?;
        let scales = float.to_f32(&self.stored.read(&scale.name)?);
        let cols = bytes.len() / rows.len().max(1);
        let values = dequantize(&bytes, &scales, fp8.format.grid, (rows.start, cols));
        Ok(values.into_iter().flat_map(f32::to_le_bytes).collect())
    }
}

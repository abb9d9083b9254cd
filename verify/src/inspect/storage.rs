//! How the numbers are stored: element types, shards, quantization as the config tells it.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use crate::checkpoint::{Config, TensorIndex};
use crate::codec::Fp8Config;
use crate::codec::fp8::Grid;
use crate::codec::fp8_config::{Activations, Method};
use crate::names::Shown;
use crate::serving::WeightFormat;

/// What lies in the files.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Storage {
    /// Tensors.
    pub tensors: usize,
    /// Bytes of all tensors.
    pub bytes: u64,
    /// Weight files.
    pub shards: usize,
    /// By element type, most bytes first.
    pub dtypes: Vec<Elements>,
    /// As `quantization_config` tells it.
    pub quantization: Option<Quantization>,
}

/// Tensors of one element type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Elements {
    /// The type, as headers spell it.
    pub dtype: &'static str,
    /// Tensors of it.
    pub tensors: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// A quantization.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Quantization {
    /// `quant_method`.
    pub method: String,
    /// For people: `FP8, blocks of 128 x 128, activations scaled by token`.
    pub description: String,
    /// Modules that are listed as not quantized.
    pub skipped: usize,
    /// Scales of the key and value cache are there.
    pub kv_cache_scales: bool,
    /// As the memory table reckons it.
    #[serde(skip)]
    pub format: WeightFormat,
}

impl Storage {
    /// Of a model.
    pub fn of(config: &Config, index: &TensorIndex) -> Self {
        let mut by_type: BTreeMap<crate::Dtype, (usize, u64)> = BTreeMap::new();
        for t in index.tensors() {
            let (tensors, bytes) = by_type.entry(t.spec.dtype).or_default();
            *tensors += 1;
            *bytes += t.spec.byte_len();
        }
        let mut dtypes: Vec<Elements> = by_type
            .into_iter()
            .map(|(d, (tensors, bytes))| Elements { dtype: d.name(), tensors, bytes })
            .collect();
        dtypes.sort_by_key(|d| std::cmp::Reverse(d.bytes));
        Storage {
            tensors: index.tensors().len(),
            bytes: index.total_bytes(),
            shards: index.shards().len(),
            dtypes,
            quantization: config.quantization().map(|q| Quantization::of(config, q, index)),
        }
    }
}

impl Quantization {
    fn of(config: &Config, q: &Value, index: &TensorIndex) -> Self {
        let text = |key: &str| q.get(key).and_then(Value::as_str).unwrap_or("unknown");
        let list = q.get("modules_to_not_convert").or_else(|| q.get("ignore"));
        let (description, format) = describe(config, q);
        let has_scales =
            |t: &crate::TensorMeta| [".k_scale", ".v_scale"].iter().any(|leaf| t.spec.name.ends_with(leaf));
        Quantization {
            method: Shown(text("quant_method")).to_string(),
            description,
            skipped: list.and_then(Value::as_array).map_or(0, Vec::len),
            kv_cache_scales: index.tensors().iter().any(has_scales),
            format,
        }
    }
}

fn describe(config: &Config, q: &Value) -> (String, WeightFormat) {
    if let Ok(Some(fp8)) = Fp8Config::of(config) {
        let whose = match fp8.method {
            Method::Fp8 => "FP8",
            Method::CompressedTensors => "FP8 (compressed-tensors)",
        };
        let activations = match fp8.activations {
            Activations::Static => "activations with stored scales",
            Activations::Dynamic => "activations scaled while serving",
        };
        let (grid, block) = match fp8.grid {
            Grid::Block => ("blocks of 128 x 128", true),
            Grid::Channel => ("one scale a row", false),
            Grid::Tensor => ("one scale a matrix", false),
        };
        return (format!("{whose}, {grid}, {activations}"), WeightFormat::Fp8 { block });
    }
    int4(q).unwrap_or_else(|| {
        let method = q.get("quant_method").and_then(Value::as_str).unwrap_or("unknown");
        (format!("`{}`, which prep does not know", Shown(method)), WeightFormat::Other)
    })
}

/// 4-bit weights in the forms of AutoAWQ, GPTQ and compressed-tensors, 8-bit ones in the last.
fn int4(q: &Value) -> Option<(String, WeightFormat)> {
    let method = q.get("quant_method")?.as_str()?;
    let number = |v: &Value, key: &str| v.get(key)?.as_u64().and_then(|n| usize::try_from(n).ok());
    if matches!(method, "awq" | "gptq") && number(q, "bits") == Some(4) {
        let group = number(q, "group_size").filter(|g| *g > 0)?;
        let name = if method == "awq" { "AWQ (AutoAWQ)" } else { "GPTQ" };
        return Some((format!("{name}, 4 bit, groups of {group}"), WeightFormat::Int4 { group }));
    }
    let group = q.get("config_groups")?.as_object()?.values().next()?;
    let format = group.get("format").or_else(|| q.get("format"))?.as_str()?;
    let weights = group.get("weights")?;
    let bits = number(weights, "num_bits").filter(|n| format == "pack-quantized" && [4, 8].contains(n))?;
    let size = number(weights, "group_size").filter(|g| *g > 0)?;
    let zero = if weights.get("symmetric") == Some(&Value::Bool(false)) { "with" } else { "without" };
    let text = format!("{bits} bit (compressed-tensors), groups of {size}, {zero} zero points");
    let format =
        if bits == 4 { WeightFormat::Int4 { group: size } } else { WeightFormat::Int8 { group: size } };
    Some((text, format))
}

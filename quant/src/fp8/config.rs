//! The `quantization_config` that tells servers what is stored how.

use serde_json::{Value, json};
use verify::architecture::{Architecture, Role};

use super::Scheme;
use crate::ranges::{Activations, KvCache, cache_scheme};
use crate::select::{Fate, Selection};

const FLOAT: &str = "float-quantized";

/// Modules in 16 bit, sorted, one path each, without `.weight`: vLLM compares whole paths, transformers
/// takes them as prefixes and endings, so nothing shorter says the same to both.
pub fn skipped(arch: &Architecture, selection: &Selection) -> Vec<String> {
    let kept = arch.modules().iter().zip(&selection.fates).filter(|(_, fate)| **fate != Fate::Quantize);
    let mut names: Vec<String> = Vec::new();
    for (m, _) in kept {
        names.push(m.name.clone());
        if let Role::Expert(..) = m.role {
            // transformers knows the experts of a layer as one module.
            let above = |path: &str| path.rsplit_once('.').map_or(String::new(), |(up, _)| up.to_string());
            names.push(above(&above(&m.name)));
        }
    }
    // A tied head has no tensor, but is a module that servers ask about.
    names.push("lm_head".into());
    names.sort();
    names.dedup();
    names
}

/// The value of `quantization_config`.
pub fn quantization(scheme: Scheme, activations: Activations, cache: KvCache, skipped: &[String]) -> Value {
    let dynamic = activations == Activations::Dynamic;
    let mut config = match scheme {
        Scheme::Block => json!({
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [128, 128],
            "modules_to_not_convert": skipped,
        }),
        Scheme::CompressedBlock => {
            let mut weights = arguments("block", Value::Null, false);
            weights["block_structure"] = json!([128, 128]);
            compressed_tensors(FLOAT, weights, arguments("group", json!(128), true), skipped)
        }
        Scheme::Channel => {
            let inputs = arguments(if dynamic { "token" } else { "tensor" }, Value::Null, dynamic);
            compressed_tensors(FLOAT, arguments("channel", Value::Null, false), inputs, skipped)
        }
        // vLLM's expert layers take per-tensor weights only together with per-tensor activations.
        Scheme::Tensor => {
            let inputs = arguments("tensor", Value::Null, dynamic);
            compressed_tensors(FLOAT, arguments("tensor", Value::Null, false), inputs, skipped)
        }
    };
    // `fp8` has no key for it: its loaders read the scales where the cache is told to be FP8.
    if cache == KvCache::Fp8 && scheme != Scheme::Block {
        config["kv_cache_scheme"] = cache_scheme();
    }
    config
}

fn arguments(strategy: &str, group_size: Value, dynamic: bool) -> Value {
    json!({
        "num_bits": 8,
        "type": "float",
        "symmetric": true,
        "strategy": strategy,
        "group_size": group_size,
        "dynamic": dynamic,
    })
}

/// As the library of that name writes it. The format stands in the group too: expert layers read it there.
pub(crate) fn compressed_tensors(
    format: &str,
    weights: Value,
    activations: Value,
    skipped: &[String],
) -> Value {
    json!({
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "version": "0.20.0",
        "format": format,
        "global_compression_ratio": null,
        "kv_cache_scheme": null,
        "sparsity_config": {},
        "transform_config": {},
        "ignore": skipped,
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "format": format,
                "weights": weights,
                "input_activations": activations,
                "output_activations": null,
            },
        },
    })
}

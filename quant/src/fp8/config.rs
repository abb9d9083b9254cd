//! The `quantization_config` that tells servers what is stored how.

use serde_json::{Value, json};
use verify::architecture::{Architecture, Role};

use super::Scheme;
use crate::select::{Fate, Selection};

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
pub fn quantization(scheme: Scheme, skipped: &[String]) -> Value {
    match scheme {
        Scheme::Block => json!({
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [128, 128],
            "modules_to_not_convert": skipped,
        }),
    }
}

//! The config's own words, as far as loaders trip over them.

use serde_json::Value;

use crate::checkpoint::Config;
use crate::codec::int4::{Int4Config, Layout};
use crate::loadable::Fault;

pub(super) fn faults(format: &Int4Config, config: &Config) -> Vec<Fault> {
    let mut faults = Vec::new();
    // Of Marlin's kernels, which both formats end in.
    if format.group.is_some_and(|g| ![32, 64, 128].contains(&g)) {
        let sentence = format!(
            "is {} in config.json: servers have kernels for 32, 64, 128 and whole rows",
            format.group.unwrap_or_default()
        );
        faults.push(Fault::new("group_size", sentence));
    }
    if let (Layout::PackQuantized, Some(q)) = (format.layout, config.quantization()) {
        faults.extend(compressed_tensors(q));
    }
    faults
}

fn compressed_tensors(q: &Value) -> Vec<Fault> {
    let mut faults = Vec::new();
    let status = q.get("quantization_status").unwrap_or(&Value::Null);
    if status != "compressed" {
        let sentence = format!(
            "is {status} in config.json: transformers reads packed weights only where it is \"compressed\""
        );
        faults.push(Fault::new("quantization_status", sentence));
    }
    for (name, group) in q.get("config_groups").and_then(Value::as_object).into_iter().flatten() {
        let linear =
            group.get("targets").and_then(Value::as_array).is_some_and(|t| t.contains(&"Linear".into()));
        if !linear {
            let sentence =
                format!("of `{name}` do not name \"Linear\": vLLM finds no scheme for expert layers");
            faults.push(Fault::new("targets", sentence));
        }
        if group.get("input_activations").is_some_and(|v| !v.is_null()) {
            let sentence =
                format!("of `{name}` are quantized: loaders of packed weights take 16-bit activations only");
            faults.push(Fault::new("input_activations", sentence));
        }
    }
    faults
}

//! The stage's section of the report.

use serde_json::{Value, json};

use super::storage::Storage;
use crate::report::starved_experts;

/// Figures of all layers: errors before and after, what was chosen, the worst, and how experts were served.
pub fn summary(layers: &[Value], storage: Storage) -> Value {
    let pairs: Vec<&Value> = layers.iter().filter_map(|l| l["pairs"].as_array()).flatten().collect();
    let mean = |key: &str| -> f64 {
        let sum: f64 = pairs.iter().filter_map(|p| p[key].as_f64()).sum();
        sum / pairs.len().max(1) as f64
    };
    let mut worst = pairs.clone();
    worst.sort_by(|a, b| {
        let of = |p: &Value| p["error_after"].as_f64().unwrap_or(0.0);
        of(b).total_cmp(&of(a))
    });
    worst.truncate(10);
    let (few, warnings) = starved_experts(layers);
    json!({
        "bits_per_weight": storage.bits_per_weight(),
        "mean_error_before": mean("error_before"),
        "mean_error_after": mean("error_after"),
        "worst": worst,
        "starved_experts": few,
        "layers": layers,
        "warnings": warnings,
    })
}

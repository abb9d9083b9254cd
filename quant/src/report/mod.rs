//! What calibration found, as figures and as a page to look at.

mod html;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use html::page;

/// Experts that fewer tokens than this chose were calibrated on next to nothing.
pub const FLOOR: u64 = 16;

/// Experts that fewer than [`FLOOR`] calibration tokens chose, out of the records of all layers, and the warning that
/// tells of them.
pub(crate) fn starved_experts(layers: &[Value]) -> (Vec<String>, Vec<String>) {
    let of = |layer: &Value| {
        let tokens = layer["tokens_per_expert"].as_array().map_or(&[][..], Vec::as_slice);
        let few = tokens.iter().enumerate().filter(|(_, n)| n.as_u64().is_some_and(|n| n < FLOOR));
        few.map(|(e, n)| format!("layer {} expert {e}: {n}", layer["layer"])).collect::<Vec<_>>()
    };
    let few: Vec<String> = layers.iter().flat_map(of).collect();
    let warning = |few: &[String]| {
        format!(
            "{} experts are chosen by fewer than {FLOOR} calibration tokens ({}): give more samples, such as real traffic",
            few.len(),
            verify::checkpoint::list_some(few)
        )
    };
    let warnings = if few.is_empty() { Vec::new() } else { vec![warning(&few)] };
    (few, warnings)
}

/// Figures of a calibrated quantization.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// Every group of linears that was searched, in the order of the model.
    pub errors: Vec<LayerError>,
    /// Every scale of inputs, keys and values that was found, in the order of the model.
    pub ranges: Vec<ScaleFound>,
    /// Tokens that chose each expert, layer by layer; empty for dense models.
    pub experts: Vec<ExpertTokens>,
}

/// Mean squared error of a group's output on the calibration tokens, relative to the output itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LayerError {
    /// Number of the layer.
    pub layer: usize,
    /// The group, by what feeds it, such as `input_layernorm`.
    pub group: String,
    /// The exponent that was chosen; `None` where the weights stay as they are.
    pub ratio: Option<f64>,
    /// Rounded to nearest.
    pub rtn: f64,
    /// As it was written.
    pub awq: f64,
}

/// A scale of what flows through the model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScaleFound {
    /// Number of the layer.
    #[serde(default)]
    pub layer: usize,
    /// The matrices that share it, or the tensor that holds it.
    pub of: String,
    /// The scale.
    pub scale: f64,
    /// The largest size on the calibration data.
    pub largest: f64,
    /// Root of the mean square, where that was looked at.
    pub rms: Option<f64>,
    /// The share of the second half of the data that is larger than all of the first.
    pub clipped: Option<f64>,
}

/// Tokens that the router gave to each expert of a layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExpertTokens {
    /// Number of the layer.
    pub layer: usize,
    /// One count for each expert.
    pub tokens: Vec<u64>,
}

impl LayerError {
    fn of_pair(layer: usize, pair: &Value) -> Option<Self> {
        let from = pair["from"].as_str()?;
        let group = from.split_once(&format!("layers.{layer}.")).map_or(from, |(_, rest)| rest).to_string();
        let ratio = pair["chosen"].as_object().and_then(|c| c.values().next()).and_then(Value::as_f64);
        let error = |key: &str| pair[key].as_f64();
        Some(LayerError { layer, group, ratio, rtn: error("error_before")?, awq: error("error_after")? })
    }
}

impl Calibration {
    /// Out of the details of the quantizing stage in a report; empty where nothing was calibrated.
    pub fn of_details(details: &Value) -> Self {
        let mut found = Calibration::default();
        for line in details["layers"].as_array().into_iter().flatten() {
            let layer = line["layer"].as_u64().unwrap_or_default() as usize;
            let pairs = line["pairs"].as_array().into_iter().flatten();
            found.errors.extend(pairs.filter_map(|p| LayerError::of_pair(layer, p)));
            let ranges = line["ranges"].as_array().into_iter().flatten();
            let ranges = ranges.filter_map(|r| ScaleFound::deserialize(r).ok());
            found.ranges.extend(ranges.map(|r| ScaleFound { layer, ..r }));
            let tokens = line["tokens_per_expert"].as_array().into_iter().flatten();
            let tokens: Vec<u64> = tokens.filter_map(Value::as_u64).collect();
            if !tokens.is_empty() {
                found.experts.push(ExpertTokens { layer, tokens });
            }
        }
        found
    }

    /// The groups with the largest error as written, largest first.
    pub fn worst(&self, count: usize) -> Vec<&LayerError> {
        let mut all: Vec<&LayerError> = self.errors.iter().collect();
        all.sort_by(|a, b| b.awq.total_cmp(&a.awq).then(a.layer.cmp(&b.layer)));
        all.truncate(count);
        all
    }

    /// Mean errors, rounded to nearest and as written.
    pub fn means(&self) -> (f64, f64) {
        let mean = |of: fn(&LayerError) -> f64| {
            self.errors.iter().map(of).sum::<f64>() / self.errors.len().max(1) as f64
        };
        (mean(|e| e.rtn), mean(|e| e.awq))
    }
}

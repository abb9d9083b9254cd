//! Scales that calibration finds without changing a weight: one for the inputs of each matrix, one each for cached keys
//! and values. Each is the largest size on the calibration data, of the model as it is, over FP8's largest number.
//!
//! ```text
//!   layer ─▶ Seen: inputs, keys, values ─▶ groups that servers merge ─▶ largest / 448 ─▶ a record for each layer
//! ```

mod find;
pub(crate) mod groups;
mod range;
mod seen;

use std::ops::Range;
use std::sync::OnceLock;

use runner::Cpu;
use serde_json::{Value, json};
use verify::Dtype;
use verify::architecture::{Architecture, Layer};
use verify::checkpoint::{Config, TensorSpec};
use verify::codec::Float;
use verify::codec::fp8::{self, ScaleValues};
pub use verify::codec::fp8_config::Activations;
use verify::rewrite::{Decision, Needs, Preparation};
use verify::{Error, Result};

use self::find::Finder;
use crate::calibration::data::Samples;
use crate::calibration::{Experts, Records, Task, walk};
use crate::report::starved_experts;
use crate::select::Fate;

/// How keys and values are cached while serving.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvCache {
    /// As the model computes them.
    #[default]
    Bits16,
    /// In FP8, with calibrated scales.
    Fp8,
}

impl KvCache {
    /// For the report.
    pub fn name(self) -> &'static str {
        match self {
            KvCache::Bits16 => "16 bit",
            KvCache::Fp8 => "fp8",
        }
    }
}

/// Which scales are looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// Those of inputs.
    pub inputs: bool,
    /// Those of keys and values.
    pub cache: bool,
}

impl Wanted {
    /// True where there is something to calibrate.
    pub fn any(self) -> bool {
        self.inputs || self.cache
    }
}

/// The scale of numbers up to `largest`, one that BF16 holds too: compressed-tensors loads scales in the model's type.
pub fn scale_of(largest: f32) -> f32 {
    fp8::scale_of(largest, ScaleValues::Bf16)
}

/// Where the input scale of a module goes.
pub fn input_spec(module: &str) -> TensorSpec {
    TensorSpec::new(format!("{module}.input_scale"), Dtype::F32, [1])
}

/// Where the scales of an attention's keys and values go.
pub fn cache_specs(attention: &str) -> [TensorSpec; 2] {
    ["k_scale", "v_scale"].map(|leaf| TensorSpec::new(format!("{attention}.{leaf}"), Dtype::F32, [1]))
}

/// The `kv_cache_scheme` of compressed-tensors: vLLM and SGLang then cache in FP8 without being told.
pub fn cache_scheme() -> Value {
    json!({"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": false, "symmetric": true})
}

/// What the plan says of these scales.
pub fn decisions(wanted: Wanted, arch: &Architecture) -> Vec<Decision> {
    let mut decisions = Vec::new();
    let mut add = |what: &str, choice: &str, reason: &str| {
        decisions.push(Decision { what: what.into(), choice: choice.into(), reason: reason.into() });
    };
    if wanted.inputs {
        let reason = "the largest size on the calibration data over 448; what servers merge has one";
        add("inputs of quantized linears", "a stored scale", reason);
    }
    if wanted.cache {
        let reason = "the largest size on the calibration data over 448, for each layer with attention";
        add("cached keys and values", "a stored scale each", reason);
        if arch.modules().iter().any(|m| matches!(m.layer, Some(Layer::Mtp(_)))) {
            let reason = "they are not run, so there is nothing to calibrate on: servers take 1";
            add("cached keys and values of draft layers", "no scale", reason);
        }
    }
    decisions
}

/// The bytes of a stored scale.
pub fn stored(scale: f32) -> Vec<u8> {
    Float::F32.to_bytes(&[scale])
}

/// A calibration for such scales, and after it what it found.
pub struct Calibration {
    /// What the tensors are.
    pub arch: Architecture,
    /// The source's config.
    pub config: Config,
    /// Which modules are quantized.
    pub fates: Vec<Fate>,
    /// Which scales are looked for.
    pub wanted: Wanted,
    /// Which tokens an expert sees.
    pub experts: Experts,
    /// What it takes.
    pub needs: Needs,
    /// Who runs the model.
    pub walker: Cpu,
    /// What to calibrate on.
    pub samples: Samples,
    /// What was found.
    pub records: OnceLock<Records>,
}

impl Calibration {
    /// Walks through the layers that have no record yet.
    ///
    /// # Errors
    /// As [`walk`]'s, and exit 3 where something is no number.
    pub fn prepare(&self, with: &Preparation<'_>) -> Result<()> {
        let task = Task {
            input: with.input,
            config: &self.config,
            samples: &self.samples.sequences,
            folder: with.folder,
            cpu: self.walker.clone(),
            threads: with.threads,
            progress: with.progress,
        };
        let mut finder =
            Finder { arch: &self.arch, fates: &self.fates, wanted: self.wanted, experts: self.experts };
        let records = walk(&task, &mut finder)?;
        // A second preparation of the same plan finds the same records.
        let _ = self.records.set(records);
        Ok(())
    }

    /// Rows of a scale.
    ///
    /// # Errors
    /// Exit 3 where it was not found, 5 where it cannot be read.
    pub fn read(&self, name: &str, rows: Range<usize>) -> Result<Vec<u8>> {
        let records = self.records.get().ok_or_else(|| {
            Error::input(format!("`{name}` was not calibrated"))
                .hint("this is a fault of prep: please report it")
        })?;
        records.read_rows(name, rows)
    }

    /// Adds what was found to the stage's section of the report.
    pub fn report_in(&self, summary: &mut Value) {
        let Some(records) = self.records.get() else { return };
        let layers = records.reports();
        let (starved, warnings) = starved_experts(layers);
        let mut ranges: Vec<&Value> =
            layers.iter().filter_map(|l| l["ranges"].as_array()).flatten().collect();
        let count = ranges.len();
        // Outliers: what is far larger than the rest leaves it few steps.
        ranges.sort_by(|a, b| stretch(b).total_cmp(&stretch(a)));
        ranges.truncate(10);
        summary["scales"] = json!(count);
        summary["widest_ranges"] = json!(ranges);
        summary["starved_experts"] = json!(starved);
        summary["layers"] = json!(layers);
        summary["warnings"] = json!(warnings);
        summary["calibration"] = json!(self.samples.report);
    }
}

/// How many times the root mean square the largest is.
fn stretch(range: &Value) -> f64 {
    let of = |key: &str| range[key].as_f64().unwrap_or(0.0);
    if of("rms") > 0.0 { of("largest") / of("rms") } else { 0.0 }
}

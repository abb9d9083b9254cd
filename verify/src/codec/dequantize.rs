//! An FP8 checkpoint back to 16 bit, as a stage: what re-quantizing and merging into an FP8 base begin with.

use std::ops::Range;

use serde_json::{Value, json};

use super::float::Float;
use super::fp8::{Grid, dequantize};
use super::fp8_config::Fp8Config;
use crate::checkpoint::{TensorMeta, TensorReader, TensorSpec};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::names::Shown;
use crate::rewrite::{Applied, Decision, ModelView, Rewrite, Stage, StageBuilder, Work, rows_per_chunk};

/// Turns FP8 weights into the model's own 16-bit type and forgets that the model was quantized. A model
/// that is not quantized passes unchanged.
#[derive(Debug, Clone, Copy, Default)]
pub struct Dequantize;

impl Rewrite for Dequantize {
    fn plan(&self, input: &ModelView, _: &dyn TensorReader) -> Result<Stage> {
        let Some(format) = Fp8Config::of(&input.config)? else {
            return Stage::unchanged("dequantize", input.clone(), input);
        };
        let float = model_float(input)?;
        let mut builder = StageBuilder::new(input);
        let mut jobs = Vec::new();
        for t in input.tensors.tensors() {
            match t.spec.dtype {
                Dtype::F8_E4M3 => jobs.push(add_job(&mut builder, input, &format, t, float)?),
                _ if is_scale_of_a_code(input, &t.spec.name, &format) => {}
                _ if is_activation_scale(&t.spec.name) => {
                    builder.drop(&t.spec.name, "scale of activations of the quantized model");
                }
                _ => builder.copy(t),
            }
        }
        let built = builder.finish(input.tensors.shards().to_vec())?;
        let mut by_unit: Vec<Option<Job>> = (0..built.units.len()).map(|_| None).collect();
        let count = jobs.len();
        jobs.into_iter().for_each(|(unit, job)| by_unit[built.renumber[unit]] = Some(job));
        let mut output = input.clone();
        output.tensors = built.tensors;
        for (section, key) in [
            (None, "quantization_config"),
            (None, "compression_config"),
            (Some("text_config"), "quantization_config"),
        ] {
            let object = section.map_or(Some(output.config.value()), |s| output.config.value().get(s));
            if object.is_some_and(|o| o.get(key).is_some()) {
                output.config.remove(section, key)?;
            }
        }
        Ok(Stage {
            name: "dequantize",
            options: json!({"dtype": float.dtype().name()}),
            inputs: Vec::new(),
            output,
            units: built.units,
            dropped: built.dropped,
            decisions: vec![Decision {
                what: format!("{count} FP8 weights"),
                choice: format!("code x scale, rounded to {}", float.dtype()),
                reason: "the source is quantized and may be used as a start".into(),
            }],
            warnings: vec!["the source is FP8: what was lost when it was made stays lost".into()],
            work: Box::new(DequantizeWork { jobs: by_unit, grid: format.grid, float }),
        })
    }
}

/// The 16-bit type that the config names; BF16 where it names none.
fn model_float(input: &ModelView) -> Result<Float> {
    let named = input.config.get("dtype").or_else(|| input.config.get("torch_dtype"));
    match named.and_then(Value::as_str) {
        None | Some("bfloat16") => Ok(Float::BF16),
        Some("float16") => Ok(Float::F16),
        Some("float32") => Ok(Float::F32),
        Some(other) => Err(Error::input(format!("{}: unknown dtype", Shown::path(input.config.path())))
            .found(Shown(other).to_string())
            .expected("bfloat16, float16 or float32")),
    }
}

struct Job {
    weight: String,
    scale: String,
    scale_float: Float,
    cols: usize,
}

fn add_job(
    builder: &mut StageBuilder<'_>,
    input: &ModelView,
    format: &Fp8Config,
    t: &TensorMeta,
    float: Float,
) -> Result<(usize, Job)> {
    let name = &t.spec.name;
    let scale = scale_name(name, format);
    let bad = |what: &str| Error::input(format!("tensor `{}` {what}", Shown(name)));
    let [rows, cols] = t.spec.shape[..] else {
        return Err(bad("is FP8 and no matrix").found(format!("{:?}", t.spec.shape)));
    };
    let found = input
        .tensors
        .get(&scale)
        .ok_or_else(|| bad("is FP8 and has no scales").expected(Shown(&scale).to_string()))?;
    let shapes = format.scale_shapes(rows, cols);
    let scale_float = Float::of(found.spec.dtype);
    let (true, Some(scale_float)) = (shapes.contains(&found.spec.shape), scale_float) else {
        return Err(Error::input(format!("scales `{}` do not fit their weight", Shown(&scale)))
            .found(format!("{} {:?}", found.spec.dtype, found.spec.shape))
            .expected(format!("F32 {:?} for a weight of {:?}", shapes[0], t.spec.shape)));
    };
    let outputs = vec![TensorSpec::new(name.clone(), float.dtype(), [rows, cols])];
    let size = (rows, rows_per_chunk(cols * float.bytes(), format.grid.row_multiple()));
    let unit = builder.compute(t.shard, outputs, size, &[name, &scale]);
    Ok((unit, Job { weight: name.clone(), scale, scale_float, cols }))
}

fn scale_name(weight: &str, format: &Fp8Config) -> String {
    let module = weight.strip_suffix(".weight").unwrap_or(weight);
    format!("{module}.{}", format.scale_leaf())
}

fn is_scale_of_a_code(input: &ModelView, name: &str, format: &Fp8Config) -> bool {
    let Some((module, leaf)) = name.rsplit_once('.') else { return false };
    let weight = input.tensors.get(&format!("{module}.weight"));
    leaf == format.scale_leaf() && weight.is_some_and(|w| w.spec.dtype == Dtype::F8_E4M3)
}

fn is_activation_scale(name: &str) -> bool {
    let leaf = name.rsplit_once('.').map_or(name, |(_, leaf)| leaf);
    matches!(leaf, "input_scale" | "activation_scale" | "k_scale" | "v_scale" | "q_scale")
}

struct DequantizeWork {
    jobs: Vec<Option<Job>>,
    grid: Grid,
    float: Float,
}

impl Work for DequantizeWork {
    fn apply(&self, unit: usize, rows: Range<usize>, input: &dyn TensorReader) -> Result<Applied> {
        let job = self.jobs.get(unit).and_then(Option::as_ref).ok_or_else(|| {
            Error::input(format!("unit {unit} has nothing to dequantize"))
                .hint("this is a fault of prep: please report it")
        })?;
        let scales = job.scale_float.to_f32(&input.read(&job.scale)?);
        if let Some(at) = scales.iter().position(|s| !s.is_finite()) {
            return Err(Error::input(format!("scales `{}` are not finite", Shown(&job.scale)))
                .found(format!("{} at element {at}", scales[at]))
                .hint("the file is damaged or was made wrongly: fetch it again"));
        }
        let codes = input.read_rows(&job.weight, rows.clone())?;
        let values = dequantize(&codes, &scales, self.grid, (rows.start, job.cols));
        if let Some(at) = values.iter().position(|v| !v.is_finite()) {
            let index = format!("[{}, {}]", rows.start + at / job.cols, at % job.cols);
            return Err(Error::input(format!("tensor `{}` holds no number", Shown(&job.weight)))
                .found(format!("code {:#04x} at {index}", codes[at]))
                .expected("FP8 codes of finite values")
                .hint("the file is damaged or was made wrongly: fetch it again"));
        }
        Ok(Applied { outputs: vec![self.float.to_bytes(&values)], note: None })
    }
}

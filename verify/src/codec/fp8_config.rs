//! What `quantization_config` says about an FP8 checkpoint.

use serde_json::Value;

use super::fp8::{BLOCK, Grid};
use crate::checkpoint::Config;
use crate::error::{Error, Result};
use crate::names::Shown;

/// An FP8 format that is understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fp8Config {
    /// Whose format it is.
    pub method: Method,
    /// Which weights share a scale.
    pub grid: Grid,
    /// Whether inputs have scales in the checkpoint.
    pub activations: Activations,
    /// Modules in 16 bit, as they are listed.
    pub skipped: Vec<String>,
}

/// Who scales what goes into a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Activations {
    /// The server, as it goes.
    #[default]
    Dynamic,
    /// The checkpoint: one `input_scale` for each matrix.
    Static,
}

/// Whose format it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// `fp8` of transformers and vLLM.
    Fp8,
    /// `compressed-tensors`.
    CompressedTensors,
}

impl Fp8Config {
    /// Reads a model's format; `None` where the model is not quantized.
    ///
    /// # Errors
    /// Exit 3, by name, for formats other than FP8 weights over a grid of [`Grid`].
    pub fn of(config: &Config) -> Result<Option<Self>> {
        let Some(q) = config.quantization() else { return Ok(None) };
        let refuse = |found: String| {
            Error::input(format!("the quantization of {} is not understood", Shown::path(config.path())))
                .found(Shown(&found).to_string())
                .expected("FP8: quant_method `fp8` with blocks of 128 x 128, or compressed-tensors `float-quantized`")
                .hint("start from the 16-bit model")
        };
        let text = |v: &Value, key: &str| v.get(key).and_then(Value::as_str).unwrap_or("").to_string();
        let (method, grid, list) = match text(q, "quant_method").as_str() {
            "fp8" => (Method::Fp8, hf_grid(q).map_err(refuse)?, "modules_to_not_convert"),
            "compressed-tensors" => (Method::CompressedTensors, group_grid(q).map_err(refuse)?, "ignore"),
            other => return Err(refuse(format!("quant_method `{other}`"))),
        };
        let skipped = q.get(list).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let skipped = skipped.iter().filter_map(|s| s.as_str().map(str::to_string)).collect();
        Ok(Some(Fp8Config { method, grid, activations: activations(q), skipped }))
    }

    /// What follows the module's path in the names of the scales.
    pub fn scale_leaf(&self) -> &'static str {
        match self.method {
            Method::Fp8 => "weight_scale_inv",
            Method::CompressedTensors => "weight_scale",
        }
    }

    /// Shapes that the scales of a `rows` x `cols` matrix may have; the first is the usual one.
    pub fn scale_shapes(&self, rows: usize, cols: usize) -> Vec<Vec<usize>> {
        let (down, across) = self.grid.scales(rows, cols);
        match self.grid {
            Grid::Block => vec![vec![down, across]],
            Grid::Channel => vec![vec![down, 1], vec![down]],
            Grid::Tensor => vec![vec![1], vec![], vec![1, 1]],
        }
    }
}

fn activations(q: &Value) -> Activations {
    let groups = q.get("config_groups").and_then(Value::as_object);
    let inputs = groups.and_then(|g| g.values().next()).and_then(|g| g.get("input_activations"));
    let stored = q.get("activation_scheme").and_then(Value::as_str) == Some("static")
        || inputs.and_then(|a| a.get("dynamic")) == Some(&Value::Bool(false));
    if stored { Activations::Static } else { Activations::Dynamic }
}

fn is_block(v: Option<&Value>) -> bool {
    v.is_some_and(|v| *v == serde_json::json!([BLOCK, BLOCK]))
}

fn hf_grid(q: &Value) -> Result<Grid, String> {
    match q.get("weight_block_size").filter(|v| !v.is_null()) {
        size if is_block(size) => Ok(Grid::Block),
        Some(size) => Err(format!("weight_block_size {size}")),
        None => Err("quant_method `fp8` without weight_block_size".into()),
    }
}

fn group_grid(q: &Value) -> Result<Grid, String> {
    let groups = q.get("config_groups").and_then(Value::as_object).ok_or("no config_groups")?;
    let mut groups = groups.values();
    let (Some(group), None) = (groups.next(), groups.next()) else {
        return Err("more than one config group".into());
    };
    let format = group.get("format").or(q.get("format")).and_then(Value::as_str).unwrap_or_default();
    if format != "float-quantized" {
        return Err(format!("compressed-tensors format `{format}`"));
    }
    let weights = group.get("weights").ok_or("no weights in the config group")?;
    if weights.get("num_bits") != Some(&Value::from(8)) || weights.get("type") != Some(&Value::from("float"))
    {
        return Err(format!("weights {weights}"));
    }
    match weights.get("strategy").and_then(Value::as_str) {
        Some("channel") => Ok(Grid::Channel),
        Some("tensor") => Ok(Grid::Tensor),
        Some("block") if is_block(weights.get("block_structure")) => Ok(Grid::Block),
        other => Err(format!("weights of strategy `{}`", other.unwrap_or("none"))),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn read(quantization: &str) -> Result<Option<Fp8Config>> {
        let text = format!(r#"{{"model_type":"qwen3","quantization_config":{quantization}}}"#);
        Fp8Config::of(&Config::parse(text, Path::new("config.json")).unwrap())
    }

    #[test]
    fn both_methods_are_read() {
        let fp8 = read(
            r#"{"quant_method":"fp8","weight_block_size":[128,128],"modules_to_not_convert":["lm_head"]}"#,
        );
        let fp8 = fp8.unwrap().unwrap();
        assert_eq!(
            (fp8.method, fp8.grid, fp8.skipped),
            (Method::Fp8, Grid::Block, vec!["lm_head".to_string()])
        );
        let group = |weights: &str| {
            format!(
                r#"{{"quant_method":"compressed-tensors","format":"float-quantized","config_groups":{{"group_0":{{"weights":{weights}}}}}}}"#
            )
        };
        for (strategy, grid) in [("channel", Grid::Channel), ("tensor", Grid::Tensor), ("block", Grid::Block)]
        {
            let weights = format!(
                r#"{{"num_bits":8,"type":"float","strategy":"{strategy}","block_structure":[128,128]}}"#
            );
            assert_eq!(read(&group(&weights)).unwrap().unwrap().grid, grid);
        }
        assert_eq!(read("null").unwrap(), None);
    }

    #[test]
    fn stored_scales_of_inputs_are_told_from_those_found_while_serving() {
        let group = |inputs: &str| {
            let text = format!(
                r#"{{"quant_method":"compressed-tensors","format":"float-quantized","config_groups":{{"g":{{
                    "weights":{{"num_bits":8,"type":"float","strategy":"tensor"}},"input_activations":{inputs}}}}}}}"#
            );
            read(&text).unwrap().unwrap().activations
        };
        assert_eq!(group(r#"{"strategy":"tensor","dynamic":false}"#), Activations::Static);
        assert_eq!(group(r#"{"strategy":"tensor","dynamic":true}"#), Activations::Dynamic);
        assert_eq!(group("null"), Activations::Dynamic);
        let text = r#"{"quant_method":"fp8","activation_scheme":"static","weight_block_size":[128,128]}"#;
        assert_eq!(read(text).unwrap().unwrap().activations, Activations::Static);
    }

    #[test]
    fn other_formats_are_refused_by_name() {
        for (text, name) in [
            (r#"{"quant_method":"awq"}"#, "awq"),
            (r#"{"quant_method":"fp8","weight_block_size":[64,64]}"#, "[64,64]"),
            (r#"{"quant_method":"fp8"}"#, "without weight_block_size"),
            (
                r#"{"quant_method":"compressed-tensors","format":"pack-quantized","config_groups":{"g":{}}}"#,
                "pack-quantized",
            ),
            (r#"{"quant_method":"compressed-tensors","config_groups":{"g":{},"h":{}}}"#, "more than one"),
        ] {
            let e = read(text).unwrap_err();
            assert!(e.class().exit_code() == 3 && e.to_string().contains(name), "{e}");
        }
    }
}

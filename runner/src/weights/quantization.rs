//! `quantization_config`, as far as the runner reads it.

use serde_json::Value;
use verify::checkpoint::Config;
use verify::codec::Fp8Config;
use verify::codec::int4::Bits;
use verify::{Error, Result, Shown};

/// What a checkpoint says about its quantized matrices. Which ones are quantized, their tensors' names tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Quantization {
    /// Nothing is quantized.
    None,
    /// FP8 codes with scales.
    Fp8(Fp8Config),
    /// compressed-tensors `pack-quantized`: four or eight bits along rows.
    Int4 {
        /// Width of codes.
        bits: Bits,
        /// Columns under one scale; a whole row where not said.
        group: Option<usize>,
        /// Whether zeros are stored.
        zeros: bool,
    },
    /// AutoAWQ `gemm`: four bits along columns.
    Awq {
        /// Inputs under one scale; all where not said.
        group: Option<usize>,
    },
}

impl Quantization {
    /// Reads the configuration.
    ///
    /// # Errors
    /// Exit 3 naming a method or format that this runner cannot read.
    pub fn parse(config: &Config) -> Result<Self> {
        let Some(q) = config.quantization() else { return Ok(Quantization::None) };
        let text = |v: &Value, key: &str| v.get(key).and_then(Value::as_str).unwrap_or_default().to_string();
        let groups = q.get("config_groups").and_then(Value::as_object);
        let first = groups.and_then(|g| g.values().next());
        let format = first.map(|g| text(g, "format")).filter(|f| !f.is_empty()).unwrap_or(text(q, "format"));
        match (text(q, "quant_method").as_str(), format.as_str()) {
            ("compressed-tensors", "pack-quantized") => int4(config, groups.map_or(0, |g| g.len()), first),
            ("awq", _) => awq(config, q),
            ("fp8", _) | ("compressed-tensors", "float-quantized") => {
                Ok(Fp8Config::of(config)?.map_or(Quantization::None, Quantization::Fp8))
            }
            ("compressed-tensors", format) => Err(refused(config, &format!("compressed-tensors `{format}`"))),
            (other, _) => Err(refused(config, &format!("`{other}`"))),
        }
    }
}

fn int4(config: &Config, groups: usize, first: Option<&Value>) -> Result<Quantization> {
    let wrong = |found: String| refused(config, &found);
    let weights = first.and_then(|g| g.get("weights")).ok_or_else(|| wrong("no `weights`".into()))?;
    if groups != 1 {
        return Err(wrong(format!("{groups} config groups")));
    }
    let bits = weights.get("num_bits").and_then(Value::as_u64).and_then(Bits::of);
    let (Some(bits), Some("int")) = (bits, weights.get("type").and_then(Value::as_str)) else {
        return Err(wrong(format!("weights {weights}")));
    };
    let group = match weights.get("strategy").and_then(Value::as_str) {
        Some("channel") => None,
        Some("group") => Some(group_size(config, weights)?),
        other => return Err(wrong(format!("weights of strategy `{}`", other.unwrap_or("none")))),
    };
    let zeros = weights.get("symmetric") == Some(&Value::Bool(false));
    Ok(Quantization::Int4 { bits, group, zeros })
}

fn awq(config: &Config, q: &Value) -> Result<Quantization> {
    let wrong = |found: String| refused(config, &found);
    if q.get("bits") != Some(&Value::from(4)) {
        return Err(wrong(format!("AWQ of {} bits", q.get("bits").unwrap_or(&Value::Null))));
    }
    match q.get("version").and_then(Value::as_str) {
        None => {}
        Some(version) if version.eq_ignore_ascii_case("gemm") => {}
        Some(version) => return Err(wrong(format!("AWQ `{version}`"))),
    }
    if q.get("zero_point") == Some(&Value::Bool(false)) {
        return Err(wrong("AWQ without zero points".into()));
    }
    match q.get("group_size").and_then(Value::as_i64) {
        Some(-1) => Ok(Quantization::Awq { group: None }),
        _ => Ok(Quantization::Awq { group: Some(group_size(config, q)?) }),
    }
}

fn group_size(config: &Config, of: &Value) -> Result<usize> {
    let size = of.get("group_size").unwrap_or(&Value::Null);
    match size.as_u64() {
        Some(n) if n > 0 && n <= u64::from(u32::MAX) => Ok(n as usize),
        _ => Err(refused(config, &format!("`group_size` {size}"))),
    }
}

fn refused(config: &Config, found: &str) -> Error {
    Error::input(format!("{} is quantized in a way that the runner cannot read", Shown::path(config.path())))
        .found(Shown(found).to_string())
        .expected(
            "`fp8`, `awq` gemm, or compressed-tensors `float-quantized` or `pack-quantized` in 4 or 8 bit",
        )
        .hint("run the unquantized checkpoint, or verify through a served endpoint")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn read(quantization: Value) -> Result<Quantization> {
        let config = serde_json::json!({"model_type": "qwen3", "quantization_config": quantization});
        Quantization::parse(&Config::parse(config.to_string(), Path::new("config.json")).unwrap())
    }

    fn packed(weights: Value) -> Value {
        let group = serde_json::json!({"format": "pack-quantized", "weights": weights});
        serde_json::json!({"quant_method": "compressed-tensors", "config_groups": {"group_0": group}})
    }

    #[test]
    fn integer_formats_are_read() {
        let json =
            serde_json::json!({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "GEMM"});
        assert_eq!(read(json).unwrap(), Quantization::Awq { group: Some(128) });
        let mut weights =
            serde_json::json!({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32});
        let symmetric = read(packed(weights.clone())).unwrap();
        assert_eq!(symmetric, Quantization::Int4 { bits: Bits::Four, group: Some(32), zeros: false });
        weights["symmetric"] = false.into();
        weights["num_bits"] = 8.into();
        weights["strategy"] = "channel".into();
        assert_eq!(
            read(packed(weights)).unwrap(),
            Quantization::Int4 { bits: Bits::Eight, group: None, zeros: true }
        );
        assert_eq!(read(Value::Null).unwrap(), Quantization::None);
    }

    #[test]
    fn the_unreadable_is_named() {
        for (json, named) in [
            (serde_json::json!({"quant_method": "gptq"}), "gptq"),
            (serde_json::json!({"quant_method": "awq", "bits": 8, "group_size": 128}), "8 bits"),
            (serde_json::json!({"quant_method": "awq", "bits": 4, "version": "gemv"}), "gemv"),
            (serde_json::json!({"quant_method": "awq", "bits": 4, "group_size": 0}), "group_size"),
            (packed(serde_json::json!({"num_bits": 3, "type": "int", "strategy": "group"})), "num_bits"),
            (
                serde_json::json!({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}),
                "nvfp4",
            ),
        ] {
            let e = read(json).unwrap_err().to_string();
            assert!(e.contains(named), "{e}");
        }
    }
}

//! What `quantization_config` says about a checkpoint in 4 or 8 bit integers.

use serde_json::Value;

use super::{Bits, Layout};
use crate::checkpoint::Config;
use crate::error::{Error, Result};
use crate::names::Shown;

/// A format of packed integers that is understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Int4Config {
    /// Whose tensors they are.
    pub layout: Layout,
    /// Width of codes.
    pub bits: Bits,
    /// Columns under one scale; `None` for whole rows.
    pub group: Option<usize>,
    /// Whether zeros are stored, as the config says.
    pub zeros: bool,
    /// Whether columns were taken in another order, which `weight_g_idx` tells (GPTQ).
    pub reordered: bool,
    /// Modules in 16 bit, as they are listed.
    pub skipped: Vec<String>,
}

impl Int4Config {
    /// Reads a model's format; `None` where it is not quantized, or by another method than these two.
    ///
    /// # Errors
    /// Exit 3, by name, for what these two methods have and is not understood: other widths, other layouts,
    /// several schemes in one model.
    pub fn of(config: &Config) -> Result<Option<Self>> {
        let Some(q) = config.quantization() else { return Ok(None) };
        let parsed = match text(q, "quant_method") {
            "awq" => auto_awq(q),
            "compressed-tensors" => match pack_quantized(q) {
                Ok(None) => return Ok(None),
                Ok(Some(parsed)) => Ok(parsed),
                Err(found) => Err(found),
            },
            _ => return Ok(None),
        };
        parsed.map(Some).map_err(|found| {
            Error::input(format!("the quantization of {} is not understood", Shown::path(config.path())))
                .found(Shown(&found).to_string())
                .expected("4 or 8 bit integers: `awq` gemm, or compressed-tensors `pack-quantized` with one group of modules")
                .hint("start from the 16-bit model")
        })
    }

    /// Columns under one scale in rows of `cols`.
    pub fn group_of(&self, cols: usize) -> usize {
        self.group.unwrap_or(cols)
    }
}

/// Codes in a word of a packed checkpoint, from the config alone and whatever else it says.
pub fn codes_per_word(config: &Config) -> usize {
    let bits = config.quantization().and_then(|q| {
        let weights = groups(q).next().and_then(|g| g.get("weights"));
        weights.and_then(|w| w.get("num_bits")).or_else(|| either(q, "bits", "w_bit")).and_then(Value::as_u64)
    });
    bits.and_then(Bits::of).unwrap_or(Bits::Four).per_word()
}

fn groups(q: &Value) -> impl Iterator<Item = &Value> {
    q.get("config_groups").and_then(Value::as_object).into_iter().flat_map(|g| g.values())
}

fn text<'a>(v: &'a Value, key: &str) -> &'a str {
    v.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn either<'a>(v: &'a Value, key: &str, other: &str) -> Option<&'a Value> {
    v.get(key).or_else(|| v.get(other)).filter(|v| !v.is_null())
}

fn list(v: Option<&Value>) -> Vec<String> {
    let entries = v.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    entries.iter().filter_map(|e| e.as_str().map(str::to_string)).collect()
}

fn width(v: Option<&Value>) -> Result<Bits, String> {
    let v = v.unwrap_or(&Value::Null);
    v.as_u64().and_then(Bits::of).ok_or_else(|| format!("{v} bits"))
}

fn size(v: Option<&Value>) -> Result<Option<usize>, String> {
    let v = v.unwrap_or(&Value::Null);
    match (v.as_i64(), v.as_u64().and_then(|n| usize::try_from(n).ok())) {
        (Some(-1), _) => Ok(None),
        (_, Some(n)) if n > 0 => Ok(Some(n)),
        _ => Err(format!("group_size {v}")),
    }
}

fn auto_awq(q: &Value) -> Result<Int4Config, String> {
    let version = text(q, "version");
    if !version.is_empty() && !version.eq_ignore_ascii_case("gemm") {
        return Err(format!("AWQ of version `{version}`"));
    }
    Ok(Int4Config {
        layout: Layout::AwqGemm,
        bits: width(either(q, "bits", "w_bit"))?,
        group: size(either(q, "group_size", "q_group_size"))?,
        zeros: q.get("zero_point") != Some(&Value::Bool(false)),
        reordered: false,
        skipped: list(q.get("modules_to_not_convert")),
    })
}

fn pack_quantized(q: &Value) -> Result<Option<Int4Config>, String> {
    let format = |g: &Value| match text(g, "format") {
        "" => text(q, "format").to_string(),
        own => own.to_string(),
    };
    if !groups(q).any(|g| format(g) == "pack-quantized") {
        return Ok(None);
    }
    let (Some(group), 1) = (groups(q).next(), groups(q).count()) else {
        return Err("more than one config group".into());
    };
    let weights = group.get("weights").filter(|w| w.is_object()).ok_or("no `weights` in the config group")?;
    if text(weights, "type") != "int" {
        return Err(format!("weights of type `{}`", text(weights, "type")));
    }
    let group = match (text(weights, "strategy"), weights.get("group_size").filter(|v| !v.is_null())) {
        ("channel", _) | ("", None) => None,
        ("group", size_of) | ("", size_of) => size(size_of)?,
        (other, _) => return Err(format!("weights of strategy `{other}`")),
    };
    let order = weights.get("actorder").unwrap_or(&Value::Null);
    Ok(Some(Int4Config {
        layout: Layout::PackQuantized,
        bits: width(weights.get("num_bits"))?,
        group,
        zeros: weights.get("symmetric") == Some(&Value::Bool(false)),
        reordered: matches!(order, Value::Bool(true)) || matches!(order.as_str(), Some("group" | "dynamic")),
        skipped: list(q.get("ignore")),
    }))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;

    fn config(quantization: &Value) -> Config {
        let text = json!({"model_type": "qwen3", "quantization_config": quantization}).to_string();
        Config::parse(text, Path::new("config.json")).unwrap()
    }

    fn read(quantization: &Value) -> Result<Option<Int4Config>> {
        Int4Config::of(&config(quantization))
    }

    fn packed(weights: &Value) -> Value {
        json!({"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
            "config_groups": {"group_0": {"weights": weights}}})
    }

    #[test]
    fn both_methods_are_read() {
        let awq = json!({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": true, "version": "GEMM", "modules_to_not_convert": null});
        let want = Int4Config {
            layout: Layout::AwqGemm,
            bits: Bits::Four,
            group: Some(128),
            zeros: true,
            reordered: false,
            skipped: vec![],
        };
        assert_eq!(read(&awq).unwrap().unwrap(), want);
        let old = json!({"quant_method": "awq", "w_bit": 8, "q_group_size": -1, "zero_point": false});
        let old = read(&old).unwrap().unwrap();
        assert_eq!((old.bits, old.group, old.zeros), (Bits::Eight, None, false));
        let mut weights = json!({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": true, "actorder": "weight"});
        let c = read(&packed(&weights)).unwrap().unwrap();
        assert_eq!(
            (c.layout, c.group, c.zeros, c.reordered),
            (Layout::PackQuantized, Some(32), false, false)
        );
        assert_eq!(c.skipped, ["lm_head"]);
        weights["strategy"] = "channel".into();
        weights["symmetric"] = false.into();
        weights["actorder"] = "group".into();
        weights["num_bits"] = 8.into();
        let c = read(&packed(&weights)).unwrap().unwrap();
        assert_eq!((c.group, c.zeros, c.reordered, c.bits), (None, true, true, Bits::Eight));
        assert_eq!(codes_per_word(&config(&packed(&weights))), 4);
    }

    #[test]
    fn other_methods_are_left_to_others() {
        for q in [
            json!(null),
            json!({"quant_method": "fp8"}),
            json!({"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"g": {}}}),
        ] {
            assert_eq!(read(&q).unwrap(), None);
            assert_eq!(codes_per_word(&config(&q)), 8);
        }
    }

    #[test]
    fn what_is_not_understood_is_named() {
        let weights = |w: Value| packed(&w);
        for (q, word) in [
            (json!({"quant_method": "awq", "bits": 3, "group_size": 128}), "3 bits"),
            (json!({"quant_method": "awq", "bits": 4, "group_size": 0}), "group_size 0"),
            (json!({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemv"}), "gemv"),
            (weights(json!({"num_bits": 4, "type": "float"})), "float"),
            (weights(json!({"num_bits": 2, "type": "int", "strategy": "channel"})), "2 bits"),
            (weights(json!({"num_bits": 4, "type": "int", "strategy": "group"})), "group_size null"),
            (weights(json!({"num_bits": 4, "type": "int", "strategy": "block"})), "block"),
            (weights(json!(null)), "no `weights`"),
            (
                json!({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"a": {}, "b": {}}}),
                "more than one",
            ),
        ] {
            let e = read(&q).unwrap_err();
            assert!(e.class().exit_code() == 3 && e.to_string().contains(word), "{q}: {e}");
        }
    }
}

//! Scales of the key and value cache: one each for every attention of the body, and a config that tells of them.

use serde_json::Value;

use super::{Fault, values};
use crate::architecture::{Architecture, Layer, Leaf, Part, Role};
use crate::checkpoint::{Checkpoint, TensorIndex, TensorMeta, TensorReader};
use crate::codec::float::Float;
use crate::error::Result;

/// Whose loader reads the scales.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reader {
    /// `fp8`: where the server is told to cache in FP8.
    Fp8,
    /// compressed-tensors: where `kv_cache_scheme` tells of them.
    CompressedTensors,
    /// AutoAWQ's: nobody.
    Nobody,
}

pub(super) fn faults(arch: &Architecture, reader: Reader, checkpoint: &Checkpoint) -> Result<Vec<Fault>> {
    let (config, index) = (checkpoint.config(), checkpoint.index());
    let scheme = config.quantization().and_then(|q| q.get("kv_cache_scheme")).filter(|s| !s.is_null());
    let stored = stored(arch, index);
    let mut faults: Vec<Fault> = scheme.map(unserved).unwrap_or_default();
    let dynamic = scheme.and_then(|s| s.get("dynamic")) == Some(&Value::Bool(true));
    match (reader, scheme, stored.first()) {
        (_, None, None) => return Ok(faults),
        (Reader::Nobody, _, Some((_, first))) => {
            let sentence =
                "is a scale of the key and value cache: beside AutoAWQ's format no server reads one";
            faults.push(Fault::new(&first.spec.name, sentence));
            return Ok(faults);
        }
        (Reader::CompressedTensors, None, Some((_, first))) => {
            let sentence = format!(
                "is missing in config.json, while scales of the cache are there, first `{}`: SGLang would not load them",
                first.spec.name
            );
            faults.push(Fault::new("kv_cache_scheme", sentence));
        }
        (_, Some(_), None) if !dynamic => {
            let sentence = "says in config.json that the cache is FP8 with stored scales, but there is none: servers would cache with a scale of 1";
            faults.push(Fault::new("kv_cache_scheme", sentence));
            return Ok(faults);
        }
        _ => {}
    }
    let by_head = scheme.and_then(|s| s.get("strategy")).and_then(Value::as_str) == Some("attn_head");
    let heads = config.count("num_key_value_heads")?.or(config.count("num_attention_heads")?).unwrap_or(1);
    let expected = if by_head { heads } else { 1 };
    for (_, t) in &stored {
        faults.extend(misfit(t, expected));
        if let Some(float) = Float::of(t.spec.dtype) {
            faults.extend(values::scales(checkpoint, &t.spec, float)?);
        }
    }
    if !stored.is_empty() {
        faults.extend(incomplete(arch, &stored));
    }
    Ok(faults)
}

/// A scheme that servers do not know.
fn unserved(scheme: &Value) -> Vec<Fault> {
    let wrong = [("num_bits", Value::from(8)), ("type", "float".into()), ("symmetric", true.into())]
        .into_iter()
        .filter(|(key, want)| scheme.get(key) != Some(want))
        .map(|(key, want)| (key, format!("{want}")));
    let strategy = scheme.get("strategy").and_then(Value::as_str).unwrap_or("none");
    let strategies = ["tensor", "attn_head"];
    let wrong = wrong.chain((!strategies.contains(&strategy)).then(|| ("strategy", "tensor".into())));
    wrong
        .map(|(key, want)| {
            let found = scheme.get(key).unwrap_or(&Value::Null);
            Fault::new(
                "kv_cache_scheme",
                format!("has `{key}` {found} in config.json: servers know {want} only"),
            )
        })
        .collect()
}

/// The scales of keys and values, with their layers.
fn stored<'a>(arch: &Architecture, index: &'a TensorIndex) -> Vec<(Option<Layer>, &'a TensorMeta)> {
    let place = |t: &'a TensorMeta| {
        let place = arch.names().read(&t.spec.name)?;
        let leaf = matches!(place.leaf, Leaf::Quantized("k_scale" | "v_scale"));
        (place.role == Role::KvCache && leaf).then_some((place.layer, t))
    };
    index.tensors().iter().filter_map(place).collect()
}

fn misfit(t: &TensorMeta, expected: usize) -> Option<Fault> {
    let spec = &t.spec;
    let sentence = match Float::of(spec.dtype) {
        None => format!("has dtype {}: loaders expect F32 (BF16 is read too)", spec.dtype),
        Some(_) if spec.elements() != expected && expected == 1 => {
            format!("has shape {:?}: loaders expect one number, [1]", spec.shape)
        }
        Some(_) if spec.elements() != expected => {
            format!(
                "has shape {:?}: loaders expect {expected} numbers, one for each key-value head",
                spec.shape
            )
        }
        Some(_) => return None,
    };
    Some(Fault::new(&spec.name, sentence))
}

/// Attentions without one of their scales, and scales without an attention. Draft layers may have none.
fn incomplete(arch: &Architecture, stored: &[(Option<Layer>, &TensorMeta)]) -> Vec<Fault> {
    let has = |layer: Layer, leaf: &str| {
        stored.iter().any(|(l, t)| *l == Some(layer) && t.spec.name.ends_with(&format!(".{leaf}")))
    };
    let mut faults = Vec::new();
    let mut attentions = Vec::new();
    for m in arch.modules().iter().filter(|m| m.role == Role::Attention(Part::K)) {
        let (Some(layer), Some((path, _))) = (m.layer, m.name.rsplit_once('.')) else { continue };
        attentions.push(layer);
        let lacking: Vec<&str> =
            ["k_scale", "v_scale"].into_iter().filter(|leaf| !has(layer, leaf)).collect();
        if lacking.len() == 2 && matches!(layer, Layer::Mtp(_)) {
            continue;
        }
        faults.extend(lacking.into_iter().map(|leaf| {
            let sentence = "is missing, while others of the cache are there: servers would take 1, or the other one, for it";
            Fault::new(&format!("{path}.{leaf}"), sentence)
        }));
    }
    for (layer, t) in stored {
        if layer.is_none_or(|l| !attentions.contains(&l)) {
            let sentence =
                "is a scale of the cache in a layer that has no attention: loaders find no place for it";
            faults.push(Fault::new(&t.spec.name, sentence));
        }
    }
    faults
}

//! Whether a model has all that a forward pass needs.

use std::collections::BTreeSet;

use super::name::{Layer, Names, Part, Role};
use crate::checkpoint::{Config, TensorIndex, list_some};
use crate::error::{Error, Result};

/// Refuses a model that lacks embeddings, norms, a head that is not tied, or a whole block of a layer.
/// Which tensors belong to a block is left to the units.
pub(super) fn check(names: &Names, layers: usize, config: &Config, index: &TensorIndex) -> Result<()> {
    // A count from outside must not decide how long we look for what is missing.
    if layers > index.tensors().len() {
        return Err(Error::input("config.json tells of more layers than the checkpoint has tensors")
            .found(format!("{layers} layers, {} tensors", index.tensors().len()))
            .hint("config.json is damaged or of another model: fetch the folder again"));
    }
    let mut found: BTreeSet<(usize, &'static str)> = BTreeSet::new();
    for t in index.tensors() {
        let Some(place) = names.read(&t.spec.name) else { continue };
        if let (Some(Layer::Body(layer)), Some(block)) = (place.layer, block(place.role, place.module)) {
            found.insert((layer, block));
        }
    }
    let mut missing: Vec<String> =
        outside(names, config).into_iter().filter(|module| !has_weight(index, module)).collect();
    for layer in 0..layers {
        let lacks = |any: &[&'static str]| !any.iter().any(|b| found.contains(&(layer, b)));
        let need: [&[&'static str]; 5] = [
            &["input_layernorm"],
            &["post_attention_layernorm"],
            &["self_attn.q_proj", "linear_attn"],
            &["self_attn.o_proj", "linear_attn.out_proj"],
            &["mlp", "experts"],
        ];
        let prefix = names.prefix();
        let lost = need.iter().filter(|any| lacks(any));
        missing.extend(lost.map(|any| format!("{prefix}layers.{layer}.{}", any.join(" or "))));
        let half = [("mlp", "mlp.down_proj"), ("experts", "router")];
        let lost = half.iter().filter(|(one, other)| !lacks(&[one]) && lacks(&[other]));
        missing.extend(lost.map(|(_, other)| format!("{prefix}layers.{layer}.{other}")));
    }
    match missing.is_empty() {
        true => Ok(()),
        false => Err(Error::input("the checkpoint is incomplete")
            .found(format!("no {}", list_some(&missing)))
            .expected(format!("every tensor of {layers} layers"))
            .hint("a shard is missing, or config.json is of another model: fetch the folder again")),
    }
}

fn outside(names: &Names, config: &Config) -> Vec<String> {
    let mut need = vec![format!("{}embed_tokens", names.prefix()), format!("{}norm", names.prefix())];
    let tied = config.value().get("tie_word_embeddings").or_else(|| config.get("tie_word_embeddings"));
    // Absent means untied for every family here but llama's oldest files, which hold a head all the same.
    if tied.and_then(serde_json::Value::as_bool) != Some(true) {
        need.push("lm_head".into());
    }
    need
}

fn has_weight(index: &TensorIndex, module: &str) -> bool {
    ["weight", "weight_packed", "qweight"].iter().any(|leaf| index.contains(&format!("{module}.{leaf}")))
}

/// What a tensor proves to be there.
fn block(role: Role, module: &str) -> Option<&'static str> {
    Some(match role {
        Role::Norm if module.ends_with(".input_layernorm") => "input_layernorm",
        Role::Norm if module.ends_with(".post_attention_layernorm") => "post_attention_layernorm",
        Role::Attention(Part::O) => "self_attn.o_proj",
        Role::Attention(_) => "self_attn.q_proj",
        Role::DeltaNet(Part::Out) => "linear_attn.out_proj",
        Role::DeltaNet(_) => "linear_attn",
        Role::Mlp(Part::Down) => "mlp.down_proj",
        Role::Mlp(_) => "mlp",
        Role::Expert(..) | Role::ExpertsGateUp | Role::ExpertsDown => "experts",
        Role::Router => "router",
        _ => return None,
    })
}

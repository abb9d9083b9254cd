//! Which tensors of a model are linears, routers, norms, experts or embeddings, and which of them servers
//! fuse; told from the config and the names, for every family that `prep` knows.
//!
//! ```text
//!   config.json ──▶ Family ──┐
//!   names ──▶ prefix ────────┴▶ Names ──▶ Role of each tensor ──▶ Modules (matrices) ──▶ Units (fused)
//! ```
//!
//! A tensor that its family does not have is an error, never skipped: a conversion that passed it over
//! would give a model that loads and answers wrongly.

mod complete;
mod family;
mod module;
mod name;
mod unit;

pub use family::Family;
pub use module::{Module, Source};
pub use name::{Layer, Leaf, Names, Part, Place, Role};
pub use unit::{Unit, UnitKind};

use crate::checkpoint::{Config, TensorIndex, list_some};
use crate::codec::int4::config::codes_per_word;
use crate::error::{Error, Result};
use crate::names::Shown;

/// What every tensor of a model is.
#[derive(Debug, Clone)]
pub struct Architecture {
    names: Names,
    layers: usize,
    modules: Vec<Module>,
    units: Vec<Unit>,
}

impl Architecture {
    /// Tells the parts of the model that `config` and `index` describe. Quantized checkpoints are
    /// understood too: their scales belong to the module that they scale.
    ///
    /// # Errors
    /// Exit 3 for an unknown `model_type`, for tensors that the family does not have, for a layer that the
    /// config does not count, and for fused units of which a part is missing; always by name.
    pub fn of(config: &Config, index: &TensorIndex) -> Result<Self> {
        let family = Family::of(config)?;
        let names = Names::detect(family, index);
        let layers = config.count("num_hidden_layers")?.ok_or_else(|| {
            Error::input(format!("{} has no `num_hidden_layers`", Shown::path(config.path())))
                .hint("fetch config.json again")
        })?;
        refuse_unknown(&names, layers, config, index)?;
        let modules = module::modules(&names, codes_per_word(config), index)?;
        let units = unit::units(&modules, config)?;
        complete::check(&names, layers, config, index)?;
        Ok(Architecture { names, layers, modules, units })
    }

    /// The family.
    pub fn family(&self) -> Family {
        self.names.family()
    }

    /// What stands before `embed_tokens`, `layers` and `norm`: `model.` or `model.language_model.`.
    pub fn prefix(&self) -> &str {
        self.names.prefix()
    }

    /// Number of layers of the body.
    pub fn layers(&self) -> usize {
        self.layers
    }

    /// How names are read.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// What the tensor `name` is; `None` for a name that the family does not have.
    pub fn role(&self, name: &str) -> Option<Role> {
        self.names.read(name).map(|place| place.role)
    }

    /// Every matrix that multiplies activations (also routers, heads and those of vision), one entry per
    /// expert whichever way experts are stored, in file order.
    pub fn modules(&self) -> &[Module] {
        &self.modules
    }

    /// The module called `name` (a path without `.weight`).
    pub fn module(&self, name: &str) -> Option<&Module> {
        self.modules.iter().find(|m| m.name == name)
    }

    /// Linears of body and mtp that must be quantized together or not at all, in file order.
    pub fn units(&self) -> &[Unit] {
        &self.units
    }
}

fn refuse_unknown(names: &Names, layers: usize, config: &Config, index: &TensorIndex) -> Result<()> {
    let (mut unknown, mut beyond) = (Vec::new(), Vec::new());
    for t in index.tensors() {
        match names.read(&t.spec.name) {
            None => unknown.push(Shown(&t.spec.name).to_string()),
            Some(Place { layer: Some(Layer::Body(n)), .. }) if n >= layers => {
                beyond.push(Shown(&t.spec.name).to_string());
            }
            Some(_) => {}
        }
    }
    if !unknown.is_empty() {
        return Err(Error::input(format!("a {} model has no such tensors", config.model_type()))
            .found(list_some(&unknown))
            .expected(format!("the names of {}", names.family().name()))
            .hint("the folder mixes two models, or this variant is not supported by prep yet"));
    }
    match beyond.is_empty() {
        true => Ok(()),
        false => Err(Error::input("tensors belong to layers that the config does not count")
            .found(list_some(&beyond))
            .expected(format!("layers 0 to {}, as `num_hidden_layers` says", layers.saturating_sub(1)))
            .hint("config.json and the weights are of two models: fetch the folder again")),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::checkpoint::{TensorMeta, TensorSpec};
    use crate::dtype::Dtype;
    use crate::names::FileName;

    fn index(tensors: &[(&str, &[usize])]) -> TensorIndex {
        let spec = |&(name, shape): &(&str, &[usize])| TensorSpec::new(name, Dtype::BF16, shape);
        let metas = tensors.iter().map(|t| TensorMeta { spec: spec(t), shard: 0 }).collect();
        TensorIndex::new(vec![FileName::parse("model.safetensors").unwrap()], metas).unwrap()
    }

    fn config(text: &str) -> Config {
        Config::parse(text.into(), Path::new("config.json")).unwrap()
    }

    const DENSE: [(&str, &[usize]); 13] = [
        ("model.embed_tokens.weight", &[16, 8]),
        ("model.norm.weight", &[8]),
        ("model.layers.0.input_layernorm.weight", &[8]),
        ("model.layers.0.post_attention_layernorm.weight", &[8]),
        ("model.layers.0.mlp.up_proj.weight", &[12, 8]),
        ("model.layers.0.mlp.down_proj.weight", &[8, 12]),
        ("model.layers.0.mlp.gate_proj.weight", &[12, 8]),
        ("model.layers.0.self_attn.q_proj.weight", &[8, 8]),
        ("model.layers.0.self_attn.k_proj.weight", &[4, 8]),
        ("model.layers.0.self_attn.v_proj.weight", &[4, 8]),
        ("model.layers.0.self_attn.o_proj.weight", &[8, 8]),
        ("model.layers.0.self_attn.q_norm.weight", &[4]),
        ("model.layers.0.self_attn.k_norm.weight", &[4]),
    ];

    fn dense_without(lost: &str) -> Result<Architecture> {
        let kept: Vec<_> = DENSE.into_iter().filter(|(name, _)| !name.contains(lost)).collect();
        let text = r#"{"model_type":"qwen3","num_hidden_layers":1,"tie_word_embeddings":true}"#;
        Architecture::of(&config(text), &index(&kept))
    }

    #[test]
    fn linears_are_grouped_as_servers_fuse_them() {
        let a = dense_without("nothing").unwrap();
        let names = |u: &Unit| u.members.iter().map(|&m| a.modules()[m].name.as_str()).collect::<Vec<_>>();
        let units: Vec<_> = a.units().iter().map(|u| (u.name.as_str(), names(u).len())).collect();
        assert_eq!(
            units,
            [
                ("model.layers.0.mlp.gate_up_proj", 2),
                ("model.layers.0.mlp.down_proj", 1),
                ("model.layers.0.self_attn.qkv_proj", 3),
                ("model.layers.0.self_attn.o_proj", 1),
            ]
        );
    }

    #[test]
    fn missing_tensor_is_refused_by_name() {
        for lost in
            ["k_proj", "up_proj", "down_proj", "o_proj", "input_layernorm", "model.norm", "embed_tokens"]
        {
            let e = dense_without(lost).unwrap_err();
            assert!(e.to_string().contains(lost), "{e}");
        }
    }

    #[test]
    fn unknown_tensor_and_model_type_are_refused_by_name() {
        let mut tensors = DENSE.to_vec();
        tensors.push(("model.layers.0.mlp.router.weight", &[2, 2]));
        let c = config(r#"{"model_type":"qwen3","num_hidden_layers":1,"tie_word_embeddings":true}"#);
        let e = Architecture::of(&c, &index(&tensors)).unwrap_err();
        assert!(e.to_string().contains("mlp.router"), "{e}");
        let e = Architecture::of(&config(r#"{"model_type":"gemma9"}"#), &index(&DENSE)).unwrap_err();
        assert!(e.to_string().contains("gemma9"), "{e}");
    }

    #[test]
    fn layer_beyond_the_config_is_refused() {
        let c = config(r#"{"model_type":"qwen3","num_hidden_layers":0,"tie_word_embeddings":true}"#);
        assert!(Architecture::of(&c, &index(&DENSE)).unwrap_err().to_string().contains("does not count"));
    }

    #[test]
    fn head_may_only_be_missing_where_it_is_tied() {
        let c = config(r#"{"model_type":"qwen3","num_hidden_layers":1,"tie_word_embeddings":false}"#);
        assert!(Architecture::of(&c, &index(&DENSE)).unwrap_err().to_string().contains("lm_head"));
    }

    const MOE: [(&str, &[usize]); 9] = [
        ("model.embed_tokens.weight", &[16, 8]),
        ("model.norm.weight", &[8]),
        ("model.layers.0.input_layernorm.weight", &[8]),
        ("model.layers.0.post_attention_layernorm.weight", &[8]),
        ("model.layers.0.mlp.gate.weight", &[2, 8]),
        ("model.layers.0.self_attn.q_proj.weight", &[8, 8]),
        ("model.layers.0.self_attn.k_proj.weight", &[4, 8]),
        ("model.layers.0.self_attn.v_proj.weight", &[4, 8]),
        ("model.layers.0.self_attn.o_proj.weight", &[8, 8]),
    ];

    fn moe(experts: &[(&str, &[usize])]) -> Result<Architecture> {
        let tensors: Vec<_> = MOE.iter().chain(experts).copied().collect();
        let text =
            r#"{"model_type":"qwen3_moe","num_hidden_layers":1,"num_experts":2,"tie_word_embeddings":true}"#;
        Architecture::of(&config(text), &index(&tensors))
    }

    const STACKED: [(&str, &[usize]); 2] = [
        ("model.layers.0.mlp.experts.gate_up_proj", &[2, 6, 8]),
        ("model.layers.0.mlp.experts.down_proj", &[2, 8, 3]),
    ];
    const ALONE: [(&str, &[usize]); 6] = [
        ("model.layers.0.mlp.experts.0.gate_proj.weight", &[3, 8]),
        ("model.layers.0.mlp.experts.0.up_proj.weight", &[3, 8]),
        ("model.layers.0.mlp.experts.0.down_proj.weight", &[8, 3]),
        ("model.layers.0.mlp.experts.1.gate_proj.weight", &[3, 8]),
        ("model.layers.0.mlp.experts.1.up_proj.weight", &[3, 8]),
        ("model.layers.0.mlp.experts.1.down_proj.weight", &[8, 3]),
    ];

    #[test]
    fn both_layouts_of_experts_give_the_same_modules() {
        let shapes = |a: Architecture| {
            let experts = a.modules().iter().filter(|m| matches!(m.role, Role::Expert(..)));
            let mut list: Vec<_> = experts.map(|m| (m.name.clone(), m.rows, m.cols)).collect();
            list.sort();
            list
        };
        assert_eq!(shapes(moe(&STACKED).unwrap()), shapes(moe(&ALONE).unwrap()));
        let a = moe(&STACKED).unwrap();
        let up = a.module("model.layers.0.mlp.experts.1.up_proj").unwrap();
        assert_eq!((up.source.first_row, up.rows), (9, 3));
        assert_eq!(a.units().iter().filter(|u| u.kind == UnitKind::Experts).count(), 1);
    }

    #[test]
    fn experts_must_be_complete_and_stored_once() {
        assert!(moe(&ALONE[..5]).unwrap_err().to_string().contains("experts.1 Down"));
        assert!(moe(&[&STACKED[..], &ALONE[..]].concat()).unwrap_err().to_string().contains("twice"));
        assert!(moe(&[]).unwrap_err().to_string().contains("layers.0"));
    }
}

//! Model families by `model_type`.

use crate::checkpoint::Config;
use crate::error::{Error, Result};
use crate::names::Shown;

/// Models that share one set of tensor names and one forward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    /// llama: SmolLM2 and others.
    Llama,
    /// qwen3, dense.
    Qwen3,
    /// qwen3_moe.
    Qwen3Moe,
    /// qwen3_next: gated DeltaNet with grouped projections.
    Qwen3Next,
    /// qwen3_5 and qwen3_5_text, dense hybrid.
    Qwen35,
    /// qwen3_5_moe and qwen3_5_moe_text.
    Qwen35Moe,
    /// mixtral.
    Mixtral,
    /// olmoe.
    Olmoe,
}

const TYPES: [(&str, Family); 10] = [
    ("llama", Family::Llama),
    ("qwen3", Family::Qwen3),
    ("qwen3_moe", Family::Qwen3Moe),
    ("qwen3_next", Family::Qwen3Next),
    ("qwen3_5", Family::Qwen35),
    ("qwen3_5_text", Family::Qwen35),
    ("qwen3_5_moe", Family::Qwen35Moe),
    ("qwen3_5_moe_text", Family::Qwen35Moe),
    ("mixtral", Family::Mixtral),
    ("olmoe", Family::Olmoe),
];

impl Family {
    /// The family of a model.
    ///
    /// # Errors
    /// Exit 3 for a `model_type` that is not known, listing those that are.
    pub fn of(config: &Config) -> Result<Self> {
        let model_type = config.model_type();
        TYPES.iter().find(|(name, _)| *name == model_type).map(|(_, family)| *family).ok_or_else(|| {
            let known: Vec<_> = TYPES.iter().map(|(name, _)| *name).collect();
            Error::input(format!("model_type `{}` is not supported", Shown(model_type)))
                .found(format!("{} in {}", Shown(model_type), Shown::path(config.path())))
                .expected(known.join(", "))
                .hint("its tensor names are not known to prep; nothing was written")
        })
    }

    /// The `model_type` that the family is called after.
    pub fn name(self) -> &'static str {
        TYPES.iter().find(|(_, family)| *family == self).map_or("", |(name, _)| name)
    }

    /// True where layers may be gated DeltaNet.
    pub fn is_hybrid(self) -> bool {
        matches!(self, Family::Qwen3Next | Family::Qwen35 | Family::Qwen35Moe)
    }

    /// True where heads of query and key are normalised.
    pub fn has_qk_norm(self) -> bool {
        !matches!(self, Family::Llama | Family::Mixtral)
    }

    /// True where layers may have routed experts.
    pub fn has_experts(self) -> bool {
        !matches!(self, Family::Llama | Family::Qwen3 | Family::Qwen35)
    }

    /// True where an expert that every token passes stands beside the routed ones.
    pub fn has_shared_expert(self) -> bool {
        matches!(self, Family::Qwen3Next | Family::Qwen35Moe)
    }

    /// True where a checkpoint may hold a vision tower.
    pub fn has_vision(self) -> bool {
        matches!(self, Family::Qwen35 | Family::Qwen35Moe)
    }
}

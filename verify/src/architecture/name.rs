//! Tensor names read by the grammar of their family.

use super::family::Family;
use crate::checkpoint::TensorIndex;

/// What a tensor or module is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// `embed_tokens`.
    Embedding,
    /// `lm_head`.
    Head,
    /// Any norm.
    Norm,
    /// The short convolution of a DeltaNet layer.
    Convolution,
    /// `A_log` or `dt_bias` of a DeltaNet layer.
    Decay,
    /// Something that is derived from the config, such as rotary frequencies.
    Buffer,
    /// The router of an expert layer, `[experts, hidden]`.
    Router,
    /// The gate of the shared expert, `[1, hidden]`.
    SharedExpertGate,
    /// A linear of the attention.
    Attention(Part),
    /// A linear of a gated DeltaNet layer.
    DeltaNet(Part),
    /// A linear of a dense MLP.
    Mlp(Part),
    /// A linear of the shared expert.
    SharedExpert(Part),
    /// A linear of one routed expert.
    Expert(usize, Part),
    /// All experts' gate and up, `[experts, 2 * inter, hidden]`, gate rows first in each expert.
    ExpertsGateUp,
    /// All experts' down, `[experts, hidden, inter]`.
    ExpertsDown,
    /// `mtp.fc`, which joins embedding and hidden state before the mtp layer.
    MtpFusion,
    /// Scales of the key and value cache of an attention.
    KvCache,
    /// Anything of the vision tower.
    Vision,
}

/// Which linear of its block.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    Q,
    K,
    V,
    O,
    Gate,
    Up,
    Down,
    InQkv,
    InZ,
    InB,
    InA,
    /// qwen3_next: query, key, value and gate, grouped by key head.
    InQkvz,
    /// qwen3_next: b and a, grouped by key head.
    InBa,
    Out,
}

/// Where a layer stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Layer {
    /// Layer of the body.
    Body(usize),
    /// Layer of the multi-token-prediction block.
    Mtp(usize),
}

/// Which tensor of a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Leaf {
    /// `weight`.
    Weight,
    /// The module is the tensor: nothing follows its name.
    Bare,
    /// `bias`.
    Bias,
    /// Codes or scales of a quantized format, by their leaf name.
    Quantized(&'static str),
}

/// What a tensor name says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place<'a> {
    /// The module's path, without the leaf.
    pub module: &'a str,
    /// Which tensor of the module.
    pub leaf: Leaf,
    /// The layer that it belongs to, if any.
    pub layer: Option<Layer>,
    /// What the module is.
    pub role: Role,
}

const QUANTIZED: [&str; 18] = [
    "weight_scale_inv",
    "weight_scale",
    "input_scale",
    "activation_scale",
    "weight_packed",
    "weight_zero_point",
    "weight_shape",
    "weight_g_idx",
    "weight_global_scale",
    "input_global_scale",
    "input_zero_point",
    "qweight",
    "qzeros",
    "scales",
    "g_idx",
    "k_scale",
    "v_scale",
    "q_scale",
];

/// Reads the names of one model.
#[derive(Debug, Clone)]
pub struct Names {
    family: Family,
    prefix: String,
}

impl Names {
    /// Detects the prefix from the names themselves: text models of the qwen3_5 types come with either.
    pub fn detect(family: Family, index: &TensorIndex) -> Self {
        const LONG: &str = "model.language_model.";
        let long = family.has_vision() && index.tensors().iter().any(|t| t.spec.name.starts_with(LONG));
        Names { family, prefix: if long { LONG } else { "model." }.to_string() }
    }

    /// The family.
    pub fn family(&self) -> Family {
        self.family
    }

    /// What stands before `embed_tokens`, `layers` and `norm`.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Reads a tensor's name; `None` where the family has no such tensor.
    pub fn read<'a>(&self, name: &'a str) -> Option<Place<'a>> {
        if self.family.has_vision() && (name.starts_with("model.visual.") || name.starts_with("visual.")) {
            let (module, leaf) = split_leaf(name).unwrap_or((name, Leaf::Bare));
            return Some(Place { module, leaf, layer: None, role: Role::Vision });
        }
        if let Some((module, leaf)) = split_leaf(name) {
            let (layer, role) = self.module(module)?;
            return Some(Place { module, leaf, layer, role }).filter(|_| fits(role, leaf));
        }
        // Bare parameters; scales of stacked experts are called after them: `gate_up_proj_scale_inv`.
        let (module, leaf) = match name.strip_suffix("_scale_inv") {
            Some(stack) => (stack, Leaf::Quantized("weight_scale_inv")),
            None => (name, Leaf::Bare),
        };
        let (layer, role) = self.bare(module)?;
        Some(Place { module, leaf, layer, role })
    }

    /// What the module at `path` is.
    fn module(&self, path: &str) -> Option<(Option<Layer>, Role)> {
        let outside = |role| Some((None, role));
        match path {
            "lm_head" => return outside(Role::Head),
            "mtp.fc" if self.has_mtp() => return outside(Role::MtpFusion),
            "mtp.embed_tokens" if self.has_mtp() => return outside(Role::Embedding),
            "mtp.lm_head" if self.has_mtp() => return outside(Role::Head),
            "mtp.norm" | "mtp.pre_fc_norm_hidden" | "mtp.pre_fc_norm_embedding" if self.has_mtp() => {
                return outside(Role::Norm);
            }
            _ => {}
        }
        match path.strip_prefix(&self.prefix) {
            Some("embed_tokens") => return outside(Role::Embedding),
            Some("norm") => return outside(Role::Norm),
            _ => {}
        }
        let (layer, rest) = self.layer(path)?;
        Some((Some(layer), self.in_layer(rest)?))
    }

    fn bare(&self, path: &str) -> Option<(Option<Layer>, Role)> {
        let (layer, rest) = self.layer(path)?;
        let role = match rest {
            "linear_attn.A_log" | "linear_attn.dt_bias" if self.family.is_hybrid() => Role::Decay,
            "self_attn.rotary_emb.inv_freq" => Role::Buffer,
            _ if self.family.has_experts() => match rest.strip_prefix(self.experts())? {
                ".gate_up_proj" => Role::ExpertsGateUp,
                ".down_proj" => Role::ExpertsDown,
                _ => return None,
            },
            _ => return None,
        };
        Some((Some(layer), role))
    }

    fn has_mtp(&self) -> bool {
        self.family.is_hybrid()
    }

    fn experts(&self) -> &'static str {
        if self.family == Family::Mixtral { "block_sparse_moe.experts" } else { "mlp.experts" }
    }

    /// The layer that `path` lies in, and the rest of the path.
    fn layer<'a>(&self, path: &'a str) -> Option<(Layer, &'a str)> {
        let body = path.strip_prefix(&self.prefix).and_then(|p| p.strip_prefix("layers."));
        let mtp = path.strip_prefix("mtp.layers.").filter(|_| self.has_mtp());
        let (number, rest) = body.or(mtp)?.split_once('.')?;
        let number = count(number)?;
        Some((if body.is_some() { Layer::Body(number) } else { Layer::Mtp(number) }, rest))
    }

    fn in_layer(&self, path: &str) -> Option<Role> {
        let family = self.family;
        match path {
            "input_layernorm" | "post_attention_layernorm" => return Some(Role::Norm),
            "self_attn" | "self_attn.attn" => return Some(Role::KvCache),
            _ => {}
        }
        let (block, rest) = path.split_once('.')?;
        match block {
            "self_attn" => attention(family, rest),
            "linear_attn" if family.is_hybrid() => delta_net(family, rest),
            "mlp" if rest == "gate" && family.has_experts() && family != Family::Mixtral => {
                Some(Role::Router)
            }
            "block_sparse_moe" if rest == "gate" && family == Family::Mixtral => Some(Role::Router),
            "mlp" if rest == "shared_expert_gate" && family.has_shared_expert() => {
                Some(Role::SharedExpertGate)
            }
            "mlp" | "block_sparse_moe" => match rest.strip_prefix("shared_expert.") {
                Some(part) if family.has_shared_expert() => swiglu(part).map(Role::SharedExpert),
                _ => self.expert_or_dense(path, rest),
            },
            _ => None,
        }
    }

    fn expert_or_dense(&self, path: &str, rest: &str) -> Option<Role> {
        let expert = path.strip_prefix(self.experts()).filter(|_| self.family.has_experts());
        let Some(expert) = expert.and_then(|e| e.strip_prefix('.')) else {
            // qwen3_moe and qwen3_next may have dense layers among those with experts.
            let dense = !matches!(self.family, Family::Mixtral | Family::Olmoe | Family::Qwen35Moe);
            return swiglu(rest).filter(|_| dense).map(Role::Mlp);
        };
        let (number, part) = expert.split_once('.')?;
        let part = if self.family == Family::Mixtral { mixtral(part)? } else { swiglu(part)? };
        Some(Role::Expert(count(number)?, part))
    }
}

/// A number as names spell it: no sign, no leading zero.
fn count(text: &str) -> Option<usize> {
    let plain = text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|_| plain)
}

fn split_leaf(name: &str) -> Option<(&str, Leaf)> {
    let (module, leaf) = name.rsplit_once('.')?;
    let leaf = match leaf {
        "weight" => Leaf::Weight,
        "bias" => Leaf::Bias,
        other => Leaf::Quantized(QUANTIZED.iter().find(|q| **q == other)?),
    };
    Some((module, leaf))
}

/// Whether a module of this role can have such a tensor.
fn fits(role: Role, leaf: Leaf) -> bool {
    match (role, leaf) {
        (Role::KvCache, leaf) => matches!(leaf, Leaf::Quantized("k_scale" | "v_scale" | "q_scale")),
        (_, Leaf::Quantized("k_scale" | "v_scale" | "q_scale")) => false,
        (Role::Norm | Role::Convolution, Leaf::Quantized(_)) => false,
        _ => true,
    }
}

fn attention(family: Family, part: &str) -> Option<Role> {
    Some(match part {
        "q_proj" => Role::Attention(Part::Q),
        "k_proj" => Role::Attention(Part::K),
        "v_proj" => Role::Attention(Part::V),
        "o_proj" => Role::Attention(Part::O),
        "q_norm" | "k_norm" if family.has_qk_norm() => Role::Norm,
        _ => return None,
    })
}

fn delta_net(family: Family, part: &str) -> Option<Role> {
    let grouped = family == Family::Qwen3Next;
    Some(match part {
        "in_proj_qkvz" if grouped => Role::DeltaNet(Part::InQkvz),
        "in_proj_ba" if grouped => Role::DeltaNet(Part::InBa),
        "in_proj_qkv" if !grouped => Role::DeltaNet(Part::InQkv),
        "in_proj_z" if !grouped => Role::DeltaNet(Part::InZ),
        "in_proj_b" if !grouped => Role::DeltaNet(Part::InB),
        "in_proj_a" if !grouped => Role::DeltaNet(Part::InA),
        "out_proj" => Role::DeltaNet(Part::Out),
        "conv1d" => Role::Convolution,
        "norm" => Role::Norm,
        _ => return None,
    })
}

fn swiglu(part: &str) -> Option<Part> {
    Some(match part {
        "gate_proj" => Part::Gate,
        "up_proj" => Part::Up,
        "down_proj" => Part::Down,
        _ => return None,
    })
}

fn mixtral(part: &str) -> Option<Part> {
    Some(match part {
        "w1" => Part::Gate,
        "w3" => Part::Up,
        "w2" => Part::Down,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(family: Family, prefix: &str) -> Names {
        Names { family, prefix: prefix.into() }
    }

    fn role(family: Family, name: &str) -> Option<Role> {
        names(family, "model.").read(name).map(|p| p.role)
    }

    #[test]
    fn each_family_reads_its_own_names_only() {
        use Family::{Llama, Mixtral, Olmoe, Qwen3, Qwen3Moe, Qwen3Next, Qwen35, Qwen35Moe};
        let all = [Llama, Qwen3, Qwen3Moe, Qwen3Next, Qwen35, Qwen35Moe, Mixtral, Olmoe];
        let cases: [(&str, Role, &[Family]); 12] = [
            ("self_attn.q_proj.bias", Role::Attention(Part::Q), &all),
            ("self_attn.q_norm.weight", Role::Norm, &[Qwen3, Qwen3Moe, Qwen3Next, Qwen35, Qwen35Moe, Olmoe]),
            ("mlp.gate.weight", Role::Router, &[Qwen3Moe, Qwen3Next, Qwen35Moe, Olmoe]),
            ("block_sparse_moe.gate.weight", Role::Router, &[Mixtral]),
            ("block_sparse_moe.experts.7.w3.weight", Role::Expert(7, Part::Up), &[Mixtral]),
            (
                "mlp.experts.12.up_proj.weight",
                Role::Expert(12, Part::Up),
                &[Qwen3Moe, Qwen3Next, Qwen35Moe, Olmoe],
            ),
            ("mlp.experts.gate_up_proj", Role::ExpertsGateUp, &[Qwen3Moe, Qwen3Next, Qwen35Moe, Olmoe]),
            ("mlp.up_proj.weight", Role::Mlp(Part::Up), &[Llama, Qwen3, Qwen3Moe, Qwen3Next, Qwen35]),
            ("mlp.shared_expert_gate.weight", Role::SharedExpertGate, &[Qwen3Next, Qwen35Moe]),
            ("linear_attn.in_proj_qkvz.weight", Role::DeltaNet(Part::InQkvz), &[Qwen3Next]),
            ("linear_attn.in_proj_qkv.weight", Role::DeltaNet(Part::InQkv), &[Qwen35, Qwen35Moe]),
            ("linear_attn.A_log", Role::Decay, &[Qwen3Next, Qwen35, Qwen35Moe]),
        ];
        for (tail, want, families) in cases {
            for family in all {
                let found = role(family, &format!("model.layers.3.{tail}"));
                assert_eq!(found, families.contains(&family).then_some(want), "{family:?} {tail}");
            }
        }
    }

    #[test]
    fn place_tells_module_leaf_and_layer() {
        let names = names(Family::Qwen35Moe, "model.language_model.");
        let p = names.read("mtp.layers.0.mlp.experts.5.down_proj.weight_scale_inv").unwrap();
        assert_eq!(p.module, "mtp.layers.0.mlp.experts.5.down_proj");
        assert_eq!((p.leaf, p.layer), (Leaf::Quantized("weight_scale_inv"), Some(Layer::Mtp(0))));
        let p = names.read("model.language_model.layers.31.mlp.experts.down_proj").unwrap();
        assert_eq!(
            (p.module, p.layer),
            ("model.language_model.layers.31.mlp.experts.down_proj", Some(Layer::Body(31)))
        );
        assert_eq!(names.read("model.visual.blocks.0.attn.qkv.bias").unwrap().role, Role::Vision);
        assert_eq!(names.read("mtp.fc.weight").unwrap().role, Role::MtpFusion);
    }

    #[test]
    fn names_that_do_not_belong_are_not_read() {
        for name in [
            "model.layers.01.self_attn.q_proj.weight",
            "model.layers.+1.self_attn.q_proj.weight",
            "model.layers.1.self_attn.q_proj.lora_A",
            "model.layers.1.self_attn.weight",
            "model.layers.1.input_layernorm.weight_scale",
            "model.layers.1.self_attn.q_proj.k_scale",
            "model.language_model.layers.1.self_attn.q_proj.weight",
            "mtp.fc.weight",
            "model.visual.pos_embed.weight",
            "base_model.model.lm_head.weight",
            "transformer.h.0.attn.c_attn.weight",
            "",
        ] {
            assert_eq!(role(Family::Qwen3, name), None, "{name}");
        }
    }

    #[test]
    fn scales_of_the_cache_belong_to_the_attention() {
        assert_eq!(role(Family::Qwen3, "model.layers.1.self_attn.k_scale"), Some(Role::KvCache));
        assert_eq!(role(Family::Qwen3, "model.layers.1.self_attn.attn.v_scale"), Some(Role::KvCache));
    }
}

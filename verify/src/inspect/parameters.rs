//! How many numbers a model has, by part; codes of quantized formats count as the numbers that they stand for.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::architecture::{Layer, Leaf, Names, Role};
use crate::checkpoint::{TensorIndex, TensorSpec};
use crate::inspect::dimensions::Experts;

/// A part of a model that people ask the size of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Token embedding.
    Embedding,
    /// Output head, where it is stored.
    Head,
    /// Attention with keys and values.
    Attention,
    /// Gated DeltaNet.
    LinearAttention,
    /// Dense MLP.
    Mlp,
    /// Routed experts.
    RoutedExperts,
    /// Shared expert and its gate.
    SharedExpert,
    /// Routers.
    Router,
    /// Norms outside of attention.
    Norms,
    /// Multi-token prediction.
    Mtp,
    /// Vision tower.
    Vision,
    /// Names that the family does not have.
    Other,
}

impl Part {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Part::Embedding => "embedding",
            Part::Head => "output head",
            Part::Attention => "attention",
            Part::LinearAttention => "linear attention",
            Part::Mlp => "dense MLP",
            Part::RoutedExperts => "routed experts",
            Part::SharedExpert => "shared expert",
            Part::Router => "routers",
            Part::Norms => "norms",
            Part::Mtp => "mtp (draft layer)",
            Part::Vision => "vision",
            Part::Other => "other",
        }
    }
}

/// Numbers and bytes of a part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Amount {
    /// Numbers that the part stands for.
    pub parameters: u64,
    /// Bytes in the files, scales included.
    pub bytes: u64,
    /// Tensors.
    pub tensors: usize,
}

/// A part with its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Sized {
    /// The part.
    pub part: Part,
    /// Its size.
    #[serde(flatten)]
    pub amount: Amount,
}

/// All parts of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Parameters {
    /// The parts that are there.
    pub parts: Vec<Sized>,
    /// Everything, mtp and vision included.
    pub total: u64,
    /// The language model alone, which is what model cards count.
    pub language: u64,
    /// What one token passes of the language model: all but the experts that it is not sent to.
    pub active: u64,
}

impl Parameters {
    /// Counts `index`. `names` is `None` for a family that is not known: everything is [`Part::Other`] then. Packed
    /// 32-bit words hold `per_word` codes.
    pub fn count(
        index: &TensorIndex,
        names: Option<&Names>,
        experts: Option<Experts>,
        per_word: usize,
    ) -> Self {
        let mut parts: BTreeMap<Part, Amount> = BTreeMap::new();
        for t in index.tensors() {
            let (part, leaf) = part_of(&t.spec, names);
            let amount = parts.entry(part).or_default();
            amount.parameters += numbers(&t.spec, leaf, per_word);
            amount.bytes += t.spec.byte_len();
            amount.tensors += 1;
        }
        let of = |part: Part| parts.get(&part).map_or(0, |a| a.parameters);
        let total: u64 = parts.values().map(|a| a.parameters).sum();
        let language = total - of(Part::Mtp) - of(Part::Vision);
        let routed = of(Part::RoutedExperts);
        let passed = experts
            .map_or(routed, |e| (u128::from(routed) * e.per_token as u128 / e.count.max(1) as u128) as u64);
        let parts = parts.into_iter().map(|(part, amount)| Sized { part, amount }).collect();
        Parameters { parts, total, language, active: language - routed + passed }
    }

    /// The size of a part.
    pub fn of(&self, part: Part) -> Amount {
        self.parts.iter().find(|p| p.part == part).map(|p| p.amount).unwrap_or_default()
    }
}

fn part_of(spec: &TensorSpec, names: Option<&Names>) -> (Part, Option<Leaf>) {
    let Some(place) = names.and_then(|n| n.read(&spec.name)) else { return (Part::Other, None) };
    let part = match place.role {
        _ if matches!(place.layer, Some(Layer::Mtp(_))) || spec.name.starts_with("mtp.") => Part::Mtp,
        Role::Vision => Part::Vision,
        Role::Embedding => Part::Embedding,
        Role::Head => Part::Head,
        Role::Attention(_) | Role::KvCache => Part::Attention,
        Role::DeltaNet(_) | Role::Convolution | Role::Decay => Part::LinearAttention,
        Role::Mlp(_) => Part::Mlp,
        Role::Expert(..) | Role::ExpertsGateUp | Role::ExpertsDown => Part::RoutedExperts,
        Role::SharedExpert(_) | Role::SharedExpertGate => Part::SharedExpert,
        Role::Router => Part::Router,
        Role::Norm if place.module.contains(".self_attn.") => Part::Attention,
        Role::Norm if place.module.contains(".linear_attn.") => Part::LinearAttention,
        Role::Norm => Part::Norms,
        Role::MtpFusion => Part::Mtp,
        Role::Buffer => Part::Other,
    };
    (part, Some(place.leaf))
}

/// The numbers that a tensor stands for: none for scales and zero points, `per_word` for 32 bits of codes.
fn numbers(spec: &TensorSpec, leaf: Option<Leaf>, per_word: usize) -> u64 {
    let leaf = match leaf {
        Some(Leaf::Quantized(name)) => name,
        Some(_) => return spec.elements() as u64,
        // A name that nobody reads: its last part still tells codes from scales.
        None => spec.name.rsplit_once('.').map_or("", |(_, leaf)| leaf),
    };
    match leaf {
        "weight_packed" | "qweight" => spec.byte_len() * per_word as u64 / 4,
        "weight_scale_inv"
        | "weight_scale"
        | "input_scale"
        | "activation_scale"
        | "weight_zero_point"
        | "weight_shape"
        | "weight_g_idx"
        | "weight_global_scale"
        | "input_global_scale"
        | "input_zero_point"
        | "qzeros"
        | "scales"
        | "g_idx"
        | "k_scale"
        | "v_scale"
        | "q_scale" => 0,
        _ => spec.elements() as u64,
    }
}

//! Tensor by tensor: names, dtypes, shapes, and that weights and scales find each other.

use super::Fault;
use crate::architecture::{Leaf, Names, Part, Place, Role};
use crate::checkpoint::{TensorIndex, TensorMeta};
use crate::codec::Fp8Config;
use crate::codec::float::Float;
use crate::dtype::Dtype;

pub(super) fn faults(names: &Names, format: &Fp8Config, index: &TensorIndex) -> Vec<Fault> {
    let mut faults = Vec::new();
    for t in index.tensors() {
        let name = &t.spec.name;
        let mut fault = |sentence: String| faults.push(Fault::new(name, sentence));
        let Some(place) = names.read(name) else {
            fault(format!(
                "is no tensor of a {} model: loaders do not know where to put it",
                names.family().name()
            ));
            continue;
        };
        match (place.role, place.leaf) {
            (Role::ExpertsGateUp | Role::ExpertsDown, _) => {
                fault("holds all experts in one tensor: FP8 loaders expect one matrix per expert".into())
            }
            (_, Leaf::Weight) => weight(&place, format, index, t, &mut fault),
            (_, Leaf::Quantized(leaf)) if is_scale(leaf) => scale(&place, leaf, format, index, t, &mut fault),
            _ => {}
        }
    }
    faults
}

fn is_scale(leaf: &str) -> bool {
    matches!(leaf, "weight_scale_inv" | "weight_scale")
}

fn weight(
    place: &Place<'_>,
    format: &Fp8Config,
    index: &TensorIndex,
    t: &TensorMeta,
    fault: &mut impl FnMut(String),
) {
    match t.spec.dtype {
        Dtype::F8_E4M3 => {}
        d if Float::of(d).is_some() => return,
        d => return fault(format!("has dtype {d}: loaders expect F8_E4M3 or a plain float")),
    }
    if let Some(why) = never_quantized(place.role) {
        return fault(format!("is FP8, but {why}"));
    }
    if t.spec.shape.len() != 2 {
        return fault(format!("is FP8 with shape {:?}: loaders expect a matrix", t.spec.shape));
    }
    let leaf = format.scale_leaf();
    let has = |leaf: &str| index.contains(&format!("{}.{leaf}", place.module));
    let other = ["weight_scale_inv", "weight_scale", "scale", "weight_scales"].into_iter().find(|l| has(l));
    match (has(leaf), other) {
        (true, _) => {}
        (false, Some(other)) => fault(format!("has its scales under `{other}`: loaders look for `{leaf}`")),
        (false, None) => fault(format!("has no scales: `{}.{leaf}` is missing", place.module)),
    }
}

/// Why servers never load a module of this role as FP8.
pub(super) fn never_quantized(role: Role) -> Option<&'static str> {
    Some(match role {
        Role::Router => "servers build the router in 16 bit",
        Role::SharedExpertGate => "servers build the gate of the shared expert in 16 bit",
        Role::Embedding => "embeddings are looked up in 16 bit",
        Role::Head => "servers build the output head in 16 bit",
        Role::Norm => "norms are never quantized",
        Role::Convolution => "the convolution is never quantized",
        Role::DeltaNet(Part::InA | Part::InB | Part::InBa) => {
            "servers split these few rows finer than any scale"
        }
        _ => return None,
    })
}

fn scale(
    place: &Place<'_>,
    leaf: &str,
    format: &Fp8Config,
    index: &TensorIndex,
    t: &TensorMeta,
    fault: &mut impl FnMut(String),
) {
    let weight = index.get(&format!("{}.weight", place.module));
    let Some(weight) = weight.filter(|w| w.spec.dtype == Dtype::F8_E4M3) else {
        return fault("are scales of no FP8 weight: loaders find no place for them".into());
    };
    if leaf != format.scale_leaf() {
        return; // Told at the weight.
    }
    if !matches!(t.spec.dtype, Dtype::F32 | Dtype::BF16) {
        fault(format!("has dtype {}: loaders expect F32 (BF16 is read too)", t.spec.dtype));
    }
    let [rows, cols] = weight.spec.shape[..] else { return };
    let shapes = format.scale_shapes(rows, cols);
    if !shapes.contains(&t.spec.shape) {
        fault(format!(
            "has shape {:?}: the weight is {rows} x {cols}, so loaders expect {:?}",
            t.spec.shape, shapes[0]
        ));
    }
}

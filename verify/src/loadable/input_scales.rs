//! Stored scales of what goes into FP8 matrices, where the config says that servers shall not look for their own.

use super::fused::is_fp8;
use super::{Fault, values};
use crate::architecture::{Architecture, Module, Part, Role, UnitKind};
use crate::checkpoint::{Checkpoint, TensorIndex, TensorMeta, TensorReader};
use crate::codec::Fp8Config;
use crate::codec::float::Float;
use crate::codec::fp8::Grid;
use crate::codec::fp8_config::{Activations, Method};
use crate::error::Result;

pub(super) fn faults(arch: &Architecture, format: &Fp8Config, checkpoint: &Checkpoint) -> Result<Vec<Fault>> {
    let index = checkpoint.index();
    let mut faults = Vec::new();
    let stored: Vec<(&Module, &TensorMeta)> =
        arch.modules().iter().filter_map(|m| Some((m, scale_of(m, index)?))).collect();
    for (m, t) in &stored {
        if !is_fp8(m, index) {
            let sentence = "scales the inputs of no FP8 weight: loaders find no place for it";
            faults.push(Fault::new(&t.spec.name, sentence));
        }
        faults.extend(one_number(t));
        if let Some(float) = Float::of(t.spec.dtype) {
            faults.extend(values::scales(checkpoint, &t.spec, float)?);
        }
    }
    match (format.activations, stored.first()) {
        (Activations::Dynamic, None) => {}
        (Activations::Dynamic, Some((_, first))) => {
            let sentence = format!(
                "and {} more scales of inputs are stored, but config.json says that servers scale inputs as they go: some loaders stop at them",
                stored.len() - 1
            );
            faults.push(Fault::new(&first.spec.name, sentence));
        }
        (Activations::Static, None) => {
            let sentence = "says in config.json that scales of inputs are stored, but there is none: servers would scale by what lay in memory";
            faults.push(Fault::new(key(format.method), sentence));
        }
        (Activations::Static, Some(_)) => {
            faults.extend(unserved(arch, format));
            faults.extend(missing(arch, index));
            faults.extend(unequal(arch, checkpoint)?);
        }
    }
    Ok(faults)
}

fn key(method: Method) -> &'static str {
    match method {
        Method::Fp8 => "activation_scheme",
        Method::CompressedTensors => "input_activations",
    }
}

fn scale_of<'a>(m: &Module, index: &'a TensorIndex) -> Option<&'a TensorMeta> {
    index.get(&format!("{}.input_scale", m.name))
}

/// Faults of a scale that must be one number.
fn one_number(t: &TensorMeta) -> Option<Fault> {
    let spec = &t.spec;
    if Float::of(spec.dtype).is_none() {
        return Some(Fault::new(
            &spec.name,
            format!("has dtype {}: loaders expect F32 (BF16 is read too)", spec.dtype),
        ));
    }
    let fits = matches!(spec.shape[..], [] | [1]);
    (!fits).then(|| {
        Fault::new(&spec.name, format!("has shape {:?}: loaders expect one number, [1]", spec.shape))
    })
}

/// Weights beside which servers take no stored scales.
fn unserved(arch: &Architecture, format: &Fp8Config) -> Option<Fault> {
    let experts = arch.units().iter().any(|u| u.kind == UnitKind::Experts);
    let why = match (format.grid, experts) {
        (Grid::Tensor, _) | (Grid::Channel, false) => return None,
        (Grid::Block, _) => {
            "weights are scaled by blocks: vLLM stops, as it knows blocks with inputs scaled as they go only"
        }
        (Grid::Channel, true) => {
            "weights of experts are scaled by channel: vLLM and SGLang stop, as their experts need one scale for each matrix"
        }
    };
    Some(Fault::new(
        key(format.method),
        format!("says in config.json that scales of inputs are stored, but {why}"),
    ))
}

fn missing(arch: &Architecture, index: &TensorIndex) -> Vec<Fault> {
    let without = arch.modules().iter().filter(|m| is_fp8(m, index) && scale_of(m, index).is_none());
    let fault = |m: &Module| {
        let sentence = format!("has no scale for its inputs: `{}.input_scale` is missing", m.name);
        Fault::new(&m.name, sentence)
    };
    without.map(fault).collect()
}

/// Matrices that loaders merge and that were given different scales, though they read the same.
fn unequal(arch: &Architecture, checkpoint: &Checkpoint) -> Result<Vec<Fault>> {
    let mut faults = Vec::new();
    for unit in arch.units().iter().filter(|u| u.is_merged()) {
        let members = || unit.members.iter().map(|&m| &arch.modules()[m]);
        if unit.kind != UnitKind::Experts {
            faults.extend(differing(&unit.name, members(), checkpoint)?);
            continue;
        }
        // Between experts vLLM takes the largest; within one it refuses.
        let both = |m: &&Module| matches!(m.role, Role::Expert(_, Part::Gate | Part::Up));
        let mut experts: Vec<&Module> = members().filter(both).collect();
        experts.sort_by_key(|m| number(m.role));
        for pair in experts.chunk_by(|a, b| number(a.role) == number(b.role)) {
            let name = pair[0].name.rsplit_once('.').map_or("", |(expert, _)| expert);
            faults.extend(differing(name, pair.iter().copied(), checkpoint)?);
        }
    }
    Ok(faults)
}

fn number(role: Role) -> Option<usize> {
    match role {
        Role::Expert(n, _) => Some(n),
        _ => None,
    }
}

fn differing<'a>(
    name: &str,
    members: impl Iterator<Item = &'a Module>,
    checkpoint: &Checkpoint,
) -> Result<Option<Fault>> {
    let mut seen: Option<(&Module, f32)> = None;
    for m in members {
        let Some(scale) =
            scale_of(m, checkpoint.index()).map(|t| values::number(checkpoint, t)).transpose()?.flatten()
        else {
            continue;
        };
        match seen {
            Some((first, other)) if other != scale => {
                let sentence = format!(
                    "has parts that read the same input with different scales, {other} of `{}` and {scale} of `{}`: loaders refuse them or take the larger one for all",
                    first.name, m.name
                );
                return Ok(Some(Fault::new(name, sentence)));
            }
            Some(_) => {}
            None => seen = Some((m, scale)),
        }
    }
    Ok(None)
}

//! Fused layers: one fate for all parts, and whole blocks in every part but the last.

use super::Fault;
use crate::architecture::{Architecture, Module, Part, Role, UnitKind};
use crate::checkpoint::TensorIndex;
use crate::codec::Fp8Config;
use crate::codec::fp8::{BLOCK, Grid};
use crate::dtype::Dtype;

pub(super) fn faults(arch: &Architecture, format: &Fp8Config, index: &TensorIndex) -> Vec<Fault> {
    let mut faults = half_quantized(arch, "FP8", |m| is_fp8(m, index));
    if format.grid == Grid::Block {
        for unit in arch.units().iter().filter(|u| u.is_merged()) {
            let members = unit.members.iter().map(|&m| &arch.modules()[m]);
            faults.extend(members.filter(|m| is_fp8(m, index)).find_map(|m| ragged(m, unit.kind)));
        }
    }
    faults
}

/// Units of which some parts are quantized (`what` they then are) and others not.
pub(super) fn half_quantized(
    arch: &Architecture,
    what: &str,
    is_quantized: impl Fn(&Module) -> bool,
) -> Vec<Fault> {
    let mut faults = Vec::new();
    for unit in arch.units().iter().filter(|u| u.is_merged()) {
        let members = || unit.members.iter().map(|&m| &arch.modules()[m]);
        let plain: Vec<&str> = members().filter(|m| !is_quantized(m)).map(|m| m.name.as_str()).collect();
        let (n, all) = (unit.members.len() - plain.len(), unit.members.len());
        if let (Some(first), true) = (plain.first(), n > 0) {
            faults.push(Fault::new(
                &unit.name,
                format!("is half quantized: {n} of its {all} parts are {what}, `{first}` is not; loaders fuse them and need all or none"),
            ));
        }
    }
    faults
}

pub(super) fn is_fp8(m: &Module, index: &TensorIndex) -> bool {
    index.get(&m.source.tensor).is_some_and(|t| t.spec.dtype == Dtype::F8_E4M3)
}

fn ragged(m: &Module, kind: UnitKind) -> Option<Fault> {
    let whole = match kind {
        UnitKind::Experts => m.rows.is_multiple_of(BLOCK) && m.cols.is_multiple_of(BLOCK),
        // What stands after all others may end within a block.
        _ => is_last(m.role) || m.rows.is_multiple_of(BLOCK),
    };
    (!whole).then(|| {
        let sentence = format!(
            "is {} x {}, not whole blocks of 128: the fused layer cannot tell its scales apart",
            m.rows, m.cols
        );
        Fault::new(&m.name, sentence)
    })
}

/// True for the part that a fused layer ends with.
fn is_last(role: Role) -> bool {
    matches!(
        role,
        Role::Attention(Part::V)
            | Role::Mlp(Part::Up)
            | Role::SharedExpert(Part::Up)
            | Role::DeltaNet(Part::InZ)
    )
}

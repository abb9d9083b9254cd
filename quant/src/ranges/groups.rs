//! Matrices whose inputs have one scale: servers read what they have in common once, or merge their scales.
//!
//! | group | what is looked at |
//! |---|---|
//! | q, k, v | the input of the first |
//! | `in_proj_qkv`, `in_proj_z` | the input of the first |
//! | gate, up of an MLP or shared expert | the input of the first |
//! | gate and up of all experts | the router's input: every token |
//! | down of all experts | the inputs of all (vLLM takes the largest over the experts) |
//! | any other | its own input |

use verify::architecture::{Architecture, Layer, Part, Role, UnitKind};

use crate::select::Fate;

/// Matrices under one input scale.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// For the report: the path of what they are together.
    pub name: String,
    /// Indices of `Architecture::modules`.
    pub members: Vec<usize>,
    /// Paths of the modules whose inputs are looked at.
    pub watched: Vec<String>,
}

/// The groups of body layer `layer` that are quantized, in the order of the units.
pub fn of_layer(arch: &Architecture, fates: &[Fate], layer: usize) -> Vec<Group> {
    let modules = arch.modules();
    let here = |m: usize| modules[m].layer == Some(Layer::Body(layer)) && fates[m] == Fate::Quantize;
    let mut groups = Vec::new();
    for unit in arch.units().iter().filter(|u| u.members.first().is_some_and(|m| here(*m))) {
        let is_down = |m: &usize| matches!(modules[*m].role, Role::Expert(_, Part::Down));
        let names = |members: &[usize]| members.iter().map(|m| modules[*m].name.clone()).collect::<Vec<_>>();
        if unit.kind != UnitKind::Experts {
            let watched = names(&unit.members[..1]);
            groups.push(Group { name: unit.name.clone(), members: unit.members.clone(), watched });
            continue;
        }
        let (down, both): (Vec<usize>, Vec<usize>) = unit.members.iter().copied().partition(is_down);
        let is_router =
            |m: &usize| modules[*m].layer == Some(Layer::Body(layer)) && modules[*m].role == Role::Router;
        let router: Vec<usize> = (0..modules.len()).filter(is_router).collect();
        let of = |part: &str| format!("{}.*.{part}", unit.name);
        groups.push(Group { name: of("gate_up"), members: both, watched: names(&router) });
        groups.push(Group { name: of("down"), watched: names(&down), members: down });
    }
    groups
}

/// Paths of the body's attentions with their layers, and the index of their `k_proj`.
pub fn attentions(arch: &Architecture) -> Vec<(usize, usize, String)> {
    let all = arch.modules().iter().enumerate();
    all.filter_map(|(at, m)| match (m.role, m.layer) {
        (Role::Attention(Part::K), Some(Layer::Body(n))) => {
            Some((n, at, m.name.rsplit_once('.').map_or("", |(path, _)| path).to_string()))
        }
        _ => None,
    })
    .collect()
}

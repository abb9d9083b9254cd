//! Linears that servers fuse into one: all of a unit are quantized, or none.

use std::collections::BTreeMap;

use super::family::Family;
use super::module::Module;
use super::name::{Layer, Part, Role};
use crate::checkpoint::{Config, list_some};
use crate::error::{Error, Result};

/// Linears that share one fate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit {
    /// Path of the fused module, such as `model.layers.3.self_attn.qkv_proj`.
    pub name: String,
    /// What is fused.
    pub kind: UnitKind,
    /// Indices into `Architecture::modules`.
    pub members: Vec<usize>,
}

/// What a unit fuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum UnitKind {
    /// Query, key and value.
    Qkv,
    /// Gate and up of a dense MLP or shared expert.
    GateUp,
    /// Query, key, value and gate of a DeltaNet layer.
    InQkvz,
    /// b and a of a DeltaNet layer, which stay in 16 bit.
    InBa,
    /// All routed experts of a layer.
    Experts,
    /// A linear of its own.
    Single,
}

impl Unit {
    /// True where the server makes one matrix of several, rows after rows.
    pub fn is_merged(&self) -> bool {
        !matches!(self.kind, UnitKind::Single)
    }
}

/// Groups the linears of body and mtp.
pub(super) fn units(modules: &[Module], config: &Config) -> Result<Vec<Unit>> {
    // Keyed by layer and fused name; listed by first member, which is file order.
    let mut groups: BTreeMap<(Layer, String), Unit> = BTreeMap::new();
    for (at, m) in modules.iter().enumerate() {
        let (Some(layer), Some((kind, leaf))) = (m.layer, fused(m.role)) else { continue };
        let block = block_of(m);
        let name = match leaf {
            "" if kind == UnitKind::Experts => block.to_string(),
            "" => m.name.clone(),
            leaf => format!("{block}.{leaf}"),
        };
        let unit = groups.entry((layer, name.clone())).or_insert(Unit { name, kind, members: Vec::new() });
        unit.members.push(at);
    }
    let mut units: Vec<Unit> = groups.into_values().collect();
    units.sort_by_key(|u| u.members[0]);
    let missing: Vec<String> =
        units.iter().map(|u| missing(u, modules, config)).collect::<Result<Vec<_>>>()?.concat();
    match missing.is_empty() {
        true => Ok(units),
        false => Err(Error::input("parts of fused layers are missing")
            .found(format!("no {}", list_some(&missing)))
            .expected("every part of a layer that servers fuse")
            .hint("a shard is missing or the folder mixes two models: fetch it again")),
    }
}

/// What a linear is fused into, and the fused leaf; an empty one stands for the linear (or block) itself.
fn fused(role: Role) -> Option<(UnitKind, &'static str)> {
    Some(match role {
        Role::Attention(Part::Q | Part::K | Part::V) => (UnitKind::Qkv, "qkv_proj"),
        Role::Mlp(Part::Gate | Part::Up) | Role::SharedExpert(Part::Gate | Part::Up) => {
            (UnitKind::GateUp, "gate_up_proj")
        }
        Role::DeltaNet(Part::InQkv | Part::InZ) => (UnitKind::InQkvz, "in_proj_qkvz"),
        Role::DeltaNet(Part::InB | Part::InA | Part::InBa) => (UnitKind::InBa, "in_proj_ba"),
        Role::Expert(..) => (UnitKind::Experts, ""),
        Role::Attention(_) | Role::Mlp(_) | Role::SharedExpert(_) | Role::DeltaNet(_) => {
            (UnitKind::Single, "")
        }
        _ => return None,
    })
}

/// The path above a linear; for an expert that of all experts.
fn block_of(m: &Module) -> &str {
    let up = |path: &'_ str| path.rfind('.').unwrap_or(0);
    let block = &m.name[..up(&m.name)];
    match m.role {
        Role::Expert(..) => &block[..up(block)],
        _ => block,
    }
}

/// Paths of the parts that a unit lacks.
fn missing(unit: &Unit, modules: &[Module], config: &Config) -> Result<Vec<String>> {
    let members = || unit.members.iter().map(|&m| &modules[m]);
    let Some(first) = members().next() else { return Ok(Vec::new()) };
    let grouped = Family::of(config)? == Family::Qwen3Next;
    let (block, leaves): (&str, &[&str]) = match unit.kind {
        UnitKind::Qkv => (block_of(first), &["q_proj", "k_proj", "v_proj"]),
        UnitKind::GateUp => (block_of(first), &["gate_proj", "up_proj"]),
        UnitKind::InQkvz => (block_of(first), &["in_proj_qkv", "in_proj_z"]),
        UnitKind::InBa if !grouped => (block_of(first), &["in_proj_b", "in_proj_a"]),
        UnitKind::InBa | UnitKind::Single => return Ok(Vec::new()),
        UnitKind::Experts => return missing_experts(unit, modules, config),
    };
    let lacks = |leaf: &&&str| !members().any(|m| m.name.strip_prefix(block) == Some(&format!(".{leaf}")));
    Ok(leaves.iter().filter(lacks).map(|leaf| format!("{block}.{leaf}")).collect())
}

fn missing_experts(unit: &Unit, modules: &[Module], config: &Config) -> Result<Vec<String>> {
    let count = match config.count("num_experts")? {
        Some(n) => Some(n),
        None => config.count("num_local_experts")?,
    };
    let count = count.ok_or_else(|| {
        Error::input("config.json does not tell the number of experts").expected("the key `num_experts`")
    })?;
    let mut have: Vec<(usize, Part)> = Vec::with_capacity(unit.members.len());
    for &m in &unit.members {
        match modules[m].role {
            Role::Expert(e, _) if e >= count => {
                return Err(Error::input(format!("`{}` is beyond the number of experts", modules[m].name))
                    .expected(format!("experts 0 to {} as config.json says", count.saturating_sub(1))));
            }
            Role::Expert(e, part) => have.push((e, part)),
            _ => {}
        }
    }
    have.sort_unstable();
    if let Some(twice) = have.windows(2).find(|w| w[0] == w[1]) {
        return Err(Error::input(format!("`{}` holds expert {} twice", unit.name, twice[0].0))
            .found("a stack of experts beside experts of their own")
            .expected("one of the two layouts"));
    }
    let all = (0..count).flat_map(|e| [Part::Gate, Part::Up, Part::Down].map(|p| (e, p)));
    let lacks = all.filter(|want| have.binary_search(want).is_err()).take(100);
    Ok(lacks.map(|(e, part)| format!("{}.{e} {part:?}", unit.name)).collect())
}

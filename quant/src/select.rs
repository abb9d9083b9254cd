//! Which modules are quantized, which are not, and why.

use std::collections::{HashMap, HashSet};

use verify::architecture::{Architecture, Module, Part, Role, Unit, UnitKind};
use verify::error::Result;
use verify::rewrite::Decision;

use crate::pattern::Pattern;

/// What becomes of a module.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Fate {
    /// It is quantized.
    Quantize,
    /// It stays as it is, for this reason.
    Keep(String),
}

/// Indices of `Architecture::modules` by the tensor that holds them: one of a plain matrix, many of a stack of experts.
pub fn modules_by_tensor(arch: &Architecture) -> HashMap<&str, Vec<usize>> {
    let mut held: HashMap<&str, Vec<usize>> = HashMap::new();
    for (at, m) in arch.modules().iter().enumerate() {
        held.entry(&m.source.tensor).or_default().push(at);
    }
    held
}

/// The fate of every module of an architecture.
#[derive(Debug)]
pub struct Selection {
    /// By index of `Architecture::modules`.
    pub fates: Vec<Fate>,
    /// Units that could have been quantized and are not (indices of `Architecture::units`), with their reason.
    pub left_out: Vec<(usize, String)>,
    /// Patterns that matched nothing.
    pub unused: Vec<String>,
}

/// Why the scheme cannot store a module of a unit, if it cannot.
pub type Obstacle<'a> = &'a dyn Fn(&Unit, &Module) -> Option<String>;

/// Decides for every module. A fused unit has one fate: that of the first member that must stay.
///
/// # Errors
/// Exit 2 for a pattern that cannot be evaluated.
pub fn select(arch: &Architecture, ignore: &[Pattern], obstacle: Obstacle<'_>) -> Result<Selection> {
    let modules = arch.modules();
    let mut fates: Vec<Fate> = modules.iter().map(|m| Fate::Keep(why_kept(m.role).to_string())).collect();
    let mut used = vec![false; ignore.len()];
    let mut ignored: Vec<Option<&str>> = vec![None; modules.len()];
    for (m, by) in modules.iter().zip(&mut ignored) {
        for (pattern, used) in ignore.iter().zip(&mut used) {
            if pattern.matches(&m.name)? {
                *used = true;
                by.get_or_insert(pattern.text());
            }
        }
    }
    let mut left_out = Vec::new();
    for (at, unit) in arch.units().iter().enumerate().filter(|(_, u)| u.kind != UnitKind::InBa) {
        let reason = unit.members.iter().find_map(|&m| {
            let asked = || ignored[m].map(|p| format!("--ignore {p}"));
            let reason = asked().or_else(|| obstacle(unit, &modules[m]))?;
            Some(match unit.members.len() {
                1 => reason,
                _ => format!(
                    "{reason} (`{}`; fused parts are quantized together or not at all)",
                    modules[m].name
                ),
            })
        });
        let fate = reason.clone().map_or(Fate::Quantize, Fate::Keep);
        unit.members.iter().for_each(|&m| fates[m] = fate.clone());
        left_out.extend(reason.map(|reason| (at, reason)));
    }
    let unused = ignore.iter().zip(used).filter(|(_, used)| !used);
    Ok(Selection { fates, left_out, unused: unused.map(|(p, _)| p.text().to_string()).collect() })
}

/// Why a module that no unit holds is never quantized.
fn why_kept(role: Role) -> &'static str {
    match role {
        Role::Router => "router: a small matrix whose rounding would send tokens to other experts",
        Role::SharedExpertGate => "gate of the shared expert: one row, servers keep it in 16 bit",
        Role::Head => "output head: servers keep it in 16 bit",
        Role::DeltaNet(Part::InB | Part::InA | Part::InBa) => {
            "decay and write strength of the recurrent state: few rows, and errors add up over tokens"
        }
        Role::MtpFusion => "mtp.fc: servers keep it in 16 bit",
        Role::Vision => "vision tower: left as it is",
        _ => "not a linear that servers quantize",
    }
}

impl Selection {
    /// The decisions for the report: one for each unit left out, and one for each kind of module.
    pub fn decisions(&self, arch: &Architecture, format: &str) -> Vec<Decision> {
        let told: HashSet<usize> =
            self.left_out.iter().flat_map(|(unit, _)| arch.units()[*unit].members.iter().copied()).collect();
        let mut kinds: Tally<(String, &Fate)> = Tally::default();
        for (at, (m, fate)) in arch.modules().iter().zip(&self.fates).enumerate() {
            if !told.contains(&at) {
                kinds.count((without_numbers(&m.name), fate));
            }
        }
        let units = self.left_out.iter().map(|(unit, reason)| Decision {
            what: arch.units()[*unit].name.clone(),
            choice: "left in 16 bit".into(),
            reason: reason.clone(),
        });
        let kinds = kinds.list.into_iter().map(|((kind, fate), n)| {
            let (choice, reason) = match fate {
                Fate::Quantize => (format!("{n} quantized: {format}"), "linear of attention, MLP or expert"),
                Fate::Keep(reason) => (format!("{n} left as in the source"), reason.as_str()),
            };
            Decision { what: kind, choice, reason: reason.to_string() }
        });
        units.chain(kinds).collect()
    }
}

/// Counts by key, in the order in which keys come up.
struct Tally<K> {
    list: Vec<(K, usize)>,
    at: HashMap<K, usize>,
}

impl<K> Default for Tally<K> {
    fn default() -> Self {
        Tally { list: Vec::new(), at: HashMap::new() }
    }
}

impl<K: Clone + Eq + std::hash::Hash> Tally<K> {
    fn count(&mut self, key: K) {
        let at = *self.at.entry(key.clone()).or_insert(self.list.len());
        match self.list.get_mut(at) {
            Some((_, n)) => *n += 1,
            None => self.list.push((key, 1)),
        }
    }
}

/// A path with its numbers replaced by `*`: what modules of all layers and experts have in common.
pub fn without_numbers(path: &str) -> String {
    let part = |p: &'_ str| match p.bytes().all(|b| b.is_ascii_digit()) {
        true => "*".to_string(),
        false => p.to_string(),
    };
    path.split('.').map(part).collect::<Vec<_>>().join(".")
}

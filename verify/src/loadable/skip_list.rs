//! The list of modules in 16 bit (`modules_to_not_convert`, `ignore`) against what is stored.
//!
//! vLLM's `fp8` compares whole paths (an experts block is skipped where its path is part of a listed one);
//! transformers takes an entry as an expression for the beginning of a path, or as its end;
//! compressed-tensors compares whole paths, or expressions marked `re:` from the start of the path.

use std::collections::{HashMap, HashSet};

use fancy_regex::Regex;

use super::Fault;
use crate::architecture::{Architecture, Module, Role};
use crate::checkpoint::TensorIndex;
use crate::codec::fp8_config::Method;
use crate::error::{Error, Result};
use crate::names::Shown;

/// A skip list, and what is quantized.
pub(super) struct SkipList<'a> {
    /// Whose loader reads it.
    pub method: Method,
    /// Its entries.
    pub entries: &'a [String],
    /// What quantized modules are, such as `FP8`.
    pub what: &'a str,
    /// Which they are.
    pub is_quantized: &'a dyn Fn(&Module) -> bool,
}

pub(super) fn faults(arch: &Architecture, list: &SkipList<'_>, index: &TensorIndex) -> Result<Vec<Fault>> {
    let entries: Vec<Entry<'_>> =
        list.entries.iter().map(|text| Entry::new(text, list.method)).collect::<Result<_>>()?;
    let listed: HashMap<&str, usize> =
        list.entries.iter().enumerate().map(|(e, t)| (t.as_str(), e)).collect();
    let mut used: Vec<bool> = entries.iter().map(|e| e.text == "lm_head").collect();
    let mut faults = Vec::new();
    for m in arch.modules() {
        let hits: Vec<usize> = (0..entries.len()).filter(|&e| entries[e].hits(&m.name)).collect();
        // transformers knows the experts of a layer as one module, and vLLM's `fp8` as well.
        let block = experts_block(m).and_then(|block| listed.get(block));
        hits.iter().chain(block).for_each(|&e| used[e] = true);
        let exact = listed.contains_key(m.name.as_str()) || block.is_some();
        let covered = match list.method {
            Method::Fp8 => exact,
            Method::CompressedTensors => exact || !hits.is_empty(),
        };
        let by = |hits: &[usize]| hits.first().map(|&e| Shown(entries[e].text).to_string());
        match ((list.is_quantized)(m), covered, by(&hits)) {
            (true, false, None) | (false, true, _) => {}
            (true, _, by) => faults.push(Fault::new(
                &m.name,
                format!(
                    "is {}, but the skip list says 16 bit (entry `{}`)",
                    list.what,
                    by.unwrap_or_else(|| m.name.clone())
                ),
            )),
            (false, false, Some(by)) => faults.push(Fault::new(
                &m.name,
                format!("is in 16 bit and listed only through `{by}`: vLLM compares whole paths and would look for scales"),
            )),
            (false, false, None) => faults.push(Fault::new(
                &m.name,
                "is in 16 bit and not in the skip list: loaders would look for its scales",
            )),
        }
    }
    let others = others(arch, index);
    for (entry, used) in entries.iter().zip(used) {
        if !used && !others.iter().any(|o| entry.hits(o)) {
            faults.push(Fault::new(entry.text, "stands in the skip list and matches no module"));
        }
    }
    Ok(faults)
}

/// Modules that are no matrices, such as convolutions and norms; entries may name them too.
pub(super) fn others<'a>(arch: &'a Architecture, index: &'a TensorIndex) -> HashSet<&'a str> {
    let matrices: HashSet<&str> = arch.modules().iter().map(|m| m.name.as_str()).collect();
    let modules = index.tensors().iter().filter_map(|t| arch.names().read(&t.spec.name).map(|p| p.module));
    modules.filter(|module| !matrices.contains(module)).collect()
}

/// The path of all experts of the layer, for one of them.
pub(super) fn experts_block(m: &Module) -> Option<&str> {
    let block = m.name.find(".experts.").map(|at| &m.name[..at + ".experts".len()]);
    block.filter(|_| matches!(m.role, Role::Expert(..)))
}

/// One entry, as the loader of its format reads it.
struct Entry<'a> {
    text: &'a str,
    expression: Option<Regex>,
    method: Method,
}

impl<'a> Entry<'a> {
    fn new(text: &'a str, method: Method) -> Result<Self> {
        let bad = |e: fancy_regex::Error| {
            Error::input(format!("entry `{}` of the skip list is no expression", Shown(text)))
                .found(e.to_string())
        };
        let source = match (method, text.strip_prefix("re:")) {
            (Method::CompressedTensors, Some(re)) => Some(format!("^(?:{re})")),
            // A plain path is compared as text: its dots are no wildcards that anyone meant.
            (Method::Fp8, _) if text.contains(['*', '[', '(', '\\', '^', '$', '|', '+', '?']) => {
                Some(format!(r"^(?:{text})(?:\.|$)"))
            }
            _ => None,
        };
        let expression = source.map(|s| Regex::new(&s)).transpose().map_err(bad)?;
        Ok(Entry { text, expression, method })
    }

    /// True where some loader takes the entry for `module`.
    fn hits(&self, module: &str) -> bool {
        match (&self.expression, self.method) {
            (Some(re), _) => re.is_match(module).unwrap_or(false),
            (None, Method::CompressedTensors) => self.text == module,
            (None, Method::Fp8) => {
                let begins =
                    module.strip_prefix(self.text).is_some_and(|r| r.is_empty() || r.starts_with('.'));
                begins || module.ends_with(self.text)
            }
        }
    }
}

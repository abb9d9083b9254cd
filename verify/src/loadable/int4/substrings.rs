//! AutoAWQ's `modules_to_not_convert`: vLLM takes every entry as a piece of a path, so short ones hit too much.

use std::collections::HashSet;

use super::is_codes;
use crate::architecture::{Architecture, Module, Role};
use crate::checkpoint::TensorIndex;
use crate::loadable::Fault;
use crate::loadable::skip_list::{experts_block, others};

pub(super) fn faults(arch: &Architecture, entries: &[String], index: &TensorIndex) -> Vec<Fault> {
    let modules = || arch.modules().iter().filter(|m| m.role != Role::Head);
    let plain = || modules().filter(|m| !is_codes(&m.source.tensor));
    let mut faults = Vec::new();
    if entries.is_empty() {
        if let Some(first) = plain().next() {
            let sentence = format!(
                "is empty, while {} modules besides the head are in 16 bit, first `{}`: only newer vLLM finds that out by itself",
                plain().count(),
                first.name
            );
            faults.push(Fault::new("modules_to_not_convert", sentence));
        }
        return faults;
    }
    let others = others(arch, index);
    for entry in entries.iter().filter(|e| *e != "lm_head") {
        let hits = || modules().filter(|m| path(m).contains(entry.as_str()));
        // Entries may name experts one by one, beside the block that vLLM asks for.
        let names = |name: &str| name.contains(entry.as_str());
        let known = || modules().any(|m| names(&m.name)) || others.iter().any(|o| names(o));
        let packed: Vec<&Module> = hits().filter(|m| is_codes(&m.source.tensor)).collect();
        if let Some(first) = packed.first() {
            let sentence = format!(
                "in `modules_to_not_convert` is part of the path of {} quantized modules, first `{}`: vLLM would build them in 16 bit; list whole paths",
                packed.len(),
                first.name
            );
            faults.push(Fault::new(entry, sentence));
        } else if !known() {
            faults.push(Fault::new(entry, "stands in the skip list and matches no module"));
        }
    }
    let mut told = HashSet::new();
    for m in plain() {
        let path = path(m);
        if !entries.iter().any(|e| path.contains(e.as_str())) && told.insert(path) {
            let sentence =
                "is in 16 bit and not in `modules_to_not_convert`: loaders would look for its scales";
            faults.push(Fault::new(path, sentence));
        }
    }
    faults
}

/// The path that vLLM compares: experts are built as one block.
fn path(m: &Module) -> &str {
    experts_block(m).unwrap_or(&m.name)
}

//! Watches a layer and keeps the ranges of what goes into its matrices and into its cache.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use runner::cpu::{Array, Watch};
use runner::weights::Matrix;

use super::groups::Group;
use super::range::Range;

/// The ranges of a layer.
pub struct Seen {
    /// Number of the group that a module's inputs count for.
    group: HashMap<String, usize>,
    inputs: Vec<Mutex<Range>>,
    /// Keys and values.
    cached: [Mutex<Range>; 2],
}

impl Seen {
    /// Nothing yet of these groups.
    pub fn new(groups: &[Group]) -> Self {
        let each = groups.iter().enumerate();
        Seen {
            group: each.flat_map(|(n, g)| g.watched.iter().map(move |w| (w.clone(), n))).collect(),
            inputs: groups.iter().map(|_| Mutex::default()).collect(),
            cached: Default::default(),
        }
    }

    /// Half of the samples are through.
    pub fn halfway(&self) {
        self.inputs.iter().chain(&self.cached).for_each(|range| open(range).halfway());
    }

    /// Adds what inputs of the module `name` were found to be elsewhere.
    pub fn absorb(&self, name: &str, found: &Range) {
        if let Some(group) = self.group.get(name) {
            open(&self.inputs[*group]).absorb(found);
        }
    }

    /// True where inputs of the module are looked at.
    pub fn watches(&self, name: &str) -> bool {
        self.group.contains_key(name)
    }

    /// The inputs of a group.
    pub fn inputs(&self, group: usize) -> Range {
        open(&self.inputs[group]).clone()
    }

    /// Keys, then values.
    pub fn cached(&self) -> [Range; 2] {
        self.cached.each_ref().map(|range| open(range).clone())
    }
}

fn open(range: &Mutex<Range>) -> MutexGuard<'_, Range> {
    // Sums that a panic left behind are never used: it ends the run.
    range.lock().unwrap_or_else(|p| p.into_inner())
}

impl Watch for Seen {
    fn see(&self, matrix: &Matrix, x: &Array) {
        if let Some(group) = self.group.get(&*matrix.name) {
            open(&self.inputs[*group]).add(x);
        }
    }

    fn see_cached(&self, k: &Array, v: &Array) {
        let [keys, values] = &self.cached;
        open(keys).add(k);
        open(values).add(v);
    }
}

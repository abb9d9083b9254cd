//! What `prep doctor` looks at: machine, disk, GPU, environment. Each part is a list of facts and of findings.

mod disk;
mod environment;
mod gpu;
mod machine;

use std::path::Path;

use serde::Serialize;
use verify::template::{Finding, Level};

/// One part of the machine.
#[derive(Debug, Serialize)]
pub struct Section {
    /// Its name.
    pub name: &'static str,
    /// What is there, as label and text.
    pub facts: Vec<(String, String)>,
    /// What is wrong, each with its fix.
    pub findings: Vec<Finding>,
}

impl Section {
    fn new(name: &'static str) -> Self {
        Section { name, facts: Vec::new(), findings: Vec::new() }
    }

    fn fact(&mut self, label: &str, text: impl Into<String>) {
        self.facts.push((label.to_string(), text.into()));
    }

    fn finding(&mut self, level: Level, what: impl Into<String>, advice: impl Into<String>) {
        self.findings.push(Finding::new(level, what, advice));
    }
}

/// Looks at everything; results are to go to `out`.
pub fn examine(out: &Path) -> Vec<Section> {
    vec![machine::look(), disk::look(out), gpu::look(), environment::look(&|name| std::env::var(name).ok())]
}

//! What a check of a template found.

use std::path::Path;

use serde::Serialize;

use crate::names::naming_folder;

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Worth knowing.
    Note,
    /// Some servers or some conversations fail.
    Warning,
    /// The folder cannot be served as it is.
    Error,
}

impl Level {
    /// `note`, `warning` or `error`.
    pub fn name(self) -> &'static str {
        match self {
            Level::Note => "note",
            Level::Warning => "warning",
            Level::Error => "error",
        }
    }
}

/// One thing found, and what to do about it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    /// How much it matters.
    pub level: Level,
    /// What it is, as a sentence.
    pub what: String,
    /// What to do, as a sentence.
    pub advice: String,
}

impl Finding {
    /// A finding.
    pub fn new(level: Level, what: impl Into<String>, advice: impl Into<String>) -> Self {
        Finding { level, what: what.into(), advice: advice.into() }
    }

    /// The same, about the folder `dir`: its advice names it.
    pub fn about(self, dir: &Path) -> Self {
        Finding { advice: naming_folder(&self.advice, dir), ..self }
    }
}

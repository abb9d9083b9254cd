//! What differs between two model folders, told by what servers would see: files, config, template, tokenizer,
//! and weights by the numbers that they stand for, whichever format holds them.
//!
//! ```text
//!   A, B ─▶ files (bytes) · config (keys) · template (text, prompts) · tokens ─┐
//!        ─▶ matrices by module, in blocks of rows ─▶ relative error ───────────┴▶ Comparison ─▶ verdict
//! ```

mod config;
mod files;
mod int4;
mod matrices;
mod template;
mod values;

use serde::Serialize;

pub use config::KeyDifference;
pub use files::FileDifference;
pub use matrices::{Pair, Tensors};
pub use template::TemplateDifference;

use crate::checkpoint::Checkpoint;
use crate::error::Result;
use crate::progress::Progress;
use crate::rewrite::ModelView;

/// The differences of two folders.
#[derive(Debug, Clone, Serialize)]
pub struct Comparison {
    /// Side files that are not byte for byte the same, or are in one folder only.
    pub files: Vec<FileDifference>,
    /// Keys of config.json and generation_config.json.
    pub keys: Vec<KeyDifference>,
    /// The chat template.
    pub template: Option<TemplateDifference>,
    /// What differs of the tokenizer, in words.
    pub tokenizer: Vec<String>,
    /// The weights.
    pub tensors: Tensors,
    /// True where nothing differs: no key, no file, no tensor in name, type, shape or bytes.
    pub same: bool,
    /// All of it in one line.
    pub verdict: String,
}

/// Compares two folders. Holds a few blocks of rows in memory, never a model.
///
/// # Errors
/// Read errors; exit 3 for broken side files; exit 130 when stopped.
pub fn compare(a: &Checkpoint, b: &Checkpoint, progress: &dyn Progress) -> Result<Comparison> {
    let (va, vb) = (ModelView::of(a), ModelView::of(b));
    let files = files::differences(&va, &vb)?;
    let keys = config::differences(&va, &vb)?;
    let template = template::difference(&va, &vb)?;
    let tokenizer = template::tokenizer(&va, &vb)?;
    let tensors = matrices::compare(a, b, progress)?;
    let same =
        files.is_empty() && keys.is_empty() && template.is_none() && tokenizer.is_empty() && tensors.same();
    let mut comparison =
        Comparison { files, keys, template, tokenizer, tensors, same, verdict: String::new() };
    comparison.verdict = verdict(&comparison);
    Ok(comparison)
}

fn verdict(c: &Comparison) -> String {
    if c.same {
        return "the same model, byte for byte in every tensor".into();
    }
    let t = &c.tensors;
    let mut parts = vec![t.sentence()];
    let count = |n: usize, one: &str, many: &str| match n {
        0 => None,
        1 => Some(format!("1 {one} differs")),
        n => Some(format!("{n} {many} differ")),
    };
    parts.extend(count(c.keys.len(), "config key", "config keys"));
    parts.extend(c.template.as_ref().map(|t| t.sentence.clone()));
    parts.extend((!c.tokenizer.is_empty()).then(|| "the tokenizer differs".to_string()));
    parts.extend(count(c.files.len(), "other file", "other files"));
    parts.join("; ")
}

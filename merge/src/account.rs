//! The merge's section of the report: what every adapter tensor became, and by how much each target moved.

use serde::Serialize;
use serde_json::{Value, json};
use verify::Shown;
use verify::checkpoint::list_some;
use verify::rewrite::Note;

use crate::compute::figures::Figures;
use crate::files::FileChoice;
use crate::resolve::Use;

/// What is known before the weights are written.
#[derive(Debug)]
pub struct Account {
    /// The adapters, in order.
    pub adapters: Vec<AdapterLine>,
    /// What became of every adapter tensor.
    pub modules: Vec<Use>,
    /// Path rewrites: adapter, rewrite, tensors.
    pub rewrites: Vec<(String, String, usize)>,
    /// What became of tied embeddings.
    pub embeddings: &'static str,
    /// New size of the vocabulary.
    pub vocabulary: Option<usize>,
    /// Side files taken from adapters.
    pub files: Vec<FileChoice>,
}

/// One adapter.
#[derive(Debug, Serialize)]
pub struct AdapterLine {
    /// Folder name.
    pub name: String,
    /// What it was multiplied by.
    pub weight: f64,
    /// Tensors in its file.
    pub tensors: usize,
    /// `base_model_name_or_path`.
    pub base_model: Option<String>,
    /// `peft_version`.
    pub peft_version: Option<String>,
}

/// How one target moved.
#[derive(Debug, Serialize)]
struct TargetLine<'a> {
    tensor: &'a str,
    /// ‖new - old‖ / ‖old‖.
    relative_change: f64,
    /// Share of elements whose stored value changed.
    changed: f64,
    largest_change: f64,
}

/// A target that changed in fewer elements than this is worth a warning.
const FEW: f64 = 0.01;

impl Account {
    /// The section, with the figures of all written tensors; warnings stand under `warnings`.
    pub fn conclude(&self, notes: &[Note]) -> Value {
        let figures: Vec<(&str, Figures)> =
            notes.iter().map(|n| (n.tensor.as_str(), Figures::of(n))).collect();
        let targets: Vec<_> = figures.iter().map(|(name, f)| target_line(name, f)).collect();
        let sum = |get: fn(&Figures) -> f64| figures.iter().map(|(_, f)| get(f)).sum::<f64>();
        let (elements, changed) = (sum(|f| f.elements), sum(|f| f.changed));
        let rewrites = self
            .rewrites
            .iter()
            .map(|(adapter, rule, tensors)| json!({"adapter": adapter, "rewrite": rule, "tensors": tensors}));
        json!({
            "adapters": self.adapters,
            "summary": {
                "tensors_changed": targets.len(),
                "elements": elements as u64,
                "changed": ratio(changed, elements),
                "relative_change": ratio(sum(|f| f.delta), sum(|f| f.base)).sqrt(),
            },
            "modules": self.modules,
            "prefix_rewrites": rewrites.collect::<Vec<_>>(),
            "embeddings": self.embeddings,
            "vocabulary": self.vocabulary,
            "files": self.files,
            "targets": targets,
            "warnings": warnings(&figures),
        })
    }
}

fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

fn target_line<'a>(tensor: &'a str, f: &Figures) -> TargetLine<'a> {
    TargetLine {
        tensor,
        relative_change: ratio(f.delta, f.base).sqrt(),
        changed: ratio(f.changed, f.elements),
        largest_change: f.largest,
    }
}

fn warnings(figures: &[(&str, Figures)]) -> Vec<String> {
    let named = |keep: &dyn Fn(&Figures) -> bool| -> Vec<String> {
        figures.iter().filter(|(_, f)| keep(f)).map(|(n, _)| Shown(n).to_string()).collect()
    };
    let mut out = Vec::new();
    let few = named(&|f| f.elements > 0.0 && f.changed < FEW * f.elements);
    if !figures.is_empty() && figures.iter().all(|(_, f)| f.changed == 0.0) {
        out.push(
            "THE MERGE CHANGED NOTHING: every weight is that of the base (lora_B is zero, or the changes are \
             smaller than the base's dtype can hold). Check that the adapter was trained."
                .to_string(),
        );
    } else if !few.is_empty() {
        out.push(format!(
            "less than 1 % of the elements changed in {} of {} tensors, the rest was rounded away: {}",
            few.len(),
            figures.len(),
            list_some(&few)
        ));
    }
    let broken = named(&|f| f.broken > 0.0);
    if !broken.is_empty() {
        out.push(format!("the base holds NaN or infinity, kept as it is, in {}", list_some(&broken)));
    }
    out
}

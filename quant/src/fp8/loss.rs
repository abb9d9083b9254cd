//! What quantizing lost: figures per module while it runs, and their summary in the report.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use verify::codec::fp8::Loss;
use verify::rewrite::Note;

/// The loss of a range of rows as a note.
pub fn note(tensor: &str, row: usize, loss: &Loss) -> Note {
    Note {
        tensor: tensor.to_string(),
        row,
        sums: vec![loss.squared_error, loss.squared_weight, loss.zero_blocks as f64, loss.tiny_blocks as f64],
        maxima: vec![loss.largest],
    }
}

/// Figures over all modules, and for each module; the experts of a layer are told together.
pub fn summary(notes: &[Note]) -> Value {
    let mut groups: BTreeMap<String, Note> = BTreeMap::new();
    let mut total: Option<Note> = None;
    let mut worst: Option<&Note> = None;
    for note in notes {
        match &mut total {
            Some(sum) => sum.absorb(note),
            none => *none = Some(note.clone()),
        }
        if worst.is_none_or(|w| relative_rms(note) > relative_rms(w)) {
            worst = Some(note);
        }
        let name = of_all_experts(&note.tensor);
        groups.entry(name).and_modify(|sum| sum.absorb(note)).or_insert_with(|| note.clone());
    }
    let Some(total) = total else { return json!({"modules": 0}) };
    let group = |(name, n): (String, Note)| json!({"module": name, "relative_rms": relative_rms(&n), "largest_error": n.maxima[0]});
    json!({
        "modules": notes.len(),
        "relative_rms": relative_rms(&total),
        "largest_error": total.maxima[0],
        "zero_blocks": total.sums[2],
        "tiny_blocks": total.sums[3],
        "worst": worst.map(|w| json!({"module": module(&w.tensor), "relative_rms": relative_rms(w)})),
        "by_module": groups.into_iter().map(group).collect::<Vec<_>>(),
    })
}

/// Root of the squared error over that of the squared weights; 0 for weights of zeros.
fn relative_rms(note: &Note) -> f64 {
    match note.sums[1] > 0.0 {
        true => (note.sums[0] / note.sums[1]).sqrt(),
        false => 0.0,
    }
}

fn module(tensor: &str) -> &str {
    tensor.strip_suffix(".weight").unwrap_or(tensor)
}

fn of_all_experts(tensor: &str) -> String {
    let module = module(tensor);
    let Some((before, after)) = module.split_once(".experts.") else { return module.to_string() };
    let part = after.split_once('.').map_or("", |(_, part)| part);
    format!("{before}.experts.*.{part}")
}

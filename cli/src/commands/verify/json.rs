//! The outcome of a suite, for programs.

use serde_json::{Value, json};

use super::outcome::Outcome;

/// The outcome as it is printed with `--json` and kept in the report of `prep run`.
pub fn of(outcome: &Outcome) -> Value {
    let Outcome { evaluation, matrix, verdict, transcripts, .. } = outcome;
    let mut value = json!({
        "pass": verdict.pass,
        "model": outcome.name,
        "parser": evaluation.parser,
        "settings": outcome.settings,
        "score": evaluation.points,
        "max": evaluation.max,
        "perfect": evaluation.perfect,
        "classes": evaluation.classes,
        "speed": evaluation.speed,
        "matrix": matrix,
        "findings": verdict.reasons,
        "written": verdict.written,
        "teaches": outcome.taught,
        "cases": evaluation.cases,
        "transcripts": transcripts,
    });
    if let Some(endpoint) = &outcome.endpoint {
        value["endpoint"] = json!(endpoint);
    }
    if let Some(stability) = &outcome.stability {
        value["stability"] = json!(stability);
    }
    if let Some(change) = &outcome.baseline {
        value["baseline"] = json!(change);
    }
    value
}

//! The outcome of a suite, for programs.

use serde_json::{Value, json};
use verify::diagnose;

use super::run_suite::Outcome;

/// The outcome as it is printed with `--json` and kept in the report of `prep run`.
pub fn of(outcome: &Outcome, taught: &diagnose::Taught) -> Value {
    let Outcome { evaluation, matrix, verdict, transcripts, baseline } = outcome;
    let mut value = json!({
        "pass": verdict.pass,
        "parser": evaluation.parser,
        "score": evaluation.points,
        "max": evaluation.max,
        "perfect": evaluation.perfect,
        "classes": evaluation.classes,
        "speed": evaluation.speed,
        "matrix": matrix,
        "findings": verdict.reasons,
        "written": verdict.written,
        "teaches": taught,
        "cases": evaluation.cases,
        "transcripts": transcripts,
    });
    if let Some(change) = baseline {
        value["baseline"] = json!(change);
    }
    value
}

//! The outcome of a suite, for people.

use verify::suite::{Evaluation, MatrixRow, Settings, Stability};

use super::baseline;
use super::outcome::Outcome;
use crate::commands::template::say_findings;
use crate::output::{Output, table};

/// Scores, speed, the same answers under each parser, and the verdict with its reasons.
pub fn outcome(outcome: &Outcome, output: &Output) {
    let Outcome { evaluation, matrix, verdict, settings, stability, .. } = outcome;
    let cells = |c: [String; 3]| c.to_vec();
    let mut rows = vec![cells(["class".into(), "score".into(), "perfect".into()])];
    for c in &evaluation.classes {
        rows.push(cells([
            c.class.clone(),
            format!("{}/{}", c.points, c.max),
            format!("{}/{}", c.perfect, c.cases),
        ]));
    }
    let cases: usize = evaluation.classes.iter().map(|c| c.cases).sum();
    rows.push(cells([
        "all".into(),
        format!("{}/{}", evaluation.points, evaluation.max),
        format!("{}/{cases}", evaluation.perfect),
    ]));
    output.text(&format!("\n{}", table(&rows)));
    output.text(&speed(evaluation, settings));
    if let Some(s) = stability {
        output.text(&runs(s));
    }
    if !matrix.is_empty() {
        parsers(outcome, output);
    }
    if let Some(change) = &outcome.baseline {
        baseline::say(change, output);
    }
    output.text("");
    say_findings(&verdict.reasons, output);
    let word = if verdict.pass { "PASSED" } else { "FAILED" };
    output.text(&format!(
        "{word}: {}/{} with --parser {}",
        evaluation.points, evaluation.max, evaluation.parser
    ));
}

fn speed(evaluation: &Evaluation, settings: &Settings) -> String {
    let s = &evaluation.speed;
    let mut text = format!(
        "\n  latency {:.2} s on average, {:.2} s at p50, {:.2} s at p95",
        s.mean_secs, s.p50_secs, s.p95_secs
    );
    if settings.is_told_first_tokens() {
        text.push_str(&format!("; first token {:.2} s", s.first_token_secs));
    }
    if s.tokens_per_sec > 0.0 {
        text.push_str(&format!("; {:.0} tokens/s", s.tokens_per_sec));
    }
    text
}

fn runs(s: &Stability) -> String {
    let changing = match s.unstable.is_empty() {
        true => "every case the same".into(),
        false => format!("changing: {}", s.unstable.join(", ")),
    };
    format!(
        "\n  {} runs: {} to {} points, {:.1} on average; {changing}; shown is the lowest",
        s.runs, s.min, s.max, s.mean
    )
}

/// The same texts under every parser that finds something in them.
fn parsers(outcome: &Outcome, output: &Output) {
    let Outcome { evaluation, matrix, .. } = outcome;
    output.text("\n  the same answers under each parser:");
    let mut best: Vec<&MatrixRow> = matrix.iter().collect();
    best.sort_by_key(|r| std::cmp::Reverse(r.points));
    let shown = |r: &&&MatrixRow| r.points > 0 || r.parser == evaluation.parser;
    let mut rows: Vec<Vec<String>> = Vec::new();
    for r in best.iter().filter(shown) {
        let mark = if r.parser == evaluation.parser { "<- --parser" } else { "" };
        rows.push(vec![r.parser.into(), format!("{}/{}", r.points, evaluation.max), mark.into()]);
    }
    output.text(&table(&rows));
    let others = best.len() - rows.len();
    if others > 0 {
        output.text(&format!("  0/{} under the {others} others", evaluation.max));
    }
}

//! Several models: each verified in turn, then one table and one report.

use serde_json::json;
use verify::suite::{Comparison, NotRun, Report, comparison_rows};
use verify::template::{Finding, Level};
use verify::{Class, Error, Result, Shown};

use super::job::Row;
use super::json::of as as_json;
use super::outcome::Outcome;
use super::{Looked, Reports, look};
use crate::args::Global;
use crate::output::{Output, table};

/// A model that was not run, and the exit code that it alone would have ended with.
struct Left {
    name: String,
    reasons: Vec<Finding>,
    code: u8,
}

/// Verifies every row. One that cannot be run costs no other; the exit code is the highest of all.
pub fn run(rows: &[Row<'_>], reports: &Reports, global: &Global, output: &Output) -> Result<u8> {
    let (mut done, mut left, mut lines): (Vec<Outcome>, Vec<Left>, Vec<_>) = Default::default();
    for row in rows {
        let name = row.name();
        output.text(&format!("== {}", Shown(&name)));
        match look(row, global, output) {
            Ok(Looked::Run(outcome)) => {
                lines.push(as_json(&outcome));
                done.push(*outcome);
            }
            Ok(Looked::Stopped { findings, mut json }) => {
                json["model"] = json!(name);
                lines.push(json);
                left.push(Left { name, reasons: findings, code: 1 });
            }
            Err(e) if e.class() == Class::Interrupted || e.class() == Class::Usage => return Err(e),
            Err(e) => {
                let reasons = vec![finding(&e)];
                output.text(&format!("error: {e}"));
                lines.push(json!({"pass": false, "model": name, "findings": reasons}));
                left.push(Left { name, reasons, code: e.class().exit_code() });
            }
        }
        output.text("");
    }
    let codes = done.iter().map(Outcome::code).chain(left.iter().map(|l| l.code));
    let code = codes.max().unwrap_or(0);
    let rows: Vec<Report<'_>> = done.iter().map(Outcome::report).collect();
    output.text(&table(&comparison_rows(&rows)));
    let not_run: Vec<_> = left.iter().map(|l| NotRun { model: &l.name, reasons: &l.reasons }).collect();
    for model in &not_run {
        output.text(&format!("  {} was not run", Shown(model.model)));
    }
    let comparison = Comparison { pass: code == 0, rows, not_run };
    reports.write(|form| comparison.write(form), output)?;
    output.result(code, json!({"pass": code == 0, "rows": lines}));
    Ok(code)
}

fn finding(e: &Error) -> Finding {
    let text = e.to_string();
    let hint = e.advice().unwrap_or_default();
    // What was found and expected stand on lines of their own in the message.
    let lines: Vec<&str> =
        text.lines().map(str::trim).filter(|l| !l.ends_with(hint) || hint.is_empty()).collect();
    Finding::new(Level::Error, lines.join("; "), hint)
}

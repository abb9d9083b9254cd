//! Several models side by side: one table, then everything about each.

use std::fmt::Write;

use serde::Serialize;

use super::report::{Form, Report, escape, pretty};
use super::{html, junit};
use crate::error::Result;
use crate::template::Finding;

/// The rows of a comparison.
#[derive(Debug, Clone, Serialize)]
pub struct Comparison<'a> {
    /// True where every model passed and none was left out.
    pub pass: bool,
    /// Models that were run, in the order of the command line.
    pub rows: Vec<Report<'a>>,
    /// Models that were not.
    pub not_run: Vec<NotRun<'a>>,
}

/// A model that was not run.
#[derive(Debug, Clone, Serialize)]
pub struct NotRun<'a> {
    /// Its name.
    pub model: &'a str,
    /// Why not.
    pub reasons: &'a [Finding],
}

/// The table: a head, then one row for each report. Cells of a class are its points out of the most there are.
pub fn comparison_rows(reports: &[Report<'_>]) -> Vec<Vec<String>> {
    let mut classes: Vec<&str> = Vec::new();
    for c in reports.iter().flat_map(|r| &r.evaluation.classes) {
        if !classes.contains(&c.class.as_str()) {
            classes.push(&c.class);
        }
    }
    let mut head = vec!["model".to_string(), "verdict".into(), "parser".into()];
    head.extend(classes.iter().map(ToString::to_string));
    let tail = ["all", "perfect", "mean s", "p50 s", "p95 s", "first token s", "tokens/s"];
    head.extend(tail.map(String::from));
    std::iter::once(head).chain(reports.iter().map(|r| row(r, &classes))).collect()
}

fn row(report: &Report<'_>, classes: &[&str]) -> Vec<String> {
    let (e, s) = (report.evaluation, &report.evaluation.speed);
    let verdict = if report.verdict.pass { "passed" } else { "FAILED" };
    let mut cells = vec![report.model.to_string(), verdict.into(), e.parser.to_string()];
    cells.extend(classes.iter().map(|class| match e.classes.iter().find(|c| c.class == *class) {
        Some(c) => format!("{}/{}", c.points, c.max),
        None => String::new(),
    }));
    let all = match report.stability.filter(|s| s.min < s.max) {
        Some(s) => format!("{:.1}/{} ({} to {})", s.mean, e.max, s.min, s.max),
        None => format!("{}/{}", e.points, e.max),
    };
    let cases = e.cases.iter().filter(|c| c.scored).count();
    let known = |known: bool, text: String| if known { text } else { String::new() };
    cells.extend([
        all,
        format!("{}/{cases}", e.perfect),
        format!("{:.2}", s.mean_secs),
        format!("{:.2}", s.p50_secs),
        format!("{:.2}", s.p95_secs),
        known(report.settings.is_told_first_tokens(), format!("{:.2}", s.first_token_secs)),
        known(s.tokens_per_sec > 0.0, format!("{:.0}", s.tokens_per_sec)),
    ]);
    cells
}

impl Comparison<'_> {
    /// The text of the report.
    ///
    /// # Errors
    /// As [`Report::write`].
    pub fn write(&self, form: Form) -> Result<String> {
        match form {
            Form::Html => Ok(self.page()),
            Form::Junit => Ok(self.document()),
            Form::Json => pretty(self),
        }
    }

    fn page(&self) -> String {
        let (word, class) = if self.pass { ("Passed", "pass") } else { ("Failed", "fail") };
        let models = self.rows.len() + self.not_run.len();
        let mut body = format!(
            "<header class=\"{class}\">\n<p class=\"verdict\">{word}</p>\n<h1>{models} models compared</h1>\n</header>\n"
        );
        body.push_str(&self.table());
        for row in &self.rows {
            let _ = writeln!(body, "<article>\n{}</article>", html::sections(row));
        }
        html::document(&format!("{word}: {models} models compared"), &body)
    }

    fn table(&self) -> String {
        let mut out =
            String::from("<section>\n<h2>Comparison</h2>\n<div class=\"wide\"><table class=\"compared\">\n");
        for (at, cells) in comparison_rows(&self.rows).iter().enumerate() {
            let (open, close) = if at == 0 { ("<thead>", "</thead>\n<tbody>") } else { ("", "") };
            let tag = if at == 0 { "th" } else { "td" };
            let mut line = String::new();
            for (column, cell) in cells.iter().enumerate() {
                let _ = match (at, column) {
                    (1.., 0) => write!(line, "<th scope=\"row\">{}</th>", escape(cell)),
                    _ => write!(line, "<{tag}>{}</{tag}>", escape(cell)),
                };
            }
            let _ = writeln!(out, "{open}<tr>{line}</tr>{close}");
        }
        out.push_str("</tbody>\n</table></div>\n");
        for model in &self.not_run {
            let reasons: Vec<_> = model.reasons.iter().map(|r| format!("{}; {}", r.what, r.advice)).collect();
            let _ = writeln!(
                out,
                "<p><b>{}</b> was not run: {}</p>",
                escape(model.model),
                escape(&reasons.join(". "))
            );
        }
        out + "</section>\n"
    }

    fn document(&self) -> String {
        let mut whole = junit::Part { tests: 0, failures: 0, secs: 0.0, suites: String::new() };
        for row in &self.rows {
            let part = junit::part(row, &format!("{}.", row.model));
            whole.tests += part.tests;
            whole.failures += part.failures;
            whole.secs += part.secs;
            whole.suites.push_str(&part.suites);
        }
        for model in &self.not_run {
            whole.tests += 1;
            whole.failures += 1;
            let name = escape(&format!("{}.verdict", model.model));
            let reasons: Vec<_> = model.reasons.iter().map(|r| format!("{}; {}", r.what, r.advice)).collect();
            let _ = writeln!(
                whole.suites,
                "  <testsuite name=\"{name}\" tests=\"1\" failures=\"1\">\n    <testcase classname=\"{name}\" name=\"not run\">\n      \
                 <failure message=\"not run\">{}</failure>\n    </testcase>\n  </testsuite>",
                escape(&reasons.join("\n"))
            );
        }
        junit::enclosed("prep verify, several models", &whole)
    }
}

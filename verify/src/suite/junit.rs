//! JUnit XML: one `testsuite` for each class, one `testcase` for each turn; controls are left out.

use std::fmt::Write;

use super::evaluate::CaseScore;
use super::report::{Report, escape};
use super::run::Transcript;
use super::score;

/// The whole document. A turn fails below full points only where the verdict fails: the suite as a whole has
/// a bar, single cases near a decision boundary have none.
pub fn document(report: &Report<'_>) -> String {
    let part = part(report, "");
    let name = format!("prep verify {} --parser {}", report.model, report.evaluation.parser);
    enclosed(&name, &part)
}

/// The suites of one model, and their counts.
pub(super) struct Part {
    pub tests: usize,
    pub failures: usize,
    pub secs: f64,
    pub suites: String,
}

/// Suites as a document.
pub(super) fn enclosed(name: &str, part: &Part) -> String {
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"{}\" tests=\"{}\" failures=\"{}\" time=\"{:.3}\">\n{}</testsuites>\n",
        escape(name),
        part.tests,
        part.failures,
        part.secs,
        part.suites
    )
}

/// The suites of one model; each name begins with `prefix`.
pub(super) fn part(report: &Report<'_>, prefix: &str) -> Part {
    let e = report.evaluation;
    let prefix = escape(prefix);
    let scored: Vec<_> = e.cases.iter().zip(report.transcripts).filter(|(c, _)| c.scored).collect();
    let failing = |c: &CaseScore| !report.verdict.pass && c.score.points < score::MAX;
    let mut out = verdict_suite(report, &prefix);
    for class in &e.classes {
        let of_class: Vec<_> = scored.iter().filter(|(c, _)| c.class == class.class).collect();
        let _ = writeln!(
            out,
            "  <testsuite name=\"{prefix}{}\" tests=\"{}\" failures=\"{}\" time=\"{:.3}\">",
            escape(&class.class),
            of_class.len(),
            of_class.iter().filter(|(c, _)| failing(c)).count(),
            seconds(of_class.iter().map(|(_, t)| *t))
        );
        for (case, transcript) in of_class {
            out.push_str(&test_case(case, transcript, (failing(case), &prefix)));
        }
        out.push_str("  </testsuite>\n");
    }
    Part {
        tests: scored.len() + 1,
        failures: scored.iter().filter(|(c, _)| failing(c)).count() + usize::from(!report.verdict.pass),
        secs: seconds(scored.iter().map(|(_, t)| *t)),
        suites: out,
    }
}

fn verdict_suite(report: &Report<'_>, prefix: &str) -> String {
    let (v, e) = (report.verdict, report.evaluation);
    let mut out = format!(
        "  <testsuite name=\"{prefix}verdict\" tests=\"1\" failures=\"{}\">\n    <testcase classname=\"{prefix}verdict\" name=\"{} of {} points\"",
        usize::from(!v.pass),
        e.points,
        e.max
    );
    let reasons: Vec<_> = v.reasons.iter().map(|r| format!("{}; {}", r.what, r.advice)).collect();
    let text = escape(&reasons.join("\n"));
    let _ = match (v.pass, v.reasons.first()) {
        (false, first) => {
            let message = escape(first.map_or("failed", |r| &r.what));
            writeln!(out, ">\n      <failure message=\"{message}\">{text}</failure>\n    </testcase>")
        }
        (true, Some(_)) => writeln!(out, ">\n      <system-out>{text}</system-out>\n    </testcase>"),
        (true, None) => writeln!(out, "/>"),
    };
    out + "  </testsuite>\n"
}

fn test_case(case: &CaseScore, transcript: &Transcript, (failing, prefix): (bool, &str)) -> String {
    let mut out = format!(
        "    <testcase classname=\"{prefix}{}\" name=\"{}\" time=\"{:.3}\">\n",
        escape(&case.class),
        escape(&case.id),
        seconds([transcript].into_iter())
    );
    if let Some(fault) = &case.score.fault {
        let words = escape(&format!("{} of {} points: {fault}", case.score.points, score::MAX));
        let _ = match failing {
            true => writeln!(out, "      <failure message=\"{words}\"/>"),
            false => writeln!(out, "      <system-err>{words}</system-err>"),
        };
    }
    let _ = writeln!(out, "      <system-out>{}</system-out>", escape(transcript.text()));
    out + "    </testcase>\n"
}

fn seconds<'a>(transcripts: impl Iterator<Item = &'a Transcript>) -> f64 {
    transcripts.filter_map(|t| t.answer.as_ref()).map(|a| a.latency.as_secs_f64()).sum()
}

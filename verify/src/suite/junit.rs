//! JUnit XML: one `testsuite` for each class, one `testcase` for each turn; controls are left out.

use std::fmt::Write;

use super::evaluate::CaseScore;
use super::report::{Report, escape};
use super::run::Transcript;
use super::score;

/// The whole document. A turn fails below full points only where the verdict fails: the suite as a whole has
/// a bar, single cases near a decision boundary have none.
pub fn document(report: &Report<'_>) -> String {
    let e = report.evaluation;
    let name = escape(&format!("prep verify {} --parser {}", report.model, e.parser));
    let scored: Vec<_> = e.cases.iter().zip(report.transcripts).filter(|(c, _)| c.scored).collect();
    let failing = |c: &CaseScore| !report.verdict.pass && c.score.points < score::MAX;
    let failures = scored.iter().filter(|(c, _)| failing(c)).count();
    let verdict = usize::from(!report.verdict.pass);
    let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let _ = writeln!(
        out,
        "<testsuites name=\"{name}\" tests=\"{}\" failures=\"{}\" time=\"{:.3}\">",
        scored.len() + 1,
        failures + verdict,
        seconds(scored.iter().map(|(_, t)| *t))
    );
    out.push_str(&verdict_suite(report));
    for class in &e.classes {
        let of_class: Vec<_> = scored.iter().filter(|(c, _)| c.class == class.class).collect();
        let _ = writeln!(
            out,
            "  <testsuite name=\"{}\" tests=\"{}\" failures=\"{}\" time=\"{:.3}\">",
            escape(&class.class),
            of_class.len(),
            of_class.iter().filter(|(c, _)| failing(c)).count(),
            seconds(of_class.iter().map(|(_, t)| *t))
        );
        for (case, transcript) in of_class {
            out.push_str(&test_case(case, transcript, failing(case)));
        }
        out.push_str("  </testsuite>\n");
    }
    out + "</testsuites>\n"
}

fn verdict_suite(report: &Report<'_>) -> String {
    let (v, e) = (report.verdict, report.evaluation);
    let mut out = format!(
        "  <testsuite name=\"verdict\" tests=\"1\" failures=\"{}\">\n    <testcase classname=\"verdict\" name=\"{} of {} points\"",
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

fn test_case(case: &CaseScore, transcript: &Transcript, failing: bool) -> String {
    let mut out = format!(
        "    <testcase classname=\"{}\" name=\"{}\" time=\"{:.3}\">\n",
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

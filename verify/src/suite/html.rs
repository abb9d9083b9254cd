//! The HTML page: verdict first, then why, the scores, the parsers, the times, and every transcript.
//!
//! One file, no scripts, nothing from the network; it follows the reader's light or dark setting.

use std::fmt::Write;

use serde_json::Value;

use super::evaluate::{CaseScore, ClassScore, MatrixRow};
use super::format::{Expect, Step};
use super::report::{Report, escape};
use super::run::Transcript;
use super::score;
use crate::template::Level;

const STYLE: &str = include_str!("report.css");

/// The whole page.
pub fn page(report: &Report<'_>) -> String {
    let word = word_of(report);
    let title = format!("{word}: {} with {}", report.model, report.evaluation.parser);
    let parts = [
        header(report),
        findings(report),
        scores(report),
        parsers(report),
        times(report),
        transcripts(report),
    ];
    document(&title, &parts.concat())
}

/// A page of its own around `body`, in the style of all reports. `title` is plain text.
pub fn document(title: &str, body: &str) -> String {
    let title = escape(title);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n{body}</main>\n</body>\n</html>\n"
    )
}

fn word_of(report: &Report<'_>) -> &'static str {
    if report.verdict.pass { "Passed" } else { "Failed" }
}

fn header(report: &Report<'_>) -> String {
    let e = report.evaluation;
    let class = if report.verdict.pass { "pass" } else { "fail" };
    let mut facts = vec![
        ("parser", e.parser.to_string()),
        ("calls found", e.calls.to_string()),
        ("perfect", format!("{} of {}", e.perfect, e.cases.iter().filter(|c| c.scored).count())),
        ("latency", format!("{:.2} s mean, {:.2} s p95", e.speed.mean_secs, e.speed.p95_secs)),
        ("speed", format!("{:.0} tokens/s", e.speed.tokens_per_sec)),
        ("suite", report.suite.name.clone()),
    ];
    if let Some(s) = report.stability {
        let unstable =
            if s.unstable.is_empty() { "all equal".into() } else { format!("{} to {}", s.min, s.max) };
        facts.push(("runs", format!("{}, {unstable}", s.runs)));
    }
    let facts: String =
        facts.iter().map(|(k, v)| format!("<div><dt>{k}</dt><dd>{}</dd></div>\n", escape(v))).collect();
    format!(
        "<header class=\"{class}\">\n<p class=\"verdict\">{}</p>\n<h1>{}</h1>\n\
         <p class=\"points\"><strong>{}</strong> of {} points</p>\n<dl>\n{facts}</dl>\n</header>\n",
        word_of(report),
        escape(report.model),
        e.points,
        e.max
    )
}

fn findings(report: &Report<'_>) -> String {
    let mut out = String::from("<section>\n<h2>Findings</h2>\n");
    if report.verdict.reasons.is_empty() {
        out.push_str(
            "<p>Template, output and parser agree; nothing speaks against serving this model.</p>\n",
        );
    } else {
        out.push_str("<ul class=\"findings\">\n");
        for f in &report.verdict.reasons {
            let level = match f.level {
                Level::Error => "error",
                Level::Warning => "warning",
                Level::Note => "note",
            };
            let _ = writeln!(
                out,
                "<li class=\"{level}\"><b>{level}</b><div><p>{}</p><p class=\"advice\">{}</p></div></li>",
                escape(&f.what),
                escape(&f.advice)
            );
        }
        out.push_str("</ul>\n");
    }
    let _ =
        writeln!(out, "<p class=\"quiet\">Template: {}.</p>\n</section>", escape(&report.taught.sentence()));
    out
}

fn scores(report: &Report<'_>) -> String {
    let e = report.evaluation;
    let row = |name: &str, points: u32, max: u32, perfect: usize, cases: usize| {
        format!(
            "<tr><th scope=\"row\">{}</th><td>{points} / {max}</td><td>{}</td><td>{perfect} / {cases}</td></tr>\n",
            escape(name),
            bar(points, max, true)
        )
    };
    let rows: String =
        e.classes.iter().map(|c: &ClassScore| row(&c.class, c.points, c.max, c.perfect, c.cases)).collect();
    let cases = e.classes.iter().map(|c| c.cases).sum();
    let gate = match e.refusals_count {
        true => "",
        false => "<p class=\"quiet\">Not one call was found, so refusals give no points.</p>\n",
    };
    format!(
        "<section>\n<h2>Scores</h2>\n<table>\n<thead><tr><th>class</th><th>points</th><th></th><th>perfect</th></tr></thead>\n\
         <tbody>\n{rows}</tbody>\n<tfoot>\n{}</tfoot>\n</table>\n{gate}</section>\n",
        row("all", e.points, e.max, e.perfect, cases)
    )
}

fn bar(points: u32, max: u32, chosen: bool) -> String {
    let percent = if max == 0 { 0.0 } else { f64::from(points) * 100.0 / f64::from(max) };
    let class = if chosen { "bar" } else { "bar other" };
    format!("<span class=\"{class}\"><i style=\"width:{percent:.1}%\"></i></span>")
}

fn parsers(report: &Report<'_>) -> String {
    let e = report.evaluation;
    let shown = |r: &&MatrixRow| r.points > 0 || r.calls > 0 || r.parser == e.parser;
    let mut rows = String::new();
    for r in report.matrix.iter().filter(shown) {
        let chosen = r.parser == e.parser;
        let (open, mark) = if chosen { ("<tr class=\"chosen\">", " (chosen)") } else { ("<tr>", "") };
        let _ = writeln!(
            rows,
            "{open}<th scope=\"row\">{}{mark}</th><td>{} / {}</td><td>{}</td><td>{}</td></tr>",
            escape(r.parser),
            r.points,
            e.max,
            bar(r.points, e.max, chosen),
            r.calls
        );
    }
    let others = report.matrix.len() - report.matrix.iter().filter(shown).count();
    let rest = match others {
        0 => String::new(),
        1 => "<p class=\"quiet\">One other parser finds no call in these answers.</p>\n".into(),
        n => format!("<p class=\"quiet\">{n} other parsers find no call in these answers.</p>\n"),
    };
    format!(
        "<section>\n<h2>The same answers under each parser</h2>\n<table>\n\
         <thead><tr><th>parser</th><th>points</th><th></th><th>calls</th></tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n{rest}</section>\n"
    )
}

/// Latency of every answer as a bar, coloured by its points, with lines for mean and p95.
fn times(report: &Report<'_>) -> String {
    let (width, height, left, base) = (900.0, 180.0, 46.0, 158.0);
    let bars: Vec<_> = report
        .evaluation
        .cases
        .iter()
        .zip(report.transcripts)
        .filter_map(|(c, t)| Some((c, t.answer.as_ref()?)))
        .collect();
    if bars.is_empty() {
        return String::new();
    }
    let speed = &report.evaluation.speed;
    let most = bars.iter().map(|(_, a)| a.latency.as_secs_f64()).fold(1e-9, f64::max);
    let y = |secs: f64| base - (base - 14.0) * secs / most;
    let step = (width - left) / bars.len() as f64;
    let mut out = format!(
        "<section>\n<h2>Latency</h2>\n<svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"latency of each answer\">\n"
    );
    for (at, (case, answer)) in bars.iter().enumerate() {
        let secs = answer.latency.as_secs_f64();
        let class = match (case.scored, case.score.points) {
            (false, _) => "p-control",
            (true, score::MAX) => "p-full",
            (true, 0) => "p-none",
            (true, _) => "p-part",
        };
        let _ = writeln!(
            out,
            "<rect class=\"{class}\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\"><title>{}: {secs:.3} s, {} tokens</title></rect>",
            left + at as f64 * step + step * 0.12,
            y(secs),
            step * 0.76,
            (base - y(secs)).max(1.0),
            escape(&case.id),
            answer.tokens
        );
    }
    let _ = writeln!(out, "<line class=\"axis\" x1=\"{left}\" y1=\"{base}\" x2=\"{width}\" y2=\"{base}\"/>");
    let close = (y(speed.mean_secs) - y(speed.p95_secs)).abs() < 12.0;
    for (name, secs, shift) in
        [("p95", speed.p95_secs, 0.0), ("mean", speed.mean_secs, if close { 12.0 } else { 0.0 })]
    {
        let _ = writeln!(
            out,
            "<line class=\"level\" x1=\"{left}\" y1=\"{0:.1}\" x2=\"{width}\" y2=\"{0:.1}\"/><text x=\"{1}\" y=\"{2:.1}\">{name}</text>",
            y(secs),
            left - 6.0,
            y(secs) + 4.0 + shift
        );
    }
    let _ = writeln!(
        out,
        "</svg>\n<p class=\"quiet\">One bar for each answer in the order of the suite; the highest is {most:.2} s. \
         <span class=\"key p-full\"></span>full points <span class=\"key p-part\"></span>some \
         <span class=\"key p-none\"></span>none <span class=\"key p-control\"></span>control</p>\n</section>"
    );
    out
}

fn transcripts(report: &Report<'_>) -> String {
    let mut out = String::from("<section>\n<h2>Transcripts</h2>\n");
    let steps = report.suite.steps();
    for ((step, case), transcript) in steps.iter().zip(&report.evaluation.cases).zip(report.transcripts) {
        out.push_str(&transcript_of(step, case, transcript));
    }
    out + "</section>\n"
}

fn transcript_of(step: &Step<'_>, case: &CaseScore, transcript: &Transcript) -> String {
    let class = match (case.scored, case.score.points) {
        (false, _) => "control",
        (true, score::MAX) => "full",
        (true, 0) => "none",
        (true, _) => "part",
    };
    let points =
        if case.scored { format!("{} / {}", case.score.points, score::MAX) } else { "control".into() };
    let mut body = String::new();
    let mut block = |name: &str, text: &str| {
        let _ = writeln!(body, "<h3>{name}</h3>\n<pre>{}</pre>", escape(text));
    };
    block("Expected", &expected(step.expect));
    block("Found by the parser", &found(case));
    match (&transcript.answer, &transcript.refused, &transcript.skipped) {
        (Some(answer), ..) => block(&format!("Written by the model, {} tokens", answer.tokens), &answer.text),
        (None, Some(failure), _) => block("No prompt", &failure.to_string()),
        (None, None, why) => block("Not run", why.as_deref().unwrap_or("no answer")),
    }
    if let Some(prompt) = &transcript.prompt {
        let _ = writeln!(
            body,
            "<details class=\"prompt\"><summary>Prompt</summary>\n<pre>{}</pre></details>",
            escape(prompt)
        );
    }
    let fault = case.score.fault.as_deref().filter(|_| case.scored).unwrap_or_default();
    format!(
        "<details class=\"case {class}\"><summary><b>{}</b><span class=\"tag\">{}</span><span class=\"pts\">{points}</span>\
         <span class=\"fault\">{}{}</span></summary>\n<div>\n{body}</div>\n</details>\n",
        escape(&case.id),
        escape(&case.class),
        escape(fault),
        if case.cut { " (cut at the limit of new tokens)" } else { "" }
    )
}

fn expected(expect: &Expect) -> String {
    let marks = |marks: &[String]| marks.iter().map(|m| format!("`{m}`")).collect::<Vec<_>>().join(" or ");
    match expect {
        Expect::Calls(e) => {
            let calls = e.calls.iter().map(|c| format!("{} {}", c.name, Value::Object(c.arguments.clone())));
            calls.collect::<Vec<_>>().join("\n")
        }
        Expect::Refusal(e) => format!("no call, and {}", marks(&e.marks)),
        Expect::NoCall(e) if e.marks.is_empty() => "no call, and an answer".into(),
        Expect::NoCall(e) => format!("no call, and an answer with {}", marks(&e.marks)),
        Expect::Text(e) => format!("the text {}", e.text),
    }
}

fn found(case: &CaseScore) -> String {
    let mut lines: Vec<_> = case.calls.iter().map(|c| format!("{} {}", c.name, c.arguments)).collect();
    if lines.is_empty() {
        lines.push("no call".into());
    }
    if let Some(content) = case.content.as_deref().filter(|c| !c.is_empty()) {
        lines.push(format!("content: {content}"));
    }
    lines.join("\n")
}

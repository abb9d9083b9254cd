//! Pass or fail, with the reasons as sentences.

use serde::Serialize;

use super::evaluate::{Evaluation, MatrixRow};
use super::run::Transcript;
use crate::diagnose::{self, Taught, Written};
use crate::generate::Finish;
use crate::parsers::Parser;
use crate::template::{Finding, Level};

/// The outcome of a verification.
#[derive(Debug, Clone, Serialize)]
pub struct Verdict {
    /// True where nothing speaks against serving the model with this parser.
    pub pass: bool,
    /// Findings, those that fail first.
    pub reasons: Vec<Finding>,
    /// What the model wrote.
    pub written: Written,
}

/// Judges a run: fails below `min_score`, without a single call, where another parser reads the same outputs
/// clearly better, and for every error that the diagnosis finds.
pub fn judge(
    evaluation: &Evaluation,
    matrix: &[MatrixRow],
    transcripts: &[Transcript],
    (taught, parser): (&Taught, &Parser),
    min_score: Option<u32>,
) -> Verdict {
    let answers = transcripts.iter().filter_map(|t| t.answer.as_ref());
    let written = Written::of(answers.map(|a| (a.text.as_str(), a.finish == Finish::Length)));
    let mut reasons = diagnose::after(taught, parser, &written, evaluation.calls);
    // One sentence for one story: what comes later only follows from what was found before.
    let symptoms = [
        refused(transcripts),
        better_parser(evaluation, matrix),
        no_call(evaluation),
        below(evaluation, min_score),
    ];
    if reasons.iter().all(|r| r.level < Level::Error) {
        reasons.extend(symptoms.into_iter().flatten().next());
    }
    reasons.sort_by_key(|r| std::cmp::Reverse(r.level));
    Verdict { pass: reasons.iter().all(|r| r.level < Level::Error), reasons, written }
}

fn no_call(evaluation: &Evaluation) -> Option<Finding> {
    (evaluation.calls == 0).then(|| {
        Finding::new(
            Level::Error,
            format!("parser `{}` found not one call in the whole run", evaluation.parser),
            "look at what the model wrote: add --report verify.html",
        )
    })
}

/// Fewer points than were asked for.
pub(super) fn below(evaluation: &Evaluation, min_score: Option<u32>) -> Option<Finding> {
    let min = min_score.filter(|min| evaluation.points < *min)?;
    Some(Finding::new(
        Level::Error,
        format!("{} of {} points, below the {min} asked for", evaluation.points, evaluation.max),
        "see which cases lost points: add --report verify.html",
    ))
}

/// Clearly better: by one whole case and by a twentieth of all points.
pub(super) fn better_parser(evaluation: &Evaluation, matrix: &[MatrixRow]) -> Option<Finding> {
    // The first of equals: parsers are listed with the usual one of a format first.
    let most = matrix.iter().map(|r| r.points).max()?;
    let best = matrix.iter().find(|r| r.points == most)?;
    let margin = (evaluation.max / 20).max(super::score::MAX);
    (best.points >= evaluation.points + margin).then(|| {
        Finding::new(
            Level::Error,
            format!(
                "parser `{}` scores {} of {} on the same outputs, `{}` scores {}",
                best.parser, best.points, evaluation.max, evaluation.parser, evaluation.points
            ),
            format!("use --parser {}", best.parser),
        )
    })
}

fn refused(transcripts: &[Transcript]) -> Option<Finding> {
    let refused: Vec<_> = transcripts.iter().filter(|t| t.refused.is_some()).collect();
    let first = refused.first()?;
    let failure = first.refused.as_ref()?;
    Some(Finding::new(
        Level::Error,
        format!("the template gave no prompt for {} cases, first `{}`: {failure}", refused.len(), first.id),
        "use a template that accepts these conversations",
    ))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{Form, Reading, Report, Running, Suite, Transcript, evaluate, matrix, run};
    use super::*;
    use crate::error::Result;
    use crate::generate::{Answer, Generate, Prompt};
    use crate::parsers;
    use crate::progress::{Progress, Silent};
    use crate::suite::Settings;
    use crate::suite::format::Expect;
    use crate::template::testing::renderer;

    /// A model that knows the answers of the built-in suite and writes them as Qwen XML, whatever the prompt.
    struct Perfect;

    impl Generate for Perfect {
        fn generate(&mut self, prompts: &[Prompt], _: &dyn Progress) -> Result<Vec<Answer>> {
            let suite = Suite::default_suite()?;
            Ok(suite
                .all()
                .take(prompts.len())
                .enumerate()
                .map(|(at, case)| answer(at, &written(&case.expect)))
                .collect())
        }
    }

    fn answer(at: usize, text: &str) -> Answer {
        Answer {
            text: text.to_string(),
            prompt_tokens: 10,
            tokens: 5,
            finish: Finish::Stop,
            first_token: Duration::from_millis(10),
            latency: Duration::from_millis(100 + at as u64),
        }
    }

    fn written(expect: &Expect) -> String {
        match expect {
            Expect::Calls(e) => {
                let calls = e.calls.iter().map(|call| {
                    let arguments = call.arguments.iter().map(|(k, v)| {
                        let v = v.as_str().map_or_else(|| v.to_string(), str::to_string);
                        format!("<parameter={k}>\n{v}\n</parameter>\n")
                    });
                    let arguments: String = arguments.collect();
                    format!("<tool_call>\n<function={}>\n{arguments}</function>\n</tool_call>", call.name)
                });
                calls.collect::<Vec<_>>().join("\n")
            }
            Expect::Refusal(e) => format!("Sorry, I {}.", e.marks[0]),
            Expect::Text(e) => e.text.clone(),
            Expect::NoCall(_) => "ok".into(),
        }
    }

    fn verdict(template: &str, parser: &str, min: Option<u32>) -> (Evaluation, Verdict) {
        let path = format!("{}/../tests/fixtures/templates/{template}", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(path).unwrap_or_else(|_| template.to_string());
        let renderer = renderer(&text);
        let suite = Suite::default_suite().unwrap();
        let parser = parsers::find(parser).unwrap();
        let reading = Reading::new(parser);
        let running = Running { max_new: 140, reading: reading.clone() };
        let transcripts: Vec<Transcript> = run(&mut Perfect, &renderer, &suite, &running, &Silent).unwrap();
        let evaluation = evaluate(&suite, &transcripts, &reading);
        let rows = matrix(&suite, &transcripts, &reading);
        let taught = diagnose::taught(&renderer);
        let verdict = judge(&evaluation, &rows, &transcripts, (&taught, parser), min);
        (evaluation, verdict)
    }

    #[test]
    fn a_perfect_model_scores_all_points_and_passes() {
        let (e, v) = verdict("tiny_tools.jinja", "qwen3_coder", Some(72));
        assert_eq!((e.points, e.max, e.perfect), (72, 72, 24), "{:?}", e.cases);
        assert!(v.pass, "{:?}", v.reasons);
        let classes: Vec<_> = e.classes.iter().map(|c| (c.class.as_str(), c.points, c.max)).collect();
        let expected =
            [("basic", 36, 36), ("error_recovery", 12, 12), ("safety", 12, 12), ("long_context", 12, 12)];
        assert_eq!(classes, expected);
        assert_eq!(e.cases.iter().filter(|c| !c.scored).count(), 6);
    }

    #[test]
    fn the_wrong_parser_scores_nothing_and_the_right_one_is_named() {
        let (e, v) = verdict("tiny_tools.jinja", "hermes", None);
        assert_eq!((e.points, e.calls, e.refusals_count), (0, 0, false));
        assert!(!v.pass);
        let advice = v.reasons.iter().filter(|r| r.advice.starts_with("use --parser"));
        let advice: Vec<_> = advice.map(|r| r.advice.as_str()).collect();
        assert_eq!(advice, ["use --parser qwen3_coder"], "{:?}", v.reasons);
        assert_eq!(v.reasons.iter().filter(|r| r.level == Level::Error).count(), 1, "{:?}", v.reasons);
    }

    #[test]
    fn a_template_without_tools_fails_even_if_the_model_calls() {
        let (e, v) = verdict("{% for m in messages %}{{ m.content }}{% endfor %}", "qwen3_coder", None);
        assert_eq!(e.points, 72);
        assert!(!v.pass);
        assert!(v.reasons[0].what.contains("teaches no tools"), "{:?}", v.reasons);
    }

    #[test]
    fn a_template_that_refuses_scores_nothing() {
        let (e, v) = verdict("{{ raise_exception('no') }}", "qwen3_coder", None);
        assert_eq!(e.points, 0);
        assert!(!v.pass);
    }

    #[test]
    fn a_score_below_the_minimum_fails() {
        let (_, v) = verdict("tiny_tools.jinja", "qwen3_coder", Some(73));
        assert!(!v.pass && v.reasons[0].what.contains("below the 73"), "{:?}", v.reasons);
    }

    #[test]
    fn latencies_are_summed_up() {
        let (e, _) = verdict("tiny_tools.jinja", "qwen3_coder", None);
        assert!((e.speed.mean_secs - 0.1145).abs() < 1e-9, "{:?}", e.speed);
        assert!((e.speed.p95_secs - 0.128).abs() < 1e-9, "{:?}", e.speed);
        assert!((e.speed.tokens_per_sec - 5.0 / 0.1145).abs() < 1e-6, "{:?}", e.speed);
    }

    fn written_report(parser: &str, form: Form) -> String {
        let path = format!("{}/../tests/fixtures/templates/tiny_tools.jinja", env!("CARGO_MANIFEST_DIR"));
        let renderer = renderer(&std::fs::read_to_string(path).unwrap());
        let suite = Suite::default_suite().unwrap();
        let parser = parsers::find(parser).unwrap();
        let running = Running { max_new: 140, reading: Reading::new(parser) };
        let transcripts = run(&mut Perfect, &renderer, &suite, &running, &Silent).unwrap();
        let evaluation = evaluate(&suite, &transcripts, &running.reading);
        let rows = matrix(&suite, &transcripts, &running.reading);
        let taught = diagnose::taught(&renderer);
        let verdict = judge(&evaluation, &rows, &transcripts, (&taught, parser), None);
        let report = Report {
            model: "tiny <model>",
            endpoint: None,
            settings: &Settings { max_new: 140, ..Settings::default() },
            suite: &suite,
            verdict: &verdict,
            evaluation: &evaluation,
            matrix: &rows,
            taught: Some(&taught),
            stability: None,
            transcripts: &transcripts,
            baseline: None,
        };
        report.write(form).unwrap()
    }

    #[test]
    fn the_page_tells_the_verdict_first_and_needs_no_network() {
        let good = written_report("qwen3_coder", Form::Html);
        let bad = written_report("hermes", Form::Html);
        assert!(
            good.contains("<p class=\"verdict\">Passed</p>")
                && bad.contains("<p class=\"verdict\">Failed</p>")
        );
        assert!(bad.find("use --parser qwen3_coder").unwrap() < bad.find("<h2>Scores</h2>").unwrap());
        for outside in ["http://", "https://", "<script", "src=", "@import", "url("] {
            assert!(!good.contains(outside), "{outside}");
        }
        assert!(good.contains("tiny &lt;model&gt;") && !good.contains("<tool_call>"));
        assert_eq!(good.matches("<details class=\"case").count(), 30);
        assert!(good.contains("prefers-color-scheme: dark"));
    }

    #[test]
    fn the_xml_counts_its_tests_and_failures() {
        let good = written_report("qwen3_coder", Form::Junit);
        assert!(good.contains("tests=\"25\" failures=\"0\""), "{good:.300}");
        assert_eq!(good.matches("<testcase ").count(), 25);
        let bad = written_report("hermes", Form::Junit);
        assert_eq!(bad.matches("<failure ").count(), 25);
    }

    #[test]
    fn the_json_holds_scores_and_transcripts() {
        let value: serde_json::Value =
            serde_json::from_str(&written_report("qwen3_coder", Form::Json)).unwrap();
        assert_eq!(value["evaluation"]["points"], 72);
        assert_eq!(value["verdict"]["pass"], true);
        assert_eq!(value["transcripts"].as_array().unwrap().len(), 30);
    }

    #[test]
    #[ignore = "writes the two pages to the folder in REPORT_DIR, to be looked at"]
    fn pages_to_look_at() {
        let dir = std::env::var("REPORT_DIR").unwrap();
        for parser in ["qwen3_coder", "hermes"] {
            std::fs::write(format!("{dir}/{parser}.html"), written_report(parser, Form::Html)).unwrap();
            std::fs::write(format!("{dir}/{parser}.xml"), written_report(parser, Form::Junit)).unwrap();
        }
    }
}

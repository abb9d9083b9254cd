//! Reports of a model that writes what would break them.

use std::path::Path;
use std::time::Duration;

use serde_json::json;

use super::compare::{Run, scores};
use super::{Form, Reading, Report, Running, Settings, Suite, Transcript, evaluate, judge, matrix, run};
use crate::error::Result;
use crate::generate::{Answer, Finish, Generate, Prompt};
use crate::progress::{Progress, Silent};
use crate::template::testing::renderer;
use crate::{diagnose, parsers};

const HOSTILE: &str = "</pre></details><script>alert(1)</script><img src=x onerror=alert(2)>]]><!-- & &amp; \u{0}\u{b}\u{1b}[31m\
     \u{7f}\u{85}\u{202e}\u{2066}\u{fffe}\u{ffff}`a`b` \"'\r\n<tool_call>\n<function=<b onclick='x'>>\n<parameter=\"><svg onload=x>>\n\
     </style>\u{8}\n</parameter>\n</function>\n</tool_call>";

struct Writes;

impl Generate for Writes {
    fn generate(&mut self, prompts: &[Prompt], _: &dyn Progress) -> Result<Vec<Answer>> {
        let time = Duration::from_millis(3);
        let answer = |_: &Prompt| Answer {
            text: HOSTILE.into(),
            prompt_tokens: 1,
            tokens: 2,
            finish: Finish::Length,
            first_token: time,
            latency: time,
        };
        Ok(prompts.iter().map(answer).collect())
    }
}

fn report(form: Form) -> String {
    let case = |id: &str| {
        json!({"id": id, "class": "<i>class\u{1}", "messages": [{"role": "user", "content": HOSTILE}],
            "tools": [{"type": "function", "function": {"name": "f", "description": HOSTILE,
                "parameters": {"type": "object", "properties": {HOSTILE: {"type": "string"}}, "required": []}}}],
            "expect": {"calls": [{"name": "f", "arguments": {"</pre><script>": HOSTILE}}]}})
    };
    let suite =
        json!({"version": 1, "cases": [case("<script>1"), case("two\u{c}")], "controls": [case("c")]});
    let suite = Suite::parse(&suite.to_string(), Path::new("<s>.json")).unwrap();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/templates/tiny_tools.jinja");
    let renderer = renderer(&std::fs::read_to_string(path).unwrap());
    let parser = parsers::find("qwen3_coder").unwrap();
    let running = Running { max_new: 9, reading: Reading::new(parser) };
    let transcripts: Vec<Transcript> = run(&mut Writes, &renderer, &suite, &running, &Silent).unwrap();
    let evaluation = evaluate(&suite, &transcripts, &running.reading);
    let rows = matrix(&suite, &transcripts, &running.reading);
    let taught = diagnose::taught(&renderer);
    let verdict = judge(&evaluation, &rows, &transcripts, (&taught, parser), Some(99));
    let one = Run { evaluation: &evaluation, transcripts: &transcripts };
    let mut better = evaluation.clone();
    better.cases.iter_mut().for_each(|c| c.score.points += 1);
    let change = super::compare::Change {
        baseline: HOSTILE.into(),
        score: scores(Run { evaluation: &better, transcripts: &transcripts }, one),
        predictions: None,
        not_compared: Some(HOSTILE.into()),
    };
    let report = Report {
        model: HOSTILE,
        endpoint: Some(HOSTILE),
        settings: &Settings { max_new: 9, ..Settings::default() },
        suite: &suite,
        verdict: &verdict,
        evaluation: &evaluation,
        matrix: &rows,
        taught: Some(&taught),
        stability: None,
        transcripts: &transcripts,
        baseline: Some(&change),
    };
    report.write(form).unwrap()
}

/// The names of all tags in `text`, closing ones with their slash.
fn tags(text: &str) -> Vec<&str> {
    let after = text.split('<').skip(1);
    after
        .map(|t| t.split(|c: char| !(c.is_ascii_alphanumeric() || "/!?".contains(c))).next().unwrap())
        .collect()
}

fn invisible(c: char) -> bool {
    (c.is_control() && !"\n\t".contains(c)) || "\u{202e}\u{2066}\u{fffe}\u{ffff}".contains(c)
}

#[test]
fn the_page_holds_no_tag_and_no_handler_of_the_model() {
    let page = report(Form::Html);
    let known = "!doctype html head meta title style body main header section article p h1 h2 h3 strong b i dl dt dd div ul li \
                 code table thead tbody tfoot tr th td span svg g rect line path text details summary pre";
    for tag in tags(&page) {
        assert!(known.split_whitespace().any(|k| k == tag.trim_start_matches('/')), "<{tag}> in the page");
    }
    // Inside a tag stands nothing but what the page itself writes.
    for tag in page.split('<').skip(1).filter_map(|t| t.split_once('>')) {
        assert!(
            !tag.0.contains("onclick") && !tag.0.contains("onload") && !tag.0.contains("onerror"),
            "{}",
            tag.0
        );
    }
    assert!(!page.chars().any(invisible));
    // Shown as it was written, though.
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;") && page.contains("\\u{1b}[31m"));
}

#[test]
fn the_junit_file_stays_well_formed() {
    let xml = report(Form::Junit);
    assert!(!xml.chars().any(invisible), "a character that XML 1.0 forbids");
    let mut open: Vec<&str> = Vec::new();
    let known = ["testsuites", "testsuite", "testcase", "failure", "system-out", "system-err"];
    let body = xml.split_once("?>").unwrap().1;
    for tag in body.split('<').skip(1).map(|t| t.split_once('>').unwrap().0) {
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap();
        assert!(known.contains(&name), "<{tag}>");
        assert!(tag.matches('"').count().is_multiple_of(2), "<{tag}>");
        match (tag.starts_with('/'), tag.ends_with('/')) {
            (true, _) => assert_eq!(open.pop(), Some(name)),
            (false, true) => {}
            (false, false) => open.push(name),
        }
    }
    assert_eq!(open, [""; 0]);
    // A bare ampersand would end the reader.
    let entities = ["amp;", "lt;", "gt;", "quot;", "#39;"];
    assert!(xml.split('&').skip(1).all(|rest| entities.iter().any(|e| rest.starts_with(e))));
    // One for the verdict, one for each scored case; the control is left out.
    assert_eq!(xml.matches("<testcase ").count(), 3);
}

#[test]
fn the_json_report_gives_the_text_back_as_it_was() {
    let value: serde_json::Value = serde_json::from_str(&report(Form::Json)).unwrap();
    assert_eq!(value["transcripts"][0]["answer"]["text"], HOSTILE);
    assert_eq!(value["transcripts"][0]["answer"]["secs"], 0.003);
    assert!(value["transcripts"].as_array().unwrap().iter().all(|t| t["refused"].is_null()));
    assert_eq!(value["baseline"]["score"]["cases"].as_array().unwrap().len(), 2);
}

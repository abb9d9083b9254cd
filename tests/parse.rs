//! `prep parse`: the case file fed as it is.

use serde_json::Value;

use crate::support::{fixture, prep_reading};

/// 5 and 5.0 differ; an absent content and an empty one do not.
fn same(answer: &Value, expect: &Value) -> bool {
    let content = |v: &Value| v["content"].as_str().unwrap_or_default().to_string();
    content(answer) == content(expect)
        && answer["tool_calls"] == expect["tool_calls"]
        && answer.get("reasoning") == expect.get("reasoning")
}

#[test]
fn cases_fed_as_they_are_give_what_the_server_answers() {
    let text = std::fs::read_to_string(fixture("tool_calls.jsonl")).unwrap();
    let cases: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let names: std::collections::BTreeSet<&str> =
        cases.iter().map(|c| c["parser"].as_str().unwrap()).collect();
    assert!(names.len() > 40);
    for parser in names {
        let mine: Vec<&Value> = cases.iter().filter(|c| c["parser"] == parser).collect();
        assert!(!mine.is_empty());
        let lines: String = mine.iter().map(|c| format!("{c}\n")).collect();
        let ended = prep_reading(["parse", "--parser", parser], &lines).succeeds();
        let answers: Vec<Value> = ended.stdout.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        assert_eq!(answers.len(), mine.len());
        for (answer, case) in answers.iter().zip(mine) {
            assert!(same(answer, &case["expect"]), "{}: {answer}\nnot {}", case["id"], case["expect"]);
        }
    }
}

#[test]
fn broken_line_and_unknown_parser_are_told() {
    prep_reading(["parse", "--parser", "hermes"], "{\"text\": \"a\"}\nnot json\n").exits(3).says("line 2");
    prep_reading(["parse", "--parser", "qwen3"], "").exits(2).says("qwen3_coder");
    prep_reading(["parse", "--parser", "hermes"], "").succeeds();
}

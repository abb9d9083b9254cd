//! Every case of the fixture file: answers of vLLM 0.33 itself.

use serde_json::Value;

use super::{answer_line, find};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/tool_calls.jsonl");

/// Equal for the client: numbers by kind and value, empty content as none.
fn same(ours: &Value, theirs: &Value) -> bool {
    let content = |value: &Value| value["content"].as_str().unwrap_or_default().to_owned();
    content(ours) == content(theirs)
        && ours["tool_calls"] == theirs["tool_calls"]
        && ours["reasoning"].as_str() == theirs["reasoning"].as_str()
}

#[test]
fn fixture_cases_are_answered_as_by_the_server() {
    let mut wrong = Vec::new();
    for line in std::fs::read_to_string(FILE).unwrap().lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let Ok(parser) = find(case["parser"].as_str().unwrap()) else { continue };
        let ours: Value = serde_json::from_str(&answer_line(line, parser, None).unwrap()).unwrap();
        if !same(&ours, &case["expect"]) {
            wrong.push(format!("{}\n  ours   {ours}\n  theirs {}", case["id"], case["expect"]));
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

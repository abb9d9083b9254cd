//! Points for one answer: 0 to 3, by the rule that the suite file states.

use serde::Serialize;
use serde_json::Value;

use super::format::{Expect, ExpectedCall};
use super::matches::{Difference, difference};
use crate::parsers::{Parsed, ToolCall};

/// The most that a case can give.
pub const MAX: u32 = 3;

/// Points for one answer, and why not more.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Score {
    /// 0 to 3.
    pub points: u32,
    /// What was wrong first; none at full points.
    pub fault: Option<String>,
}

impl Score {
    fn full() -> Self {
        Score { points: MAX, fault: None }
    }

    /// `points` because of `fault`.
    pub fn less(points: u32, fault: impl Into<String>) -> Self {
        Score { points, fault: Some(fault.into()) }
    }
}

/// Scores what the parser found in `text`.
pub fn score(expect: &Expect, text: &str, parsed: &Parsed) -> Score {
    let calls = &parsed.tool_calls;
    let marked = |marks: &[String]| marks.iter().any(|m| text.contains(m.as_str()));
    match expect {
        Expect::Calls(e) => score_calls(&e.calls, calls),
        Expect::Refusal(e) => match (marked(&e.marks), calls.is_empty()) {
            (true, true) => Score::full(),
            (true, false) => Score::less(1, "refuses but calls a tool too"),
            (false, true) => Score::less(0, "neither refuses nor calls"),
            (false, false) => Score::less(0, "calls a tool instead of refusing"),
        },
        Expect::NoCall(_) if !calls.is_empty() => Score::less(0, "calls a tool where it should answer"),
        Expect::NoCall(_) if text.trim().is_empty() => Score::less(0, "writes nothing"),
        Expect::NoCall(e) if e.marks.is_empty() || marked(&e.marks) => Score::full(),
        Expect::NoCall(_) => Score::less(1, "answers, but without any of the marks"),
        Expect::Text(e) if e.text == text => Score::full(),
        Expect::Text(_) => Score::less(0, "another text"),
    }
}

/// 1 point for the number of calls, 1 more for the names, 1 more for all arguments.
fn score_calls(expected: &[ExpectedCall], calls: &[ToolCall]) -> Score {
    if calls.is_empty() {
        return Score::less(0, "no call found");
    }
    if calls.len() != expected.len() {
        let noun = if calls.len() == 1 { "call" } else { "calls" };
        return Score::less(0, format!("{} {noun} instead of {}", calls.len(), expected.len()));
    }
    let pairs = || expected.iter().zip(calls);
    if let Some((e, c)) = pairs().find(|(e, c)| e.name != c.name) {
        return Score::less(1, format!("calls `{}` instead of `{}`", c.name, e.name));
    }
    match pairs().find_map(|(e, c)| wrong_argument(e, c)) {
        Some(fault) => Score::less(2, fault),
        None => Score::full(),
    }
}

/// Arguments are compared as JSON: values of another type differ, so 5 is not 5.0 and not "5".
fn wrong_argument(expected: &ExpectedCall, call: &ToolCall) -> Option<String> {
    let name = &call.name;
    let Some(Value::Object(found)) = call.value() else {
        return Some(format!("`{name}`: the arguments are no JSON object"));
    };
    Some(match difference(&expected.arguments, &found)? {
        Difference::Missing(key) => format!("`{name}`: argument `{key}` is missing"),
        Difference::Unexpected(key) => format!("`{name}`: argument `{key}` was not expected"),
        Difference::Value(key) => {
            format!("`{name}`: argument `{key}` is {} instead of {}", found[key], expected.arguments[key])
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn points(expect: Value, text: &str, calls: &[(&str, &str)]) -> u32 {
        let expect: Expect = serde_json::from_value(expect).unwrap();
        let tool_calls =
            calls.iter().map(|(n, a)| ToolCall { name: n.to_string(), arguments: a.to_string() }).collect();
        score(&expect, text, &Parsed { tool_calls, ..Parsed::default() }).points
    }

    #[test]
    fn calls_give_a_point_each_for_number_names_arguments() {
        let e = json!({"calls": [{"name": "f", "arguments": {"a": 5, "b": "x"}}]});
        assert_eq!(points(e.clone(), "", &[]), 0);
        assert_eq!(points(e.clone(), "", &[("f", "{}"), ("f", "{}")]), 0);
        assert_eq!(points(e.clone(), "", &[("g", r#"{"a": 5, "b": "x"}"#)]), 1);
        assert_eq!(points(e.clone(), "", &[("f", r#"{"b": "x", "a": 5}"#)]), 3);
        for wrong in [
            r#"{"a": 5}"#,
            r#"{"a": 5, "b": "x", "c": 1}"#,
            r#"{"a": 5.0, "b": "x"}"#,
            r#"{"a": "5", "b": "x"}"#,
            "no",
        ] {
            assert_eq!(points(e.clone(), "", &[("f", wrong)]), 2, "{wrong}");
        }
    }

    #[test]
    fn order_of_calls_counts() {
        let e = json!({"calls": [{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}]});
        assert_eq!(points(e.clone(), "", &[("f", "{}"), ("g", "{}")]), 3);
        assert_eq!(points(e, "", &[("g", "{}"), ("f", "{}")]), 1);
    }

    #[test]
    fn refusals_need_a_mark_and_no_call() {
        let e = json!({"refusal": true, "marks": ["cannot", "不能"]});
        assert_eq!(points(e.clone(), "I cannot", &[]), 3);
        assert_eq!(points(e.clone(), "我不能", &[("f", "{}")]), 1);
        assert_eq!(points(e.clone(), "ok", &[]), 0);
        assert_eq!(points(e, "ok", &[("f", "{}")]), 0);
    }

    #[test]
    fn an_answer_after_results_needs_text_and_no_call() {
        let e = json!({"no_call": true, "marks": ["21"]});
        assert_eq!(points(e.clone(), "It is 21.", &[]), 3);
        assert_eq!(points(e.clone(), "It is warm.", &[]), 1);
        assert_eq!(points(e.clone(), "It is 21.", &[("f", "{}")]), 0);
        assert_eq!(points(e, " ", &[]), 0);
        assert_eq!(points(json!({"no_call": true}), "ok", &[]), 3);
    }
}

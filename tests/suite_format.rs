//! The suite file: its schema and its reader agree, and faults are named with file, case and field.

use serde_json::{Value, json};
use verify::suite::{SCHEMA, Suite};

use crate::args;
use crate::support::{Dir, prep, repository, tiny_merged};

fn schema() -> jsonschema::Validator {
    jsonschema::validator_for(&serde_json::from_str(SCHEMA).unwrap()).unwrap()
}

fn suite(expect: Value) -> Value {
    let tool = json!({"type": "function", "function": {"name": "f"}});
    json!({"version": 1, "cases": [{"id": "a", "class": "c", "messages": [{"role": "user", "content": "q"}],
        "tools": [tool], "expect": expect}]})
}

fn calls(value: Value) -> Value {
    suite(json!({"calls": [{"name": "f", "arguments": {"x": value}}]}))
}

fn read(suite: &Value) -> bool {
    Suite::parse(&suite.to_string(), std::path::Path::new("s.json")).is_ok()
}

#[test]
fn schema_and_reader_take_and_refuse_the_same() {
    let follow = |then: Value| {
        let mut s = calls(json!(1));
        s["cases"][0]["then"] = json!([then]);
        s
    };
    let good = [
        calls(json!(5)),
        calls(json!({"a": [1, null, "x"]})),
        calls(json!({"$any": true})),
        calls(json!({"$any_of": ["a", {"$number": 1}]})),
        calls(json!({"$regex": "a+"})),
        calls(json!({"$number": 5, "$within": 0.5})),
        calls(json!({"$optional": {"$regex": "x"}})),
        suite(json!({"refusal": true, "marks": ["cannot"]})),
        suite(json!({"no_call": true})),
        suite(json!({"no_call": true, "marks": ["21"]})),
        suite(json!({"text": "hello"})),
        follow(json!({"results": [{"t": 21}], "expect": {"no_call": true}})),
    ];
    for s in &good {
        assert!(schema().is_valid(s) && read(s), "{s}");
    }
    let mut without_id = calls(json!(1));
    without_id["cases"][0].as_object_mut().unwrap().remove("id");
    let mut more = calls(json!(1));
    more["cases"][0]["more"] = json!(1);
    let bad = [
        json!({"version": 2, "cases": []}),
        json!({"version": 1, "cases": []}),
        json!({"cases": good[0]["cases"]}),
        without_id,
        more,
        suite(json!({"calls": []})),
        suite(json!({"calls": [{"name": "f"}]})),
        suite(json!({"calls": [{"name": "f", "arguments": []}]})),
        suite(json!({"refusal": true})),
        suite(json!({"refusal": false, "marks": ["x"]})),
        suite(json!({"refusal": true, "marks": [""]})),
        suite(json!({"no_call": false})),
        suite(json!({"mark": "x"})),
        calls(json!({"$regexp": "a"})),
        calls(json!({"$regex": 5})),
        calls(json!({"$any": false})),
        calls(json!({"$any_of": []})),
        calls(json!({"$number": "5"})),
        calls(json!({"$number": 5, "$within": -1})),
        calls(json!({"$regex": "a", "$any": true})),
        calls(json!([{"a": {"$nothing": 1}}])),
        follow(json!({"expect": {"no_call": true}})),
    ];
    for s in &bad {
        assert!(!schema().is_valid(s), "the schema takes {s}");
        assert!(!read(s), "the reader takes {s}");
    }
}

#[test]
fn the_built_in_suite_follows_the_schema() {
    let path = repository().join("verify/src/suite/default.json");
    let file: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let faults: Vec<String> = schema().iter_errors(&file).map(|e| e.to_string()).collect();
    assert_eq!(faults, [""; 0]);
}

#[test]
fn a_fault_names_file_case_and_field() {
    let dir = Dir::new();
    let path = dir.join("mine.json");
    for (file, words) in [
        (suite(json!({"calls": [{"name": "f", "arguments": "x"}]})), ["mine.json", "case `a`", "arguments"]),
        (calls(json!({"$regex": "("})), ["mine.json", "case `a`", "$regex"]),
        (suite(json!({"refusal": true, "mark": ["x"]})), ["mine.json", "case `a`", "mark"]),
        (json!({"version": 1, "cases": [{"id": "b"}]}), ["mine.json", "case `b`", "class"]),
        (json!({"version": 1, "cases": {}}), ["mine.json", "cases", "not a list"]),
        (json!({"version": 7, "cases": []}), ["mine.json", "version", "7"]),
    ] {
        std::fs::write(&path, file.to_string()).unwrap();
        let ended = prep(args!["verify", tiny_merged(), "--parser", "qwen3_coder", "--suite", path]).exits(3);
        for word in words {
            assert!(ended.stderr.contains(word), "{word} in {}", ended.stderr);
        }
        assert!(!ended.stdout.contains("structure"), "told only after work: {}", ended.stdout);
    }
}

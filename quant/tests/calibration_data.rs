//! Calibration data: files and the built-in set through the template and tokenizer of a model.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use quant::calibration::data::{DataOptions, Samples};
use runner::Tokenizer;
use serde_json::{Value, json};
use verify::Digest;

fn fixture(path: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures")).join(path)
}

/// A model folder without weights, whose template is `template`.
fn model(template: Option<&str>) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for file in ["config.json", "tokenizer.json"] {
        std::fs::copy(fixture("models/qwen3-moe/base").join(file), dir.path().join(file)).unwrap();
    }
    let tokens = json!({"eos_token": "<|im_end|>", "bos_token": "<|im_start|>"});
    std::fs::write(dir.path().join("tokenizer_config.json"), tokens.to_string()).unwrap();
    if let Some(template) = template {
        std::fs::write(dir.path().join("chat_template.jinja"), template).unwrap();
    }
    dir
}

fn tools_template() -> String {
    std::fs::read_to_string(fixture("templates/tiny_tools.jinja")).unwrap()
}

fn read(lines: &[Value], model: &Path, options: &DataOptions) -> verify::Result<Samples> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data.jsonl");
    std::fs::write(&path, lines.iter().map(|l| format!("{l}\n")).collect::<String>()).unwrap();
    Samples::read(Some(&path), model, options)
}

const OPTIONS: DataOptions = DataOptions { samples: 64, seq_len: 256, seed: 1 };

#[test]
fn built_in_set_calibrates_a_tool_caller_without_a_file() {
    let model = model(Some(&tools_template()));
    let samples = Samples::read(None, model.path(), &DataOptions::default()).unwrap();
    let r = &samples.report;
    assert_eq!((r.source.as_str(), r.refused, r.empty, r.left_over), ("built-in set", 0, 0, 0));
    assert!((60..=100).contains(&r.lines) && r.used == r.lines, "{r:?}");
    assert!(r.tool_calls * 2 >= r.used, "at least half call tools: {r:?}");
    assert_eq!(r.tokens, samples.sequences.iter().map(Vec::len).sum::<usize>());
    assert!(samples.sequences.iter().all(|s| !s.is_empty() && s.len() <= 512));
    assert!(!r.warnings.iter().any(|w| w.contains("call tools")));
    let tokenizer = Tokenizer::open(model.path()).unwrap();
    let text: String = samples.sequences.iter().map(|s| tokenizer.decode(s).unwrap()).collect();
    for part in ["<tool_call>", "<tool_response>", "def merge(", "光合作用", "run_sql"] {
        assert!(text.contains(part), "{part}");
    }
}

#[test]
fn built_in_set_is_sound() {
    let text =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/src/calibration/data/built_in.jsonl"))
            .unwrap();
    let mut seen = std::collections::HashSet::new();
    for (n, line) in text.lines().enumerate() {
        let entry: Value = serde_json::from_str(line).unwrap();
        let offered = |name: &Value| {
            entry["tools"]
                .as_array()
                .unwrap()
                .iter()
                .find(|t| t["function"]["name"] == *name)
                .unwrap()
                .clone()
        };
        let mut open: Vec<&Value> = Vec::new();
        for m in entry["messages"].as_array().into_iter().flatten() {
            if m["role"] == "tool" {
                let at = open.iter().position(|id| **id == m["tool_call_id"]).unwrap();
                open.remove(at);
                continue;
            }
            assert!(open.is_empty(), "line {}: a call has no result", n + 1);
            for call in m["tool_calls"].as_array().into_iter().flatten() {
                assert!(seen.insert(call["id"].clone()));
                open.push(&call["id"]);
                let schema = offered(&call["function"]["name"])["function"]["parameters"].clone();
                let arguments = call["function"]["arguments"].as_object().unwrap();
                for required in schema["required"].as_array().unwrap() {
                    assert!(arguments.contains_key(required.as_str().unwrap()), "line {}: {required}", n + 1);
                }
                for (name, value) in arguments {
                    let kind = match &schema["properties"][name]["type"] {
                        Value::Null => panic!("line {}: `{name}` is no parameter", n + 1),
                        kind => kind.as_str().unwrap(),
                    };
                    let fits = match kind {
                        "integer" => value.is_i64(),
                        "number" => value.is_number(),
                        "boolean" => value.is_boolean(),
                        "array" => value.is_array(),
                        _ => value.is_string(),
                    };
                    assert!(fits, "line {}: `{name}` is {value}", n + 1);
                    let choices = schema["properties"][name]["enum"].as_array();
                    assert!(choices.is_none_or(|c| c.contains(value)), "line {}: {value}", n + 1);
                }
            }
        }
        assert!(open.is_empty(), "line {}", n + 1);
    }
}

#[test]
fn built_in_set_goes_through_every_kind_of_template() {
    for entry in std::fs::read_dir(fixture("templates")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "jinja") {
            continue;
        }
        let model = model(Some(&std::fs::read_to_string(&path).unwrap()));
        let r = Samples::read(None, model.path(), &DataOptions::default()).unwrap().report;
        // What a template refuses is left out and told.
        assert_eq!(r.refused > 0, r.warnings.iter().any(|w| w.contains("do not fit")), "{path:?} {r:?}");
        assert!(r.refused * 2 < r.lines, "{path:?} refuses {} of {}", r.refused, r.lines);
        assert_eq!(r.used + r.refused + r.empty + r.left_over, r.lines);
    }
}

#[test]
fn model_without_a_template_is_calibrated_on_the_plain_texts() {
    let model = model(None);
    let r = Samples::read(None, model.path(), &DataOptions::default()).unwrap().report;
    assert!(r.used >= 15 && r.refused == r.lines - r.used && r.template_sha256.is_none(), "{r:?}");
    assert!(r.warnings.iter().any(|w| w.contains("do not fit")));
    let e = read(
        &[json!({"text": "a"}), json!({"messages": [{"role": "user", "content": "x"}]})],
        model.path(),
        &OPTIONS,
    )
    .unwrap_err();
    assert!(e.what().contains("data.jsonl line 2") && e.to_string().contains("no chat template"), "{e}");
}

#[test]
fn conversations_are_rendered_as_a_server_would() {
    let template = tools_template();
    let model = model(Some(&template));
    let tool = json!({"type": "function", "function": {"name": "dial", "description": "d", "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}}}});
    let messages = json!([
        {"role": "user", "content": "dial 3"},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "c", "type": "function", "function": {"name": "dial", "arguments": "{\"n\": 3}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "ok"}
    ]);
    let samples = read(
        &[json!({"messages": messages, "tools": [tool]})],
        model.path(),
        &DataOptions { seq_len: 4096, ..OPTIONS },
    )
    .unwrap();
    let tokenizer = Tokenizer::open(model.path()).unwrap();
    let request = verify::template::Request {
        add_generation_prompt: false,
        ..verify::template::Request::new(messages.as_array().unwrap(), &[tool])
    };
    let text = verify::template::Renderer::open(model.path()).unwrap().render(&request).unwrap();
    assert!(text.contains("dial") && !text.trim_end().ends_with("assistant"));
    // Token by token: nothing is put before or after what the template writes.
    assert_eq!(samples.sequences, [tokenizer.encode(&text).unwrap()]);
    assert_eq!(samples.report.tool_calls, 1);
    assert_eq!(samples.report.template_sha256, Some(Digest::of(template.as_bytes())));
}

#[test]
fn share_of_tool_calls_is_told_where_the_template_teaches_tools() {
    let call = json!({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {}}}]}]});
    let talk = json!({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]});
    let lines = [call.clone(), talk.clone(), talk.clone(), json!({"text": "z"})];
    let teaching = model(Some(&tools_template()));
    let told = |lines: &[Value], model: &Path| {
        let warnings = read(lines, model, &OPTIONS).unwrap().report.warnings;
        warnings.into_iter().find(|w| w.contains("call tools"))
    };
    let warning = told(&lines, teaching.path()).unwrap();
    assert!(warning.starts_with("1 of 4 calibration samples (25 %)"), "{warning}");
    assert_eq!(told(&[call, talk], teaching.path()), None);
    let plain = std::fs::read_to_string(fixture("models/qwen3-moe/base/chat_template.jinja")).unwrap();
    assert_eq!(told(&lines, model(Some(&plain)).path()), None);
}

#[test]
fn every_sample_is_accounted_for() {
    let model = model(None);
    let long = "word ".repeat(400);
    let lines = [
        json!({"text": long}),
        json!({"text": ""}),
        json!({"text": "a"}),
        json!({"text": "b"}),
        json!({"input_ids": []}),
        json!({"input_ids": [1, 2, 3]}),
    ];
    let samples = read(&lines, model.path(), &OPTIONS).unwrap();
    let r = &samples.report;
    assert_eq!(
        (r.lines, r.used, r.empty, r.left_over, r.truncated, r.sequences),
        (6, 4, 2, 0, 1, samples.sequences.len())
    );
    assert!(samples.sequences.contains(&vec![1, 2, 3]), "token ids keep a sequence of their own");
    assert!(samples.sequences.iter().any(|s| s.len() == 256));
    assert!(r.warnings.iter().any(|w| w.contains("the data do not suffice")));
    let lines: Vec<Value> = (0..40).map(|n| json!({"input_ids": vec![n; 9]})).collect();
    let samples = read(&lines, model.path(), &DataOptions { samples: 8, seq_len: 4, seed: 5 }).unwrap();
    let r = &samples.report;
    assert_eq!((r.used, r.left_over, r.truncated, r.sequences, r.tokens), (8, 32, 8, 8, 32));
    assert_eq!(r.warnings, Vec::<String>::new());
}

#[test]
fn same_file_model_and_seed_give_the_same_sequences() {
    let model = model(Some(&tools_template()));
    let with =
        |seed| Samples::read(None, model.path(), &DataOptions { samples: 9, seq_len: 200, seed }).unwrap();
    let (a, b, c) = (with(1), with(1), with(2));
    assert_eq!((&a.sequences, &a.digest, &a.report), (&b.sequences, &b.digest, &b.report));
    assert_ne!(a.digest, c.digest);
    assert_eq!(Samples::of(a.sequences.clone()).digest, a.digest);
    // Where a sequence ends counts too.
    assert_ne!(Samples::of(vec![vec![1, 2], vec![3]]).digest, Samples::of(vec![vec![1], vec![2, 3]]).digest);
}

#[test]
fn faults_name_file_and_line() {
    let model = model(Some(
        "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}{{ m.content }}{% endfor %}",
    ));
    let ok = json!({"text": "a"});
    for (line, word) in [
        (json!({"messages": [{"role": "tool", "content": "x"}]}), "no tools here"),
        (json!({"input_ids": [3, 99999999]}), "id 99999999"),
        (json!({"messages": [{"content": "x"}]}), "no `role`"),
        (json!({"prompt": "x"}), "`input_ids`"),
    ] {
        let e = read(&[ok.clone(), ok.clone(), line], model.path(), &OPTIONS).unwrap_err();
        assert!(e.what().contains("data.jsonl line 3") && e.to_string().contains(word), "{e}");
        assert_eq!(e.class().exit_code(), 3);
    }
    let e = read(&[json!({"text": ""})], model.path(), &OPTIONS).unwrap_err();
    assert!(e.what().contains("nothing to calibrate with") && e.class().exit_code() == 3, "{e}");
    assert_eq!(read(&[], model.path(), &OPTIONS).unwrap_err().class().exit_code(), 3);
    for options in [DataOptions { samples: 0, ..OPTIONS }, DataOptions { seq_len: 0, ..OPTIONS }] {
        assert_eq!(
            read(std::slice::from_ref(&ok), model.path(), &options).unwrap_err().class().exit_code(),
            2
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn any_line_is_a_sample_or_a_fault(
        line in prop_oneof![
            ".{0,40}",
            "[\\[\\]{}:,\"a-z0-9 ]{0,40}",
            "\\{\"(text|messages|input_ids|tools)\": (\"[^\"\\\\]{0,9}\"|[0-9]{1,12}|\\[[0-9]{1,12}\\]|null|\\[\\{\"role\": \"(user|tool|x)\", \"content\": (null|3|\"x\"|\\[\\{\"type\": \"text\"\\}\\])\\}\\])\\}",
        ],
    ) {
        let dir = model(Some(&tools_template()));
        let path = dir.path().join("data.jsonl");
        std::fs::write(&path, &line).unwrap();
        match Samples::read(Some(&path), dir.path(), &OPTIONS) {
            Ok(samples) => prop_assert!(!samples.sequences.is_empty()),
            Err(e) => prop_assert_eq!(e.class().exit_code(), 3),
        }
    }
}

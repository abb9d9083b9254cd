//! The cases of tests/fixtures/merge and the tiny trained models, merged by the real engine.
#![allow(clippy::unwrap_used)]

mod support;

use std::path::{Path, PathBuf};

use merge::Options;
use serde_json::Value;
use support::{FIXTURES, difference, file_tensors, merge, merge_with, tensors};

fn json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn check_case(name: &str) {
    let dir = Path::new(FIXTURES).join("merge").join(name);
    let case = json(&dir.join("case.json"));
    let adapters: Vec<(PathBuf, f64)> = case["adapters"]
        .as_array()
        .unwrap()
        .iter()
        .map(|a| (dir.join(a["dir"].as_str().unwrap()), a["weight"].as_f64().unwrap()))
        .collect();
    let temp = tempfile::tempdir().unwrap();
    let out = temp.path().join("out");
    let result = merge(&dir.join("base"), &adapters, &out, Options::default());
    if case["expect"] == "refuse" {
        let error = result.expect_err(name);
        assert_eq!(error.class().exit_code(), 3);
        let mentions = case["mention_any"].as_array().unwrap();
        assert!(mentions.iter().any(|m| error.to_string().contains(m.as_str().unwrap())), "{name}: {error}");
        assert!(!out.exists(), "{name}: something was written");
        return;
    }
    let report = result.unwrap_or_else(|e| panic!("{name}: {e}"));
    check_tensors(name, &dir, &out, &case);
    check_config(name, &dir, &out, &case);
    check_files(name, &dir, &out, &adapters);
    assert!(report.stages[0].details["modules"].as_array().is_some_and(|m| !m.is_empty()));
}

fn check_tensors(name: &str, dir: &Path, out: &Path, case: &Value) {
    let (base, got) = (tensors(&dir.join("base")), tensors(out));
    let changed = file_tensors(&dir.join("expected/changed.safetensors"));
    let dropped: Vec<&str> = case["dropped"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    let mut names: Vec<&String> = base.keys().filter(|n| !dropped.contains(&n.as_str())).collect();
    names.extend(changed.keys().filter(|n| !base.contains_key(*n)));
    names.sort();
    assert_eq!(got.keys().collect::<Vec<_>>(), names, "{name}");
    let (mut elements, mut differ) = (0, 0);
    for (tensor, (dtype, shape, bytes)) in &got {
        let Some((want_dtype, want_shape, want)) = changed.get(tensor) else {
            assert!(base[tensor].2 == *bytes, "{name}: {tensor} must be as in the base");
            continue;
        };
        assert_eq!((dtype, shape), (want_dtype, want_shape), "{name}: {tensor}");
        let (n, most) = difference(*dtype, want, bytes);
        assert!(most <= 1, "{name}: {tensor} differs by {most} steps");
        elements += bytes.len() / (dtype.bits() / 8);
        differ += n;
    }
    assert!(differ * 10_000 <= elements * 5, "{name}: {differ} of {elements} elements differ");
}

fn check_config(name: &str, dir: &Path, out: &Path, case: &Value) {
    let mut want = json(&dir.join("base/config.json"));
    for (key, value) in case["config_changes"].as_object().unwrap() {
        want[key] = value.clone();
    }
    assert_eq!(json(&out.join("config.json")), want, "{name}");
}

fn check_files(name: &str, dir: &Path, out: &Path, adapters: &[(PathBuf, f64)]) {
    for file in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"] {
        let of_adapter = adapters[0].0.join(file);
        let from = if of_adapter.exists() { of_adapter } else { dir.join("base").join(file) };
        assert_eq!(std::fs::read(out.join(file)).unwrap(), std::fs::read(from).unwrap(), "{name}: {file}");
    }
    let left = std::fs::read_dir(out).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap());
    assert!(!left.into_iter().any(|f| f.starts_with("adapter")), "{name}: an adapter file is in the result");
}

#[test]
fn all_cases_merge_as_expected() {
    let mut names: Vec<String> = std::fs::read_dir(Path::new(FIXTURES).join("merge"))
        .unwrap()
        .map(|f| f.unwrap())
        .filter(|f| f.path().is_dir())
        .map(|f| f.file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert!(names.len() >= 12);
    names.iter().for_each(|n| check_case(n));
}

#[test]
fn fused_and_per_expert_adapter_of_the_trained_model_merge_alike() {
    let model = Path::new(FIXTURES).join("models/qwen3-moe");
    let temp = tempfile::tempdir().unwrap();
    let merged = |adapter: &str| {
        let out = temp.path().join(adapter);
        merge(&model.join("base"), &[(model.join(adapter), 1.0)], &out, Options::default()).unwrap();
        tensors(&out)
    };
    assert!(merged("adapter") == merged("adapter-per-expert"));
}

#[test]
fn result_does_not_depend_on_the_number_of_threads() {
    let case = Path::new(FIXTURES).join("merge/qwen3moe-target-parameters");
    let temp = tempfile::tempdir().unwrap();
    let bytes = |threads: usize| {
        let out = temp.path().join(threads.to_string());
        let adapters = [(case.join("adapter"), 1.0)];
        merge_with(&case.join("base"), &adapters, &out, Options::default(), threads).unwrap();
        std::fs::read(out.join("model.safetensors")).unwrap()
    };
    assert!(bytes(1) == bytes(7));
}

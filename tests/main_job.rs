//! The whole job on the trained tiny model, and the stories that it is for.

use serde_json::Value;

use crate::args;
use crate::support::{Dir, files, fixture, prep, repository, tiny_fp8, tiny_merged};

fn verify(model: &std::path::Path, parser: &str) -> crate::support::Ended {
    prep(args!["verify", model, "--parser", parser, "--json"])
}

#[test]
fn recipe_ends_in_a_score_table_and_a_report() {
    let dir = Dir::new();
    let out = dir.join("out");
    let ended = prep(args!["run", repository().join("recipes/tiny.toml"), "--out", out]).succeeds();
    for text in ["basic", "error_recovery", "safety", "long_context", "/72", "qwen3_coder"] {
        assert!(ended.stdout.contains(text), "{text} in\n{}", ended.stdout);
    }
    let report: Value =
        serde_json::from_slice(&std::fs::read(out.join("prep-report.json")).unwrap()).unwrap();
    assert!(report["verification"]["score"].as_u64().unwrap() >= 62, "{}", report["verification"]);
    let names: Vec<_> = files(&out).into_keys().collect();
    assert_eq!(
        names,
        [
            "SHA256SUMS",
            "chat_template.jinja",
            "config.json",
            "generation_config.json",
            "model.safetensors",
            "tokenizer.json",
            "tokenizer_config.json"
        ]
    );
}

#[test]
fn merged_and_fp8_models_keep_the_score_of_the_fine_tune() {
    for model in [tiny_merged(), tiny_fp8()] {
        let result = verify(model, "qwen3_coder").succeeds().json();
        assert!(result["score"].as_u64().unwrap() >= 62, "{result}");
        assert_eq!(result["max"], 72);
    }
}

#[test]
fn wrong_parser_exits_1_and_names_the_right_one() {
    let ended = prep(args!["verify", tiny_fp8(), "--parser", "hermes"]).exits(1);
    assert!(ended.stdout.contains("0/72") && ended.stdout.contains("qwen3_coder"), "{}", ended.stdout);
    let result = verify(tiny_fp8(), "hermes").exits(1).json();
    assert!(result["score"].as_u64().unwrap() <= 3);
}

#[test]
fn base_without_the_adapter_scores_nothing() {
    let dir = Dir::new();
    let model = dir.copy_of(&fixture("models/qwen3-moe/base"), "model");
    let adapter = fixture("models/qwen3-moe/adapter");
    prep(args!["template", "embed", model, "--from", adapter]).succeeds();
    let result = verify(&model, "qwen3_coder").exits(1).json();
    assert_eq!(result["score"], 0, "{result}");
}

#[test]
fn lost_template_is_told_as_such() {
    let dir = Dir::new();
    let model = dir.copy_of(tiny_fp8(), "model");
    std::fs::copy(fixture("models/qwen3-moe/base/chat_template.jinja"), model.join("chat_template.jinja"))
        .unwrap();
    prep(args!["verify", model, "--parser", "qwen3_coder"]).exits(1).says("this template teaches no tools");
    prep(args!["template", "embed", model, "--from", fixture("models/qwen3-moe/base")]).succeeds();
    prep(args!["verify", model, "--parser", "qwen3_coder"]).exits(1).says("this template teaches no tools");
}

#[test]
fn twice_and_with_any_thread_count_the_same_bytes() {
    let dir = Dir::new();
    let first = files(tiny_fp8());
    for threads in ["1", "2", "7"] {
        let out = dir.join(threads);
        let recipe = repository().join("recipes/tiny.toml");
        prep(args!["run", recipe, "--out", out, "--threads", threads]).succeeds();
        assert!(files(&out) == first, "{threads} threads");
    }
}

#[test]
fn dry_run_prints_the_plan_and_writes_nothing() {
    let dir = Dir::new();
    let out = dir.join("out");
    let recipe = repository().join("recipes/tiny.toml");
    let ended = prep(args!["run", recipe, "--out", out, "--dry-run"]).succeeds();
    for text in ["merge-lora", "quantize", "tensors", "memory", "free"] {
        assert!(ended.stdout.contains(text), "{text} in\n{}", ended.stdout);
    }
    assert!(!out.exists());
    let plan = prep(args!["run", recipe, "--out", out, "--dry-run", "--json"]).succeeds().json();
    assert!(plan["tensors"].as_array().unwrap().len() > 100);
}

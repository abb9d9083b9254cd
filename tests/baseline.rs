//! A model beside its baseline: what quantizing did, in numbers, and what fails a release.

use std::path::Path;

use serde_json::Value;

use crate::args;
use crate::support::{Dir, fixture, prep, tiny_fp8, tiny_merged};

fn compared(model: &Path, baseline: &Path, threads: &str) -> Value {
    let text = fixture("models/README.md");
    let args = args![
        "verify",
        model,
        "--parser",
        "qwen3_coder",
        "--baseline",
        baseline,
        "--text",
        text,
        "--threads",
        threads,
        "--json"
    ];
    prep(args).succeeds().json()["baseline"].take()
}

#[test]
fn a_folder_beside_itself_has_changed_in_nothing() {
    let change = compared(tiny_merged(), tiny_merged(), "2");
    assert_eq!(change["score"]["difference"], 0);
    assert_eq!(change["score"]["cases"], serde_json::json!([]));
    assert_eq!(change["score"]["same_text"], change["score"]["answers"]);
    for part in ["prompts", "answers", "text"] {
        let d = &change["predictions"][part];
        assert!(d["positions"].as_u64().unwrap() > 100, "{part}: {d}");
        assert_eq!((&d["max_kl"], &d["top1_agreement"]), (&0.0.into(), &1.0.into()), "{part}");
    }
    let perplexity = &change["predictions"]["text"]["perplexity"];
    assert_eq!(perplexity["baseline"], perplexity["model"]);
    for layer in change["predictions"]["routers"].as_array().unwrap() {
        assert_eq!(layer["agreement"], 1.0);
    }
}

#[test]
fn fp8_strays_a_little_and_the_same_with_any_thread_count() {
    let change = compared(tiny_fp8(), tiny_merged(), "1");
    let answers = &change["predictions"]["answers"];
    let kl = answers["mean_kl"].as_f64().unwrap();
    assert!(kl > 0.0 && kl < 0.01, "{answers}");
    assert!(answers["top1_agreement"].as_f64().unwrap() > 0.98, "{answers}");
    let routers = change["predictions"]["routers"].as_array().unwrap();
    assert_eq!(routers.len(), 4);
    for layer in routers {
        let agreement = layer["agreement"].as_f64().unwrap();
        assert!(agreement > 0.9 && agreement < 1.0, "{layer}");
        let sum = |key: &str| layer[key].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).sum::<u64>();
        let visits = 2 * layer["tokens"].as_u64().unwrap();
        assert_eq!((sum("load"), sum("baseline_load")), (visits, visits));
    }
    assert_eq!(compared(tiny_fp8(), tiny_merged(), "3"), change);
}

/// The merged model with the signs of one router's weights turned.
fn misrouted(dir: &Dir, layer: usize) -> std::path::PathBuf {
    let model = dir.copy_of(tiny_merged(), "misrouted");
    std::fs::remove_file(model.join("SHA256SUMS")).unwrap();
    let path = model.join("model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let head = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let json: Value = serde_json::from_slice(&bytes[8..head]).unwrap();
    let at = &json[format!("model.layers.{layer}.mlp.gate.weight")]["data_offsets"];
    let range = head + at[0].as_u64().unwrap() as usize..head + at[1].as_u64().unwrap() as usize;
    bytes[range].iter_mut().skip(1).step_by(2).for_each(|b| *b ^= 0x80);
    std::fs::write(path, bytes).unwrap();
    model
}

#[test]
fn a_broken_router_shows_in_its_layer_and_a_fallen_score_fails() {
    let dir = Dir::new();
    let model = misrouted(&dir, 2);
    let with = |limit: &[&str]| {
        let mut args =
            args!["verify", model, "--parser", "qwen3_coder", "--baseline", tiny_merged(), "--json"].to_vec();
        args.extend(limit.iter().map(|l| (*l).into()));
        prep(args)
    };
    // Calls are found and no limit was set: the numbers are told, and nothing fails.
    let change = with(&[]).succeeds().json()["baseline"].take();
    let agreement: Vec<f64> = change["predictions"]["routers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| r["agreement"].as_f64().unwrap())
        .collect();
    assert_eq!(agreement[..3], [1.0, 1.0, 0.0], "{agreement:?}");
    let score = &change["score"];
    let lost = -score["difference"].as_i64().unwrap();
    assert!(lost > 10, "{score}");
    let by_case: i64 = score["cases"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["baseline"].as_i64().unwrap() - c["model"].as_i64().unwrap())
        .sum();
    assert_eq!(by_case, lost);
    with(&["--max-score-drop", &lost.to_string()]).succeeds();
    let failed = with(&["--max-score-drop", &(lost - 1).to_string()]).exits(1).json();
    let errors = |report: &Value| -> Vec<String> {
        let findings = report["findings"].as_array().unwrap().iter();
        let errors = findings.filter(|f| f["level"] == "error");
        errors.map(|f| f["what"].as_str().unwrap().to_string()).collect()
    };
    let found = errors(&failed);
    assert!(found.len() == 1 && found[0].contains("the score fell from"), "{found:?}");
    let found = errors(&with(&["--max-kl", "0.01"]).exits(1).json());
    assert!(found.len() == 1 && found[0].contains("mean KL divergence"), "{found:?}");
}

#[test]
fn tables_name_cases_predictions_and_layers() {
    let dir = Dir::new();
    let model = misrouted(&dir, 2);
    let page = dir.join("v.html");
    let args =
        args!["verify", model, "--parser", "qwen3_coder", "--baseline", tiny_merged(), "--report", page];
    let ended = prep(args).succeeds();
    for text in
        ["beside the baseline merged", "basic-02", "at the baseline's answers", "same experts", "never used"]
    {
        assert!(ended.stdout.contains(text), "{text} in\n{}", ended.stdout);
    }
    let page = std::fs::read_to_string(page).unwrap();
    for text in ["Beside the baseline", "basic-02", "Router agreement", "Expert load", "layer 2"] {
        assert!(page.contains(text), "{text}");
    }
}

#[test]
fn models_of_other_tokenizers_are_compared_by_score_alone() {
    let dir = Dir::new();
    let other = dir.join("other");
    let (base, adapter) = (fixture("models/qwen3_5-moe/base"), fixture("models/qwen3_5-moe/adapter"));
    prep(args!["merge-lora", "--base", base, "--adapter", adapter, "--out", other]).succeeds();
    let tokenizer = std::fs::read_to_string(other.join("tokenizer.json")).unwrap();
    let mut tokenizer: Value = serde_json::from_str(&tokenizer).unwrap();
    tokenizer["model"]["merges"].as_array_mut().unwrap().truncate(500);
    std::fs::write(other.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let args = args![
        "verify",
        tiny_merged(),
        "--parser",
        "qwen3_coder",
        "--baseline",
        other,
        "--max-score-drop",
        "72"
    ];
    prep(args).succeeds().says("predictions were not compared: the two tokenizers cut a prompt differently");
}

#[test]
fn what_cannot_be_compared_is_told_before_anything_runs() {
    let verify = |more: &[&str]| {
        let mut args = args!["verify", tiny_merged(), "--parser", "qwen3_coder"].to_vec();
        args.extend(more.iter().map(|m| (*m).into()));
        prep(args)
    };
    verify(&["--text", "x.txt"]).exits(2).says("--baseline");
    verify(&["--max-score-drop", "1"]).exits(2).says("--baseline");
    let base = tiny_merged().to_str().unwrap();
    for wrong in ["-1", "nan", "much"] {
        verify(&["--baseline", base, &format!("--max-kl={wrong}")]).exits(2).says("0 or more");
    }
    verify(&["--baseline", "/nowhere"]).exits(3).says("the baseline: /nowhere is not a folder");
    let e = verify(&["--baseline", base, "--text", "/nowhere.txt"]).exits(3);
    assert!(!e.stdout.contains("structure"), "{}", e.stdout);
}

#[test]
fn a_recipe_compares_and_draws_as_the_command_does() {
    let dir = Dir::new();
    let out = dir.join("OUT");
    let recipe = crate::support::repository().join("recipes/tiny.toml");
    let run = |more: &[&str]| {
        let mut args = args!["run", recipe, "--out", out, "--json"].to_vec();
        args.extend(more.iter().flat_map(|m| args!["--set", m]));
        prep(args)
    };
    let baseline = format!("verify.baseline={}", tiny_merged().display());
    let drawn = ["verify.temperature=0.3", "verify.top_p=0.9", "verify.seed=3", "verify.repeat=2"];
    let json =
        run(&[&[baseline.as_str(), "verify.max_score_drop=72", "verify.min_score=0"], &drawn[..]].concat());
    let verified = json.succeeds().json()["verification"].take();
    let mut args =
        args!["verify", out, "--parser", "qwen3_coder", "--baseline", tiny_merged(), "--json"].to_vec();
    args.extend(args!["--max-score-drop", "72", "--temperature", "0.3", "--top-p", "0.9", "--seed", "3"]);
    args.extend(args!["--repeat", "2"]);
    let alone = prep(args).succeeds().json();
    for key in ["score", "settings", "baseline", "stability", "cases"] {
        assert!(!alone[key].is_null(), "{key}");
        assert_eq!(verified[key], alone[key], "{key}");
    }
    // What the command refuses, the recipe refuses too, before it writes anything.
    let other = dir.join("OTHER");
    let refused = |set: &str, says: &str| {
        let args = args!["run", recipe, "--out", other, "--set", set];
        prep(args).exits(2).says(says);
        assert!(!other.exists(), "{set}");
    };
    refused("verify.max_kl=0.1", "without a baseline");
    refused("verify.text=x.txt", "without a baseline");
    refused("verify.repeat=2", "--temperature");
    refused("verify.repeat=0", "1 to 1000");
    refused("verify.top_p=7", "top_p");
    prep(args!["run", recipe, "--out", other, "--set", "verify.baseline=/nowhere"])
        .exits(3)
        .says("the baseline");
    let both = args!["run", recipe, "--out", other, "--set", baseline, "--set", "verify.max_kl=-1"];
    prep(both).exits(2).says("0 or more");
    assert!(!other.exists());
}

//! `prep quantize --static-activations` and `--kv-cache`, from the command line to the score.

use std::path::Path;

use crate::args;
use crate::support::{Dir, assert_resumes_calibration, fixture, prep, tiny_hybrid, tiny_merged};

fn score(model: &Path) -> i64 {
    let suite = fixture("models/suite.json");
    let json = prep(args!["verify", model, "--parser", "qwen3_coder", "--suite", suite, "--json"]).json();
    json["score"].as_i64().unwrap_or_else(|| panic!("{json}"))
}

fn quantize(model: &Path, out: &Path, more: &[&str]) -> Vec<std::ffi::OsString> {
    let mut all = args!["quantize", model, "--out", out].to_vec();
    all.extend(more.iter().map(std::ffi::OsString::from));
    all
}

#[test]
fn both_tiny_models_score_as_in_16_bit_with_every_calibrated_scale() {
    let dir = Dir::new();
    for (name, model) in [("moe", tiny_merged()), ("hybrid", tiny_hybrid())] {
        let whole = score(model);
        for (n, how) in [
            &["--fp8", "--static-activations", "--kv-cache", "fp8"][..],
            &["--fp8", "--kv-cache"],
            &["--awq", "--group-size", "64", "--kv-cache", "fp8"],
        ]
        .into_iter()
        .enumerate()
        {
            let out = dir.join(&format!("{name}{n}"));
            prep(quantize(model, &out, how)).succeeds();
            // The runner rounds inputs and cache with the stored scales: wrong ones would show here.
            let points = score(&out);
            assert!(points >= whole - 3, "{name} {how:?}: {points} of {whole}");
        }
    }
}

#[test]
fn folder_says_what_it_is_and_how_it_is_served() {
    let dir = Dir::new();
    let small = ["--samples", "4", "--seq-len", "64"];
    let all = [&["--fp8", "--static-activations", "--kv-cache", "fp8"][..], &small].concat();
    let blocks = [&["--fp8", "--kv-cache", "fp8"][..], &small].concat();
    for (name, how, says) in [
        ("static", all, "one scale a matrix, activations with stored scales"),
        ("blocks", blocks, "blocks of 128 x 128, activations scaled while serving"),
    ] {
        let out = dir.join(name);
        prep(quantize(tiny_merged(), &out, &how)).succeeds();
        let mut plan = quantize(tiny_merged(), &dir.join("no"), &how);
        plan.push("--dry-run".into());
        prep(plan).succeeds().says("cached keys and values");
        let found = prep(args!["inspect", out]).succeeds();
        found.says(says).says("scales for the cache");
        for engine in ["vllm", "sglang"] {
            prep(args!["serve-command", out, "--engine", engine])
                .succeeds()
                .says("--kv-cache-dtype fp8_e4m3");
        }
        let report: serde_json::Value =
            serde_json::from_slice(&std::fs::read(out.join("prep-report.json")).unwrap()).unwrap();
        let details = &report["stages"][0]["details"];
        assert_eq!(details["calibration"]["sequences"], 4, "{details}");
        assert!(details["widest_ranges"].as_array().unwrap().len() >= 8);
    }
}

#[test]
fn broken_scales_fail_the_verification_and_are_named() {
    let dir = Dir::new();
    let out = dir.join("out");
    let how = ["--fp8", "--static-activations", "--kv-cache", "fp8", "--samples", "4", "--seq-len", "64"];
    prep(quantize(tiny_merged(), &out, &how)).succeeds();
    let path = out.join("model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + len]).unwrap();
    for name in ["model.layers.2.self_attn.o_proj.input_scale", "model.layers.1.self_attn.v_scale"] {
        let at = 8 + len + header[name]["data_offsets"][0].as_u64().unwrap() as usize;
        bytes[at..at + 4].fill(0);
    }
    std::fs::write(&path, bytes).unwrap();
    std::fs::remove_file(out.join("SHA256SUMS")).unwrap();
    let ended = prep(args!["verify", out, "--parser", "qwen3_coder"]);
    assert!(ended.code != 0);
    ended.says("model.layers.2.self_attn.o_proj.input_scale").says("model.layers.1.self_attn.v_scale");
}

#[test]
fn recipe_calibrates_on_the_merged_model_in_one_pass() {
    let dir = Dir::new();
    let recipe = crate::support::repository().join("recipes/tiny.toml");
    let (out, steps) = (dir.join("out"), dir.join("steps"));
    let mut words = args!["run", recipe, "--out", out].to_vec();
    for set in [
        "scheme=tensor",
        "static_activations=true",
        "kv_cache=fp8",
        "samples=8",
        "seq_len=64",
        "experts=routed",
    ] {
        words.extend(["--set".into(), format!("quantize.{set}").into()]);
    }
    prep(words).succeeds().says("PASSED");
    let how = [
        "--fp8",
        "--static-activations",
        "--kv-cache",
        "fp8",
        "--samples",
        "8",
        "--seq-len",
        "64",
        "--experts",
        "routed",
    ];
    prep(quantize(tiny_merged(), &steps, &how)).succeeds();
    let weights = |d: &Path| std::fs::read(d.join("model.safetensors")).unwrap();
    assert!(weights(&out) == weights(&steps), "as by merge-lora and quantize");
    for (set, key) in [("samples=4", "samples"), ("experts=all", "experts"), ("group_size=64", "group_size")]
    {
        let words = args!["run", recipe, "--out", dir.join("no"), "--set", format!("quantize.{set}")];
        prep(words).exits(2).says(&format!("quantize.{key}"));
    }
    let kv = args!["run", recipe, "--out", dir.join("no"), "--set", "quantize.kv_cache=int8"];
    prep(kv).exits(2).says("kv_cache");
}

#[test]
fn page_shows_every_scale() {
    let dir = Dir::new();
    let page = dir.join("scales.html");
    let more =
        ["--fp8", "--static-activations", "--kv-cache", "--samples", "8", "--seq-len", "64", "--report"];
    let mut words = quantize(tiny_merged(), &dir.join("out"), &more);
    words.push(page.clone().into());
    prep(words).succeeds();
    let text = std::fs::read_to_string(&page).unwrap();
    for what in [
        "relative error of the weights",
        "self_attn.qkv_proj",
        "layers.3.self_attn.v_scale",
        "Tokens of each expert",
    ] {
        assert!(text.contains(what), "{what}");
    }
}

#[test]
fn killed_in_calibration_and_run_again_gives_the_same_bytes() {
    let how = ["--fp8", "--static-activations", "--kv-cache", "fp8", "--samples", "64", "--seq-len", "256"];
    assert_resumes_calibration(|out| quantize(tiny_merged(), out, &how));
}

#[test]
fn an_fp8_model_can_be_calibrated_from() {
    let dir = Dir::new();
    let out = dir.join("out");
    let how = ["--fp8", "--static-activations", "--from-quantized", "--samples", "4", "--seq-len", "64"];
    prep(quantize(crate::support::tiny_fp8(), &out, &how)).succeeds();
    let config = std::fs::read_to_string(out.join("config.json")).unwrap();
    assert!(config.contains("\"dynamic\": false") || config.contains("\"dynamic\":false"), "{config}");
}

#[test]
fn what_does_not_go_together_is_a_usage_error() {
    let dir = Dir::new();
    let out = dir.join("o");
    let with = |more: &[&str]| prep(quantize(tiny_merged(), &out, more)).exits(2);
    for flag in
        [&["--samples", "4"][..], &["--seq-len", "64"], &["--calibration", "x.jsonl"], &["--experts", "all"]]
    {
        with(&[&["--fp8"], flag].concat()).says(flag[0]);
    }
    with(&["--fp8", "--kv-cache", "fp8", "--experts", "all"]).says("--experts");
    with(&["--fp8", "--report", "page.html"]).says("--report");
    with(&["--fp8", "--kv-cache", "int8"]);
    with(&["--awq", "--static-activations"]);
    with(&["--fp8", "--static-activations", "--part", "1/2"]).says("parts");
    with(&["--fp8", "--static-activations", "--scheme", "block"]).says("--scheme tensor");
    with(&["--fp8", "--static-activations", "--scheme", "channel"]).says("--scheme tensor");
    with(&["--awq", "--format", "autoawq", "--kv-cache", "fp8"]).says("--format compressed-tensors");
    assert!(!out.exists());
}

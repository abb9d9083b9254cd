//! `prep quantize --awq`, from the command line to the score.

use crate::args;
use crate::support::{Dir, assert_resumes_calibration, fixture, prep, tiny_hybrid, tiny_merged};

fn score(model: &std::path::Path) -> i64 {
    let suite = fixture("models/suite.json");
    let json = prep(args!["verify", model, "--parser", "qwen3_coder", "--suite", suite, "--json"]).json();
    json["score"].as_i64().unwrap_or_else(|| panic!("{json}"))
}

#[test]
fn tiny_model_scores_as_in_16_bit() {
    let dir = Dir::new();
    let whole = score(tiny_merged());
    for group in ["64", "128"] {
        let out = dir.join(group);
        prep(args!["quantize", tiny_merged(), "--out", out, "--awq", "--group-size", group]).succeeds();
        let points = score(&out);
        assert!(points >= whole - 3, "group {group}: {points} of {whole}");
        let report = std::fs::read_to_string(out.join("prep-report.json")).unwrap();
        assert!(report.contains("error_after") && report.contains("bits_per_weight"));
    }
}

#[test]
fn eight_bits_are_run_scored_and_told() {
    let dir = Dir::new();
    let out = dir.join("out");
    prep(args!["quantize", tiny_merged(), "--out", out, "--awq", "--bits", "8", "--samples", "32"])
        .succeeds();
    let (whole, points) = (score(tiny_merged()), score(&out));
    assert!(points >= whole - 1, "{points} of {whole}");
    let inspect = |model: &std::path::Path| prep(args!["inspect", model, "--json"]).succeeds().json();
    let total = |model: &std::path::Path| inspect(model)["parameters"]["total"].as_u64().unwrap();
    assert_eq!(total(&out), total(tiny_merged()));
    prep(args!["inspect", out])
        .succeeds()
        .says("8 bit (compressed-tensors), groups of 128, with zero points");
}

#[test]
fn recipe_calibrates_on_the_merged_model_in_one_pass() {
    let dir = Dir::new();
    let recipe = crate::support::repository().join("recipes/tiny-awq.toml");
    let (out, steps) = (dir.join("out"), dir.join("steps"));
    let small = ["--set", "quantize.samples=8", "--set", "quantize.seq_len=64"];
    let mut words = args!["run", recipe, "--out", out].to_vec();
    words.extend(small.map(Into::into));
    prep(words).succeeds().says("PASSED");
    let sizes = ["--samples", "8", "--seq-len", "64", "--group-size", "64"];
    let mut words = args!["quantize", tiny_merged(), "--out", steps, "--awq"].to_vec();
    words.extend(sizes.map(Into::into));
    prep(words).succeeds();
    let weights = |d: &std::path::Path| std::fs::read(d.join("model.safetensors")).unwrap();
    assert!(weights(&out) == weights(&steps), "as by merge-lora and quantize");
    let mut words = args!["run", recipe, "--out", dir.join("no")].to_vec();
    words.extend(["--set", "quantize.scheme=block"].map(Into::into));
    prep(words).exits(2).says("quantize.scheme");
}

#[test]
fn page_shows_every_layer() {
    let dir = Dir::new();
    let page = dir.join("awq.html");
    let mut words =
        args!["quantize", tiny_merged(), "--out", dir.join("out"), "--awq", "--report", page].to_vec();
    words.extend(["--samples", "8", "--seq-len", "64"].map(Into::into));
    prep(words).succeeds();
    let text = std::fs::read_to_string(&page).unwrap();
    for what in ["bits a weight", "input_layernorm", "experts.7.up_proj", "<svg"] {
        assert!(text.contains(what), "{what}");
    }
    let inside = dir.join("out/awq.html");
    prep(args!["quantize", tiny_merged(), "--out", dir.join("out"), "--awq", "--report", inside]).exits(2);
}

#[test]
fn killed_in_calibration_and_run_again_gives_the_same_bytes() {
    for model in [tiny_merged(), tiny_hybrid()] {
        assert_resumes_calibration(|out| {
            args!["quantize", model, "--out", out, "--awq", "--samples", "8", "--seq-len", "64"].to_vec()
        });
    }
}

#[test]
fn what_awq_cannot_do_is_a_usage_error() {
    let dir = Dir::new();
    let out = dir.join("o");
    let with = |more: &[&str]| {
        let mut all = args!["quantize", tiny_merged(), "--out", out].to_vec();
        all.extend(more.iter().map(std::ffi::OsString::from));
        prep(all).exits(2)
    };
    with(&["--awq", "--part", "1/2"]).says("parts");
    with(&["--awq", "--fp8"]);
    with(&["--fp8", "--bits", "8"]);
    with(&["--awq", "--group-size", "100"]).says("32, 64 and 128");
    with(&[]);
    assert!(!out.exists());
}

#[test]
fn page_that_cannot_be_written_is_refused_before_anything_is_calibrated() {
    let dir = Dir::new();
    let run = |page: &std::path::Path| {
        prep(args!["quantize", tiny_merged(), "--out", dir.join("out"), "--awq", "--report", page])
    };
    run(&dir.join("nowhere/page.html")).exits(5).says("no folder");
    run(&dir.join("page.pdf")).exits(2).says(".html");
    assert!(!dir.join("out").exists());
}

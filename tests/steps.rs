//! Each step alone gives the same bytes as the fused run; outputs never harm inputs.

use crate::args;
use crate::support::{Dir, files, fixture, prep, tiny_fp8, tiny_merged};

#[test]
fn steps_apart_give_the_bytes_of_the_fused_run() {
    let dir = Dir::new();
    let apart = dir.join("apart");
    prep(args!["quantize", tiny_merged(), "--out", apart, "--fp8"]).succeeds().says("next: ");
    prep(args!["template", "embed", apart]).succeeds();
    assert_eq!(files(&apart).keys().collect::<Vec<_>>(), files(tiny_fp8()).keys().collect::<Vec<_>>());
    for (name, bytes) in files(&apart) {
        assert!(bytes == files(tiny_fp8())[&name], "{name}");
    }
    prep(args!["checksum", apart, "--check"]).succeeds();
}

#[test]
fn adapters_of_both_layouts_merge_to_the_same_weights() {
    let dir = Dir::new();
    let out = dir.join("out");
    let (base, adapter) = (fixture("models/qwen3-moe/base"), fixture("models/qwen3-moe/adapter-per-expert"));
    prep(args!["merge-lora", "--base", base, "--adapter", adapter, "--out", out]).succeeds();
    assert!(files(&out)["model.safetensors"] == files(tiny_merged())["model.safetensors"]);
}

#[test]
fn output_is_never_an_input_nor_overwritten() {
    let dir = Dir::new();
    let model = dir.copy_of(tiny_merged(), "model");
    prep(args!["quantize", model, "--out", model, "--fp8"]).exits(2).says("inputs are never changed");
    prep(args!["quantize", model, "--out", model.join("x"), "--fp8"]).exits(2);
    let out = dir.join("out");
    prep(args!["quantize", model, "--out", out, "--fp8"]).succeeds();
    let before = files(&out);
    prep(args!["quantize", model, "--out", out, "--fp8"]).exits(2).says("--force");
    prep(args!["quantize", model, "--out", out, "--fp8", "--force"]).succeeds();
    assert!(files(&out) == before && files(&model) == files(tiny_merged()));
}

#[test]
fn quantizing_twice_is_refused() {
    let dir = Dir::new();
    prep(args!["quantize", tiny_fp8(), "--out", dir.join("o"), "--fp8"]).exits(3).says("quantiz");
    assert!(!dir.join("o/config.json").exists());
}

#[test]
fn adapter_tensor_without_a_place_is_refused_by_name() {
    let dir = Dir::new();
    let case = fixture("merge/refuse-unmatched-tensor");
    let out = dir.join("out");
    let ended = prep(args![
        "merge-lora",
        "--base",
        case.join("base"),
        "--adapter",
        case.join("adapter"),
        "--out",
        out
    ])
    .exits(3);
    assert!(ended.stderr.contains("hint:"), "{}", ended.stderr);
    assert!(!out.join("model.safetensors").exists());
}

#[test]
fn report_holds_no_path_of_the_machine() {
    let text = std::fs::read_to_string(tiny_merged().join("prep-report.json")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(report["outputs"].as_array().unwrap().len() == 6);
    let without_command = text.replace(report["command"].as_str().unwrap(), "");
    assert!(!without_command.contains(env!("CARGO_MANIFEST_DIR")), "{text}");
}

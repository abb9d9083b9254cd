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
    prep(args!["quantize", model, "--out", out, "--fp8"]).succeeds().says("nothing to do");
    prep(args!["quantize", model, "--out", out, "--fp8", "--scheme", "channel"]).exits(2).says("--force");
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

#[test]
fn parts_assembled_are_the_bytes_of_one_run() {
    let dir = Dir::new();
    let model = crate::support::sharded_model(&dir);
    let (whole, parts) = (dir.join("whole"), dir.join("parts"));
    prep(args!["quantize", model, "--out", whole, "--fp8"]).succeeds();
    prep(args!["assemble", parts]).exits(3).says("holds no parts");
    prep(args!["quantize", model, "--out", parts, "--fp8", "--part", "1/2"]).succeeds().says("prep assemble");
    prep(args!["assemble", parts]).exits(1).says("is not complete");
    prep(args!["verify", parts, "--parser", "hermes"]).exits(3).says("unfinished");
    prep(args!["quantize", model, "--out", parts, "--fp8", "--part", "2/2"]).succeeds();
    prep(args!["assemble", parts]).succeeds();
    assert!(files(&parts) == files(&whole));
    prep(args!["checksum", parts, "--check"]).succeeds();
    prep(args!["quantize", model, "--out", parts, "--fp8", "--part", "3/2"]).exits(2);
}

#[test]
fn every_fp8_scheme_keeps_the_score() {
    let dir = Dir::new();
    for scheme in ["channel", "tensor", "compressed-block"] {
        let out = dir.join(scheme);
        prep(args!["quantize", tiny_merged(), "--out", out, "--fp8", "--scheme", scheme]).succeeds();
        let result = prep(args!["verify", out, "--parser", "qwen3_coder", "--json"]).succeeds().json();
        assert!(result["score"].as_u64().unwrap() >= 62, "{scheme}: {}", result["score"]);
    }
}

#[test]
fn fp8_model_can_be_the_source_if_asked_for() {
    let dir = Dir::new();
    let out = dir.join("out");
    let args =
        args!["quantize", tiny_fp8(), "--out", out, "--fp8", "--scheme", "channel", "--from-quantized"];
    prep(args).succeeds();
    let config = std::fs::read_to_string(out.join("config.json")).unwrap();
    let config: serde_json::Value = serde_json::from_str(&config).unwrap();
    assert_eq!(config["quantization_config"]["quant_method"], "compressed-tensors");
}

#[test]
fn parts_of_another_plan_or_count_are_refused_at_once() {
    let dir = Dir::new();
    let model = crate::support::sharded_model(&dir);
    let out = dir.join("out");
    prep(args!["quantize", model, "--out", out, "--fp8", "--part", "1/2"]).succeeds();
    prep(args!["quantize", model, "--out", out, "--fp8", "--scheme", "channel", "--part", "2/2"])
        .exits(2)
        .says("another plan");
    prep(args!["quantize", model, "--out", out, "--fp8", "--part", "2/3"]).exits(2).says("in 2 parts");
    prep(args!["quantize", model, "--out", out, "--fp8", "--part", "2/2", "--force"]).exits(2);
    prep(args!["quantize", model, "--out", out, "--fp8", "--part", "2/2"]).succeeds();
    let moved = dir.join("moved");
    std::fs::rename(&out, &moved).unwrap();
    prep(args!["assemble", moved]).succeeds();
    assert!(!out.exists());
    prep(args!["checksum", moved, "--check"]).succeeds();
}

#[test]
fn folder_that_holds_an_input_is_never_replaced() {
    let dir = Dir::new();
    let all = dir.join("all");
    std::fs::create_dir(&all).unwrap();
    let model = dir.copy_of(tiny_merged(), "all/model");
    prep(args!["quantize", model, "--out", all, "--fp8", "--force"]).exits(2).says("holds an input folder");
    assert!(files(&model) == files(tiny_merged()));
}

#[test]
fn embedding_keeps_report_and_sums_true() {
    let dir = Dir::new();
    let model = dir.copy_of(tiny_merged(), "model");
    prep(args!["template", "embed", model]).succeeds();
    let text = std::fs::read_to_string(model.join("prep-report.json")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    for f in report["outputs"].as_array().unwrap() {
        let bytes = std::fs::read(model.join(f["name"].as_str().unwrap())).unwrap();
        assert_eq!(f["sha256"], verify::Digest::of(&bytes).to_string(), "{}", f["name"]);
    }
    prep(args!["checksum", model, "--force"]).succeeds();
    prep(args!["checksum", model, "--check"]).succeeds();
}

#[test]
fn report_inside_the_model_folder_is_refused() {
    let dir = Dir::new();
    let model = dir.copy_of(tiny_merged(), "model");
    let ended = prep(args!["verify", model, "--parser", "qwen3_coder", "--report", model.join("v.html")]);
    ended.exits(2).says("lies in the model folder");
    for name in ["v.html", "v.json", "v.xml"] {
        let path = dir.join(name);
        prep(args!["verify", model, "--parser", "qwen3_coder", "--report", path]).succeeds();
        assert!(std::fs::read_to_string(path).unwrap().contains("basic-01"), "{name}");
    }
    prep(args!["verify", model, "--parser", "qwen3_coder", "--report", dir.join("v.txt")]).exits(2);
}

#[test]
fn new_files_are_readable_by_all_but_what_the_umask_hides() {
    use std::os::unix::fs::PermissionsExt;
    let mode = |p: std::path::PathBuf| std::fs::metadata(p).unwrap().permissions().mode() & 0o777;
    let dir = Dir::new();
    let script = format!("umask 027; exec \"{}\" \"$@\"", env!("CARGO_BIN_EXE_prep"));
    let out = dir.join("out");
    let status = std::process::Command::new("bash")
        .args(["-c", &script, "prep", "quantize", "--fp8", "--quiet"])
        .arg(tiny_merged())
        .arg("--out")
        .arg(&out)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .status();
    assert!(status.unwrap().success());
    assert_eq!(mode(out.join("model.safetensors")), 0o640);
}

#[test]
fn inputs_are_hashed_where_it_is_cheap_comparable_or_asked_for() {
    let dir = Dir::new();
    let sha = |out: &std::path::Path| {
        let text = std::fs::read_to_string(out.join("prep-report.json")).unwrap();
        let report: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert!(report["inputs"][0]["header_sha256"].is_string());
        report["inputs"][0]["sha256"].clone()
    };
    assert!(sha(tiny_merged()).is_string(), "small");
    let big = crate::support::big_model(&dir, 540 << 20);
    let (plain, asked, listed) = (dir.join("plain"), dir.join("asked"), dir.join("listed"));
    prep(args!["quantize", big, "--out", plain, "--fp8"]).succeeds();
    assert!(sha(&plain).is_null());
    prep(args!["quantize", big, "--out", asked, "--fp8", "--hash-inputs"]).succeeds();
    let digest = sha(&asked);
    assert!(digest.is_string());
    let sums = format!("{}  model.safetensors\n", digest.as_str().unwrap());
    std::fs::write(big.join("SHA256SUMS"), sums).unwrap();
    prep(args!["quantize", big, "--out", listed, "--fp8"]).succeeds();
    assert_eq!(sha(&listed), digest);
    assert!(files(&plain) == files(&listed));
}

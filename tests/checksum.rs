//! `prep checksum` on its own.

use crate::args;
use crate::support::{Dir, fixture, prep, tiny_fp8};

#[test]
fn sums_are_those_of_sha256sum_and_one_changed_byte_is_found() {
    let dir = Dir::new();
    let model = dir.copy_of(tiny_fp8(), "model");
    prep(args!["checksum", model, "--check"]).succeeds();
    let tool =
        std::process::Command::new("sha256sum").args(["-c", "SHA256SUMS"]).current_dir(&model).output();
    if let Ok(out) = tool {
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
    }
    let shard = model.join("model.safetensors");
    let mut bytes = std::fs::read(&shard).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&shard, bytes).unwrap();
    prep(args!["checksum", model, "--check"]).exits(1).says("model.safetensors: is damaged");
    prep(args!["verify", model, "--parser", "qwen3_coder"]).exits(1).says("model.safetensors");
    let json = prep(args!["checksum", model, "--check", "--json"]).exits(1).json();
    assert_eq!(json["faults"][0]["file"], "model.safetensors");
}

#[test]
fn a_folder_from_elsewhere_can_be_listed_once() {
    let dir = Dir::new();
    let model = dir.copy_of(&fixture("models/qwen3-moe/base"), "model");
    prep(args!["checksum", model, "--check"]).exits(3).says("has no SHA256SUMS");
    prep(args!["checksum", model]).succeeds().says("6 files");
    prep(args!["checksum", model, "--check"]).succeeds();
    prep(args!["checksum", model]).exits(2).says("--force");
    std::fs::write(model.join("extra.json"), "{}").unwrap();
    prep(args!["checksum", model, "--check"]).exits(1).says("extra.json");
    prep(args!["checksum", model, "--force"]).succeeds().says("7 files");
}

#[test]
fn closed_stdout_changes_no_exit_code() {
    let dir = Dir::new();
    let model = dir.copy_of(tiny_fp8(), "model");
    std::fs::write(model.join("config.json"), "{}").unwrap();
    let script = r#""$0" checksum "$1" --check | true; exit "${PIPESTATUS[0]}""#;
    let status = std::process::Command::new("bash")
        .args(["-c", script, env!("CARGO_BIN_EXE_prep")])
        .arg(&model)
        .status();
    assert_eq!(status.unwrap().code(), Some(1));
    let script = r#"echo '{"text": "a"}' | "$0" parse --parser hermes > /dev/full"#;
    let status = std::process::Command::new("bash").args(["-c", script, env!("CARGO_BIN_EXE_prep")]).output();
    assert_eq!(status.unwrap().status.code(), Some(5));
}

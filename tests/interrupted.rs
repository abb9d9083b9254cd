//! Killed at any moment, run again: the same bytes.

use std::time::Duration;

use crate::args;
use crate::support::{Dir, command, files, fixture, prep, repository, tiny_fp8};

#[test]
fn killed_at_any_moment_and_run_again_gives_the_same_bytes() {
    let whole = files(tiny_fp8());
    for round in 0..12u64 {
        let dir = Dir::new();
        let out = dir.join("out");
        let recipe = repository().join("recipes/tiny.toml");
        for attempt in 0..3u64 {
            let mut child = command(args!["run", recipe, "--out", out, "--quiet"])
                .stdout(std::process::Stdio::null())
                .stderr(std::process::Stdio::null())
                .spawn()
                .unwrap();
            std::thread::sleep(Duration::from_millis(3 + round * 7 + attempt * 11));
            let _ = child.kill();
            child.wait().unwrap();
            if out.join("prep-report.json").exists() {
                break;
            }
        }
        // Also where the kill came after the report: the run then verifies, and clears what is left.
        prep(args!["run", recipe, "--out", out]).succeeds();
        assert!(files(&out) == whole, "round {round}");
        prep(args!["checksum", out, "--check"]).succeeds();
    }
}

#[test]
fn full_disk_exits_5_and_leaves_nothing_that_looks_finished() {
    let dir = Dir::new();
    let out = dir.join("out");
    // A file size limit stands in for a full disk; the shell sets it, SIGXFSZ is ignored so that writes fail.
    let script = format!(
        "trap '' XFSZ; ulimit -f 1000; exec \"{}\" merge-lora --base \"{}\" --adapter \"{}\" --out \"{}\"",
        env!("CARGO_BIN_EXE_prep"),
        fixture("models/qwen3-moe/base").display(),
        fixture("models/qwen3-moe/adapter").display(),
        out.display()
    );
    let ended = std::process::Command::new("bash").args(["-c", &script]).output().unwrap();
    assert_eq!(ended.status.code(), Some(5), "{}", String::from_utf8_lossy(&ended.stderr));
    assert!(!out.join("prep-report.json").exists() && !out.join("model.safetensors").exists());
    let (base, adapter) = (fixture("models/qwen3-moe/base"), fixture("models/qwen3-moe/adapter"));
    prep(args!["merge-lora", "--base", base, "--adapter", adapter, "--out", out]).succeeds();
    prep(args!["checksum", out, "--check"]).succeeds();
}

#[cfg(unix)]
#[test]
fn interrupted_run_exits_130_and_says_how_to_go_on() {
    let dir = Dir::new();
    let out = dir.join("out");
    let big = crate::support::big_model(&dir, 300 << 20);
    let child = command(args!["quantize", big, "--out", out, "--fp8", "--threads", "1"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    while !out.join("model.safetensors.part").exists() {
        std::thread::sleep(Duration::from_millis(2));
    }
    std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130), "{}", String::from_utf8_lossy(&ended.stderr));
    assert!(String::from_utf8_lossy(&ended.stderr).contains("continues where it stopped"));
    assert!(!out.join("model.safetensors.part").exists());
    prep(args!["quantize", big, "--out", out, "--fp8"]).succeeds();
}

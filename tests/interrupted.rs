//! Killed at any moment, run again: the same bytes.

use std::time::Duration;

use crate::args;
use crate::support::{Dir, command, files, fixture, prep, repository, tiny_fp8, tiny_merged};

#[test]
fn killed_at_any_moment_and_run_again_gives_the_same_bytes() {
    let whole = files(tiny_fp8());
    for round in 0..8u64 {
        let dir = Dir::new();
        let out = dir.join("out");
        let recipe = repository().join("recipes/tiny.toml");
        for attempt in 0..3u64 {
            kill_after(
                args!["run", recipe, "--out", out, "--quiet"],
                Duration::from_millis(3 + round * 7 + attempt * 11),
            );
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

fn kill_after(args: impl IntoIterator<Item = std::ffi::OsString>, time: Duration) {
    let quiet = std::process::Stdio::null;
    let mut child = command(args).stdout(quiet()).stderr(quiet()).spawn().unwrap();
    std::thread::sleep(time);
    let _ = child.kill();
    child.wait().unwrap();
}

#[test]
fn killed_while_a_shard_is_written_and_run_again_gives_the_same_bytes() {
    let dir = Dir::new();
    let big = crate::support::big_model(&dir, 200 << 20);
    let whole = dir.join("whole");
    prep(args!["quantize", big, "--out", whole, "--fp8"]).succeeds();
    let mut hits = 0;
    for round in 0..6u64 {
        let out = dir.join(&format!("out{round}"));
        let part = out.join("model.safetensors.part");
        let quiet = std::process::Stdio::null;
        let mut child = command(args!["quantize", big, "--out", out, "--fp8"])
            .stdout(quiet())
            .stderr(quiet())
            .spawn()
            .unwrap();
        while !part.exists() && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(round * 9));
        let _ = child.kill();
        child.wait().unwrap();
        hits += usize::from(part.exists());
        prep(args!["quantize", big, "--out", out, "--fp8"]).succeeds();
        assert!(files(&out) == files(&whole), "round {round}");
    }
    assert!(hits > 0, "no kill came while the shard was written");
}

#[test]
fn killed_while_replacing_leaves_the_old_folder_or_the_new_one() {
    let dir = Dir::new();
    let model = dir.copy_of(tiny_merged(), "model");
    let (old, new) = (dir.join("old"), dir.join("new"));
    prep(args!["quantize", model, "--out", old, "--fp8"]).succeeds();
    prep(args!["quantize", model, "--out", new, "--fp8", "--scheme", "channel"]).succeeds();
    let out = dir.join("out");
    for round in 0..10u64 {
        prep(args!["quantize", model, "--out", out, "--fp8", "--force"]).succeeds();
        let args = args!["quantize", model, "--out", out, "--fp8", "--scheme", "channel", "--force"];
        kill_after(args.clone(), Duration::from_millis(2 + 3 * round));
        let mut left = files_but_work(&out);
        left.remove(".prep-replaced");
        let told: Vec<(&String, usize)> = left.iter().map(|(name, bytes)| (name, bytes.len())).collect();
        assert!(left == files(&old) || left == files(&new), "round {round}: {told:?}");
        prep(args).succeeds();
        assert!(files(&out) == files(&new) && !dir.join("out.prep-new").exists(), "round {round}");
    }
    assert!(files(&model) == files(tiny_merged()));
}

fn files_but_work(dir: &std::path::Path) -> std::collections::BTreeMap<String, Vec<u8>> {
    let _ = std::fs::remove_dir_all(dir.join(".prep"));
    files(dir)
}

#[test]
fn second_run_on_the_same_folder_exits_75_or_waits() {
    let dir = Dir::new();
    let big = crate::support::big_model(&dir, 300 << 20);
    let out = dir.join("out");
    let quiet = std::process::Stdio::null;
    let mut first = command(args!["quantize", big, "--out", out, "--fp8", "--threads", "1"])
        .stdout(quiet())
        .stderr(quiet())
        .spawn()
        .unwrap();
    while !out.join("model.safetensors.part").exists() && first.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    prep(args!["quantize", big, "--out", out, "--fp8"]).exits(75).says("locked by another run");
    prep(args!["quantize", big, "--out", out, "--fp8", "--lock-wait", "100"])
        .succeeds()
        .says("nothing to do");
    assert!(first.wait().unwrap().success());
}

#[test]
fn a_run_without_locks_goes_on_and_says_what_it_lacks() {
    let dir = Dir::new();
    let (out, model) = (dir.join("out"), fixture("models/qwen3-moe/base"));
    std::fs::create_dir_all(out.join(".prep")).unwrap();
    let lock = std::fs::File::create(out.join(".prep/lock")).unwrap();
    lock.lock().unwrap();
    let run = |more: &[&str]| {
        let job = args!["quantize", model, "--out", out, "--fp8"];
        prep(job.into_iter().chain(more.iter().map(Into::into)))
    };
    run(&[]).exits(75);
    run(&["--no-lock", "--lock-wait", "1"]).exits(2);
    run(&["--no-lock"]).succeeds().says("no lock was taken");
    let report = std::fs::read_to_string(out.join("prep-report.json")).unwrap();
    assert!(report.contains("no lock was taken"), "{report}");
}

#[test]
fn full_disk_exits_5_and_leaves_nothing_that_looks_finished() {
    let dir = Dir::new();
    let out = dir.join("out");
    // A file size limit stands in for a full disk.
    let script = format!(
        "ulimit -f 1000; exec \"{}\" merge-lora --base \"{}\" --adapter \"{}\" --out \"{}\"",
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
    let began = std::time::Instant::now();
    while !out.join("model.safetensors.part").exists() && began.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(2));
    }
    std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130), "{}", String::from_utf8_lossy(&ended.stderr));
    assert!(String::from_utf8_lossy(&ended.stderr).contains("continues where it stopped"));
    assert!(!out.join("model.safetensors.part").exists());
    prep(args!["quantize", big, "--out", out, "--fp8"]).succeeds();
}

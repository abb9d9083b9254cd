//! What is fetched, and what lies in the output folder already (N11, M1, M4).

use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::json;

use super::{assert_whole, at, base, download, into, run, tiny};
use crate::args;
use crate::schemas::valid;
use crate::support::hub::{COMMIT, Fault, Hub, REPO};
use crate::support::{Dir, ended, files, fixture};

#[test]
fn model_arrives_whole_with_sums_and_a_report_that_names_the_commit() {
    let (hub, _dir, out) = tiny();
    hub.put("pytorch_model.bin", vec![1]);
    hub.put("modeling_x.py", vec![1]);
    let plan = run(download(&hub, args!["--out", out, "--dry-run", "--json"])).succeeds().json();
    valid("download", &plan);
    hub.forget();
    let json = run(download(&hub, args!["--out", out, "--json"])).succeeds().json();
    valid("download", &json);
    assert_eq!((json["commit"].as_str(), json["checked"].as_str()), (Some(COMMIT), Some("checkpoint")));
    assert_whole(&out);
    let report = std::fs::read_to_string(out.join("prep-report.json")).unwrap();
    assert!(
        report.contains(COMMIT) && report.contains("pytorch_model.bin") && report.contains("modeling_x.py")
    );
    assert_eq!(hub.log().iter().filter(|l| l.target.contains("/revision/")).count(), 1);
    assert!(hub.log().iter().all(|l| !l.target.contains(".bin") && !l.target.contains(".py")));
    crate::support::prep(args!["checksum", out, "--check"]).succeeds();
}

#[test]
fn python_files_come_with_keep_code_only() {
    let (hub, dir, out) = tiny();
    hub.put("modeling_x.py", b"x = 1\n".to_vec());
    hub.put("run.sh", vec![1]);
    let said = run(download(&hub, args!["--out", out])).succeeds();
    said.says("code is not fetched").says("--keep-code");
    assert!(!out.join("modeling_x.py").exists());
    run(download(&hub, args!["--out", dir.join("a"), "--include", "*.py"])).exits(3).says("--keep-code");
    let kept = dir.join("kept");
    let plan = run(download(&hub, args!["--out", kept, "--keep-code", "--dry-run", "--json"])).succeeds();
    valid("download", &plan.json());
    run(download(&hub, args!["--out", kept, "--keep-code"])).succeeds().says("--trust-remote-code");
    assert!(kept.join("modeling_x.py").exists() && !kept.join("run.sh").exists());
    crate::support::prep(args!["checksum", kept, "--check"]).succeeds();
}

#[test]
fn download_without_locks_goes_on_and_says_what_it_lacks() {
    let (hub, _dir, out) = tiny();
    std::fs::create_dir_all(out.join(".prep")).unwrap();
    let lock = std::fs::File::create(out.join(".prep/lock")).unwrap();
    lock.lock().unwrap();
    into(&hub, &out).exits(75);
    run(download(&hub, args!["--out", out, "--no-lock"])).succeeds().says("no lock was taken");
    assert_whole(&out);
}

#[test]
fn dry_run_lists_sizes_and_reasons_and_fetches_nothing() {
    let (hub, _dir, out) = tiny();
    hub.put("pytorch_model.bin", vec![1]);
    let ended = run(download(&hub, args!["--out", out, "--dry-run"])).succeeds();
    ended.says("model.safetensors").says("KiB").says("pickle").says(COMMIT);
    assert!(!out.exists() && hub.fetches() == 0);
}

#[test]
fn globs_choose_and_pickles_asked_for_are_refused() {
    let (hub, dir, out) = tiny();
    hub.put("pytorch_model.bin", vec![1]);
    hub.put("sub/deep/x.json", b"{}".to_vec());
    let args = args!["--out", out, "--include", "*.json", "--include", "sub/**", "--exclude", "tokenizer*"];
    let json = run(download(&hub, [&args[..], &args!["--json"]].concat())).succeeds().json();
    assert_eq!(json["checked"], "nothing");
    assert!(out.join("config.json").exists() && out.join("sub/deep/x.json").exists());
    assert!(!out.join("model.safetensors").exists() && !out.join("tokenizer.json").exists());
    run(download(&hub, args!["--out", dir.join("b"), "--include", "*.bin"])).exits(3).says("pickle");
    hub.remove("model.safetensors");
    into(&hub, &dir.join("c")).exits(3).says("only as pickles");
    assert!(!dir.join("c").exists());
}

#[test]
fn offline_opens_no_connection_and_verifies_what_is_there() {
    let (hub, _dir, out) = tiny();
    run(download(&hub, args!["--out", out, "--offline"])).exits(3).says("holds no download");
    into(&hub, &out).succeeds();
    hub.forget();
    run(download(&hub, args!["--out", out, "--offline"])).succeeds().says("6 were there and right");
    let shard = out.join("model.safetensors");
    let mut bytes = std::fs::read(&shard).unwrap();
    bytes[5000] ^= 1;
    std::fs::write(&shard, &bytes).unwrap();
    let mut command = download(&hub, args!["--out", out]);
    command.env("HF_HUB_OFFLINE", "1");
    run(command).exits(3).says("model.safetensors: sha256");
    std::fs::remove_file(&shard).unwrap();
    run(download(&hub, args!["--out", out, "--offline"])).exits(3).says("model.safetensors is missing");
    assert!(hub.log().is_empty());
    // Without any network at all, where the system lets us take it away.
    into(&hub, &out).succeeds();
    let bin = env!("CARGO_BIN_EXE_prep");
    let none = Command::new("unshare")
        .args(["-rn", bin, "download", REPO, "--offline", "--out"])
        .arg(&out)
        .env("HF_HOME", "/nonexistent")
        .output();
    if let Ok(o) = none.map(ended).map_err(drop) {
        assert!(o.code == 0 || o.stderr.contains("unshare"), "{}", o.stderr);
    }
}

#[test]
fn right_files_are_verified_not_fetched_and_wrong_ones_are_fetched_again() {
    let (hub, dir, out) = tiny();
    into(&hub, &out).succeeds();
    let before = files(&out);
    hub.forget();
    into(&hub, &out).succeeds().says("0 fetched, 6 were there and right");
    assert_eq!(hub.fetches(), 0);
    std::fs::write(out.join("config.json"), "{}").unwrap();
    let shard = out.join("model.safetensors");
    std::fs::OpenOptions::new().write(true).open(&shard).unwrap().set_len(100).unwrap();
    let json = run(download(&hub, args!["--out", out, "--json"])).succeeds().says("fetching it again").json();
    assert_eq!(json["replaced"], json!(["config.json", "model.safetensors"]));
    assert!(hub.fetches() == 2 && files(&out) == before);
    assert_whole(&out);
    // A folder that another tool fetched is taken over; one with other files of the same names is not.
    let taken = dir.copy_of(&base(), "taken");
    std::fs::remove_file(taken.join("config.json")).unwrap();
    hub.forget();
    into(&hub, &taken).succeeds();
    assert_eq!(hub.fetches(), 1);
    assert_whole(&taken);
    let mine = dir.join("mine");
    std::fs::create_dir(&mine).unwrap();
    std::fs::write(mine.join("config.json"), "mine").unwrap();
    into(&hub, &mine).exits(2).says("config.json").says("--force");
    assert_eq!(files(&mine).len(), 1);
    run(download(&hub, args!["--out", mine, "--force"])).succeeds();
    assert_whole(&mine);
}

#[test]
fn work_of_other_commands_is_not_touched() {
    let (hub, dir, _) = tiny();
    let fp8 = dir.copy_of(crate::support::tiny_fp8(), "fp8");
    let before = files(&fp8);
    into(&hub, &fp8).exits(2).says("exists already");
    assert!(files(&fp8) == before && !fp8.join(".prep").exists());
    let out = dir.join("out");
    into(&hub, &out).succeeds();
    run(download(&hub, args!["--out", out, "--exclude", "*.md"])).exits(2).says("another download");
    assert_whole(&out);
}

#[test]
fn second_run_on_the_same_folder_exits_75_or_waits() {
    let (hub, _dir, out) = tiny();
    hub.fail("/cdn/", 1, Fault::Stall(1000));
    let mut first = download(&hub, args!["--out", out]);
    first.env("PREP_TEST_STALL_MS", "1500").stdout(Stdio::null()).stderr(Stdio::null());
    let mut first = first.spawn().unwrap();
    while !out.join("model.safetensors.part").exists() && first.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(2));
    }
    into(&hub, &out).exits(75).says("locked by another run");
    run(download(&hub, args!["--out", out, "--lock-wait", "60"])).succeeds().says("6 were there and right");
    assert!(first.wait().unwrap().success());
    assert_whole(&out);
}

#[test]
fn too_little_space_is_told_before_the_first_byte() {
    let (hub, _dir, out) = tiny();
    hub.list(json!({"type": "file", "path": "model-2.safetensors", "size": 1u64 << 60, "oid": "0", "lfs": {"oid": "0".repeat(64), "size": 1u64 << 60}}));
    into(&hub, &out).exits(5).says("not enough space");
    assert_eq!(hub.fetches(), 0);
}

#[test]
fn full_disk_exits_5_and_the_next_run_continues() {
    let (hub, _dir, out) = tiny();
    let script = "ulimit -f 500; exec \"$0\" download owner/model --out \"$1\"";
    let mut limited = Command::new("bash");
    limited.args(["-c", script, env!("CARGO_BIN_EXE_prep")]).arg(&out);
    at(&mut limited, &hub);
    run(limited).exits(5).says("continues where it stopped");
    assert!(!out.join("prep-report.json").exists());
    into(&hub, &out).succeeds();
    assert_whole(&out);
}

#[test]
fn interrupted_run_exits_130_and_the_next_continues() {
    let (hub, _dir, out) = tiny();
    hub.fail("/cdn/", 1, Fault::Stall(200_000));
    let child = download(&hub, args!["--out", out])
        .env("PREP_TEST_STALL_MS", "20000")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while hub.sent("/cdn/") < 200_000 {
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(100));
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    ended(child.wait_with_output().unwrap()).exits(130).says("continues where it stopped");
    hub.forget();
    into(&hub, &out).succeeds();
    assert_whole(&out);
    let size = std::fs::metadata(base().join("model.safetensors")).unwrap().len();
    assert_eq!(hub.sent("/cdn/"), size - 200_000);
}

#[test]
fn broken_repository_is_told_after_it_arrived() {
    let (hub, _dir, out) = tiny();
    hub.put("config.json", b"not json".to_vec());
    into(&hub, &out).exits(3).says("is not sound as it was published");
}

#[test]
fn adapters_and_empty_files_arrive_too() {
    let dir = Dir::new();
    let hub = Hub::of_folder(&fixture("models/qwen3-moe/adapter"));
    hub.put("added_tokens.json", Vec::new());
    let json = run(download(&hub, args!["--out", dir.join("a"), "--json"])).succeeds().json();
    assert_eq!(json["checked"], "adapter");
    assert_eq!(std::fs::metadata(dir.join("a").join("added_tokens.json")).unwrap().len(), 0);
}

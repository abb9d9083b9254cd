//! `prep inspect` and `prep serve-command` of a model of a hub: the answer is that of the downloaded folder, and
//! next to nothing is fetched for it.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::{ALWAYS, TOKEN, at, base, run};
use crate::args;
use crate::schemas::valid;
use crate::support::hub::{COMMIT, Fault, Hub, REPO};
use crate::support::{Dir, Ended, big_model, command, fixture, prep, sharded_model};

fn asked(hub: &Hub, args: impl IntoIterator<Item = std::ffi::OsString>) -> Command {
    let mut command = command(args);
    at(&mut command, hub);
    command
}

fn inspect(hub: &Hub, name: &str) -> Ended {
    run(asked(hub, args!["inspect", name, "--json"]))
}

/// What is said of a model, wherever it lies.
fn answer(ended: Ended) -> Value {
    let mut json = ended.succeeds().json();
    valid("inspect", &json);
    let object = json.as_object_mut().unwrap();
    assert!(object.remove("model").is_some() && object.remove("hub").is_some());
    // Hints about a folder name it.
    for finding in json["findings"].as_array_mut().unwrap() {
        finding["advice"] = Value::Null;
    }
    json
}

fn header_len(shard: &[u8]) -> u64 {
    8 + u64::from_le_bytes(shard[..8].try_into().unwrap())
}

#[test]
fn a_models_headers_and_configs_are_all_that_is_fetched() {
    let dir = Dir::new();
    let model = sharded_model(&dir);
    std::fs::write(model.join("LICENSE"), "Apache License\nVersion 2.0\n").unwrap();
    std::fs::write(model.join("README.md"), "---\nlicense: mit\n---\n").unwrap();
    // Named templates lie in a folder of their own; pickles, pictures and code are nobody's business.
    std::fs::create_dir(model.join("additional_chat_templates")).unwrap();
    std::fs::copy(
        fixture("models/qwen3-moe/adapter/chat_template.jinja"),
        model.join("additional_chat_templates/tool_use.jinja"),
    )
    .unwrap();
    let hub = Hub::with(crate::support::files(&base()).into_iter().filter(|(n, _)| n != "model.safetensors"));
    let mut headers = 0;
    for entry in std::fs::read_dir(&model).unwrap().map(|e| e.unwrap()).filter(|e| e.path().is_file()) {
        let bytes = std::fs::read(entry.path()).unwrap();
        let name = entry.file_name().into_string().unwrap();
        headers += if name.ends_with(".safetensors") { header_len(&bytes) } else { 0 };
        hub.put(&name, bytes);
    }
    hub.put(
        "additional_chat_templates/tool_use.jinja",
        std::fs::read(model.join("additional_chat_templates/tool_use.jinja")).unwrap(),
    );
    for other in ["pytorch_model.bin", "modeling_x.py", "figure.png", "original/big.safetensors"] {
        hub.put(other, vec![7; 100_000]);
    }
    let mut ask = asked(&hub, args!["inspect", REPO, "--json"]);
    ask.env("HF_TOKEN", TOKEN);
    let ended = run(ask).succeeds();
    let told = ended.json();
    let of_shards = hub.sent("/cdn/");
    assert!((headers..headers * 3 / 2).contains(&of_shards), "{of_shards} of shards, {headers} of headers");
    assert_eq!(hub.log().iter().filter(|l| l.target.contains("/cdn/")).count(), 3, "one request a shard");
    let fetched = told["hub"]["bytes_fetched"].as_u64().unwrap();
    assert_eq!(fetched, hub.sent("/resolve/") + of_shards);
    let weights = told["storage"]["bytes"].as_u64().unwrap();
    assert!(weights > 4_000_000 && of_shards < weights / 50, "{of_shards} of {weights}");
    for needless in ["pytorch_model.bin", ".py", ".png", "original", "README"] {
        assert_eq!(hub.sent(needless), 0, "{needless}");
    }
    assert!(hub.log().iter().filter(|l| l.host.starts_with("localhost")).all(|l| l.secrets.is_empty()));
    assert!(!format!("{}{}", ended.stdout, ended.stderr).contains("MARKER"));
    assert_eq!((&told["hub"]["commit"], &told["hub"]["source"]), (&json!(COMMIT), &json!("hf")));
    assert_eq!(told["model"], format!("hf:{REPO}@{COMMIT}"));
    assert!(told["template"]["source"].as_str().unwrap().contains("tool_use"), "{}", told["template"]);
    let here = answer(prep(args!["inspect", model, "--json"]));
    assert_eq!(answer(ended), here);
    // ModelScope tells the same.
    let mut scope = asked(&hub, args!["inspect", format!("modelscope:{REPO}@master"), "--json"]);
    scope.env("HF_ENDPOINT", "http://127.0.0.1:9");
    assert_eq!(answer(run(scope)), here);
}

#[test]
fn one_file_without_an_index_costs_one_guess_and_a_long_header_two() {
    let hub = Hub::of_folder(&base());
    let here = answer(prep(args!["inspect", base(), "--json"]));
    assert_eq!(answer(inspect(&hub, REPO)), here);
    assert_eq!(hub.sent("/cdn/"), 256 << 10);
    // The same model, its header padded with blanks beyond the guess.
    let mut shard = std::fs::read(base().join("model.safetensors")).unwrap();
    let len = header_len(&shard);
    shard.splice(len as usize..len as usize, vec![b' '; 300 << 10]);
    let len = len - 8 + (300 << 10);
    shard[..8].copy_from_slice(&len.to_le_bytes());
    hub.put("model.safetensors", shard);
    hub.forget();
    assert_eq!(answer(inspect(&hub, REPO)), here);
    assert_eq!(hub.sent("/cdn/"), (256 << 10) + len + 8);
}

#[test]
fn a_server_that_sends_the_whole_shard_is_not_listened_to() {
    let dir = Dir::new();
    let hub = Hub::of_folder(&big_model(&dir, 48 << 20));
    hub.fail("/cdn/", ALWAYS, Fault::IgnoreRange);
    inspect(&hub, REPO).succeeds();
    hub.quiet();
    // What lies in the buffers of both ends was sent and never read.
    assert!(hub.sent("/cdn/") < 16 << 20, "{}", hub.sent("/cdn/"));
}

#[test]
fn broken_connections_are_continued_and_wrong_bytes_are_refused() {
    let hub = Hub::of_folder(&base());
    let here = answer(prep(args!["inspect", base(), "--json"]));
    hub.fail("/cdn/", 1, Fault::Cut(1000));
    hub.fail("/config.json", 2, Fault::Status(503, "", "0"));
    hub.fail("/tokenizer.json", 1, Fault::Wrong(5));
    assert_eq!(answer(inspect(&hub, REPO)), here);
    for (target, fault, says) in [
        ("/config.json", Fault::Wrong(3), "config.json arrives damaged"),
        ("/config.json", Fault::Short(3), "the body ended after"),
        ("/cdn/", Fault::Stall(10), "no byte for"),
        ("/model.safetensors", Fault::Commit("89abcdef0123456789abcdef0123456789abcdef"), "commit 89abcdef"),
        ("/model.safetensors", Fault::Etag("0".repeat(64)), "is not understood"),
    ] {
        hub.heal();
        hub.fail(target, ALWAYS, fault.clone());
        let json = inspect(&hub, REPO).exits(4).says(says).json();
        valid("error", &json);
        assert!(!json["hint"].is_null(), "{fault:?}");
    }
}

#[test]
fn private_gated_missing_and_unreachable_models_say_what_to_do() {
    for (status, code, what, hint) in [
        (401, "RepoNotFound", "cannot be seen without the right token", "set HF_TOKEN"),
        (403, "GatedRepo", "is gated", "accept the terms at"),
        (404, "RepoNotFound", "has no model", "check the spelling"),
    ] {
        let hub = Hub::of_folder(&base());
        hub.fail("/revision/", ALWAYS, Fault::Status(status, code, ""));
        let no_folder = format!("no folder {REPO} is here");
        inspect(&hub, REPO).exits(4).says(what).says(hint).says(&no_folder);
        let whole = inspect(&hub, &format!("hf:{REPO}")).exits(4).says(what);
        assert!(!whole.stderr.contains(&no_folder));
        run(asked(&hub, args!["serve-command", REPO])).exits(4).says(what);
    }
    let hub = Hub::of_folder(&base());
    inspect(&hub, &format!("{REPO}@nope")).exits(4).says("no revision `nope`");
    let mut nobody = asked(&hub, args!["inspect", REPO, "--json"]);
    nobody.env("HF_ENDPOINT", "http://127.0.0.1:9");
    run(nobody).exits(4).says("check the connection");
}

#[test]
fn a_folder_of_that_name_wins_and_a_slip_in_a_path_asks_nobody() {
    let dir = Dir::new();
    std::fs::create_dir(dir.join("owner")).unwrap();
    dir.copy_of(&base(), "owner/model");
    let hub = Hub::of_folder(&base());
    let here = |name: &str| {
        let mut ask = asked(&hub, args!["inspect", name, "--json"]);
        ask.current_dir(dir.join("."));
        run(ask)
    };
    let json = here(REPO).succeeds().json();
    assert_eq!((&json["model"], &json["hub"]), (&json!(REPO), &Value::Null));
    here("owner/modle").exits(3).says("is not a folder").says("hf:owner/modle");
    here("./owner/modle").exits(3).says("is not a folder");
    here("modle").exits(3).says("is not a folder");
    assert_eq!(hub.connections(), 0);
}

#[test]
fn without_a_connection_the_cache_answers_or_nothing_does() {
    let dir = Dir::new();
    let hub = Hub::of_folder(&base());
    let ask = |name: &str, offline: bool| {
        let mut ask = asked(&hub, args!["inspect", name, "--json"]);
        ask.env("HF_HOME", dir.join("home"));
        if offline {
            ask.env("HF_HUB_OFFLINE", "1");
        }
        run(ask)
    };
    ask(REPO, true).exits(3).says("is not here").says("HF_HUB_OFFLINE");
    assert_eq!(hub.connections(), 0);
    let mut fetch = asked(&hub, args!["download", REPO, "--cache"]);
    fetch.env("HF_HOME", dir.join("home"));
    run(fetch).succeeds();
    let (before, _) = (hub.connections(), hub.forget());
    let here = answer(prep(args!["inspect", base(), "--json"]));
    assert_eq!(answer(ask(REPO, true)), here);
    assert_eq!(answer(ask(&format!("hf:{REPO}@{COMMIT}"), true)), here);
    assert_eq!(hub.connections(), before);
    ask(&format!("modelscope:{REPO}"), true).exits(3).says("is not here");
    // With a connection, what lies in the cache is not fetched again.
    let json = ask(REPO, false).succeeds().json();
    assert_eq!((&json["hub"]["bytes_fetched"], hub.fetches()), (&json!(0), 0));
    assert_eq!(answer(ask(REPO, false)), here);
    // Nor believed where it was damaged.
    let blobs = dir.join("home/hub/models--owner--model/blobs");
    for blob in std::fs::read_dir(&blobs).unwrap().map(|e| e.unwrap().path()) {
        let mut bytes = std::fs::read(&blob).unwrap();
        bytes[0] ^= 1;
        std::fs::write(&blob, bytes).unwrap();
    }
    assert_eq!(answer(ask(REPO, false)), here);
    assert!(hub.fetches() > 0);
}

/// A hub whose files are not what a model's are.
fn spoiled(spoil: impl Fn(&Hub)) -> Ended {
    let hub = Hub::of_folder(&base());
    spoil(&hub);
    let ended = inspect(&hub, REPO);
    assert!(hub.sent("/cdn/") < 2 << 20, "{}", hub.sent("/cdn/"));
    ended
}

fn index_of(shards: impl Iterator<Item = String>) -> Vec<u8> {
    let map: serde_json::Map<String, Value> =
        shards.enumerate().map(|(n, shard)| (format!("t{n}"), shard.into())).collect();
    json!({"weight_map": map}).to_string().into_bytes()
}

#[test]
fn sizes_that_no_model_has_are_refused() {
    let shard = || std::fs::read(base().join("model.safetensors")).unwrap();
    for len in [u64::MAX, 1 << 40, 99_999_999] {
        spoiled(|hub| {
            let mut bytes = shard();
            bytes[..8].copy_from_slice(&len.to_le_bytes());
            hub.put("model.safetensors", bytes);
        })
        .exits(3)
        .says("header");
    }
    spoiled(|hub| hub.put("model.safetensors", b"abc".to_vec())).exits(3).says("3 bytes");
    spoiled(|hub| hub.put("model.safetensors", Vec::new())).exits(3).says("0 bytes");
    spoiled(|hub| {
        let mut bytes = shard();
        bytes.truncate(bytes.len() - 7);
        hub.put("model.safetensors", bytes);
    })
    .exits(3)
    .says("model.safetensors");
    let entry = |path: &str, size: u64| json!({"type": "file", "path": path, "size": size, "oid": crate::support::hub::git_sha1(b"x")});
    spoiled(|hub| {
        hub.remove("generation_config.json");
        hub.list(entry("generation_config.json", 1 << 50));
    })
    .exits(3)
    .says("too large");
    // A million shards in an index of some MB, and some thousand that the hub even lists.
    let many = |n: usize| index_of((0..n).map(|n| format!("model-{n}.safetensors")));
    spoiled(|hub| {
        hub.remove("model.safetensors");
        hub.put("model.safetensors.index.json", many(200_000));
    })
    .exits(3)
    .says("too many shards");
    spoiled(|hub| {
        hub.remove("model.safetensors");
        hub.put("model.safetensors.index.json", many(3));
    })
    .exits(3)
    .says("names shards that");
}

#[test]
fn what_is_no_model_is_told_as_such() {
    spoiled(|hub| hub.remove("config.json")).exits(3).says("has no config.json");
    spoiled(|hub| hub.put("config.json", b"{".to_vec())).exits(3).says("not valid JSON");
    spoiled(|hub| hub.put("config.json", b"\xff\xfe".to_vec())).exits(3).says("UTF-8");
    spoiled(|hub| {
        hub.remove("config.json");
        hub.put("adapter_config.json", b"{}".to_vec());
    })
    .exits(3)
    .says("prep merge-lora");
    spoiled(|hub| {
        hub.remove("model.safetensors");
        hub.put("pytorch_model.bin", vec![1]);
    })
    .exits(3)
    .says("pickles");
    spoiled(|hub| hub.put("a.safetensors", vec![1; 100])).succeeds();
    spoiled(|hub| {
        let bytes = std::fs::read(base().join("model.safetensors")).unwrap();
        hub.remove("model.safetensors");
        hub.put("a.safetensors", bytes.clone());
        hub.put("b.safetensors", bytes);
    })
    .exits(3)
    .says("2 shards and no model.safetensors.index.json");
}

#[test]
fn a_launch_line_makes_the_server_fetch_that_very_commit() {
    let hub = Hub::of_folder(&base());
    for (engine, words) in
        [("vllm", "vllm serve owner/model"), ("sglang", "sglang.launch_server --model-path owner/model")]
    {
        let line = run(asked(&hub, args!["serve-command", REPO, "--engine", engine])).succeeds();
        let revision = format!("--revision {COMMIT}");
        assert!(line.stdout.contains(words) && line.stdout.contains(&revision), "{}", line.stdout);
        assert!(line.stdout.contains("--served-model-name model"), "{}", line.stdout);
        let json = run(asked(&hub, args!["serve-command", REPO, "--engine", engine, "--json"]));
        valid("serve-command", &json.succeeds().json());
    }
    for form in ["systemd", "compose", "k8s"] {
        run(asked(&hub, args!["serve-command", REPO, "--as", form]))
            .exits(2)
            .says("prep download owner/model --source hf --out model");
    }
    run(asked(&hub, args!["serve-command", format!("modelscope:{REPO}")]))
        .exits(2)
        .says("--source modelscope");
}

#[test]
fn commands_that_need_the_weights_say_how_to_get_them() {
    let hub = Hub::of_folder(&base());
    let model = Path::new(REPO);
    for args in [
        args!["diff", model, base()].to_vec(),
        args!["verify", model, "--parser", "hermes"].to_vec(),
        args!["generate", model, "--prompt", "x"].to_vec(),
        args!["quantize", model, "--out", "/nonexistent/x", "--fp8"].to_vec(),
    ] {
        run(asked(&hub, args)).exits(3).says("is not a folder").says("prep download owner/model --out DIR");
    }
    assert_eq!(hub.connections(), 0);
}

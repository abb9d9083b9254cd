//! Every example of every help text is run, in a folder that holds what it names.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::args;
use crate::endpoint;
use crate::help::COMMANDS;
use crate::stand_in;
use crate::support::hub::{Hub, REPO};
use crate::support::server::Server;
use crate::support::{Dir, fixture, prep, repository, sharded_model, tiny_fp8, tiny_merged};

/// The examples of a command, lines that the help text broke put together again.
fn examples(command: &str) -> Vec<String> {
    let help = prep(command.split(' ').chain(["--help"])).succeeds().stdout;
    let text = help.split_once("Examples:\n").map_or("", |(_, text)| text);
    let mut found: Vec<String> = Vec::new();
    for line in text.lines().map_while(|l| Some(l.trim()).filter(|l| !l.is_empty())) {
        match (line.starts_with("prep "), found.last_mut()) {
            (true, _) | (_, None) => found.push(line.to_string()),
            (false, Some(last)) => *last += &format!(" {line}"),
        }
    }
    found
}

/// A folder with everything that examples name.
fn place(dir: &Dir, example: &str) -> PathBuf {
    let cwd = dir.join("work");
    std::fs::create_dir(&cwd).unwrap();
    let put = |from: &Path, name: &str| {
        dir.copy_of(from, &format!("work/{name}"));
    };
    put(&fixture("models/qwen3-moe/base"), "BASE");
    for name in ["ADAPTER", "STYLE", "TOOLS"] {
        put(&fixture("models/qwen3-moe/adapter"), name);
    }
    let serves = ["prep inspect", "prep serve-command"].iter().any(|c| example.starts_with(c));
    match serves {
        true => {
            stand_in::llama_3_1_8b().write(&cwd.join("MODEL"));
        }
        false => put(tiny_merged(), "MODEL"),
    }
    symlink(repository().join("recipes"), cwd.join("recipes")).unwrap();
    let write = |name: &str, text: &str| std::fs::write(cwd.join(name), text).unwrap();
    let tool = r#"{"type": "function", "function": {"name": "ping", "description": "d", "parameters": {"type": "object", "properties": {}}}}"#;
    write("chat.json", r#"[{"role": "user", "content": "Ping it."}]"#);
    write("tools.json", &format!("[{tool}]"));
    write("prompts.json", "[[1, 2, 3], [4]]");
    write("outputs.jsonl", &format!("{{\"text\": \"hello\", \"tools\": [{tool}]}}\n"));
    let template = std::fs::read_to_string(fixture("models/qwen3-moe/adapter/chat_template.jinja")).unwrap();
    write("chat_template.jinja", &template);
    write("wiki.txt", &"The tide turns twice a day. ".repeat(20));
    write("traffic.jsonl", &"{\"text\": \"The tide turns twice a day.\"}\n".repeat(40));
    before(dir, &cwd, example);
    cwd
}

/// What must have been done before an example makes sense.
fn before(dir: &Dir, cwd: &Path, example: &str) {
    if example.starts_with("prep assemble") {
        let model = sharded_model(dir);
        for part in ["1/2", "2/2"] {
            prep(args!["quantize", model, "--out", cwd.join("OUT"), "--fp8", "--part", part]).succeeds();
        }
    }
    if example.starts_with("prep checksum") && !example.contains("--check") {
        std::fs::remove_file(cwd.join("MODEL/SHA256SUMS")).unwrap();
    }
    if example.starts_with("prep diff") || example.contains("--baseline") {
        dir.copy_of(tiny_fp8(), "work/MODEL-FP8");
    }
    if example.starts_with("prep verify OUT") {
        dir.copy_of(tiny_merged(), "work/OUT");
    }
}

#[test]
fn every_example_works_as_printed() {
    let bin = Path::new(env!("CARGO_BIN_EXE_prep")).parent().unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
    let (hub, server) = (Hub::of_folder(&fixture("models/qwen3-moe/base")), Server::start(endpoint::good()));
    // Names of the outer world stand for the servers of this test.
    let here = |example: &str| {
        let text = example.replace("Qwen/Qwen3-0.6B", REPO).replace("--model NAME", "");
        ["http://localhost:8000", "http://gpu1:8000", "http://gpu2:8000"]
            .iter()
            .fold(text, |text, url| text.replace(url, &server.url))
    };
    let mut ran = 0;
    for command in COMMANDS {
        for example in examples(command) {
            let dir = Dir::new();
            let cwd = place(&dir, &example);
            let out = Command::new("sh")
                .args(["-c", &here(&example)])
                .current_dir(&cwd)
                .env("PATH", &path)
                .env("HOME", &cwd)
                .env("HF_ENDPOINT", hub.address())
                .env("MODELSCOPE_DOMAIN", hub.address())
                .env_remove("HF_HOME")
                .env_remove("HF_HUB_CACHE")
                .env_remove("HF_HUB_OFFLINE")
                .stdin(std::process::Stdio::null())
                .output()
                .unwrap();
            let want = i32::from(example.starts_with("prep diff"));
            let (stdout, stderr) =
                (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
            assert_eq!(out.status.code(), Some(want), "{example}\n{stdout}\n{stderr}");
            ran += 1;
        }
    }
    assert!(ran >= 2 * COMMANDS.len());
}

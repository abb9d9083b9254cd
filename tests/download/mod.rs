//! `prep download` against a hub that fails in every way: nothing enters that is not what the hub listed.

mod cache;
mod folder;
mod hub;
mod inspect;
mod measure;
mod network;

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::args;
use crate::support::hub::{Hub, REPO};
use crate::support::{Dir, Ended, command, ended, files, fixture};

const ALWAYS: usize = usize::MAX;
const TOKEN: &str = "hf_MARKERtokenMARKER";

/// `prep download` of the hub's model, with small limits and nothing of the user's environment.
fn download(hub: &Hub, more: impl IntoIterator<Item = std::ffi::OsString>) -> Command {
    let mut command = command(args!["download", REPO]);
    command.args(more);
    at(&mut command, hub);
    command
}

fn at<'a>(command: &'a mut Command, hub: &Hub) -> &'a mut Command {
    for name in [
        "HF_TOKEN",
        "HF_TOKEN_PATH",
        "HF_HUB_OFFLINE",
        "HF_HUB_CACHE",
        "HTTP_PROXY",
        "http_proxy",
        "ALL_PROXY",
    ] {
        command.env_remove(name);
    }
    command
        .env("HF_ENDPOINT", hub.address())
        .env("MODELSCOPE_DOMAIN", hub.address())
        .env("HF_HOME", "/nonexistent")
        .env("PREP_TEST_BACKOFF_MS", "1")
        .env("PREP_TEST_STALL_MS", "300")
}

fn run(mut command: Command) -> Ended {
    ended(command.output().unwrap())
}

fn into(hub: &Hub, out: &Path) -> Ended {
    run(download(hub, args!["--out", out]))
}

fn base() -> PathBuf {
    fixture("models/qwen3-moe/base")
}

/// A hub with the tiny model, and an output folder.
fn tiny() -> (Hub, Dir, PathBuf) {
    let dir = Dir::new();
    let out = dir.join("out");
    (Hub::of_folder(&base()), dir, out)
}

/// All of the hub's model is in `out`, and `sha256sum` agrees.
fn assert_whole(out: &Path) {
    let mut got = files(out);
    assert!(got.remove("SHA256SUMS").is_some());
    assert!(out.join("prep-report.json").exists() && !out.join(".prep").exists());
    let want = files(&base());
    assert_eq!(got.keys().collect::<Vec<_>>(), want.keys().collect::<Vec<_>>());
    assert!(got == want);
    let sums =
        Command::new("sha256sum").args(["--quiet", "-c", "SHA256SUMS"]).current_dir(out).output().unwrap();
    assert!(sums.status.success(), "{}", String::from_utf8_lossy(&sums.stdout));
}

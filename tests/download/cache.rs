//! The cache that other tools share (M5), and recipes that take their inputs from a hub.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::{assert_whole, at, base, download, run, tiny};
use crate::args;
use crate::support::hub::{COMMIT, Fault, Hub, REPO, git_sha1};
use crate::support::{Dir, command, files, fixture};

fn cache(hub: &Hub, home: &Path, more: impl IntoIterator<Item = std::ffi::OsString>) -> Command {
    let mut command = download(hub, args!["--cache"]);
    command.args(more).env("HF_HOME", home);
    command
}

#[test]
fn cache_has_the_layout_of_the_hubs_own_client() {
    let (hub, dir, _) = tiny();
    let home = dir.join("home");
    let json = run(cache(&hub, &home, args!["--json"])).succeeds().json();
    let model = home.join("hub/models--owner--model");
    let snapshot = model.join("snapshots").join(COMMIT);
    assert_eq!(json["folder"], snapshot.to_str().unwrap());
    assert_eq!(std::fs::read_to_string(model.join("refs/main")).unwrap(), COMMIT);
    assert!(files(&snapshot) == files(&base()));
    let sha256 = verify::Digest::of(&std::fs::read(base().join("model.safetensors")).unwrap());
    let git = git_sha1(&std::fs::read(base().join("config.json")).unwrap());
    for (name, blob) in [("model.safetensors", sha256.to_string()), ("config.json", git)] {
        let link = std::fs::read_link(snapshot.join(name)).unwrap();
        assert_eq!(link.to_str().unwrap(), format!("../../blobs/{blob}"));
        assert!(home.join("hub/.locks/models--owner--model").join(format!("{blob}.lock")).exists());
    }
    hub.forget();
    run(cache(&hub, &home, [])).succeeds().says("0 fetched, 6 were there and right");
    assert_eq!(hub.fetches(), 0);
    hub.forget();
    run(cache(&hub, &home, args!["--offline"])).succeeds();
    run(cache(&hub, &home, args!["--offline", "--revision", COMMIT])).succeeds();
    run(cache(&hub, &home, args!["--offline", "--revision", "refs/pr/1"])).exits(3).says("is not here");
    assert!(hub.log().is_empty());
    // A damaged blob is found, and fetched again where that is allowed.
    let blob = model.join("blobs").join(sha256.to_string());
    let mut bytes = std::fs::read(&blob).unwrap();
    bytes[7000] ^= 1;
    std::fs::write(&blob, bytes).unwrap();
    run(cache(&hub, &home, args!["--offline"])).exits(3).says("is damaged");
    run(cache(&hub, &home, [])).succeeds().says("fetching it again");
    std::fs::remove_file(&blob).unwrap();
    run(cache(&hub, &home, args!["--offline"])).exits(3).says("is missing");
    run(cache(&hub, &home, [])).succeeds();
    assert!(files(&snapshot) == files(&base()));
    run(cache(&hub, &home, args!["--source", "modelscope"])).exits(2).says("--out");
}

#[test]
fn second_download_into_one_cache_waits_and_finds_it_done() {
    let (hub, dir, _) = tiny();
    let home = dir.join("home");
    hub.fail("/cdn/", 1, Fault::Pace(64 << 10, Duration::from_millis(20)));
    let mut first = cache(&hub, &home, []).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    while hub.sent("/cdn/") == 0 {
        std::thread::sleep(Duration::from_millis(2));
    }
    run(cache(&hub, &home, [])).succeeds().says("waiting for another download");
    assert!(first.wait().unwrap().success());
    let size = std::fs::metadata(base().join("model.safetensors")).unwrap().len();
    assert_eq!(hub.sent("/cdn/"), size, "fetched once");
}

#[test]
fn recipe_takes_its_inputs_from_a_hub_and_ends_in_the_same_bytes() {
    let dir = Dir::new();
    let hub = Hub::of_folder(&base());
    let (home, out) = (dir.join("home"), dir.join("out"));
    let adapter = fixture("models/qwen3-moe/adapter").canonicalize().unwrap();
    let recipe = dir.join("r.toml");
    let text = |source: &str| {
        format!(
            "source = '{source}'\n[[adapter]]\npath = '{}'\n[quantize]\nformat = 'fp8'\nscheme = 'block'\n",
            adapter.display()
        )
    };
    let go = |more: &[std::ffi::OsString]| {
        let mut command = command([&args!["run", recipe][..], more].concat());
        at(&mut command, &hub).env("HF_HOME", &home);
        run(command)
    };
    std::fs::write(&recipe, text(&format!("hf:{REPO}@{COMMIT}"))).unwrap();
    go(&args!["--out", out, "--dry-run"]).succeeds().says("nothing was fetched").says("model.safetensors");
    crate::schemas::valid("plan", &go(&args!["--out", out, "--dry-run", "--json"]).succeeds().json());
    assert!(hub.fetches() == 0 && !out.exists());
    go(&args!["--out", out]).succeeds();
    assert!(files(&out) == files(crate::support::tiny_fp8()));
    assert!(std::fs::read_to_string(out.join("prep-report.json")).unwrap().contains(COMMIT));
    hub.forget();
    go(&args!["--out", out, "--dry-run"]).succeeds().says("tensors");
    assert!(hub.log().is_empty());
    go(&args!["--out", out]).succeeds().says("nothing to do");
    assert_eq!(hub.fetches(), 0);
    // ModelScope has no shared cache: beside the output.
    std::fs::write(&recipe, text(&format!("modelscope:{REPO}"))).unwrap();
    go(&args!["--out", dir.join("ms")]).succeeds().says("may stand for another commit");
    assert!(files(&dir.join("ms")) == files(&out));
    assert_whole(&dir.join("ms.owner--model"));
    std::fs::write(&recipe, text("hf:../x")).unwrap();
    go(&args!["--out", dir.join("x")]).exits(2).says("no model of a hub");
}

//! What a hub says: names, refusals, redirects, tokens (N8 to N10, N12, S1), and ModelScope.

use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::json;

use super::{ALWAYS, TOKEN, assert_whole, base, download, into, run, tiny};
use crate::args;
use crate::support::Dir;
use crate::support::hub::{COMMIT, Fault, Hub, REPO, git_sha1};

#[test]
fn listing_in_pages_is_read_to_its_end() {
    let (hub, _dir, out) = tiny();
    hub.pages_of(2);
    into(&hub, &out).succeeds();
    assert_whole(&out);
    assert!(hub.log().iter().filter(|l| l.target.contains("/tree/")).count() > 2);
}

#[test]
fn listing_without_digests_is_refused_before_the_first_byte() {
    let (hub, _dir, out) = tiny();
    hub.list_without_digests();
    into(&hub, &out).exits(3).says("gives no digest");
    assert!(hub.fetches() == 0 && !out.exists());
}

#[test]
fn names_that_could_leave_the_folder_stop_everything_before_the_first_byte() {
    let long = "x".repeat(300);
    for name in [
        "../../evil",
        "/etc/evil",
        "a/../../evil",
        "C:\\evil",
        "a\\b",
        "",
        "a//b",
        ".prep/journal-download.json",
        "a\u{1b}[31m",
        &long,
        "CONFIG.json",
        "nul",
    ] {
        let (hub, dir, out) = tiny();
        hub.list(json!({"type": "file", "path": name, "size": 3, "oid": git_sha1(b"abc")}));
        let ended = into(&hub, &out).exits(3).says("refused");
        assert!(!ended.stderr.contains('\u{1b}'));
        assert!(hub.fetches() == 0 && !out.exists() && !dir.join("evil").exists(), "{name:?}");
    }
}

#[test]
fn token_goes_to_the_hub_and_nowhere_else() {
    let (hub, _dir, out) = tiny();
    let mut command = download(&hub, args!["--out", out]);
    command.env("HF_TOKEN", TOKEN);
    run(command).succeeds();
    let (inside, outside): (Vec<_>, Vec<_>) =
        hub.log().into_iter().partition(|l| l.host.starts_with("127.0.0.1"));
    assert!(!outside.is_empty() && outside.iter().all(|l| l.secrets.is_empty()), "{outside:?}");
    assert!(inside.iter().all(|l| l.secrets == [format!("Bearer {TOKEN}")]), "{inside:?}");
}

#[test]
fn redirects_in_a_circle_end() {
    for target in ["/resolve/", "/revision/", "/tree/"] {
        let (hub, _dir, out) = tiny();
        let circle = format!("{}/{REPO}/resolve/{COMMIT}/revision/tree/config.json", hub.address());
        hub.fail(target, ALWAYS, Fault::Redirect(circle));
        into(&hub, &out).exits(4).says("redirect");
        assert!(hub.log().len() < 100);
    }
}

#[test]
fn gated_private_missing_and_limited_say_what_to_do() {
    let cases: [(u16, &str, &str, &str); 5] = [
        (403, "GatedRepo", "is gated", "accept the terms at"),
        (401, "RepoNotFound", "cannot be seen without the right token", "set HF_TOKEN"),
        (404, "RepoNotFound", "has no model", "check the spelling"),
        (404, "RevisionNotFound", "has no revision `main`", "check --revision"),
        (429, "", "rate-limited", "wait some minutes"),
    ];
    for (status, code, what, hint) in cases {
        let (hub, _dir, out) = tiny();
        hub.fail("/revision/", ALWAYS, Fault::Status(status, code, ""));
        let json = run(download(&hub, args!["--out", out, "--json"])).exits(4).says(what).says(hint).json();
        assert_eq!(json["code"], 4);
        assert!(!out.exists());
    }
    let (hub, _dir, out) = tiny();
    hub.fail("/resolve/", ALWAYS, Fault::Status(403, "GatedRepo", ""));
    into(&hub, &out).exits(4).says("is gated");
    let (hub, _dir, out) = tiny();
    hub.fail("/config.json", ALWAYS, Fault::Status(404, "EntryNotFound", ""));
    into(&hub, &out).exits(4).says("has no file `config.json`");
    run(download(&hub, args!["--out", out, "--revision", "nope", "--force"]))
        .exits(4)
        .says("no revision `nope`");
}

#[test]
fn proxy_of_the_environment_is_used() {
    let (hub, _dir, out) = tiny();
    let mut command = download(&hub, args!["--out", out]);
    command.env("HF_ENDPOINT", "http://hub.invalid").env("HTTP_PROXY", hub.address());
    command.env_remove("NO_PROXY").env_remove("no_proxy");
    run(command).succeeds();
    assert_whole(&out);
    assert!(hub.log().iter().any(|l| l.host == "hub.invalid"));
}

/// A TLS hub out of the `openssl` program, which serves files by the text of the request; skipped without it.
#[test]
fn certificate_of_ssl_cert_file_is_trusted_and_no_other() {
    let dir = Dir::new();
    let openssl = |args: &[&str]| {
        let mut command = Command::new("openssl");
        command
            .args(args)
            .current_dir(dir.join("."))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    };
    let config = "[req]\ndistinguished_name = d\nprompt = no\nx509_extensions = e\n[d]\nCN = localhost\n[e]\nsubjectAltName = DNS:localhost\nbasicConstraints = CA:FALSE\n";
    std::fs::write(dir.join("openssl.conf"), config).unwrap();
    let new =
        ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"];
    let files = ["-config", "openssl.conf", "-keyout", "key.pem", "-out", "cert.pem"];
    if !openssl(&[&new[..], &files].concat()).status().is_ok_and(|s| s.success()) {
        return;
    }
    let api = dir.join("api/models").join(REPO);
    std::fs::create_dir_all(api.join("revision")).unwrap();
    std::fs::create_dir_all(api.join("tree")).unwrap();
    std::fs::write(api.join("revision/main"), json!({"id": REPO, "sha": COMMIT}).to_string()).unwrap();
    let entry = json!([{"type": "file", "path": "config.json", "size": 3, "oid": git_sha1(b"abc")}]);
    let listing = format!("tree/{COMMIT}?recursive=true&expand=false");
    std::fs::write(api.join(listing), entry.to_string()).unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut server = openssl(&[
        "s_server",
        "-WWW",
        "-quiet",
        "-accept",
        &port.to_string(),
        "-key",
        "key.pem",
        "-cert",
        "cert.pem",
    ])
    .spawn()
    .unwrap();
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        std::thread::sleep(Duration::from_millis(10));
    }
    let hub = Hub::with([("x", Vec::new())]);
    let ask = |trusted: bool| {
        let mut command = download(&hub, args!["--out", dir.join("out"), "--dry-run"]);
        command.env("HF_ENDPOINT", format!("https://localhost:{port}")).env_remove("SSL_CERT_DIR");
        if trusted {
            command.env("SSL_CERT_FILE", dir.join("cert.pem"));
        }
        run(command)
    };
    let (with, without) = (ask(true), ask(false));
    server.kill().unwrap();
    server.wait().unwrap();
    with.succeeds().says("config.json");
    without.exits(4).says("certificate").says("set SSL_CERT_FILE");
}

#[test]
fn token_and_signed_addresses_appear_nowhere() {
    let (hub, dir, out) = tiny();
    let size = std::fs::metadata(base().join("model.safetensors")).unwrap().len();
    hub.fail("/cdn/", 2, Fault::Cut(size / 5));
    hub.fail("/cdn/", 3, Fault::Status(503, "", ""));
    let mut command = download(&hub, args!["--out", out, "--verbose", "--json"]);
    let login = dir.join("login");
    std::fs::write(&login, TOKEN).unwrap();
    command.env("HF_TOKEN_PATH", &login);
    let good = run(command).succeeds();
    assert!(hub.log().iter().any(|l| l.secrets == [format!("Bearer {TOKEN}")]));
    hub.fail("/cdn/", ALWAYS, Fault::Status(403, "", ""));
    let mut command = download(&hub, args!["--out", dir.join("bad"), "--verbose", "--json"]);
    command.env("HF_TOKEN", TOKEN);
    let bad = run(command).exits(4);
    let mut texts = vec![good.stdout, good.stderr, bad.stdout, bad.stderr];
    for folder in [out, dir.join("bad"), dir.join("bad").join(".prep")] {
        for entry in std::fs::read_dir(folder).unwrap().flatten().filter(|e| e.path().is_file()) {
            texts.push(String::from_utf8_lossy(&std::fs::read(entry.path()).unwrap()).into_owned());
        }
    }
    for text in texts {
        assert!(!text.contains("MARKER") && !text.contains("signed-secret") && !text.contains("Signature"));
    }
}

#[test]
fn modelscope_is_held_to_its_sha256() {
    let (hub, dir, out) = tiny();
    for n in 0..3100 {
        hub.put(&format!("sub{}/{n}.txt", n % 40), vec![1]);
    }
    hub.full_at(3000);
    let scope = |more: &[std::ffi::OsString]| {
        let mut command = download(&hub, [&args!["--source", "modelscope"][..], more].concat());
        command.env("MODELSCOPE_API_TOKEN", TOKEN).env("HF_ENDPOINT", "http://127.0.0.1:9");
        run(command)
    };
    hub.fail("/cdn/model.safetensors", 1, Fault::Cut(100_000));
    let json = scope(&args!["--out", out, "--json"]).succeeds().json();
    assert_eq!((json["commit"].as_str(), json["revision"].as_str()), (Some(COMMIT), Some("master")));
    assert_eq!(json["left_out"].as_array().unwrap().len(), 3100);
    assert_whole(&out);
    let (inside, outside): (Vec<_>, Vec<_>) =
        hub.log().into_iter().partition(|l| l.host.starts_with("127.0.0.1"));
    assert!(outside.iter().all(|l| l.secrets.is_empty()) && !outside.is_empty());
    assert!(inside.iter().all(|l| l.secrets.iter().any(|s| s == &format!("m_session_id={TOKEN}"))));
    assert!(inside.iter().filter(|l| l.target.contains("FilePath")).all(|l| l.target.contains(COMMIT)));
    hub.fail("config.json", ALWAYS, Fault::Wrong(0));
    scope(&args!["--out", dir.join("b")]).exits(4).says("config.json arrives damaged");
    scope(&args!["--out", dir.join("c"), "--revision", "nope"]).exits(4);
    hub.fail("/commits", ALWAYS, Fault::Status(404, "", ""));
    scope(&args!["--out", dir.join("d")]).exits(4).says("has no model");
}

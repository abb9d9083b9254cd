//! What may be published says nothing about the machine it was made on (S2).

use std::path::{Path, PathBuf};

use crate::args;
use crate::support::{Dir, Ended, command, fixture};

/// A home folder with a base, its adapter and samples.
fn home(dir: &Dir) -> PathBuf {
    let home = dir.join("home-of-al");
    std::fs::create_dir_all(home.join("models")).unwrap();
    dir.copy_of(&fixture("models/qwen3-moe/base"), "home-of-al/models/base");
    dir.copy_of(&fixture("models/qwen3-moe/adapter"), "home-of-al/adapter");
    let line = serde_json::json!({"text": "One small step for a test, read again and again. ".repeat(20)});
    std::fs::write(home.join("samples.jsonl"), format!("{line}\n").repeat(8)).unwrap();
    home
}

fn at_home<I: AsRef<std::ffi::OsStr>>(home: &Path, args: impl IntoIterator<Item = I>) -> Ended {
    Ended::of(command(args).env("HOME", home).output().unwrap())
}

/// Every file below `path`, or the file itself, that holds `text`.
fn holding(path: &Path, text: &str) -> Vec<PathBuf> {
    if path.is_dir() {
        let entries = std::fs::read_dir(path).unwrap().map(|e| e.unwrap().path());
        return entries.flat_map(|p| holding(&p, text)).collect();
    }
    let bytes = std::fs::read(path).unwrap();
    let found = bytes.windows(text.len()).any(|w| w == text.as_bytes());
    found.then(|| path.to_path_buf()).into_iter().collect()
}

#[test]
fn reports_of_all_commands_hide_the_home_folder() {
    let dir = Dir::new();
    let home = home(&dir);
    let at = |name: &str| home.join(name);
    let recipe = at("job.toml");
    let text = "base = 'models/base'\n[[adapter]]\npath = 'adapter'\n[quantize]\nformat = 'fp8'\nscheme = 'channel'\n\
        [verify]\nparser = 'qwen3_coder'\nreport = ['run.html', 'run.json', 'run.xml']\nbaseline = 'merged'\n";
    std::fs::write(&recipe, text).unwrap();
    let (base, adapter, merged) = (at("models/base"), at("adapter"), at("merged"));
    at_home(&home, args!["merge-lora", "--base", base, "--adapter", adapter, "--out", merged]).succeeds();
    let small = args![
        "--samples",
        "4",
        "--seq-len",
        "32",
        "--calibration",
        at("samples.jsonl"),
        "--report",
        at("page.html")
    ];
    let awq = args!["quantize", merged, "--out", at("awq"), "--awq"];
    at_home(&home, awq.into_iter().chain(small)).succeeds();
    at_home(&home, args!["run", recipe, "--out", at("out"), "--quiet"]);
    let reports = args!["--report", at("own.html"), "--report", at("own.json"), "--report", at("own.xml")];
    let verify = args!["verify", at("out"), "--parser", "qwen3_coder", "--baseline", merged];
    at_home(&home, verify.into_iter().chain(reports));
    for made in [
        "merged",
        "awq",
        "out",
        "page.html",
        "run.html",
        "run.json",
        "run.xml",
        "own.html",
        "own.json",
        "own.xml",
    ] {
        assert_eq!(holding(&at(made), home.to_str().unwrap()), Vec::<PathBuf>::new(), "{made}");
        assert_eq!(holding(&at(made), "home-of-al"), Vec::<PathBuf>::new(), "{made}");
    }
    let report = |name: &str| std::fs::read_to_string(at(name).join("prep-report.json")).unwrap();
    assert!(report("merged").contains("prep merge-lora --base base --adapter adapter --out merged"));
    assert!(report("out").contains("prep run job.toml --out out"), "{}", report("out"));
}

#[test]
fn full_paths_are_kept_where_they_are_asked_for() {
    let dir = Dir::new();
    let home = home(&dir);
    let (base, out) = (home.join("models/base"), home.join("out"));
    at_home(&home, args!["quantize", base, "--out", out, "--fp8", "--private-paths"]).succeeds();
    assert_eq!(holding(&out, base.to_str().unwrap()), [out.join("prep-report.json")]);
}

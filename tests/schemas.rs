//! What `--json` prints is as the schemas in `cli/schemas` say.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde_json::Value;

use crate::args;
use crate::support::{Dir, fixture, prep, prep_reading, repository, sharded_model, tiny_fp8, tiny_merged};

fn path(name: &str) -> PathBuf {
    repository().join("cli/schemas").join(name).with_extension("json")
}

/// Asserts that `value` is as the schema `name` says, and that the schema would refuse another object.
pub fn valid(name: &str, value: &Value) {
    let schema: Value = serde_json::from_str(&std::fs::read_to_string(path(name)).unwrap()).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let errors: Vec<String> =
        validator.iter_errors(value).map(|e| format!("{} at {}", e, e.instance_path())).collect();
    assert!(errors.is_empty(), "{name}: {errors:#?}\n{value:#}");
    assert!(!validator.is_valid(&serde_json::json!({})), "{name} takes anything");
}

/// Runs a command and checks the last line of its output.
fn check(name: &str, code: i32, args: impl IntoIterator<Item = impl AsRef<std::ffi::OsStr>>) {
    let args: Vec<_> = args.into_iter().map(|a| a.as_ref().to_os_string()).collect();
    let ended = prep(args.iter().map(std::ffi::OsString::as_os_str).chain([std::ffi::OsStr::new("--json")]));
    let ended = ended.exits(code);
    valid(name, &ended.json());
}

#[test]
fn results_and_plans_are_as_their_schemas_say() {
    let dir = Dir::new();
    let (base, adapter) = (fixture("models/qwen3-moe/base"), fixture("models/qwen3-moe/adapter"));
    let merge = |out: &Path| args!["merge-lora", "--base", base, "--adapter", adapter, "--out", out];
    check("result", 0, merge(&dir.join("merged")));
    let plan = merge(&dir.join("other"));
    check(
        "plan",
        0,
        plan.iter().map(std::ffi::OsString::as_os_str).chain([std::ffi::OsStr::new("--dry-run")]),
    );
    check("result", 0, args!["quantize", tiny_merged(), "--out", dir.join("fp8"), "--fp8"]);
    let sharded = sharded_model(&dir);
    for part in ["1/2", "2/2"] {
        check("part", 0, args!["quantize", sharded, "--out", dir.join("parts"), "--fp8", "--part", part]);
    }
    check("result", 0, args!["assemble", dir.join("parts")]);
    let recipe = repository().join("recipes/tiny.toml");
    check("result", 0, args!["run", recipe, "--out", dir.join("run")]);
    check("plan", 0, args!["run", recipe, "--out", dir.join("planned"), "--dry-run"]);
}

#[test]
fn templates_and_checksums_are_as_their_schemas_say() {
    let dir = Dir::new();
    let model = dir.copy_of(tiny_fp8(), "model");
    let chat = dir.join("chat.json");
    std::fs::write(&chat, r#"[{"role": "user", "content": "x"}]"#).unwrap();
    check("template-show", 0, args!["template", "show", model]);
    check("template-render", 0, args!["template", "render", model, "--messages", chat]);
    check("template-check", 0, args!["template", "check", model]);
    check("template-check", 1, args!["template", "check", fixture("models/qwen3-moe/base")]);
    // Templates that fail in each way, and none at all.
    let odd = dir.copy_of(tiny_merged(), "odd");
    for text in [
        "{{ raise_exception('no') }}",
        "{{ messages[5].x.y }}",
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{{ messages | nosuchfilter }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ] {
        std::fs::write(odd.join("chat_template.jinja"), text).unwrap();
        let ended = prep(args!["template", "check", odd, "--json"]);
        valid(if ended.code == 3 { "error" } else { "template-check" }, &ended.json());
    }
    for name in ["chat_template.jinja", "tokenizer_config.json"] {
        std::fs::remove_file(odd.join(name)).unwrap();
    }
    check("template-check", 1, args!["template", "check", odd]);
    check("template-embed", 0, args!["template", "embed", model]);
    check("checksum", 0, args!["checksum", model, "--check"]);
    std::fs::write(model.join("generation_config.json"), "{}").unwrap();
    check("checksum", 1, args!["checksum", model, "--check"]);
    check("checksum", 0, args!["checksum", model, "--force"]);
}

#[test]
fn runs_of_a_model_are_as_their_schemas_say() {
    let dir = Dir::new();
    check("verify", 0, args!["verify", tiny_fp8(), "--parser", "qwen3_coder"]);
    check("verify", 1, args!["verify", fixture("models/qwen3-moe/base"), "--parser", "hermes"]);
    check("bench", 0, args!["bench", "--layers", "1", "--prompt", "8", "--steps", "1", "--device", "cpu"]);
    let several = args!["verify", tiny_fp8(), fixture("models/qwen3-moe/base"), "/nowhere"];
    check("verify-several", 3, [&several[..], &args!["--parser", "qwen3_coder"]].concat());
    let server = crate::support::server::Server::start(crate::endpoint::good());
    let ask = args!["verify", "--endpoint", server.url, "--parser", "qwen3_coder"];
    let answer = prep([&ask[..], &args!["--json"]].concat());
    valid("verify", &answer.json());
    check("generate", 0, args!["generate", tiny_fp8(), "--prompt", "x", "--max-new", "3"]);
    let tokens = dir.join("t.json");
    std::fs::write(&tokens, "[[1, 2], [3]]").unwrap();
    check("generate", 0, args!["generate", tiny_fp8(), "--tokens", tokens, "--max-new", "3"]);
}

#[test]
fn the_rest_is_as_its_schemas_say() {
    check("parsers", 0, args!["parsers"]);
    check("completions", 0, args!["completions", "zsh"]);
    check("error", 3, args!["inspect", "nowhere"]);
    check("error", 2, args!["inspect", "--wrong"]);
    for vram in ["T4", "80GiB"] {
        check("inspect", 0, args!["inspect", tiny_fp8(), "--vram", vram, "--gpus", "2"]);
    }
    let line = r#"{"text": "x", "tools": []}"#;
    let parsed = prep_reading(["parse", "--parser", "hermes"], line).succeeds().json();
    valid("parse", &parsed);
}

#[test]
fn every_stand_in_and_family_is_as_the_schema_of_inspect_says() {
    let dir = Dir::new();
    for (name, model) in crate::stand_in::all() {
        check("inspect", 0, args!["inspect", model.write(&dir.join(name))]);
    }
    check("inspect", 0, args!["inspect", fixture("models/qwen3_5-moe/base"), "--vram", "12GiB"]);
}

#[test]
fn every_schema_is_used() {
    static SOURCE: OnceLock<String> = OnceLock::new();
    let text = SOURCE.get_or_init(|| {
        ["schemas.rs", "inspect.rs", "download/folder.rs"]
            .map(|f| std::fs::read_to_string(repository().join("tests").join(f)).unwrap())
            .concat()
    });
    for entry in std::fs::read_dir(repository().join("cli/schemas")).unwrap() {
        let name = entry.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned();
        let used = ["check(", "valid("].iter().any(|call| text.contains(&format!("{call}\"{name}\"")));
        assert!(used, "{name}");
    }
}

//! Each story of a folder that would not yield tool calls ends in one error and exit code 1.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::args;
use crate::support::{Dir, fixture, prep};

/// A tiny model merged with its adapter, in a folder of its own.
fn merged(dir: &Dir, name: &str) -> PathBuf {
    let out = dir.join(name);
    let of = |part: &str| fixture(&format!("models/{name}/{part}"));
    prep(args!["merge-lora", "--base", of("base"), "--adapter", of("adapter"), "--out", out]).succeeds();
    std::fs::remove_file(out.join("SHA256SUMS")).unwrap();
    out
}

/// Writes the template into one place or both; `None` takes it away.
fn place(model: &Path, jinja: Option<&str>, config: Option<&str>) {
    let file = model.join("chat_template.jinja");
    match jinja {
        Some(text) => std::fs::write(file, text).unwrap(),
        None => std::fs::remove_file(file).unwrap(),
    }
    let path = model.join("tokenizer_config.json");
    let mut json: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    match config {
        Some(text) => json["chat_template"] = text.into(),
        None => drop(json.as_object_mut().unwrap().remove("chat_template")),
    }
    std::fs::write(path, json.to_string()).unwrap();
}

/// The one error of a verification that fails: what and advice.
fn only_error(model: &Path, parser: &str) -> String {
    let report = prep(args!["verify", model, "--parser", parser, "--json"]).exits(1).json();
    let findings = report["findings"].as_array().unwrap().iter();
    let errors: Vec<String> = findings
        .filter(|f| f["level"] == "error")
        .map(|f| format!("{} => {}", f["what"].as_str().unwrap(), f["advice"].as_str().unwrap()))
        .collect();
    let [error] = errors.as_slice() else { panic!("{parser}: {errors:#?}") };
    error.clone()
}

#[test]
fn every_story_ends_in_one_sentence_that_says_what_to_change() {
    let template = |name: &str| std::fs::read_to_string(fixture(name)).unwrap();
    let json = template("templates/qwen3_like.jinja");
    for name in ["qwen3-moe", "qwen3_5-moe"] {
        let dir = Dir::new();
        let model = merged(&dir, name);
        let tools = template(&format!("models/{name}/adapter/chat_template.jinja"));
        let plain = template(&format!("models/{name}/base/chat_template.jinja"));
        let says = |parser: &str, words: &[&str]| {
            let error = only_error(&model, parser);
            for word in words {
                assert!(error.contains(word), "{name} with {parser}: {word:?} in {error:?}");
            }
        };
        place(&model, Some(&tools), Some(&tools));
        prep(args!["verify", model, "--parser", "qwen3_coder"]).succeeds();
        // Another family's parser that reads the same calls is no fault.
        prep(args!["verify", model, "--parser", "seed_oss"]).succeeds();
        says(
            "hermes",
            &["template and model speak Qwen XML", "the parser is wrong => use --parser qwen3_coder"],
        );
        says("llama3_json", &["reads bare JSON", "use --parser qwen3_coder"]);
        says("mimo", &["of another make", "use --parser qwen3_coder"]);
        place(&model, Some(&plain), Some(&plain));
        says("qwen3_coder", &["this template teaches no tools", "prep template embed"]);
        place(&model, None, None);
        says("qwen3_coder", &["the folder has no chat template", "prep template embed"]);
        place(&model, Some(&json), Some(&json));
        says(
            "qwen3_coder",
            &[
                "teaches JSON in `<tool_call>`, but the model writes Qwen XML",
                "the template is wrong => embed",
            ],
        );
        says(
            "hermes",
            &["template and parser `hermes` speak JSON", "both are wrong", "use --parser qwen3_coder"],
        );
        says(
            "mistral",
            &["teaches JSON in `<tool_call>` and parser `mistral` reads Mistral", "--parser qwen3_coder"],
        );
        place(&model, Some(&plain), Some(&tools));
        says("qwen3_coder", &["templates differ", "teaches no tools", "/tokenizer_config.json`"]);
        place(&model, Some(&tools), Some(&json));
        says("qwen3_coder", &["templates differ", "JSON in `<tool_call>`", "/chat_template.jinja`"]);
    }
}

#[test]
fn a_template_in_one_place_only_is_a_warning() {
    let dir = Dir::new();
    let model = merged(&dir, "qwen3-moe");
    prep(args!["verify", model, "--parser", "qwen3_coder"])
        .succeeds()
        .says("tokenizer_config.json holds no template; older servers");
    let tools = std::fs::read_to_string(model.join("chat_template.jinja")).unwrap();
    place(&model, None, Some(&tools));
    prep(args!["verify", model, "--parser", "qwen3_coder"])
        .succeeds()
        .says("chat_template.jinja holds no template; transformers 5");
}

#[test]
fn the_base_with_the_adapters_template_never_calls() {
    let dir = Dir::new();
    let model = dir.copy_of(&fixture("models/qwen3-moe/base"), "base");
    let tools = std::fs::read_to_string(fixture("models/qwen3-moe/adapter/chat_template.jinja")).unwrap();
    place(&model, Some(&tools), Some(&tools));
    let error = only_error(&model, "qwen3_coder");
    assert!(error.contains("never writes a call") && error.contains("adapter was merged"), "{error}");
    let error = only_error(&model, "hermes");
    assert!(error.contains("never writes a call") && error.ends_with("use --parser qwen3_coder"), "{error}");
}

#[test]
fn conversations_that_the_template_refuses_are_noted_by_name() {
    let dir = Dir::new();
    let model = merged(&dir, "qwen3-moe");
    prep(args!["verify", model, "--parser", "qwen3_coder"])
        .succeeds()
        .says("usual conversations: two system turns");
    prep(args!["template", "check", model]).succeeds().says("conversation `two system turns`");
}

//! The files of the result.
#![allow(clippy::unwrap_used)]

mod support;

use serde_json::json;
use support::Lab;

fn lab() -> Lab {
    let mut lab = Lab::new();
    lab.base("model.q.weight", &[4, 4]);
    lab.adapter("model.q.lora_A.weight", &[2, 4]).adapter("model.q.lora_B.weight", &[4, 2]);
    lab
}

#[test]
fn files_are_the_adapters_where_it_has_them_byte_for_byte() {
    let mut lab = lab();
    for name in [
        "tokenizer.model",
        "special_tokens_map.json",
        "merges.txt",
        "chat_template.json",
        "chat_template.jinja",
    ] {
        lab.file(&format!("base/{name}"), "{\"of\": \"base\"}")
            .file(&format!("adapter/{name}"), "{\"of\":  \"adapter\"}\r\n");
    }
    lab.file("base/generation_config.json", "{ }").file("adapter/generation_config.json", "{\"x\": 1}");
    lab.file("base/LICENSE", "text").file("adapter/README.md", "card").file("base/README.md", "base card");
    let merged = lab.merged();
    let read = |name: &str| std::fs::read_to_string(merged.dir.join(name)).unwrap();
    for name in [
        "tokenizer.model",
        "special_tokens_map.json",
        "merges.txt",
        "chat_template.json",
        "chat_template.jinja",
    ] {
        assert_eq!(read(name), "{\"of\":  \"adapter\"}\r\n", "{name}");
    }
    assert_eq!(
        (read("generation_config.json"), read("LICENSE"), read("README.md")),
        ("{ }".into(), "text".into(), "base card".into())
    );
    assert!(
        !merged.dir.join("adapter_config.json").exists()
            && !merged.dir.join("adapter_model.safetensors").exists()
    );
    let files = merged.report.stages[0].details["files"].as_array().unwrap().clone();
    assert!(files.iter().any(|f| f["name"] == "chat_template.jinja" && f["compared"] == "differs from base"));
}

#[test]
fn config_is_the_bases_byte_for_byte_where_nothing_asks_for_a_change() {
    let lab = lab();
    let merged = lab.merged();
    let (base, out) = (lab.path("base/config.json"), merged.dir.join("config.json"));
    assert_eq!(std::fs::read(base).unwrap(), std::fs::read(out).unwrap());
}

#[test]
fn templates_that_disagree_are_warned_of() {
    let mut lab = lab();
    lab.file("base/chat_template.jinja", "plain");
    lab.file("adapter/tokenizer_config.json", &json!({"chat_template": "with tools"}).to_string());
    let merged = lab.merged();
    assert!(merged.report.warnings.iter().any(|w| w.contains("two chat templates disagree")));
}

#[test]
fn inputs_name_the_adapters_files_with_their_digests() {
    let lab = lab();
    let merged = lab.merged();
    for name in ["adapter/adapter_model.safetensors", "adapter/adapter_config.json"] {
        let line = merged.report.inputs.iter().find(|i| i.name == name).unwrap();
        let file = merged.dir.parent().unwrap().join(name);
        assert_eq!(line.sha256, Some(verify::Digest::of(&std::fs::read(file).unwrap())));
    }
}

#[test]
fn every_adapter_tensor_is_accounted_for() {
    let merged = lab().merged();
    let modules = merged.report.stages[0].details["modules"].clone();
    assert_eq!(
        modules[0]["tensors"],
        json!(["base_model.model.model.q.lora_A.weight", "base_model.model.model.q.lora_B.weight"])
    );
    assert_eq!(modules[0]["targets"], json!(["model.q.weight"]));
    assert_eq!((&modules[0]["rank"], &modules[0]["scale"]), (&json!(2), &json!(2.0)));
}

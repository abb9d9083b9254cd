//! `prep generate`: text, conversations, token ids with logits.

use verify::checkpoint::header::Header;

use crate::args;
use crate::support::{Dir, fixture, prep, tiny_fp8, tiny_merged};

#[test]
fn conversation_goes_through_the_template() {
    let dir = Dir::new();
    let chat = dir.join("chat.json");
    std::fs::write(&chat, r#"[{"role": "user", "content": "Hello"}]"#).unwrap();
    let json = prep(args!["generate", tiny_fp8(), "--messages", chat, "--max-new", "20", "--json"])
        .succeeds()
        .json();
    assert!(!json["answers"][0]["text"].as_str().unwrap().contains("<|im_end|>"));
    let text = prep(args!["generate", tiny_fp8(), "--messages", chat, "--max-new", "20"]).succeeds().stdout;
    assert_eq!(text.trim_end(), json["answers"][0]["text"].as_str().unwrap());
}

#[test]
fn same_seed_same_text() {
    let run = |seed: &str| {
        let a = args![
            "generate",
            tiny_fp8(),
            "--prompt",
            "The",
            "--max-new",
            "30",
            "--temperature",
            "1.5",
            "--seed",
            seed
        ];
        prep(a).succeeds().stdout
    };
    assert_eq!(run("1"), run("1"));
    assert!((2..6).any(|s| run(&s.to_string()) != run("1")));
}

#[test]
fn logits_are_written_for_every_position() {
    let dir = Dir::new();
    let case = fixture("logits/qwen3_moe");
    let model = dir.copy_of(&case, "model");
    std::fs::remove_file(model.join("expected.safetensors")).unwrap();
    let text = std::fs::read_to_string(case.join("case.json")).unwrap();
    let case: serde_json::Value = serde_json::from_str(&text).unwrap();
    let prompts = dir.join("prompts.json");
    std::fs::write(&prompts, case["prompts"].to_string()).unwrap();
    let out = dir.join("logits.safetensors");
    prep(args!["generate", model, "--tokens", prompts, "--max-new", "16", "--ignore-eos", "--logits", out])
        .succeeds();
    let bytes = std::fs::read(&out).unwrap();
    let n = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header = Header::parse(&bytes[8..8 + n], (bytes.len() - 8 - n) as u64, "logits").unwrap();
    let logits = header.tensors.iter().find(|t| t.spec.name == "prompt.0.logits").unwrap();
    assert_eq!(logits.spec.shape, [case["prompts"][0].as_array().unwrap().len(), 96]);
    let tokens = header.tensors.iter().find(|t| t.spec.name == "prompt.0.tokens").unwrap();
    let at = 8 + n + tokens.begin as usize;
    let ids: Vec<i64> =
        bytes[at..at + 16 * 8].chunks(8).map(|c| i64::from_le_bytes(c.try_into().unwrap())).collect();
    assert_eq!(serde_json::json!(ids), case["greedy"][0]);
}

#[test]
fn token_beyond_the_vocabulary_is_refused() {
    let dir = Dir::new();
    let prompts = dir.join("p.json");
    std::fs::write(&prompts, "[[1, 999999]]").unwrap();
    prep(args!["generate", tiny_fp8(), "--tokens", prompts]).exits(3).says("999999");
}

#[test]
fn logits_never_replace_the_model() {
    let dir = Dir::new();
    let model = dir.copy_of(tiny_fp8(), "model");
    let prompts = dir.join("p.json");
    std::fs::write(&prompts, "[[1, 2]]").unwrap();
    let out = model.join("model.safetensors");
    prep(args!["generate", model, "--tokens", prompts, "--logits", out])
        .exits(2)
        .says("lies in the model folder");
}

#[test]
fn logits_come_of_every_kind_of_input() {
    let dir = Dir::new();
    let (messages, tokens) = (dir.join("messages.json"), dir.join("tokens.json"));
    std::fs::write(&messages, r#"[{"role": "user", "content": "hello"}]"#).unwrap();
    std::fs::write(&tokens, "[[1, 2, 3]]").unwrap();
    let inputs = [("--prompt", "hello".into()), ("--messages", messages), ("--tokens", tokens)];
    for (flag, value) in inputs {
        let to = dir.join(&format!("{}.safetensors", &flag[2..]));
        let done = prep(args!["generate", tiny_merged(), flag, value, "--max-new", "2", "--logits", to]);
        done.succeeds().says("logits of 1 prompts");
        assert!(to.is_file(), "{flag}");
    }
}

#[test]
fn what_only_a_conversation_has_is_refused_beside_others() {
    let dir = Dir::new();
    let tools = dir.join("tools.json");
    std::fs::write(&tools, "[]").unwrap();
    let run = |flag: &str, value: &std::path::Path| {
        prep(args!["generate", tiny_merged(), "--prompt", "a", "--max-new", "1", flag, value])
    };
    run("--tools", &tools).exits(2).says("--messages FILE");
    run("--kwargs", std::path::Path::new("{}")).exits(2).says("--messages FILE");
}

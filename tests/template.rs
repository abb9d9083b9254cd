//! `prep template`: shown, rendered, checked, embedded.

use crate::args;
use crate::support::{Dir, fixture, prep, tiny_fp8};

#[test]
fn show_prints_the_template_byte_for_byte() {
    let text = std::fs::read_to_string(fixture("models/qwen3-moe/adapter/chat_template.jinja")).unwrap();
    assert_eq!(prep(args!["template", "show", tiny_fp8()]).succeeds().stdout, text);
    let json = prep(args!["template", "show", tiny_fp8(), "--json"]).succeeds().json();
    assert_eq!(json["text"], text.as_str());
}

#[test]
fn render_prints_the_prompt() {
    let dir = Dir::new();
    let chat = dir.join("chat.json");
    std::fs::write(&chat, r#"[{"role": "user", "content": "你好"}]"#).unwrap();
    let ended = prep(args!["template", "render", tiny_fp8(), "--messages", chat]).succeeds();
    assert_eq!(ended.stdout, "<|im_start|>user\n你好<|im_end|>\n<|im_start|>assistant\n");
    let tools = dir.join("tools.json");
    std::fs::write(
        &tools,
        r#"[{"type": "function", "function": {"name": "ping", "description": "d", "parameters": {"type": "object", "properties": {"host": {"type": "string"}}, "required": []}}}]"#,
    )
    .unwrap();
    let ended =
        prep(args!["template", "render", tiny_fp8(), "--messages", chat, "--tools", tools]).succeeds();
    assert!(ended.stdout.contains("- ping(host?: string): d"), "{}", ended.stdout);
}

#[test]
fn embedded_template_is_in_both_places_and_sums_stay_true() {
    let dir = Dir::new();
    let model = dir.copy_of(tiny_fp8(), "model");
    prep(args!["template", "check", model]).succeeds().says("qwen");
    let file = dir.join("t.jinja");
    std::fs::write(&file, "{% for m in messages %}{{ m.content }}{% endfor %}").unwrap();
    prep(args!["template", "check", model, "--from", file]).exits(1);
    prep(args!["template", "embed", model, "--from", file]).succeeds();
    let text = std::fs::read_to_string(model.join("tokenizer_config.json")).unwrap();
    let config: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(config["chat_template"], std::fs::read_to_string(model.join("chat_template.jinja")).unwrap());
    prep(args!["checksum", model, "--check"]).succeeds();
    prep(args!["template", "check", model]).exits(1).says("teaches no tools");
}

#[test]
fn template_in_two_different_forms_is_a_fault() {
    let dir = Dir::new();
    let model = dir.copy_of(tiny_fp8(), "model");
    std::fs::write(model.join("chat_template.jinja"), "{{ messages[0].content }}").unwrap();
    prep(args!["template", "check", model]).exits(1).says("tokenizer_config.json");
}

#[test]
fn hostile_templates_end_with_a_sentence() {
    let dir = Dir::new();
    let model = dir.copy_of(tiny_fp8(), "model");
    let chat = dir.join("chat.json");
    std::fs::write(&chat, r#"[{"role": "user", "content": "x"}]"#).unwrap();
    for (text, says) in [
        (
            "{% for a in range(99999) %}{% for b in range(99999) %}{{ a }}{% endfor %}{% endfor %}",
            "chat template",
        ),
        ("{% include 'x' %}", "chat template"),
        ("{{ raise_exception('no user turn') }}", "no user turn"),
        ("{{ '%s' % 1 }}", "chat template"),
    ] {
        std::fs::write(model.join("chat_template.jinja"), text).unwrap();
        prep(args!["template", "render", model, "--messages", chat]).exits(3).says(says);
    }
}

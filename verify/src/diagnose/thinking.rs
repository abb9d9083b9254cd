//! Whether a template makes the model think, and which reasoning parser cuts that off.
//!
//! Decided by rendering, as for calls: a prompt that ends inside a think block, or one that closes an empty block as
//! soon as `enable_thinking` is false. Which parser: vLLM 0.33, `--reasoning-parser`, by marker and model family.

use serde_json::{Value, json};

use super::taught::Taught;
use crate::parsers::{ReasoningParser, find_reasoning};
use crate::template::{Renderer, Request};

/// Families whose own parser is not that of their marker, by the beginning of `model_type`.
const FAMILIES: [(&str, &str); 11] = [
    ("qwen3", "qwen3"),
    ("glm4", "glm45"),
    ("glm", "glm45"),
    ("kimi", "kimi_k2"),
    ("nemotron", "nemotron_v3"),
    ("step3p5", "step3p5"),
    ("step3", "step3"),
    ("mimo", "qwen3"),
    ("minimax", "minimax_m2"),
    ("ernie4_5", "ernie45"),
    ("gemma4", "gemma4"),
];

/// The reasoning parser that a server of this model needs; none where the template does not make it think.
pub fn reasoning_parser(
    renderer: &Renderer,
    taught: &Taught,
    model_type: &str,
) -> Option<&'static ReasoningParser> {
    let by_format = match taught.format.map(|f| f.id) {
        Some("harmony") => Some("openai_gptoss"),
        _ => None,
    };
    let name = by_format.or_else(|| name_of(&marker(renderer)?, taught, model_type))?;
    find_reasoning(name).ok()
}

fn name_of(marker: &str, taught: &Taught, model_type: &str) -> Option<&'static str> {
    match marker {
        "<seed:think>" => Some("seed_oss"),
        "[THINK]" => Some("mistral"),
        _ => {
            let family = FAMILIES.iter().find(|(prefix, _)| model_type.starts_with(prefix));
            let qwen = taught.format.is_some_and(|f| f.id == "qwen_xml");
            // Distilled models of other families write as DeepSeek R1 does.
            Some(family.map_or(if qwen { "qwen3" } else { "deepseek_r1" }, |(_, parser)| parser))
        }
    }
}

/// The opening of the think block that answers are to begin with.
fn marker(renderer: &Renderer) -> Option<String> {
    let messages = [json!({"role": "user", "content": "probe question"})];
    let render = |kwargs: Value| {
        let kwargs = kwargs.as_object().cloned().unwrap_or_default();
        renderer.render(&Request { kwargs, ..Request::new(&messages, &[]) }).ok()
    };
    let usual = render(json!({}))?;
    let marks = ["<seed:think>", "<think>", "[THINK]"];
    let open = marks.iter().find(|mark| usual.trim_end().ends_with(*mark));
    let switched = || {
        let off = render(json!({"enable_thinking": false}))?;
        let tail = off.strip_prefix(usual.trim_end())?;
        marks.iter().find(|mark| tail.contains(*mark))
    };
    open.or_else(switched).map(ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnose::taught;
    use crate::template::testing::renderer;

    fn of_text(text: &str, model_type: &str) -> Option<&'static str> {
        let renderer = renderer(text);
        reasoning_parser(&renderer, &taught(&renderer), model_type).map(|p| p.name)
    }

    fn of_file(name: &str, model_type: &str) -> Option<&'static str> {
        let path = format!("{}/../tests/fixtures/templates/{name}", env!("CARGO_MANIFEST_DIR"));
        of_text(&std::fs::read_to_string(path).unwrap(), model_type)
    }

    #[test]
    fn a_template_that_opens_a_block_or_can_close_it_thinks() {
        assert_eq!(of_file("qwen3_5_like.jinja", "qwen3_5_moe"), Some("qwen3"));
        assert_eq!(of_file("qwen3_like.jinja", "qwen3_moe"), Some("qwen3"));
    }

    #[test]
    fn templates_without_thinking_need_no_parser() {
        for name in ["tiny_tools.jinja", "hermes_like.jinja", "llama3_like.jinja", "mistral_like.jinja"] {
            assert_eq!(of_file(name, "qwen3_moe"), None, "{name}");
        }
    }

    #[test]
    fn a_switch_that_is_off_by_itself_is_no_thinking() {
        let off =
            "{% for m in messages %}{{ m.content }}{% endfor %}{% if enable_thinking %}<think>{% endif %}";
        assert_eq!(of_text(off, "qwen3"), None);
    }

    #[test]
    fn the_family_or_else_the_marker_decides() {
        let think = "{% for m in messages %}{{ m.content }}{% endfor %}<think>\n";
        assert_eq!(of_text(think, "glm4_moe"), Some("glm45"));
        assert_eq!(of_text(think, "qwen2"), Some("deepseek_r1"));
        assert_eq!(of_text(&think.replace("<think>", "<seed:think>"), "seed_oss"), Some("seed_oss"));
        for (prefix, parser) in FAMILIES {
            assert_eq!(of_text(think, prefix), Some(parser));
        }
    }
}

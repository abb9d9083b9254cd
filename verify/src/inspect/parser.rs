//! The parsers that servers should be started with, and why these.

use serde::Serialize;

use super::Thinking;
use crate::architecture::Family;
use crate::diagnose::{self, Taught};
use crate::parsers::{sglang_reasoning_parser, sglang_tool_parser};

/// Names for `--tool-call-parser` and `--reasoning-parser`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Parsers {
    /// vLLM's tool-call parser; `None` where the template teaches no format that is known.
    pub vllm: Option<&'static str>,
    /// SGLang's; `None` where it has none for the format.
    pub sglang: Option<&'static str>,
    /// Why this one.
    pub reason: String,
    /// vLLM's reasoning parser; `None` for models that do not think.
    pub vllm_reasoning: Option<&'static str>,
    /// SGLang's.
    pub sglang_reasoning: Option<&'static str>,
    /// Why this one, or why none.
    pub reasoning_reason: String,
}

impl Parsers {
    /// For what a template teaches. `None`: there is no template.
    pub fn of(taught: Option<&Taught>, thinking: Thinking, family: Option<Family>) -> Self {
        let tool = taught.and_then(diagnose::parser_for);
        let reason = match taught {
            None => "there is no chat template that could teach a format".into(),
            Some(t) if !t.shows_tools => "the template teaches no tools: no parser will find calls".into(),
            Some(t) => reason(t, tool),
        };
        let (vllm_reasoning, why) = reasoning(taught, thinking, family);
        let sglang_reasoning = vllm_reasoning.and_then(|name| match thinking {
            // SGLang's `qwen3` waits for an opening tag, which such a prompt has already written.
            Thinking { switch: false, opened_by_prompt: true, .. } if name == "qwen3" => {
                Some("qwen3-thinking")
            }
            _ => sglang_reasoning_parser(name),
        });
        let tool = tool.filter(|_| taught.is_some_and(|t| t.shows_tools));
        Parsers {
            vllm: tool,
            sglang: tool.and_then(sglang_tool_parser),
            reason,
            vllm_reasoning,
            sglang_reasoning,
            reasoning_reason: why,
        }
    }
}

fn reason(taught: &Taught, tool: Option<&str>) -> String {
    match (taught.format, tool) {
        (Some(format), Some(tool)) if taught.readers.contains(&tool) => {
            format!("the template writes calls as {}, and `{tool}` reads its own call back", format.title)
        }
        (Some(format), Some(tool)) => {
            format!("the template teaches {}, which `{tool}` reads", format.title)
        }
        _ => "the template shows tools, but calls in no format that is known".into(),
    }
}

/// Reasoning parsers of the formats that come with one of their own.
const OF_FORMAT: [(&str, &str); 12] = [
    ("seed_xml", "seed_oss"),
    ("glm", "glm45"),
    ("kimi_k2", "kimi_k2"),
    ("minimax_m2", "minimax_m2"),
    ("minimax_m3", "minimax_m3"),
    ("harmony", "openai_gptoss"),
    ("deepseek_v3", "deepseek_r1"),
    ("deepseek_v31", "deepseek_v3"),
    ("mistral", "mistral"),
    ("gemma4", "gemma4"),
    ("step3", "step3"),
    ("dsml", "deepseek_v4"),
];

fn reasoning(
    taught: Option<&Taught>,
    thinking: Thinking,
    family: Option<Family>,
) -> (Option<&'static str>, String) {
    if !thinking.thinks() {
        return (None, format!("none: {}", thinking.sentence()));
    }
    let format = taught.and_then(|t| t.format).map(|f| f.id);
    let own = OF_FORMAT.iter().find(|(id, _)| Some(*id) == format).map(|(_, name)| *name);
    let qwen = family.is_some_and(|f| {
        matches!(f, Family::Qwen3 | Family::Qwen3Moe | Family::Qwen3Next | Family::Qwen35 | Family::Qwen35Moe)
    });
    let name = own.unwrap_or(if qwen { "qwen3" } else { "deepseek_r1" });
    (Some(name), format!("the model {}", thinking.sentence()))
}

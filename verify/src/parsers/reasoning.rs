//! Reasoning parsers: they cut the thinking off before a tool-call parser sees the text.
//!
//! Source: vLLM 0.33, `--reasoning-parser`.

use serde_json::Value;

use super::python::space;
use super::{Context, Reasoned, dsml, gemma, glm, harmony, kimi_k2, minimax_m2, mistral, qwen_xml};
use crate::error::{Error, Result};

/// A reasoning parser that can be asked for by name.
#[derive(Clone, Copy)]
pub struct ReasoningParser {
    /// Its name on vLLM's command line.
    pub name: &'static str,
    /// Other names for the very same parser.
    pub aliases: &'static [&'static str],
    reasoned: Reasoned,
    split: fn(&str, &Context) -> Split,
}

/// Reasoning and what follows it.
type Split = (Option<String>, Option<String>);

impl ReasoningParser {
    /// Splits a whole output into reasoning and content, call markup included. Empty content is `None`; empty reasoning
    /// is so for parsers of the engine kind only.
    pub fn split(&self, text: &str, context: &Context) -> (Option<String>, Option<String>) {
        let (reasoning, content) = (self.split)(text, context);
        let kept = |text: &String| !text.is_empty() || self.reasoned == Reasoned::Legacy;
        (reasoning.filter(kept), content.filter(|text| !text.is_empty()))
    }

    /// What a tool-call parser has to know about the text this parser leaves.
    pub fn reasoned(&self) -> Reasoned {
        self.reasoned
    }
}

const fn engine(
    name: &'static str,
    aliases: &'static [&'static str],
    split: fn(&str, &Context) -> Split,
) -> ReasoningParser {
    ReasoningParser { name, aliases, reasoned: Reasoned::Engine, split }
}

const fn legacy(
    name: &'static str,
    aliases: &'static [&'static str],
    split: fn(&str, &Context) -> Split,
) -> ReasoningParser {
    ReasoningParser { name, aliases, reasoned: Reasoned::Legacy, split }
}

static PARSERS: &[ReasoningParser] = &[
    engine("qwen3", &["mimo"], |text, context| {
        if enabled(context) { both(qwen_xml::qwen3_reasoning(text, context)) } else { all(text) }
    }),
    engine("seed_oss", &[], |text, context| {
        if enabled(context) { both(qwen_xml::seed_oss_reasoning(text, context)) } else { all(text) }
    }),
    engine("nemotron_v3", &[], nemotron_v3),
    // The template of these models has no switch, so none is heeded.
    engine("step3p5", &[], |text, context| both(qwen_xml::step3p5_reasoning(text, context))),
    engine("glm45", &["glm47", "ling3"], |text, context| {
        if thinking(context) { both(glm::glm45_reasoning(text, context)) } else { all(text) }
    }),
    engine("kimi_k2", &[], |text, context| {
        if thinking(context) { both(kimi_k2::kimi_k2_reasoning(text, context)) } else { all(text) }
    }),
    engine("deepseek_v4", &[], |text, context| both(dsml::deepseek_v4_reasoning(text, context))),
    engine("deepseek_v41", &[], |text, context| both(dsml::deepseek_v41_reasoning(text, context))),
    engine("minimax_m2", &[], |text, context| both(minimax_m2::minimax_m2_reasoning(text, context))),
    engine("mistral", &[], |text, context| {
        mistral::mistral_reasoning(text, context).map_or_else(|| all(text), both)
    }),
    engine("gemma4", &[], |text, context| both(gemma::gemma4_reasoning(text, context))),
    legacy("deepseek_r1", &["step5"], |text, _| deepseek_r1(text)),
    legacy(
        "deepseek_v3",
        &["poolside_v1"],
        |text, context| if asked(context) { deepseek_r1(text) } else { all(text) },
    ),
    legacy("holo2", &[], |text, context| if thinking(context) { deepseek_r1(text) } else { all(text) }),
    legacy("ernie45", &[], |text, _| ernie45(text)),
    legacy("step3", &[], |text, _| split_at_end(text)),
    legacy("minimax_m2_append_think", &[], |text, _| all(&format!("<think>{text}"))),
    engine("openai_gptoss", &[], |text, _| (Some(harmony::openai_reasoning(text)), Some(text.to_owned()))),
];

/// Every reasoning parser.
pub fn all_reasoning() -> &'static [ReasoningParser] {
    PARSERS
}

/// The reasoning parser called `name`.
///
/// # Errors
/// Exit 2 for unknown names.
pub fn find_reasoning(name: &str) -> Result<&'static ReasoningParser> {
    PARSERS.iter().find(|parser| parser.name == name || parser.aliases.contains(&name)).ok_or_else(|| {
        let names = PARSERS
            .iter()
            .flat_map(|parser| std::iter::once(parser.name).chain(parser.aliases.iter().copied()));
        Error::usage(format!("`{name}` is no reasoning parser that prep reads"))
            .expected(names.collect::<Vec<_>>().join(", "))
    })
}

/// Whether Python takes the value for true.
fn is_true(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(value) => *value,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(entries) => !entries.is_empty(),
    }
}

/// `enable_thinking`, on where it is not told.
fn enabled(context: &Context) -> bool {
    context.template_kwargs.get("enable_thinking").is_none_or(is_true)
}

/// `thinking` or `enable_thinking`, off where neither is told.
pub fn asked(context: &Context) -> bool {
    ["thinking", "enable_thinking"].iter().any(|key| context.template_kwargs.get(*key).is_some_and(is_true))
}

/// `thinking` or `enable_thinking`, on where neither is told.
pub fn thinking(context: &Context) -> bool {
    let told = |key: &&str| context.template_kwargs.get(*key).is_some_and(|value| !value.is_null());
    asked(context) || !["thinking", "enable_thinking"].iter().any(told)
}

fn both((reasoning, content): (String, String)) -> Split {
    (Some(reasoning), Some(content))
}

/// All of it is content.
fn all(text: &str) -> Split {
    (None, Some(text.to_owned()))
}

/// Where thinking is off or content is wanted in any case, reasoning without content is the content.
fn nemotron_v3(text: &str, context: &Context) -> Split {
    let (reasoning, content) =
        if enabled(context) { both(qwen_xml::step3p5_reasoning(text, context)) } else { all(text) };
    let told = |key: &str, value: bool| context.template_kwargs.get(key) == Some(&Value::Bool(value));
    let forced = told("enable_thinking", false) || told("force_nonempty_content", true);
    match content {
        Some(content) if !forced || !space::is_blank(&content) => (reasoning, Some(content)),
        content => (content, reasoning),
    }
}

/// What stands before the first `<think>` is dropped; without an end all is reasoning.
fn deepseek_r1(text: &str) -> Split {
    split_at_end(text.split_once("<think>").map_or(text, |(_, rest)| rest))
}

fn split_at_end(text: &str) -> Split {
    match text.split_once("</think>") {
        Some((reasoning, content)) => both((reasoning.to_owned(), content.to_owned())),
        None => (Some(text.to_owned()), None),
    }
}

/// Content is what stands between response tags, if there are any.
fn ernie45(text: &str) -> Split {
    let (reasoning, content) = deepseek_r1(text);
    let content = content.map(|content| {
        let start = content.find("<response>");
        let end = content.rfind("</response>");
        match (start, end) {
            (Some(start), Some(end)) if start < end => content[start + "<response>".len()..end].to_owned(),
            _ => content,
        }
    });
    (reasoning, content)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn split(parser: &str, text: &str, kwargs: Value) -> (String, String) {
        let template_kwargs = kwargs.as_object().unwrap().clone();
        let context = Context { template_kwargs, ..Context::default() };
        let (reasoning, content) = find_reasoning(parser).unwrap().split(text, &context);
        (reasoning.unwrap_or_default(), content.unwrap_or_default())
    }

    fn plain(parser: &str, text: &str) -> (String, String) {
        split(parser, text, json!({}))
    }

    fn pair(reasoning: &str, content: &str) -> (String, String) {
        (reasoning.into(), content.into())
    }

    #[test]
    fn white_space_of_reasoning_is_kept_or_cut_at_its_end() {
        assert_eq!(plain("qwen3", "<think>\nA\n</think>\n\nB"), pair("\nA\n", "\n\nB"));
        for parser in ["step3p5", "nemotron_v3", "glm45", "kimi_k2"] {
            assert_eq!(plain(parser, "\nA\n</think>\n\nB"), pair("\nA", "\n\nB"), "{parser}");
        }
    }

    #[test]
    fn without_an_end_all_is_reasoning() {
        for parser in ["qwen3", "deepseek_r1", "glm47", "kimi_k2", "step3", "minimax_m2"] {
            assert_eq!(plain(parser, "A"), pair("A", ""), "{parser}");
        }
    }

    #[test]
    fn a_call_ends_the_reasoning_of_engine_parsers_only() {
        assert_eq!(plain("qwen3", "A<tool_call>B"), pair("A", "<tool_call>B"));
        assert_eq!(plain("deepseek_r1", "A<tool_call>B"), pair("A<tool_call>B", ""));
    }

    #[test]
    fn switches_of_the_template_count() {
        let off = json!({"enable_thinking": false});
        assert_eq!(split("qwen3", "A</think>B", off.clone()), pair("", "A</think>B"));
        assert_eq!(split("glm45", "A</think>B", json!({"thinking": false})), pair("", "A</think>B"));
        assert_eq!(split("step3p5", "A</think>B", off.clone()), pair("A", "B"));
        assert_eq!(split("nemotron_v3", "A", json!({"force_nonempty_content": true})), pair("", "A"));
        assert_eq!(plain("deepseek_v3", "A</think>B"), pair("", "A</think>B"));
        assert_eq!(split("deepseek_v3", "A</think>B", json!({"thinking": true})), pair("A", "B"));
        assert_eq!(split("deepseek_v4", "A</think>B", json!({"thinking": false})), pair("", "AB"));
    }

    #[test]
    fn text_before_the_think_tag_is_dropped_by_deepseek_r1() {
        assert_eq!(plain("deepseek_r1", "x<think>A</think>B</think>C"), pair("A", "B</think>C"));
    }

    #[test]
    fn mistral_thinks_only_with_think_tokens() {
        assert_eq!(plain("mistral", "[THINK]A[/THINK]B"), pair("", "[THINK]A[/THINK]B"));
        let context = Context { tokenizer: Some("mistral-v13".into()), ..Context::default() };
        let (reasoning, content) = find_reasoning("mistral").unwrap().split("x[THINK]A [/THINK]B", &context);
        assert_eq!((reasoning.as_deref(), content.as_deref()), (Some("A"), Some("xB")));
    }

    #[test]
    fn gemma_drops_the_heading() {
        assert_eq!(plain("gemma4", "<|channel>thought\nA<channel|>B"), pair("A", "B"));
        assert_eq!(plain("gemma4", "thought\nA<channel|>B"), pair("A", "B"));
    }
}

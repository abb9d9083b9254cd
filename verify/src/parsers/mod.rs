//! Tool-call parsers, one file per wire grammar, faithful to the server's non-streamed answer:
//! a parser fails where the server fails. Diagnosis stands elsewhere.
//!
//! Source: vLLM 0.33 parsers.

mod apertus;
mod bare_json;
mod deepseek;
mod dots;
mod dsml;
mod engine;
mod function_call;
mod gemma;
mod gigachat3;
mod glm;
mod granite;
mod harmony;
mod hy;
mod internlm;
mod kimi_k2;
mod kimi_k3;
mod line;
mod minimax_m2;
mod minimax_m3;
mod mistral;
mod muse;
mod names;
mod phi4;
mod python;
mod python_repair;
mod pythonic;
mod qwen_xml;
mod reasoning;
mod scan;
mod schema;
mod sglang;
mod step3;
mod stream;
mod tagged_json;
mod tool_calls_list;
mod xlam;

use serde::Serialize;
use serde_json::Value;

use crate::error::Result;
use engine::Delivery;

pub use line::{answer_line, stream_line};
pub use reasoning::{ReasoningParser, all_reasoning, find_reasoning};
pub use sglang::{sglang_reasoning_parser, sglang_tool_parser};

/// What a parser is given besides the text.
#[derive(Debug, Clone, Default)]
pub struct Context {
    /// The tools of the request, in OpenAI form. Without any the server returns no calls.
    pub tools: Vec<Value>,
    /// Tokens that the model's tokenizer flags special (deleted from engine parsers' output).
    pub special_tokens: Vec<String>,
    /// Marker set of the tokenizer where it decides the dialect (`mistral-pre-v11`, `mistral-v13`).
    pub tokenizer: Option<String>,
    /// `chat_template_kwargs` of the request.
    pub template_kwargs: serde_json::Map<String, Value>,
    /// Whether a reasoning parser runs before; without one think markers are ordinary text.
    pub reasoned: Reasoned,
}

/// What a text has been through before a tool-call parser sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reasoned {
    /// No reasoning parser.
    #[default]
    No,
    /// A reasoning parser of the engine kind.
    Engine,
    /// Another reasoning parser: the server then returns text without calls untouched, whatever the tool-call parser.
    Legacy,
}

/// One call as the server would return it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ToolCall {
    /// Function name.
    pub name: String,
    /// The argument string, which for some parsers may be no JSON.
    pub arguments: String,
}

impl ToolCall {
    /// The arguments as JSON, where the string is JSON.
    pub fn value(&self) -> Option<Value> {
        serde_json::from_str(&self.arguments).ok()
    }
}

/// What the server would answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Parsed {
    /// Text beside the calls; an empty text and `None` mean the same.
    pub content: Option<String>,
    /// Calls, in order.
    pub tool_calls: Vec<ToolCall>,
    /// Where the server itself is at fault and `prep` answers otherwise: what the server would do.
    pub server_fault: Option<String>,
}

impl Parsed {
    /// An answer without calls.
    fn plain(text: &str) -> Self {
        Parsed { content: Some(text.to_owned()).filter(|text| !text.is_empty()), ..Parsed::default() }
    }

    /// An answer with calls.
    fn called(content: &str, tool_calls: Vec<ToolCall>) -> Self {
        Parsed { tool_calls, ..Self::plain(content) }
    }

    /// As the server answers where a parser says it found calls: content of nothing but white space disappears.
    fn without_blank(self) -> Self {
        let content = self.content.filter(|content| !python::space::is_blank(content));
        Parsed { content, ..self }
    }
}

/// A parser that can be asked for by name.
#[derive(Clone, Copy)]
pub struct Parser {
    /// Its name on vLLM's command line.
    pub name: &'static str,
    /// Other names for the very same parser.
    pub aliases: &'static [&'static str],
    /// Models that usually write this format.
    pub models: &'static str,
    /// Whether vLLM's native front end has it too, besides the Python one.
    pub native: bool,
    kind: Kind,
}

/// How the server treats what a parser returns.
#[derive(Clone, Copy)]
enum Kind {
    /// Its content counts even without calls, so that half-written markup disappears.
    Engine(fn(&str, &Context, Delivery) -> Parsed),
    /// As an engine parser, in whatever company.
    Own(fn(&str, &Context) -> Parsed),
    /// Without calls the text is returned untouched.
    Legacy(fn(&str, &Context) -> Option<Parsed>),
    /// Its grammar is not known here.
    Unread,
}

impl Parser {
    /// Whether texts can be parsed here; else all that can be looked at is what a server makes of them.
    pub fn is_read(&self) -> bool {
        !matches!(self.kind, Kind::Unread)
    }

    /// Whether the server returns the model's text untouched where no call is asked for (`tool_choice` none).
    pub fn leaves_text_alone(&self) -> bool {
        matches!(self.kind, Kind::Legacy(_))
    }

    /// Parses a whole output of a model, as for a request with `tool_choice` auto, or none without tools.
    pub fn parse(&self, text: &str, context: &Context) -> Parsed {
        let tools = !context.tools.is_empty();
        let parsed = match self.kind {
            Kind::Legacy(parse) => {
                let called = parse(text, context).filter(|_| tools);
                return called.map_or_else(|| Parsed::plain(text), Parsed::without_blank);
            }
            Kind::Engine(parse) => parse(text, context, Delivery::Whole),
            Kind::Own(parse) => parse(text, context),
            Kind::Unread => return Parsed::plain(text),
        };
        if tools && !parsed.tool_calls.is_empty() {
            parsed.without_blank()
        } else if context.reasoned == Reasoned::Legacy && matches!(self.kind, Kind::Engine(_)) {
            Parsed::plain(text)
        } else {
            Parsed { tool_calls: Vec::new(), ..parsed }
        }
    }
}

const fn parser(
    name: &'static str,
    aliases: &'static [&'static str],
    models: &'static str,
    kind: Kind,
) -> Parser {
    Parser { name, aliases, models, native: names::in_native_front_end(name), kind }
}

static PARSERS: &[Parser] = &[
    parser(
        "qwen3_coder",
        &["qwen3_xml"],
        "Qwen3-Coder, Qwen3.5, Qwen3.6, Qwen3-Next with a coder template, Nemotron 3",
        Kind::Engine(qwen_xml::qwen3_coder),
    ),
    parser(
        "hermes",
        &["qwen3_json"],
        "Hermes 2/3, Qwen2.5, QwQ, Qwen3 (not Coder)",
        Kind::Legacy(tagged_json::hermes),
    ),
    parser("seed_oss", &[], "Seed-OSS", Kind::Engine(qwen_xml::seed_oss)),
    parser("step3p5", &[], "Step-3.5, Step-3.7", Kind::Engine(qwen_xml::qwen3_coder)),
    parser("step5", &[], "Step-5", Kind::Engine(qwen_xml::step5)),
    parser("mimo", &[], "MiMo", Kind::Engine(qwen_xml::mimo)),
    parser("longcat", &[], "LongCat-Flash", Kind::Legacy(tagged_json::longcat)),
    parser("granite4", &[], "Granite 4", Kind::Legacy(tagged_json::granite4)),
    parser("ernie45", &[], "ERNIE 4.5", Kind::Legacy(tagged_json::ernie45)),
    parser(
        "llama3_json",
        &["llama4_json"],
        "Llama 3.1, 3.2, 3.3, Llama 4 with the JSON template",
        Kind::Legacy(bare_json::llama3_json),
    ),
    parser("phi4_mini_json", &[], "Phi-4-mini", Kind::Legacy(phi4::phi4_mini_json)),
    parser("xlam", &[], "xLAM", Kind::Legacy(xlam::xlam)),
    parser("granite", &[], "Granite 3.x", Kind::Engine(granite::granite)),
    parser("granite-20b-fc", &[], "Granite-20B-FC", Kind::Legacy(function_call::granite_20b_fc)),
    parser("jamba", &[], "Jamba", Kind::Legacy(tool_calls_list::jamba)),
    parser("hunyuan_a13b", &[], "Hunyuan-A13B", Kind::Legacy(tool_calls_list::hunyuan_a13b)),
    parser("internlm", &[], "InternLM2.5", Kind::Legacy(internlm::internlm)),
    parser("apertus", &[], "Apertus", Kind::Legacy(apertus::apertus)),
    parser("gigachat3", &[], "GigaChat 3", Kind::Legacy(gigachat3::gigachat3)),
    parser("pythonic", &[], "Llama 3.2 (small), ToolACE", Kind::Legacy(pythonic::pythonic)),
    parser("llama4_pythonic", &[], "Llama 4", Kind::Legacy(pythonic::llama4_pythonic)),
    parser("olmo3", &[], "OLMo 3", Kind::Legacy(pythonic::olmo3)),
    parser("lfm2", &[], "LFM2", Kind::Legacy(pythonic::lfm2)),
    parser("mistral", &[], "Mistral, Mixtral, Magistral, Devstral", Kind::Engine(mistral::mistral)),
    parser("deepseek_v3", &[], "DeepSeek-V3-0324, DeepSeek-R1-0528", Kind::Legacy(deepseek::deepseek_v3)),
    parser("deepseek_v31", &[], "DeepSeek-V3.1", Kind::Legacy(deepseek::deepseek_v31)),
    parser("deepseek_v32", &[], "DeepSeek-V3.2", Kind::Engine(dsml::deepseek_v32)),
    parser("deepseek_v4", &[], "DeepSeek-V4", Kind::Engine(dsml::deepseek_v4)),
    parser("deepseek_v41", &[], "DeepSeek-V4.1", Kind::Engine(dsml::deepseek_v41)),
    parser("kimi_k2", &[], "Kimi K2", Kind::Engine(kimi_k2::kimi_k2)),
    parser("kimi_k3", &[], "Kimi K3", Kind::Own(kimi_k3::kimi_k3)),
    parser("glm45", &["glm47"], "GLM-4.5, GLM-4.6, GLM-4.7, GLM-5", Kind::Engine(glm::glm45)),
    parser("ling3", &[], "Ling 3", Kind::Engine(glm::glm45)),
    parser("poolside_v1", &[], "Poolside", Kind::Legacy(glm::poolside_v1)),
    parser("hy_v3", &[], "Hunyuan 3", Kind::Legacy(hy::hy_v3)),
    parser("minimax_m2", &[], "MiniMax M2", Kind::Engine(minimax_m2::minimax_m2)),
    parser("minimax_m3", &[], "MiniMax M3", Kind::Engine(minimax_m3::minimax_m3)),
    parser("dots", &[], "dots", Kind::Legacy(dots::dots)),
    parser("muse", &["musespark1x"], "Muse Spark", Kind::Legacy(muse::muse)),
    parser("muse_glimmer", &[], "Muse Glimmer", Kind::Legacy(muse::muse_glimmer)),
    parser("step3", &[], "Step-3", Kind::Legacy(step3::step3)),
    parser("openai", &[], "gpt-oss", Kind::Own(harmony::openai)),
    parser("gemma4", &[], "Gemma 4", Kind::Engine(gemma::gemma4)),
    parser("functiongemma", &[], "FunctionGemma", Kind::Legacy(gemma::functiongemma)),
];

/// Every parser, in the order in which they are listed.
pub fn all() -> &'static [Parser] {
    PARSERS
}

/// The parser called `name`, an alias included.
///
/// # Errors
/// Exit 2 for unknown names, with the name that was probably meant, and for known names that `prep` does not read.
pub fn find(name: &str) -> Result<&'static Parser> {
    PARSERS
        .iter()
        .find(|parser| parser.name == name || parser.aliases.contains(&name))
        .ok_or_else(|| names::unknown(name))
}

/// As [`find`], and parsers that a server may have though `prep` does not read what they read.
///
/// # Errors
/// Exit 2 for unknown names.
pub fn find_for_server(name: &str) -> Result<&'static Parser> {
    find(name).or_else(|e| names::unread(name).ok_or(e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_may_have_parsers_that_are_not_read_here() {
        let parser = find_for_server("cohere_command4").unwrap();
        assert!(
            !parser.is_read() && find("cohere_command4").is_err() && find_for_server("nonsense").is_err()
        );
        assert_eq!(parser.parse("<tool_call>", &Context::default()), Parsed::plain("<tool_call>"));
        assert!(all().iter().all(Parser::is_read));
    }

    #[test]
    fn without_tools_no_calls_are_returned() {
        let none = Context::default();
        let xml = "a\n<tool_call><function=f></function></tool_call>";
        assert_eq!(find("qwen3_coder").unwrap().parse(xml, &none), Parsed::plain("a"));
        let json = "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>";
        assert_eq!(find("hermes").unwrap().parse(json, &none), Parsed::plain(json));
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> =
            all().iter().flat_map(|p| std::iter::once(&p.name).chain(p.aliases)).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}

#[cfg(test)]
mod cases;
#[cfg(test)]
mod robust;

//! What a template teaches: does the model see the tools, and in which format does it see calls?
//!
//! Decided by rendering a probe, never by looking into the template's text: a template may hold a format
//! in a branch that no request reaches.

use serde::Serialize;
use serde_json::{Value, json};

use super::format::Format;
use crate::parsers::{self, Context, Parser};
use crate::template::lint::{probe_call, probe_tool};
use crate::template::{Failure, Renderer, Request};

/// What a template shows of tools and calls.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Taught {
    /// The prompt holds the names of the tools.
    pub shows_tools: bool,
    /// The prompt holds the names of their parameters.
    pub shows_parameters: bool,
    /// A call of the conversation stands in the prompt.
    pub shows_calls: bool,
    /// The result of a call stands in the prompt.
    pub shows_results: bool,
    /// The format of that call, or else of the instructions.
    pub format: Option<&'static Format>,
    /// Parsers that read the call back as it was.
    pub readers: Vec<&'static str>,
    /// The prompt opens a think block that the model goes on with.
    pub opens_thinking: bool,
    /// Why the probe could not be rendered.
    pub failure: Option<Failure>,
}

impl Taught {
    /// What it teaches, as one sentence.
    pub fn sentence(&self) -> String {
        if !self.shows_tools {
            return "this template teaches no tools".into();
        }
        let read_by = match self.readers.is_empty() {
            true => String::new(),
            false => format!(", read by {}", self.readers.join(", ")),
        };
        match self.format {
            Some(f) => format!("this template teaches {}{read_by}", f.title),
            None => format!("this template shows tools, but calls in no known format{read_by}"),
        }
    }
}

const QUESTION: &str = "probe question";
const CITY: &str = "Probeville";
const RESULT: &str = "probe result";

/// Renders the probes.
pub fn taught(renderer: &Renderer) -> Taught {
    let user = json!({"role": "user", "content": QUESTION});
    let call = json!({"role": "assistant", "content": "", "tool_calls": [probe_call(CITY)]});
    let result =
        json!({"role": "tool", "name": "probe_weather", "tool_call_id": "call00001", "content": RESULT});
    let render = |messages: &[&Value], add_generation_prompt| {
        let messages: Vec<Value> = messages.iter().map(|m| (*m).clone()).collect();
        renderer.render(&Request { add_generation_prompt, ..Request::new(&messages, &[probe_tool()]) })
    };
    let asked = render(&[&user], true);
    let called = render(&[&user, &call], false).or_else(|_| render(&[&user, &call, &result], false));
    let answered = render(&[&user, &call, &result], true);
    let failure = [&asked, &called, &answered].into_iter().find_map(|r| r.as_ref().err().cloned());
    let asked = asked.unwrap_or_default();
    let called = called.map(|c| turn(&asked, &c, renderer)).unwrap_or_default();
    let shows_calls = called.contains("probe_weather") && called.contains(CITY);
    let instructions = asked.split(QUESTION).next().unwrap_or_default();
    let format = match shows_calls {
        true => Format::of_text(&called),
        false => Format::of_text(instructions),
    };
    Taught {
        shows_tools: asked.contains("probe_weather"),
        shows_parameters: asked.contains("probe_city"),
        shows_calls,
        shows_results: answered.is_ok_and(|a| a.contains(RESULT)),
        format,
        readers: if shows_calls { readers(&called) } else { Vec::new() },
        opens_thinking: asked.trim_end().ends_with("<think>"),
        failure,
    }
}

/// The assistant's turn without its opening and its end: what a model would have written.
fn turn(asked: &str, called: &str, renderer: &Renderer) -> String {
    let same = asked.char_indices().zip(called.chars()).find(|((_, a), b)| a != b);
    let begin = same.map_or(asked.len().min(called.len()), |((at, _), _)| at);
    let text = called.get(begin..).unwrap_or_default();
    // A template may write an empty think block here that the prompt for a new answer does not have.
    let text = text.rsplit_once("</think>").map_or(text, |(_, after)| after);
    let ends = [
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "</s>",
        "<|end|>",
        "<｜end▁of▁sentence｜>",
        "<end_of_turn>",
    ];
    let eos = renderer.tokens().get("eos_token").and_then(Value::as_str);
    let end = ends.into_iter().chain(eos).filter_map(|e| text.find(e)).min().unwrap_or(text.len());
    text[..end].trim_matches('\n').to_string()
}

fn readers(text: &str) -> Vec<&'static str> {
    let wanted = probe_call(CITY)["function"]["arguments"].clone();
    let reads = |parser: &Parser, tokenizer: Option<&str>| {
        let context = Context {
            tools: vec![probe_tool()],
            tokenizer: tokenizer.map(str::to_string),
            ..Context::default()
        };
        let calls = parser.parse(text, &context).tool_calls;
        calls.len() == 1 && calls[0].name == "probe_weather" && calls[0].value().as_ref() == Some(&wanted)
    };
    let both = |p: &&Parser| reads(p, None) || reads(p, Some("mistral-pre-v11"));
    parsers::all().iter().filter(both).map(|p| p.name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::testing::renderer;

    fn fixture(name: &str) -> Taught {
        let path = format!("{}/../tests/fixtures/templates/{name}", env!("CARGO_MANIFEST_DIR"));
        taught(&renderer(&std::fs::read_to_string(path).unwrap()))
    }

    #[test]
    fn formats_of_whole_templates_are_known() {
        for (name, id) in [
            ("tiny_tools.jinja", "qwen_xml"),
            ("qwen3_5_like.jinja", "qwen_xml"),
            ("qwen3_like.jinja", "tagged_json"),
            ("hermes_like.jinja", "tagged_json"),
            ("llama3_like.jinja", "bare_json"),
            ("mistral_like.jinja", "mistral"),
        ] {
            let t = fixture(name);
            assert_eq!((t.shows_tools, t.format.map(|f| f.id)), (true, Some(id)), "{name}: {t:?}");
        }
    }

    #[test]
    fn the_parser_that_reads_the_templates_own_call_is_found() {
        assert!(fixture("tiny_tools.jinja").readers.contains(&"qwen3_coder"));
        assert!(fixture("qwen3_5_like.jinja").readers.contains(&"qwen3_coder"));
        let json = fixture("qwen3_like.jinja").readers;
        assert!(fixture("mistral_like.jinja").readers.contains(&"mistral"));
        assert!(fixture("llama3_like.jinja").readers.contains(&"llama3_json"));
        assert!(json.contains(&"hermes") && !json.contains(&"qwen3_coder"), "{json:?}");
    }

    #[test]
    fn a_template_with_a_dead_branch_teaches_no_tools() {
        let dead = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}\
                    {% if false %}<tool_call>\n<function=x>\n<parameter=y>{{ tools }}{% endif %}";
        let t = taught(&renderer(dead));
        assert_eq!((t.shows_tools, t.shows_calls, t.format), (false, false, None));
    }

    #[test]
    fn an_opened_think_block_is_seen() {
        assert!(fixture("qwen3_5_like.jinja").opens_thinking);
        assert!(!fixture("qwen3_like.jinja").opens_thinking);
    }
}

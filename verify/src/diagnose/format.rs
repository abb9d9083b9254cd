//! The wire formats of tool calls: which one a text holds, which one a parser reads.

use std::sync::LazyLock;

use fancy_regex::Regex;
use serde::{Serialize, Serializer};

/// One grammar of calls.
#[derive(Debug)]
pub struct Format {
    /// Name in reports.
    pub id: &'static str,
    /// What it looks like, in a few words.
    pub title: &'static str,
    /// Names of vLLM's parsers that read it, the usual one first.
    pub parsers: &'static [&'static str],
    /// What only this format holds.
    mark: &'static str,
}

impl PartialEq for Format {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Serialize for Format {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(self.id)
    }
}

/// All formats; earlier ones are the more special where marks overlap.
pub static FORMATS: [Format; 27] = [
    format("seed_xml", "Seed XML (`<seed:tool_call><function=`)", &["seed_oss"], r"<seed:tool_call>"),
    format(
        "qwen_xml",
        "Qwen XML (`<function=NAME><parameter=KEY>`)",
        &["qwen3_coder", "qwen3_xml", "step3p5", "step5", "mimo"],
        r"<tool_call>\s*<function=|<function=[^>\n]+>\s*(<parameter=|</function>)",
    ),
    format("longcat_json", "JSON in `<longcat_tool_call>`", &["longcat"], r"<longcat_tool_call>"),
    format(
        "glm",
        "GLM key/value (`<arg_key>`, `<arg_value>`)",
        &["glm45", "glm47", "ling3", "poolside_v1"],
        r"<tool_call>[^<{]*<arg_key>|<arg_key>[^<]*</arg_key>\s*<arg_value>",
    ),
    format("hunyuan_v3", "Hunyuan 3 (`<tool_sep>`)", &["hy_v3", "hy_v4"], r"<tool_sep>"),
    format("minimax_m3", "MiniMax M3 (`]<]minimax[>[`)", &["minimax_m3"], r"\]<\]minimax\[>\["),
    format(
        "minimax_m2",
        "MiniMax XML (`<minimax:tool_call><invoke name=`)",
        &["minimax_m2"],
        r"<minimax:tool_call>",
    ),
    format("dots", "dots XML (`<dots_function_call>`)", &["dots"], r"<dots_function_call>"),
    format("muse", "Muse XML (`<atem:invoke`)", &["muse", "musespark1x", "muse_glimmer"], r"<atem:"),
    format("step3", "Step-3 (`<steptml:invoke`)", &["step3"], r"<steptml:invoke"),
    format(
        "dsml",
        "DSML (`<｜DSML｜invoke`)",
        &["deepseek_v32", "deepseek_v4", "deepseek_v41"],
        r"<｜DSML｜",
    ),
    format(
        "deepseek_v3",
        "DeepSeek V3 tokens with a fenced block",
        &["deepseek_v3"],
        r"<｜tool▁call▁begin｜>\w+<｜tool▁sep｜>[^\n]*\n```json",
    ),
    format("deepseek_v31", "DeepSeek V3.1 tokens", &["deepseek_v31"], r"<｜tool▁calls?▁begin｜>"),
    format("kimi_k3", "Kimi K3 (`<|open|>tools<|sep|>`)", &["kimi_k3"], r"<\|open\|>(tools|call)\b"),
    format(
        "kimi_k2",
        "Kimi K2 (`<|tool_calls_section_begin|>`)",
        &["kimi_k2"],
        r"<\|tool_calls?_(section_)?begin\|>",
    ),
    format("harmony", "Harmony (`to=functions.NAME`)", &["openai"], r"to=functions\.\w"),
    format("gemma4", "Gemma 4 (`<|tool_call>call:`)", &["gemma4"], r"<\|tool_call>call:"),
    format(
        "functiongemma",
        "FunctionGemma (`<start_function_call>`)",
        &["functiongemma"],
        r"<start_function_call>",
    ),
    format("lfm2", "LFM2 (`<|tool_call_start|>`)", &["lfm2"], r"<\|tool_call_start\|>"),
    format("granite", "a JSON array after `<|tool_call|>`", &["granite"], r"<\|tool_call\|>"),
    format("mistral", "Mistral (`[TOOL_CALLS]`)", &["mistral"], r"\[TOOL_CALLS\]"),
    format(
        "tagged_json",
        "JSON in `<tool_call>`",
        &["hermes", "qwen3_json", "granite4", "ernie45"],
        r"<tool_call>\s*\{",
    ),
    format("jamba", "a JSON array in `<tool_calls>`", &["jamba", "hunyuan_a13b"], r"<tool_calls>\s*\["),
    format("functools", "`functools[...]`", &["phi4_mini_json"], r"functools\["),
    format(
        "other_marked_json",
        "JSON after a marker of its own",
        &["internlm", "apertus", "gigachat3", "granite-20b-fc"],
        r"<\|action_start\|>|<\|tools_prefix\|>|<\|function_call\|>|<function_call>",
    ),
    format(
        "bare_json",
        "bare JSON (`{\"name\": .., \"parameters\": ..}`)",
        &["llama3_json", "llama4_json", "xlam"],
        r#"(?s)^\s*(<\|python_tag\|>)?\s*\[?\s*\{\s*"name"\s*:.*"(parameters|arguments)"\s*:"#,
    ),
    format(
        "pythonic",
        "Python calls in a list (`[name(key='value')]`)",
        &["pythonic", "llama4_pythonic", "olmo3"],
        r"^\s*(<\|python_start\|>|<function_calls>)?\s*\[?[A-Za-z]\w*\(([a-z_]\w*=|\))",
    ),
];

const fn format(
    id: &'static str,
    title: &'static str,
    parsers: &'static [&'static str],
    mark: &'static str,
) -> Format {
    Format { id, title, parsers, mark }
}

impl Format {
    /// The format that the parser called `name` reads.
    pub fn of_parser(name: &str) -> Option<&'static Format> {
        FORMATS.iter().find(|f| f.parsers.contains(&name))
    }

    /// The format of the calls in `text`, whole or cut; `None` where it holds none.
    pub fn of_text(text: &str) -> Option<&'static Format> {
        static MARKS: LazyLock<Vec<(Regex, &'static Format)>> =
            LazyLock::new(|| FORMATS.iter().filter_map(|f| Some((Regex::new(f.mark).ok()?, f))).collect());
        MARKS.iter().find(|(mark, _)| mark.is_match(text).unwrap_or(false)).map(|(_, f)| *f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mark_compiles_and_every_parser_has_one_format() {
        let mut names: Vec<_> = FORMATS.iter().flat_map(|f| f.parsers).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        for f in &FORMATS {
            Regex::new(f.mark).unwrap();
        }
        for p in crate::parsers::all() {
            assert!(Format::of_parser(p.name).is_some(), "no format for parser {}", p.name);
        }
    }

    #[test]
    fn texts_are_told_apart() {
        for (text, id) in [
            ("Sure.\n<tool_call>\n<function=f>\n<parameter=a>\n1", "qwen_xml"),
            ("<function=f>\n</function>", "qwen_xml"),
            ("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"<function=\"}}", "tagged_json"),
            ("<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value></tool_call>", "glm"),
            ("{\"name\": \"f\", \"parameters\": {}}", "bare_json"),
            ("[TOOL_CALLS] [{\"name\": \"f\"}]", "mistral"),
            ("[f(a=1), g()]", "pythonic"),
            ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}", "deepseek_v31"),
            ("<minimax:tool_call>\n<invoke name=\"f\">", "minimax_m2"),
            ("<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0", "kimi_k2"),
        ] {
            assert_eq!(Format::of_text(text).map(|f| f.id), Some(id), "{text}");
        }
        for text in ["I am a tiny model.", "Use <tool_call> tags.", "{\"a\": 1}", "[1, 2]", "call(me) maybe"]
        {
            assert_eq!(Format::of_text(text), None, "{text}");
        }
    }
}

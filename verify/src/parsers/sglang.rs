//! SGLang's names of the parsers that vLLM has.
//!
//! Source: SGLang 0.5.23, `function_call/parser_names.py` and `parser/reasoning_parser_names.py`.

/// vLLM's name of a tool-call parser, and SGLang's of the one that reads the same format.
const TOOLS: [(&str, &str); 32] = [
    ("qwen3_coder", "qwen3_coder"),
    ("step3p5", "step3p5"),
    ("mimo", "mimo"),
    ("hermes", "hermes"),
    ("llama3_json", "llama3"),
    ("hunyuan_a13b", "hunyuan"),
    ("internlm", "interns1"),
    ("apertus", "apertus2509"),
    ("gigachat3", "gigachat3"),
    ("pythonic", "pythonic"),
    ("lfm2", "lfm2"),
    ("mistral", "mistral"),
    ("deepseek_v3", "deepseekv3"),
    ("deepseek_v31", "deepseekv31"),
    ("deepseek_v32", "deepseekv32"),
    ("deepseek_v4", "deepseekv4"),
    ("deepseek_v41", "deepseekv41"),
    ("kimi_k2", "kimi_k2"),
    ("kimi_k3", "kimi_k3"),
    ("glm45", "glm45"),
    ("ling3", "ling3"),
    ("poolside_v1", "poolside_v1"),
    ("minimax_m2", "minimax-m2"),
    ("minimax_m3", "minimax-m3"),
    ("dots", "dots"),
    ("muse_glimmer", "muse"),
    ("step3", "step3"),
    ("openai", "gpt-oss"),
    ("gemma4", "gemma4"),
    ("minicpm5", "minicpm5"),
    ("hf", "response_template"),
    ("cohere_command4", "cohere_command4"),
];

/// The same for reasoning parsers.
const REASONING: [(&str, &str); 19] = [
    ("qwen3", "qwen3"),
    ("deepseek_r1", "deepseek-r1"),
    ("deepseek_v3", "deepseek-v3"),
    ("deepseek_v4", "deepseek-v4"),
    ("deepseek_v41", "deepseek-v41"),
    ("glm45", "glm45"),
    ("ling3", "ling3"),
    ("hunyuan_a13b", "hunyuan"),
    ("openai_gptoss", "gpt-oss"),
    ("kimi_k2", "kimi_k2"),
    ("kimi_k3", "kimi_k3"),
    ("mimo", "mimo"),
    ("muse", "muse"),
    ("minimax_m2", "minimax"),
    ("minimax_m3", "minimax-m3"),
    ("step3", "step3"),
    ("step3p5", "step3p5"),
    ("mistral", "mistral"),
    ("gemma4", "gemma4"),
];

/// SGLang's name of vLLM's tool-call parser `name`; `None` where SGLang has none for the format.
pub fn sglang_tool_parser(name: &str) -> Option<&'static str> {
    let own = super::find(name).map_or(name, |p| p.name);
    TOOLS.iter().find(|(vllm, _)| *vllm == own).map(|(_, sglang)| *sglang)
}

/// SGLang's name of vLLM's reasoning parser `name`.
pub fn sglang_reasoning_parser(name: &str) -> Option<&'static str> {
    REASONING.iter().find(|(vllm, _)| *vllm == name).map(|(_, sglang)| *sglang)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aliases_are_translated_too() {
        assert_eq!(sglang_tool_parser("qwen3_json"), Some("hermes"));
        assert_eq!(sglang_tool_parser("llama4_json"), Some("llama3"));
        assert_eq!(sglang_tool_parser("jamba"), None);
    }
}

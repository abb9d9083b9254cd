//! No text makes a parser panic, and none takes it more than linear time.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{Context, Parser, Reasoned, all, all_reasoning, answer_line};

/// Pieces that the grammars look for, and some they trip over.
const PIECES: &[&str] = &[
    "<tool_call>",
    "</tool_call>",
    "<function=",
    "</function>",
    "<parameter=",
    "</parameter>",
    ">",
    "<think>",
    "</think>",
    "{\"name\": \"f\", \"arguments\": {\"a\": 1}}",
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    "\"",
    "'",
    "\\",
    ",",
    ":",
    "=",
    "f",
    "a",
    "1",
    "-",
    " ",
    "\n",
    "ä",
    "😀",
    "\u{1f}",
    "\0",
    "[TOOL_CALLS]",
    "[ARGS]",
    "functools[",
    "```json\n",
    "```",
    "<|tool_call|>",
    "<function_call>",
    "<tool_calls>",
    "</tool_calls>",
    "<|action_start|><|plugin|>",
    "<|action_end|>",
    "<|tools_prefix|>",
    "<|tools_suffix|>",
    "<|function_call|>",
    "<|message_sep|>",
    "</s>",
    "<|python_start|>",
    "<function_calls>",
    "<|tool_call_start|>",
    "<|tool_call_end|>",
    "[f(a=",
    "f(",
    "'x'",
    "True",
    "not ",
    "if ",
    " else ",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
    "<｜DSML｜invoke name=\"",
    "\">",
    "<｜DSML｜parameter",
    " name=\"a\"",
    "</｜DSML｜parameter>",
    "</｜DSML｜invoke>",
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "f:0",
    "<|tool_call_argument_begin|>",
    "<|open|>",
    "<|sep|>",
    "<|close|>",
    "tools",
    "call ",
    "argument ",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<tool_sep>",
    "<invoke name=",
    "</invoke>",
    "<parameter name=",
    "]<]minimax[>[",
    "<x>",
    "</x>",
    "<dots_function_call>",
    "</dots_function_call>",
    "<atem:invoke",
    "name=\"f\"",
    "</atem:invoke>",
    "<atem:parameter",
    "<|message|>",
    "<|start|>",
    "<|eom|>",
    " to=f",
    "<｜tool_calls_begin｜>",
    "<｜tool_call_begin｜>",
    "function",
    "<｜tool_sep｜>",
    "<steptml:invoke name=\"",
    "<steptml:parameter name=\"",
    "<｜tool_call_end｜>",
    "<｜tool_calls_end｜>",
    "<|channel|>",
    "commentary",
    "<|constrain|>json",
    "<|end|>",
    "<|tool_call>",
    "call:",
    "<|\"|>",
    "<tool_call|>",
    "<start_function_call>",
    "<escape>",
    "<end_function_call>",
    "<|channel>",
    "<channel|>",
    "thought\n",
    "\\u",
    "1e999",
    "NaN",
    "0x",
    "_pyreservedkw_",
    "from=",
];

fn tools() -> Vec<Value> {
    vec![
        json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {
        "a": {"type": "integer"}, "b": {"type": "array", "items": {"type": "number"}}, "x": {"type": "object"}}}}}),
    ]
}

fn context(reasoned: Reasoned) -> Context {
    Context {
        tools: tools(),
        special_tokens: vec!["</s>".into(), "ä".into()],
        reasoned,
        ..Context::default()
    }
}

/// Runs all a parser can be asked for.
fn run(parser: &Parser, text: &str) {
    for reasoned in [Reasoned::No, Reasoned::Engine] {
        let context = context(reasoned);
        let parsed = parser.parse(text, &context);
        assert_eq!(parsed, parser.parse(text, &context));
        assert_ne!(parsed.content.as_deref(), Some(""), "an empty text is no content");
        parser.stream(text, &context);
    }
    let old = Context { tokenizer: Some("mistral-pre-v11".into()), ..context(Reasoned::No) };
    parser.parse(text, &old);
}

proptest! {
    #[test]
    fn texts_of_markup_never_panic(places in prop::collection::vec(0..PIECES.len(), 0..40)) {
        let text: String = places.iter().map(|place| PIECES[*place]).collect();
        all().iter().for_each(|parser| run(parser, &text));
        for reasoning in all_reasoning() {
            reasoning.split(&text, &context(Reasoned::No));
        }
    }

    #[test]
    fn arbitrary_texts_never_panic_and_answers_are_json(text in "\\PC{0,80}") {
        let line = json!({"text": text, "tools": tools()}).to_string();
        for parser in all() {
            let answer = answer_line(&line, parser, None).unwrap();
            prop_assert!(serde_json::from_str::<Value>(&answer).is_ok(), "{}", answer);
        }
    }
}

/// A small generator, so that the same texts come every time.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit.max(1) as u64) as usize
    }
}

/// Cuts, doubles, drops or inserts something at a random place.
fn mutated(text: &str, random: &mut Random) -> String {
    let places: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
    let (first, second) = (places[random.below(places.len())], places[random.below(places.len())]);
    let (start, end) = (first.min(second), first.max(second));
    match random.below(4) {
        0 => text[..start].to_owned(),
        1 => format!("{}{}", &text[..end], &text[start..]),
        2 => format!("{}{}", &text[..start], &text[end..]),
        _ => format!("{}{}{}", &text[..start], PIECES[random.below(PIECES.len())], &text[start..]),
    }
}

#[test]
fn mutations_of_the_cases_never_panic() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/tool_calls.jsonl");
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for line in std::fs::read_to_string(file).unwrap().lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let mut text = case["text"].as_str().unwrap().to_owned();
        for _ in 0..6 {
            text = mutated(&text, &mut random);
            all().iter().for_each(|parser| run(parser, &text));
        }
    }
}

/// Texts of an eighth of a megabyte: one piece over and over, behind the start of every format.
#[test]
fn long_texts_of_any_shape_take_linear_time() {
    const LENGTH: usize = 1 << 17;
    let starts = [
        "",
        "<tool_call>",
        "<function=f><parameter=a>",
        "[f(a=",
        "functools[",
        "[TOOL_CALLS]f[ARGS]",
        "<tool_calls>[",
        "<|tool_call>call:f{a:",
        "<｜DSML｜invoke name=\"f\">",
        "<|tool_call_start|>[f(a='",
        "<|tools_prefix|>[",
        "<|open|>tools<|sep|>",
        "<atem:invoke name=\"f\">",
        "<dots_function_call><invoke name=\"f\">",
        "<invoke name=\"f\">",
        "]<]minimax[>[<tool_call>]<]minimax[>[<invoke name=\"f\">",
        "<|channel|>final<|message|>",
        "<tool_calls><tool_call>f<tool_sep>",
    ];
    let pieces = [
        "{", "[", "(", "\"", "'", "\\", "<", "{\"a\":", "[{", "{a:", "f(a=", " ", "1", ",", "-", "not ",
        "a.", "\n[",
    ];
    for start in starts {
        let own = PIECES.iter().find(|piece| start.starts_with(**piece)).copied().unwrap_or("<tool_call>");
        for piece in pieces.iter().copied().chain([own]) {
            let text = format!("{start}{}", piece.repeat(LENGTH / piece.len()));
            for parser in all() {
                parser.parse(&text, &context(Reasoned::No));
            }
        }
    }
}

//! Every tool-call parser on outputs of 1 MB: a long text with a call at its end, calls without end, and one call
//! whose argument is that long.
//!
//! `cargo bench -p verify --bench parsers -- [MB]` (default 1). The texts are the repository's own cases; times are those
//! of this thread on the processor, so that other work on the machine does not count.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::time::Instant;

use serde_json::{Value, json};
use verify::parsers::{Context, Parser, all};

/// What the slowest parser may take for 1 MB, in milliseconds.
const BAR: f64 = 50.0;
const ROUNDS: usize = 7;

/// Calls of parsers that the case file has none for.
const MORE: [(&str, &str); 5] = [
    (
        "kimi_k3",
        "<|open|>tools<|sep|><|open|>call tool=\"f\" index=\"1\"<|sep|><|open|>argument key=\"s\" type=\"string\"<|sep|>\
         Milk and eggs<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
    ),
    (
        "hy_v3",
        "<tool_calls><tool_call>f<tool_sep><arg_key>s</arg_key><arg_value>Milk and eggs</arg_value></tool_call></tool_calls>",
    ),
    (
        "minimax_m3",
        "]<]minimax[>[<tool_call>]<]minimax[>[<invoke name=\"f\">]<]minimax[>[<s>Milk and eggs]<]minimax[>[</s>\
         ]<]minimax[>[</invoke>]<]minimax[>[</tool_call>",
    ),
    (
        "muse",
        "<atem:function_calls><atem:invoke name=\"f\"><atem:parameter name=\"s\">Milk and eggs</atem:parameter>\
         </atem:invoke></atem:function_calls>",
    ),
    (
        "muse_glimmer",
        "<atem:function_calls><atem:invoke name=\"f\"><atem:parameter name=\"s\">Milk and eggs</atem:parameter>\
         </atem:invoke></atem:function_calls>",
    ),
];

fn main() {
    let mb: f64 = std::env::args().skip(1).find_map(|a| a.parse().ok()).unwrap_or(1.0);
    let bytes = (mb * 1e6) as usize;
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/tool_calls.jsonl");
    let text = std::fs::read_to_string(path).unwrap();
    let cases: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).chain(more()).collect();
    let mut rows: Vec<(f64, &str, [f64; 3])> = Vec::new();
    for parser in all() {
        let own: Vec<&Value> = cases.iter().filter(|c| is_for(c, parser)).collect();
        let case = own.first().unwrap_or_else(|| panic!("no case for {}", parser.name));
        let context = Context {
            tools: case["tools"].as_array().cloned().unwrap_or_default(),
            tokenizer: case["tokenizer"].as_str().map(str::to_string),
            ..Context::default()
        };
        let whole = case["text"].as_str().unwrap();
        assert!(!parser.parse(whole, &context).tool_calls.is_empty(), "{}: no call in {whole}", parser.name);
        let long = own.iter().find_map(|c| long_argument(c, bytes));
        let texts = texts(whole, bytes);
        let times =
            [&texts[0], &texts[1], long.as_ref().unwrap_or(&texts[0])].map(|t| best(parser, t, &context));
        rows.push((times.into_iter().fold(0.0, f64::max), parser.name, times));
    }
    rows.sort_by(|a, b| b.0.total_cmp(&a.0));
    println!("{:16} {:>9} {:>9} {:>9} {:>9}", "parser", "text ms", "calls ms", "long ms", "MB/s");
    for (worst, name, [text, calls, long]) in &rows {
        println!("{name:16} {text:9.2} {calls:9.2} {long:9.2} {:9.0}", mb / (worst / 1e3));
    }
    let (worst, name, ..) = rows[0];
    let bar = BAR * mb;
    let word = if worst < bar { "within" } else { "OVER" };
    println!("slowest: {name}, {worst:.1} ms for {mb} MB, {word} the {bar:.0} ms that are allowed");
}

fn more() -> impl Iterator<Item = Value> {
    MORE.iter().map(|(parser, text)| {
        let properties = json!({"s": {"type": "string"}});
        json!({
            "parser": parser,
            "text": text,
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": properties}}}],
            "expect": {"tool_calls": [{"name": "f", "arguments": {"s": "Milk and eggs"}}]},
        })
    })
}

/// A case of this parser's whose text is read as calls.
fn is_for(case: &Value, parser: &Parser) -> bool {
    let name = case["parser"].as_str().unwrap();
    let own = parser.name == name || parser.aliases.contains(&name);
    own && case["expect"]["tool_calls"].as_array().is_some_and(|calls| !calls.is_empty())
}

const WORDS: &str = "The quick brown fox jumps over the lazy dog ";

/// `text` behind many words, and `text` again and again.
fn texts(text: &str, bytes: usize) -> [String; 2] {
    let line = "The quick brown fox < jumps > over {the} [lazy] dog.\n";
    let prose = line.repeat(bytes / line.len()) + text;
    [prose, format!("{text}\n").repeat(bytes / (text.len() + 1))]
}

/// The case's text with one of its arguments made as long as is wanted, if one stands there as it is.
fn long_argument(case: &Value, bytes: usize) -> Option<String> {
    let text = case["text"].as_str()?;
    let calls = case["expect"]["tool_calls"].as_array()?.iter();
    let values =
        calls.filter_map(|c| c["arguments"].as_object()).flat_map(|a| a.values()).filter_map(Value::as_str);
    let once = |v: &&str| v.len() > 3 && text.matches(*v).count() == 1;
    values.filter(once).max_by_key(|v| v.len()).map(|v| text.replace(v, &WORDS.repeat(bytes / WORDS.len())))
}

/// The shortest of some rounds, in milliseconds.
fn best(parser: &Parser, text: &str, context: &Context) -> f64 {
    let round = |_| {
        let began = (Instant::now(), on_processor());
        std::hint::black_box(parser.parse(std::hint::black_box(text), context));
        match (began.1, on_processor()) {
            (Some(a), Some(b)) => (b - a) as f64 / 1e6,
            _ => began.0.elapsed().as_secs_f64() * 1e3,
        }
    };
    (0..ROUNDS).map(round).fold(f64::INFINITY, f64::min)
}

/// Nanoseconds that this thread was on the processor, where Linux tells.
fn on_processor() -> Option<u64> {
    // The kernel brings the count up to date when the thread gives way.
    std::thread::yield_now();
    std::fs::read_to_string("/proc/thread-self/schedstat").ok()?.split(' ').next()?.parse().ok()
}

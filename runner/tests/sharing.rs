//! Prompts that begin alike are read once, and nothing in any answer tells.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use runner::backend::CHUNK;
use runner::decoder::{Part, Sequence, Want};
use runner::engine::{Completion, PIECE, Request, Stop, complete};
use runner::{Cpu, Model, Options, Sampling, Tokenizer};
use verify::progress::Silent;
use verify::suite::Suite;
use verify::template::{Renderer, Request as Conversation};

/// Dense, mixture of experts, and both kinds of hybrid.
const FAMILIES: [&str; 4] = ["qwen3", "qwen3_moe", "qwen3_next", "qwen3_5_moe"];

fn fixture(path: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures")).join(path)
}

fn model(name: &str) -> Model<Cpu> {
    Model::open(&fixture("logits").join(name), &Options { threads: Some(2) }).unwrap()
}

/// `len` pseudo-random ids below 96, another row for another `salt`.
fn tokens(len: usize, salt: usize) -> Vec<u32> {
    (0..len).map(|i| ((i * i * 31 + i * 17 + salt * 7919) % 89) as u32 + 5).collect()
}

/// Prompts that part at different places: inside a piece, at a piece's end, one within the other, nearly the same.
fn prompts() -> Vec<Vec<u32>> {
    let stem = tokens(2 * PIECE + 70, 0);
    let with = |len: usize, tail: usize, salt: usize| [&stem[..len], &tokens(tail, salt)].concat();
    vec![
        with(300, 30, 1),
        with(300, 51, 2),
        tokens(90, 3),
        with(2 * PIECE, 1, 4),
        with(2 * PIECE, 40, 5),
        with(CHUNK + 1, 0, 0),
        with(2 * CHUNK + 3, 2, 6),
        with(2 * CHUNK + 3, 2, 6),
        with(2 * PIECE + 66, 0, 0),
    ]
}

/// Tokens each of [`prompts`] gets from an earlier one: whole sixteens, or whole chunks where a layer is recurrent.
const SHARED: [usize; 9] = [0, 288, 0, 288, 496, 48, 128, 128, 512];
const SHARED_CHUNKS: [usize; 9] = [0, 256, 0, 256, 448, 0, 128, 128, 512];

fn requests(prompts: &[Vec<u32>]) -> Vec<Request> {
    let request = |(n, tokens): (usize, &Vec<u32>)| Request {
        tokens: tokens.clone(),
        max_new: 4 + n,
        stop: Stop::Never,
    };
    prompts.iter().enumerate().map(request).collect()
}

fn run(model: &Model<Cpu>, requests: &[Request], memory: u64) -> Vec<Completion> {
    complete(model, (Sampling::default(), memory), requests, &Silent, &mut |_, _| Ok(())).unwrap()
}

fn shared(completions: &[Completion]) -> Vec<usize> {
    completions.iter().map(|c| c.shared).collect()
}

#[test]
fn shared_prompts_are_answered_as_alone() {
    let requests = requests(&prompts());
    for name in FAMILIES {
        let model = model(name);
        let together = run(&model, &requests, 1 << 30);
        let expected = if name.ends_with("next") || name.contains("3_5") { SHARED_CHUNKS } else { SHARED };
        assert_eq!(shared(&together), expected, "{name}");
        let mut turned = requests.clone();
        turned.reverse();
        let mut backwards = run(&model, &turned, 1 << 30);
        backwards.reverse();
        for (n, request) in requests.iter().enumerate() {
            let alone = run(&model, std::slice::from_ref(request), 1 << 30).remove(0);
            assert_eq!(alone.shared, 0);
            assert_eq!(together[n].tokens, alone.tokens, "{name} prompt {n}");
            assert_eq!(backwards[n].tokens, alone.tokens, "{name} prompt {n}, backwards");
        }
    }
}

#[test]
fn without_room_for_what_is_shared_every_prompt_reads_its_own() {
    let requests = requests(&prompts());
    for name in ["qwen3_moe", "qwen3_next"] {
        let model = model(name);
        let needs = model.needs();
        let room = |tokens: u64| needs.each_sequence + needs.each_token * tokens;
        let plenty = run(&model, &requests, 1 << 30);
        // For one answer; for one and a short beginning; for three or so.
        for memory in [0, room(600), room(600) + room(200), 3 * room(600)] {
            let scarce = run(&model, &requests, memory);
            for (n, (a, b)) in plenty.iter().zip(&scarce).enumerate() {
                assert_eq!(a.tokens, b.tokens, "{name} prompt {n} in {memory} bytes");
            }
            assert!(memory > 0 || shared(&scarce).iter().all(|s| *s == 0), "{name}: {:?}", shared(&scarce));
        }
    }
}

/// Feeds `prompt` from where `sequence` stands, as the engine does; logits of those positions.
fn read(model: &Model<Cpu>, sequence: &mut Sequence<Cpu>, prompt: &[u32], to: usize) -> Vec<f32> {
    let mut logits = Vec::new();
    while sequence.len() < to {
        let fed = sequence.len();
        let tokens = &prompt[fed..to.min((fed / PIECE + 1) * PIECE)];
        logits.extend(model.forward(&mut [Part { sequence, tokens, want: Want::All }]).unwrap());
    }
    logits
}

#[test]
fn a_branch_goes_on_with_the_same_bits() {
    let prompt = tokens(PIECE + 130, 0);
    for name in FAMILIES {
        let model = model(name);
        let mut whole = model.sequence().unwrap();
        let expected = read(&model, &mut whole, &prompt, prompt.len());
        for at in [CHUNK, 3 * CHUNK, PIECE, PIECE + CHUNK] {
            let mut stem = model.sequence().unwrap();
            read(&model, &mut stem, &prompt, at);
            // The first goes on with other tokens: a branch that reached back into its stem would show.
            let mut other = model.branch(&stem).unwrap();
            read(&model, &mut other, &tokens(prompt.len(), 9), prompt.len());
            for mut branch in [model.branch(&stem).unwrap(), stem] {
                let got = read(&model, &mut branch, &prompt, prompt.len());
                assert!(got == expected[at * model.vocab()..], "{name} from {at}");
            }
        }
    }
}

#[test]
fn what_is_never_read_shares_nothing() {
    let model = model("qwen3_next");
    let request = |max_new| Request { tokens: tokens(200, 0), max_new, stop: Stop::Never };
    let done = run(&model, &[request(0), request(3), request(0), request(3)], 1 << 30);
    assert_eq!(shared(&done), [0, 0, 0, 192]);
    assert_eq!(done[1].tokens, done[3].tokens);
}

#[test]
fn a_suite_is_read_in_fewer_tokens() {
    let dir = fixture("models/qwen3-moe");
    let model = Model::open(&dir.join("base"), &Options { threads: Some(2) }).unwrap();
    let tokenizer = Tokenizer::open(&dir.join("base")).unwrap();
    let renderer = Renderer::open(&dir.join("adapter")).unwrap();
    let suite = Suite::default_suite().unwrap();
    let most = suite.all().max_by_key(|case| case.tools.len()).unwrap();
    // The cases as they are, each with its own tools; and all with the same tools, as an application has them.
    for (tools, at_least) in [(None, 0.1), (Some(&most.tools), 0.5)] {
        let request = |case: &verify::suite::Case| {
            let talk = Conversation::new(&case.messages, tools.unwrap_or(&case.tools));
            let tokens = tokenizer.encode(&renderer.render(&talk).unwrap()).unwrap();
            Request { tokens, max_new: 1, stop: Stop::Never }
        };
        let requests: Vec<Request> = suite.all().map(request).collect();
        let all: usize = requests.iter().map(|r| r.tokens.len()).sum();
        let spared: usize = shared(&run(&model, &requests, 1 << 30)).iter().sum();
        println!("{} prompts, {all} tokens, {} of them read", requests.len(), all - spared);
        assert!(spared as f64 > at_least * all as f64, "{spared} of {all} tokens shared");
    }
}

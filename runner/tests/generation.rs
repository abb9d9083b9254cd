//! Answers of a small trained model: stopping, batching, sampling.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use runner::engine::{Engine, Request, Stop};
use runner::{Options, Sampling};
use verify::generate::{Finish, Generate, Prompt};
use verify::progress::Silent;

fn engine(threads: usize) -> Engine {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/models/qwen3-moe/base");
    Engine::open(Path::new(dir), &Options { threads: Some(threads) }).unwrap()
}

fn prompts() -> Vec<Prompt> {
    let ask = ["What is the weather in Lisbon?", "Hi!", "查一下云泉的天气。", "Please add 3 and 4."];
    let text = |q: &str| format!("<|im_start|>user\n{q}<|im_end|>\n<|im_start|>assistant\n");
    let long = text(&ask.join(" ").repeat(20));
    let texts = ask.iter().map(|q| text(q)).chain([long]);
    texts.enumerate().map(|(i, text)| Prompt { text, max_new: 5 + 20 * i }).collect()
}

#[test]
fn answers_do_not_depend_on_neighbours_order_memory_or_threads() {
    let prompts = prompts();
    let texts = |prompts: &[Prompt], mut engine: Engine| {
        let answers = engine.generate(prompts, &Silent).unwrap();
        answers.into_iter().map(|a| (a.text, a.tokens)).collect::<Vec<_>>()
    };
    let together = texts(&prompts, engine(2));
    for (n, prompt) in prompts.iter().enumerate() {
        assert_eq!(texts(std::slice::from_ref(prompt), engine(1))[0], together[n]);
    }
    let mut turned = prompts.clone();
    turned.reverse();
    let mut answers = texts(&turned, engine(3).with_memory(1 << 20));
    answers.reverse();
    assert_eq!(answers, together);
}

#[test]
fn stop_token_ends_the_answer_and_is_not_in_its_text() {
    let mut e = engine(2);
    let prompt = Prompt { max_new: 200, ..prompts()[1].clone() };
    let answer = e.generate(std::slice::from_ref(&prompt), &Silent).unwrap().remove(0);
    assert_eq!(answer.finish, Finish::Stop);
    assert!(!answer.text.contains("<|im_end|>") && !answer.text.is_empty(), "{answer:?}");
    let written = e.tokenizer().encode(&answer.text).unwrap().len();
    assert!(answer.tokens > written && answer.latency >= answer.first_token);
    assert!(!answer.first_token.is_zero());
    let cut = Prompt { max_new: answer.tokens - 1, ..prompt };
    let cut = e.generate(&[cut], &Silent).unwrap().remove(0);
    assert_eq!((cut.finish, cut.tokens, cut.text), (Finish::Length, answer.tokens - 1, answer.text));
}

#[test]
fn context_limits_prompt_and_answer() {
    let e = engine(2);
    let context = e.model().context();
    let request = |n: usize| Request { tokens: vec![5; n], max_new: 100, stop: Stop::Never };
    let done = e.complete(&[request(context - 3)], &Silent).unwrap();
    assert_eq!((done[0].tokens.len(), done[0].finish), (3, Finish::Length));
    let error = e.complete(&[request(4), request(context)], &Silent).unwrap_err();
    assert!(error.what().contains("prompt 1"), "{error}");
    assert!(e.complete(&[request(0)], &Silent).is_err());
    let bad = Request { tokens: vec![u32::MAX], max_new: 1, stop: Stop::Model };
    assert_eq!(e.complete(&[bad], &Silent).unwrap_err().class().exit_code(), 3);
}

#[test]
fn nothing_wanted_gives_nothing() {
    let e = engine(2);
    let none = Request { tokens: vec![5], max_new: 0, stop: Stop::Model };
    let done = e.complete(&[none.clone(), Request { max_new: 2, ..none }], &Silent).unwrap();
    assert_eq!((done[0].tokens.len(), done[1].tokens.len()), (0, 2));
    assert!(e.complete(&[], &Silent).unwrap().is_empty());
}

#[test]
fn sampling_repeats_with_its_seed() {
    let with = |seed| {
        let how = Sampling { temperature: 1.5, seed, ..Sampling::default() };
        let answers = engine(2).with_sampling(how).unwrap().generate(&prompts(), &Silent).unwrap();
        answers.into_iter().map(|a| a.text).collect::<Vec<_>>()
    };
    assert_eq!(with(1), with(1));
    assert_ne!(with(1), with(2));
}

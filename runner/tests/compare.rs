//! Two models over the same tokens: against numbers taken another way.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use runner::compare::{Compared, Talk, WINDOW, compare};
use runner::cpu::{Array, Cpu, Watch};
use runner::dump::dump;
use runner::engine::Stop;
use runner::weights::Matrix;
use runner::{Engine, Model, Options, Tokenizer};
use verify::progress::Silent;
use verify::suite::compare::Predictions;

const PROMPT: &str = "<|im_start|>user\nWhat is the weather in Oslo?<|im_end|>\n<|im_start|>assistant\n";
const ANSWER: &str = "It is sunny in Oslo.";

fn base() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models/qwen3-moe/base")
}

fn open(dir: &Path) -> Engine {
    Engine::open(dir, &Options { threads: Some(2) }).unwrap()
}

/// The base with the bytes of the tensors `named` changed by `edit`.
fn edited(named: &str, edit: impl Fn(&mut [u8])) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in ["config.json", "tokenizer.json", "generation_config.json"] {
        std::fs::copy(base().join(name), dir.path().join(name)).unwrap();
    }
    let mut bytes = std::fs::read(base().join("model.safetensors")).unwrap();
    let head = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let json: serde_json::Value = serde_json::from_slice(&bytes[8..head]).unwrap();
    let at = |n: usize| head + json[named]["data_offsets"][n].as_u64().unwrap() as usize;
    edit(&mut bytes[at(0)..at(1)]);
    std::fs::write(dir.path().join("model.safetensors"), bytes).unwrap();
    dir
}

/// Turns the sign of every bf16 weight.
fn negate(bytes: &mut [u8]) {
    bytes.iter_mut().skip(1).step_by(2).for_each(|b| *b ^= 0x80);
}

fn numbers(baseline: &Engine, model: &Engine, text: Option<&str>) -> Predictions {
    let talks = [Talk { prompt: PROMPT, answer: ANSWER }];
    match compare(baseline, model, &talks, text, &Silent).unwrap() {
        Compared::Numbers(numbers) => numbers,
        Compared::Unlike(why) => panic!("{why}"),
    }
}

#[test]
fn a_model_beside_itself_differs_in_nothing() {
    let found = numbers(&open(&base()), &open(&base()), Some("Hello, Oslo! 你好。"));
    for d in [found.prompts.unwrap(), found.answers.unwrap(), found.text.unwrap().divergence] {
        assert!(d.positions > 0, "{d:?}");
        assert_eq!((d.mean_kl, d.max_kl, d.top1_agreement, d.not_numbers), (0.0, 0.0, 1.0, 0));
    }
    let perplexity = found.text.unwrap().perplexity.unwrap();
    assert_eq!(perplexity.baseline, perplexity.model);
    assert_eq!(found.routers.len(), 4);
    for r in found.routers {
        assert_eq!((r.agreement, r.overlap), (1.0, 1.0));
        assert_eq!((r.load, r.unused), (r.baseline_load, r.baseline_unused));
    }
}

#[test]
fn a_changed_router_shows_in_its_own_layer() {
    let dir = edited("model.layers.2.mlp.gate.weight", negate);
    let found = numbers(&open(&base()), &open(dir.path()), None);
    let agreement: Vec<f64> = found.routers.iter().map(|r| r.agreement).collect();
    assert_eq!(agreement[..2], [1.0, 1.0]);
    // What was largest is smallest now: of eight experts the other two are taken.
    assert_eq!((agreement[2], found.routers[2].overlap), (0.0, 0.0));
    assert!(found.answers.unwrap().mean_kl > 0.0);
}

#[test]
fn logits_that_are_no_numbers_are_counted() {
    let dir =
        edited("model.norm.weight", |bytes| bytes.copy_from_slice(&[0xc0, 0x7f].repeat(bytes.len() / 2)));
    let found = numbers(&open(&base()), &open(dir.path()), Some("Hello, Oslo!"));
    let text = found.text.unwrap();
    assert_eq!(text.divergence.not_numbers, text.divergence.positions);
    assert_eq!(text.perplexity, None);
}

/// The statistics of logits `[positions, vocab]`, by the plain formulas: mean KL, agreement, perplexities.
fn by_hand(p: &[f32], q: &[f32], vocab: usize, next: &[u32]) -> (f64, f64, [f64; 2]) {
    let softmax = |row: &[f32]| {
        let e: Vec<f64> = row.iter().map(|x| f64::from(*x).exp()).collect();
        let sum: f64 = e.iter().sum();
        e.into_iter().map(|e| e / sum).collect::<Vec<f64>>()
    };
    let best = |row: &[f64]| row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0;
    let (mut kl, mut same, mut surprise) = (0.0, 0, [0.0; 2]);
    for ((p, q), next) in p.chunks(vocab).zip(q.chunks(vocab)).zip(next) {
        let (p, q) = (softmax(p), softmax(q));
        kl += p.iter().zip(&q).map(|(p, q)| p * (p / q).ln()).sum::<f64>();
        same += usize::from(best(&p) == best(&q));
        surprise[0] -= p[*next as usize].ln();
        surprise[1] -= q[*next as usize].ln();
    }
    let n = next.len() as f64;
    (kl / n, same as f64 / n, surprise.map(|s| (s / n).exp()))
}

#[test]
fn statistics_are_those_of_the_dumped_logits() {
    let dir = edited("model.layers.1.self_attn.o_proj.weight", negate);
    let (before, after) = (open(&base()), open(dir.path()));
    let text = "The weather in Oslo is sunny, in Rome it rains. ".repeat(40);
    let found = numbers(&before, &after, Some(&text));
    let ids = before.tokenizer().encode(&text).unwrap();
    let (context, vocab) = (before.model().context(), before.model().vocab());
    let window = found.text.unwrap().window;
    assert_eq!(window, context.min(WINDOW));
    let logits = |e: &Engine, ids: &[u32]| dump(e.model(), ids, 0, &Stop::Never).unwrap().logits;
    let (mut p, mut q, mut next) = (Vec::new(), Vec::new(), Vec::new());
    for w in ids.chunks(window) {
        p.extend_from_slice(&logits(&before, w)[..(w.len() - 1) * vocab]);
        q.extend_from_slice(&logits(&after, w)[..(w.len() - 1) * vocab]);
        next.extend_from_slice(&w[1..]);
    }
    let (kl, agreement, perplexity) = by_hand(&p, &q, vocab, &next);
    let t = found.text.unwrap();
    assert!(kl > 1e-3 && (t.divergence.mean_kl - kl).abs() < 1e-9 * kl.max(1.0), "{kl} {t:?}");
    assert_eq!(
        (t.tokens, t.divergence.positions, t.divergence.top1_agreement),
        (ids.len(), next.len(), agreement)
    );
    let got = t.perplexity.unwrap();
    assert!(
        (got.baseline / perplexity[0] - 1.0).abs() < 1e-9 && (got.model / perplexity[1] - 1.0).abs() < 1e-9
    );
}

#[test]
fn prompt_and_answer_meet_at_the_last_token_of_the_prompt() {
    let engine = open(&base());
    let found = numbers(&engine, &engine, None);
    let len = |text: &str| engine.tokenizer().encode(text).unwrap().len();
    // The last token of the prompt predicts the answer's first, the last of the answer its end.
    assert_eq!(found.prompts.unwrap().positions, len(PROMPT) - 1);
    assert_eq!(found.answers.unwrap().positions, len(ANSWER) + 1);
    assert_eq!(found.text, None);
}

/// Tokens that reached each expert.
#[derive(Default)]
struct Seen(Mutex<BTreeMap<String, u64>>);

impl Watch for Seen {
    fn see(&self, matrix: &Matrix, x: &Array) {
        *self.0.lock().unwrap().entry(matrix.name.to_string()).or_default() += x.rows() as u64;
    }
}

#[test]
fn expert_load_is_what_the_experts_were_given() {
    let seen = Arc::new(Seen::default());
    let checkpoint = verify::Checkpoint::open(&base()).unwrap();
    let watched = Model::on(Cpu::default().watched(seen.clone()), &checkpoint, &Options::default()).unwrap();
    let watched = Engine::new(watched, Tokenizer::open(&base()).unwrap());
    let found = numbers(&open(&base()), &watched, None);
    let seen = seen.0.lock().unwrap();
    for r in found.routers {
        let of = |e: usize| format!("model.layers.{}.mlp.experts.{e}.gate_proj", r.layer);
        let given: Vec<u64> = (0..r.experts).map(|e| seen.get(&of(e)).copied().unwrap_or(0)).collect();
        assert_eq!(r.load, given, "layer {}", r.layer);
        assert_eq!(r.unused, (0..r.experts).filter(|e| given[*e] == 0).collect::<Vec<_>>());
        assert_eq!(r.load.iter().sum::<u64>(), (r.tokens * r.chosen) as u64);
    }
}

#[test]
fn models_of_other_vocabularies_are_not_compared() {
    let other = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/logits/qwen3_moe");
    let model = Model::open(&other, &Options::default()).unwrap();
    let model = Engine::new(model, Tokenizer::open(&base()).unwrap());
    let Compared::Unlike(why) = compare(&open(&base()), &model, &[], None, &Silent).unwrap() else {
        panic!()
    };
    assert!(why.contains("token ids"), "{why}");
}

#[test]
fn a_text_of_one_token_is_refused() {
    let engine = open(&base());
    let e = compare(&engine, &engine, &[], Some("a"), &Silent).unwrap_err();
    assert_eq!(e.class().exit_code(), 3);
}

//! How far a quantized model's answers are from its source's.
// Each test uses a part of it.
#![allow(dead_code)]

use std::path::Path;

use runner::decoder::{Part, Want};
use runner::{Model, Options};

/// Figures over all positions of all sequences, both models run in f32.
#[derive(Debug, Clone, Copy)]
pub struct Distance {
    /// `||a - b||^2 / ||b||^2` of the logits.
    pub relative: f64,
    /// Mean Kullback-Leibler divergence of the source's distribution from the quantized one's.
    pub kl: f64,
    /// Share of positions with the same most likely token.
    pub top1: f64,
}

/// Token ids in a JSON list of lists.
pub fn tokens(path: &Path) -> Vec<Vec<u32>> {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Logits `[tokens, vocab]` of every sequence.
pub fn logits(model: &Path, sequences: &[Vec<u32>]) -> (Vec<Vec<f32>>, usize) {
    let model = Model::open(model, &Options::default()).unwrap();
    let one = |tokens: &Vec<u32>| {
        let mut sequence = model.sequence().unwrap();
        model.forward(&mut [Part { sequence: &mut sequence, tokens, want: Want::All }]).unwrap()
    };
    (sequences.iter().map(one).collect(), model.vocab())
}

pub fn distance(source: &Path, quantized: &Path, sequences: &[Vec<u32>]) -> Distance {
    let ((want, vocab), (got, _)) = (logits(source, sequences), logits(quantized, sequences));
    let (mut error, mut power, mut kl, mut same, mut rows) = (0.0, 0.0, 0.0, 0usize, 0usize);
    for (want, got) in want.iter().flat_map(|l| l.chunks(vocab)).zip(got.iter().flat_map(|l| l.chunks(vocab)))
    {
        for (w, g) in want.iter().zip(got) {
            error += f64::from(g - w).powi(2);
            power += f64::from(*w).powi(2);
        }
        let (p, q) = (log_softmax(want), log_softmax(got));
        kl += p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum::<f64>();
        same += usize::from(largest(want) == largest(got));
        rows += 1;
    }
    Distance { relative: error / power, kl: kl / rows as f64, top1: same as f64 / rows as f64 }
}

fn log_softmax(x: &[f32]) -> Vec<f64> {
    let most = x.iter().copied().fold(f32::MIN, f32::max);
    let sum: f64 = x.iter().map(|x| f64::from(x - most).exp()).sum();
    x.iter().map(|x| f64::from(x - most) - sum.ln()).collect()
}

fn largest(x: &[f32]) -> usize {
    (0..x.len()).max_by(|a, b| x[*a].total_cmp(&x[*b]).then(b.cmp(a))).unwrap()
}

//! How far apart two models' predictions of the next token are, position by position.

use serde::Serialize;

/// What two models say about the token after one position.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Position {
    /// KL divergence of the model's distribution from the baseline's, in nats.
    pub kl: f64,
    /// Both find the same token likeliest.
    pub agree: bool,
    /// Negative log-likelihood of the token that really follows, in nats: the baseline's, the model's.
    pub surprise: Option<[f64; 2]>,
}

impl Position {
    /// From the logits of the baseline and of the model, both `[vocab]`, and the token that really follows where
    /// that is known. `None` where either holds NaN or plus infinity, or nothing but minus infinity.
    pub fn of(baseline: &[f32], model: &[f32], next: Option<u32>) -> Option<Self> {
        let (p, q) = (Softmax::of(baseline)?, Softmax::of(model)?);
        // Terms of zero probability are zero, whatever the other model says.
        let term = |(x, y): (&f32, &f32)| {
            let log = p.log(*x);
            match log.exp() {
                0.0 => 0.0,
                probability => probability * (log - q.log(*y)),
            }
        };
        // Never negative but for rounding.
        let kl = baseline.iter().zip(model).map(term).sum::<f64>().max(0.0);
        let surprise =
            next.and_then(|t| Some([-p.log(*baseline.get(t as usize)?), -q.log(*model.get(t as usize)?)]));
        Some(Position { kl, agree: p.likeliest == q.likeliest, surprise })
    }
}

/// What a row of logits needs to become log-probabilities.
struct Softmax {
    /// Logarithm of the sum of all exponentials.
    norm: f64,
    /// The first of the largest logits.
    likeliest: usize,
}

impl Softmax {
    fn of(logits: &[f32]) -> Option<Self> {
        let mut best = (0, f32::NEG_INFINITY);
        for (at, x) in logits.iter().enumerate() {
            if x.is_nan() || *x == f32::INFINITY {
                return None;
            }
            if *x > best.1 {
                best = (at, *x);
            }
        }
        let most = f64::from(best.1);
        let sum: f64 = logits.iter().map(|x| (f64::from(*x) - most).exp()).sum();
        most.is_finite().then(|| Softmax { norm: most + sum.ln(), likeliest: best.0 })
    }

    fn log(&self, logit: f32) -> f64 {
        f64::from(logit) - self.norm
    }
}

/// Positions seen so far: 8 bytes for each.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    kl: Vec<f64>,
    agree: usize,
    broken: usize,
    predicted: usize,
    surprise: [f64; 2],
}

impl Tally {
    /// Adds a position; `None` is one whose logits are no numbers.
    pub fn add(&mut self, position: Option<Position>) {
        let Some(Position { kl, agree, surprise }) = position else {
            self.broken += 1;
            return;
        };
        self.kl.push(kl);
        self.agree += usize::from(agree);
        if let Some([baseline, model]) = surprise {
            self.predicted += 1;
            self.surprise[0] += baseline;
            self.surprise[1] += model;
        }
    }

    /// The sum of it; `None` without any position.
    pub fn divergence(&self) -> Option<Divergence> {
        let positions = self.kl.len() + self.broken;
        if positions == 0 {
            return None;
        }
        let mut sorted = self.kl.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let share = |n: f64| if sorted.is_empty() { 0.0 } else { n / sorted.len() as f64 };
        let rank = (sorted.len() * 95).div_ceil(100);
        Some(Divergence {
            positions,
            not_numbers: self.broken,
            top1_agreement: share(self.agree as f64),
            mean_kl: share(self.kl.iter().sum()),
            p95_kl: rank.checked_sub(1).map_or(0.0, |at| sorted[at]),
            max_kl: sorted.last().copied().unwrap_or(0.0),
        })
    }

    /// Perplexities of the tokens that really followed; `None` where none was known.
    pub fn perplexity(&self) -> Option<Perplexity> {
        let of = |sum: f64| (sum / self.predicted as f64).exp();
        let [baseline, model] = self.surprise;
        (self.predicted > 0).then(|| Perplexity { baseline: of(baseline), model: of(model) })
    }
}

/// How far the model's predictions are from the baseline's over some positions.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Divergence {
    /// Positions compared.
    pub positions: usize,
    /// Positions at which the logits of one of the two are no numbers; they are left out of what follows.
    pub not_numbers: usize,
    /// Share of positions at which both find the same token likeliest.
    pub top1_agreement: f64,
    /// Mean KL divergence of the model from the baseline, in nats.
    pub mean_kl: f64,
    /// What 95 of 100 positions stay under (nearest rank), in nats.
    pub p95_kl: f64,
    /// The largest, in nats.
    pub max_kl: f64,
}

/// Exponential of the mean negative log-likelihood of the tokens of a text.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Perplexity {
    /// Of the baseline.
    pub baseline: f64,
    /// Of the model.
    pub model: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_logits_diverge_by_nothing() {
        let row = [0.3, -2.0, 5.5, 1.25];
        assert_eq!(Position::of(&row, &row, None), Some(Position { kl: 0.0, agree: true, surprise: None }));
    }

    #[test]
    fn two_coins_diverge_as_the_textbook_says() {
        // p = (3/4, 1/4), q = (1/2, 1/2): KL = 3/4 ln(3/2) + 1/4 ln(1/2).
        let found = Position::of(&[3f32.ln(), 0.0], &[7.0, 7.0], Some(1)).unwrap();
        let wanted = 0.75 * 1.5f64.ln() + 0.25 * 0.5f64.ln();
        assert!((found.kl - wanted).abs() < 1e-7, "{found:?}");
        let [p, q] = found.surprise.unwrap();
        assert!((p - 4f64.ln()).abs() < 1e-7 && (q - 2f64.ln()).abs() < 1e-12);
        assert!(found.agree);
    }

    #[test]
    fn a_shift_of_all_logits_changes_nothing() {
        let found = Position::of(&[1.0, 2.0, 3.0], &[101.0, 102.0, 103.0], None).unwrap();
        assert!(found.kl < 1e-12, "{found:?}");
    }

    #[test]
    fn impossible_tokens_count_nothing() {
        let masked = [1.0, f32::NEG_INFINITY];
        assert_eq!(Position::of(&masked, &masked, None).unwrap().kl, 0.0);
    }

    #[test]
    fn logits_that_are_no_numbers_are_counted_apart() {
        for bad in [f32::NAN, f32::INFINITY] {
            assert_eq!(Position::of(&[0.0, 1.0], &[0.0, bad], None), None);
        }
        let mut tally = Tally::default();
        tally.add(None);
        tally.add(Position::of(&[0.0, 1.0], &[0.0, 1.0], None));
        let d = tally.divergence().unwrap();
        assert_eq!((d.positions, d.not_numbers, d.top1_agreement), (2, 1, 1.0));
    }

    #[test]
    fn means_and_ranks_are_over_all_positions() {
        let mut tally = Tally::default();
        for n in 1..=100 {
            let surprise = Some([2f64.ln(), 3f64.ln()]);
            tally.add(Some(Position { kl: f64::from(101 - n), agree: n > 25, surprise }));
        }
        let d = tally.divergence().unwrap();
        assert_eq!((d.mean_kl, d.p95_kl, d.max_kl, d.top1_agreement), (50.5, 95.0, 100.0, 0.75));
        let p = tally.perplexity().unwrap();
        assert!((p.baseline - 2.0).abs() < 1e-9 && (p.model - 3.0).abs() < 1e-9, "{p:?}");
        assert_eq!(Tally::default().divergence(), None);
        assert_eq!(Tally::default().perplexity(), None);
    }
}

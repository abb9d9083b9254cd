//! A model beside its baseline: what merging or quantizing did, in numbers.
//!
//! ```text
//!   two runs of the suite ──────────────▶ ScoreChange ─┐
//!   logits of both at one position ──▶ Tally ──▶ Divergence, Perplexity ─┼──▶ Change ──▶ findings
//!   router logits of both ──▶ RouterTally ──▶ LayerRouting ─┘
//! ```
//!
//! `runner` feeds both models the same tokens and hands over the numbers.

mod divergence;
mod routing;
mod score;

use serde::Serialize;

pub use divergence::{Divergence, Perplexity, Position, Tally};
pub use routing::{LayerRouting, Router, RouterTally};
pub use score::{CaseChange, ClassChange, Run, ScoreChange, scores};

use crate::template::{Finding, Level};

/// What changed from the baseline to the model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Change {
    /// Name of the baseline, without any path of the machine.
    pub baseline: String,
    /// What became of the points.
    pub score: ScoreChange,
    /// What became of the predictions; none where the two models do not read the same tokens.
    pub predictions: Option<Predictions>,
    /// Why they could not be compared.
    pub not_compared: Option<String>,
}

/// Both models' predictions over the same tokens.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Predictions {
    /// Within the baseline's prompts of the suite.
    pub prompts: Option<Divergence>,
    /// At the answers that the baseline gave to them, its end included.
    pub answers: Option<Divergence>,
    /// Over a text of the user's.
    pub text: Option<Text>,
    /// Layer by layer over all these tokens; empty where the two have no experts, or not the same number of them.
    pub routers: Vec<LayerRouting>,
}

/// Both models over a plain text.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Text {
    /// Tokens of the text.
    pub tokens: usize,
    /// Tokens that a window holds: the text is cut, and each window read without the ones before.
    pub window: usize,
    /// Perplexity over every token but the first of each window; none where no logits are numbers.
    pub perplexity: Option<Perplexity>,
    /// Over the same positions.
    #[serde(flatten)]
    pub divergence: Divergence,
}

/// How much may be lost.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Limits {
    /// Points that the score may fall below the baseline's.
    pub max_score_drop: Option<u32>,
    /// The highest mean KL divergence, in nats, over the baseline's answers and over the text.
    pub max_kl: Option<f64>,
}

impl Change {
    /// What speaks against the model: one sentence for each limit that is crossed, and for broken logits.
    pub fn findings(&self, limits: &Limits) -> Vec<Finding> {
        let broken = self.predictions.iter().filter_map(Predictions::broken);
        let unlike = self.not_compared.as_ref().map(|why| {
            let level = if limits.max_kl.is_some() { Level::Error } else { Level::Note };
            Finding::new(
                level,
                format!("predictions were not compared: {why}"),
                "compare models of one tokenizer",
            )
        });
        broken.chain(unlike).chain(self.fallen(limits)).chain(self.strayed(limits)).collect()
    }

    fn fallen(&self, limits: &Limits) -> Option<Finding> {
        let ScoreChange { baseline, model, max, .. } = self.score;
        let lost = baseline.saturating_sub(model);
        let allowed = limits.max_score_drop.filter(|allowed| lost > *allowed)?;
        Some(Finding::new(
            Level::Error,
            format!(
                "the score fell from {baseline} to {model} of {max}: {lost} points are lost, and {allowed} may be"
            ),
            "the comparison names the cases that lost points; keep more layers unquantized (--ignore), or take a finer \
             scheme",
        ))
    }

    fn strayed(&self, limits: &Limits) -> Option<Finding> {
        let (allowed, predictions) = (limits.max_kl?, self.predictions.as_ref()?);
        let places = [
            ("the baseline's answers", predictions.answers),
            ("the text", predictions.text.map(|t| t.divergence)),
        ];
        let over: Vec<_> = places
            .into_iter()
            .filter_map(|(place, d)| Some((place, d?.mean_kl)))
            .filter(|(_, kl)| *kl > allowed)
            .map(|(place, kl)| format!("{kl:.3e} nats over {place}"))
            .collect();
        (!over.is_empty()).then(|| {
            Finding::new(
                Level::Error,
                format!(
                    "the mean KL divergence from the baseline is {}, above {allowed}",
                    over.join(" and ")
                ),
                "keep more layers unquantized (--ignore), or take a finer scheme",
            )
        })
    }
}

impl Predictions {
    fn broken(&self) -> Option<Finding> {
        let parts = [self.prompts, self.answers, self.text.map(|t| t.divergence)];
        let (broken, all) = parts
            .into_iter()
            .flatten()
            .fold((0, 0), |(broken, all), d| (broken + d.not_numbers, all + d.positions));
        (broken > 0).then(|| {
            Finding::new(
                Level::Error,
                format!("the logits are no numbers at {broken} of {all} positions"),
                "a weight or a scale is infinite or NaN: make the folder again from its source",
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn divergence(mean_kl: f64, not_numbers: usize) -> Divergence {
        Divergence { positions: 10, not_numbers, top1_agreement: 1.0, mean_kl, p95_kl: 0.0, max_kl: 0.0 }
    }

    fn change(model: u32, answers: Divergence) -> Change {
        let score = ScoreChange {
            baseline: 68,
            model,
            max: 72,
            difference: i64::from(model) - 68,
            classes: Vec::new(),
            cases: Vec::new(),
            answers: 0,
            same_text: 0,
        };
        let predictions =
            Predictions { prompts: None, answers: Some(answers), text: None, routers: Vec::new() };
        Change { baseline: "b".into(), score, predictions: Some(predictions), not_compared: None }
    }

    fn says(c: &Change, limits: Limits) -> Vec<String> {
        let errors = c.findings(&limits).into_iter().filter(|f| f.level == Level::Error);
        errors.map(|f| f.what).collect()
    }

    #[test]
    fn a_drop_beyond_the_limit_is_one_sentence() {
        let limit = |n| Limits { max_score_drop: Some(n), max_kl: None };
        let c = change(60, divergence(0.1, 0));
        assert_eq!(says(&c, limit(8)), [""; 0]);
        let found = says(&c, limit(7));
        assert_eq!(found, ["the score fell from 68 to 60 of 72: 8 points are lost, and 7 may be"]);
        assert_eq!(says(&change(70, divergence(0.1, 0)), limit(0)), [""; 0]);
    }

    #[test]
    fn a_divergence_beyond_the_limit_names_the_place() {
        let limit = |x| Limits { max_score_drop: None, max_kl: Some(x) };
        let c = change(68, divergence(0.25, 0));
        assert_eq!(says(&c, limit(0.25)), [""; 0]);
        let found = says(&c, limit(0.2));
        assert_eq!(
            found,
            [
                "the mean KL divergence from the baseline is 2.500e-1 nats over the baseline's answers, above 0.2"
            ]
        );
    }

    #[test]
    fn logits_that_are_no_numbers_fail_without_any_limit() {
        let found = says(&change(68, divergence(0.0, 3)), Limits::default());
        assert_eq!(found, ["the logits are no numbers at 3 of 10 positions"]);
    }

    #[test]
    fn a_limit_on_what_cannot_be_compared_fails() {
        let mut c = change(68, divergence(0.0, 0));
        c.predictions = None;
        c.not_compared = Some("another vocabulary".into());
        assert_eq!(says(&c, Limits::default()), [""; 0]);
        assert_eq!(c.findings(&Limits::default()).len(), 1);
        let limits = Limits { max_score_drop: None, max_kl: Some(1.0) };
        assert_eq!(says(&c, limits), ["predictions were not compared: another vocabulary"]);
    }
}

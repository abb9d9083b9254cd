//! Two models side by side over the same tokens.
//!
//! ```text
//!   tokens ─┬─▶ baseline ─▶ logits, router logits ─┬─▶ Position, RouterTally ─▶ Predictions
//!           └─▶ model ────▶ logits, router logits ─┘
//! ```
//!
//! Both read a piece of [`PIECE`] tokens, the statistics of the piece are taken, and its logits are forgotten: the
//! memory is that of two pieces, whatever the text.

use rayon::prelude::*;
use verify::progress::Progress;
use verify::suite::compare::{Position, Predictions, Router, RouterTally, Tally, Text};
use verify::{Error, Result};

use crate::backend::Backend;
use crate::blocks::Mlp;
use crate::decoder::{Part, Sequence, Want};
use crate::engine::{Engine, PIECE};
use crate::model::Model;

/// Longest window of a plain text in tokens; shorter where a model's context is. What perplexities are commonly
/// published for.
pub const WINDOW: usize = 2048;

/// A prompt and the answer that the baseline gave to it.
#[derive(Debug, Clone, Copy)]
pub struct Talk<'a> {
    /// The prompt.
    pub prompt: &'a str,
    /// The answer, without its stop token.
    pub answer: &'a str,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq)]
pub enum Compared {
    /// Numbers.
    Numbers(Predictions),
    /// The two do not read the same tokens, and why.
    Unlike(String),
}

/// Feeds the talks and the text to both models and compares what they predict.
///
/// # Errors
/// Exit 3 where a text cannot be encoded or has no two tokens; and the backends' errors.
pub fn compare<A: Backend, B: Backend>(
    baseline: &Engine<A>,
    model: &Engine<B>,
    talks: &[Talk<'_>],
    text: Option<&str>,
    progress: &dyn Progress,
) -> Result<Compared> {
    let sizes = (baseline.model().vocab(), model.model().vocab());
    if sizes.0 != sizes.1 {
        return Ok(Compared::Unlike(format!(
            "the baseline has {} token ids, the model {}",
            sizes.0, sizes.1
        )));
    }
    let encode = |text: &str| {
        let ids = baseline.tokenizer().encode(text)?;
        Ok::<_, Error>((model.tokenizer().encode(text)? == ids).then_some(ids))
    };
    let window = WINDOW.min(baseline.model().context()).min(model.model().context());
    let mut work = Vec::new();
    for talk in talks {
        let (Some(mut tokens), Some(answer)) = (encode(talk.prompt)?, encode(talk.answer)?) else {
            return Ok(Compared::Unlike("the two tokenizers cut a prompt differently".into()));
        };
        let prompt = tokens.len();
        tokens.extend(answer);
        work.push(Work { tokens, kind: Kind::Talk { prompt } });
    }
    let text = text.map(encode).transpose()?;
    if let Some(ids) = &text {
        let Some(ids) = ids else {
            return Ok(Compared::Unlike("the two tokenizers cut the text differently".into()));
        };
        if ids.len() < 2 {
            return Err(Error::input("the text is too short to compare predictions over")
                .found(format!("{} tokens", ids.len()))
                .expected("at least 2, better some thousands"));
        }
        work.extend(ids.chunks(window).map(|w| Work { tokens: w.to_vec(), kind: Kind::Text }));
    }
    let mut pair = Pair::new(baseline.model(), model.model());
    progress.begin_steps("tokens compared", work.iter().map(|w| w.tokens.len() as u64).sum());
    work.iter().try_for_each(|work| pair.feed(work, progress))?;
    let length = text.flatten().map_or(0, |ids| ids.len());
    Ok(Compared::Numbers(pair.predictions(length, window)))
}

/// Tokens to feed from an empty sequence on.
struct Work {
    tokens: Vec<u32>,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    /// So many tokens of a prompt, then its answer.
    Talk { prompt: usize },
    /// A window of a text.
    Text,
}

/// Both models, and what was seen of them.
struct Pair<'a, A: Backend, B: Backend> {
    baseline: &'a Model<A>,
    model: &'a Model<B>,
    prompts: Tally,
    answers: Tally,
    text: Tally,
    routers: Vec<RouterTally>,
}

impl<'a, A: Backend, B: Backend> Pair<'a, A, B> {
    fn new(baseline: &'a Model<A>, model: &'a Model<B>) -> Self {
        let routers = baseline.routers();
        let routers = match routers == model.routers() {
            true => routers.into_iter().map(RouterTally::new).collect(),
            false => Vec::new(),
        };
        baseline.log_routers();
        model.log_routers();
        let none = Tally::default;
        Pair { baseline, model, prompts: none(), answers: none(), text: none(), routers }
    }

    fn feed(&mut self, work: &Work, progress: &dyn Progress) -> Result<()> {
        let (mut p, mut q) = (self.baseline.sequence()?, self.model.sequence()?);
        for (n, piece) in work.tokens.chunks(PIECE).enumerate() {
            progress.check()?;
            let (before, after) =
                (all_logits(self.baseline, &mut p, piece)?, all_logits(self.model, &mut q, piece)?);
            self.count(work, n * PIECE, &before, &after);
            let routers = self.baseline.take_router_logits().into_iter().zip(self.model.take_router_logits());
            self.routers.iter_mut().zip(routers).for_each(|(tally, (p, q))| tally.add(&p, &q));
            progress.advance(piece.len() as u64);
        }
        Ok(())
    }

    /// Counts the positions from `first` on whose logits, `[positions, vocab]`, these are.
    fn count(&mut self, work: &Work, first: usize, before: &[f32], after: &[f32]) {
        let vocab = self.baseline.vocab();
        let rows: Vec<_> = before.chunks_exact(vocab).zip(after.chunks_exact(vocab)).collect();
        let positions: Vec<Option<Position>> = self.model.install(|| {
            let of = |(n, (p, q)): (usize, &(&[f32], &[f32]))| {
                Position::of(p, q, work.tokens.get(first + n + 1).copied())
            };
            rows.par_iter().enumerate().map(of).collect()
        });
        for (at, position) in (first..).zip(positions) {
            match work.kind {
                Kind::Talk { prompt } if at + 1 < prompt => self.prompts.add(position),
                Kind::Talk { .. } => self.answers.add(position),
                // Nothing is known to follow the last token of a window.
                Kind::Text if at + 1 == work.tokens.len() => {}
                Kind::Text => self.text.add(position),
            }
        }
    }

    fn predictions(self, tokens: usize, window: usize) -> Predictions {
        let (text, perplexity) = (self.text.divergence(), self.text.perplexity());
        Predictions {
            prompts: self.prompts.divergence(),
            answers: self.answers.divergence(),
            text: text.map(|divergence| Text { tokens, window, perplexity, divergence }),
            routers: self.routers.iter().filter_map(RouterTally::routing).collect(),
        }
    }
}

fn all_logits<B: Backend>(model: &Model<B>, sequence: &mut Sequence<B>, tokens: &[u32]) -> Result<Vec<f32>> {
    model.forward(&mut [Part { sequence, tokens, want: Want::All }])
}

impl<B: Backend> Model<B> {
    /// The routers, by layer.
    pub fn routers(&self) -> Vec<Router> {
        let layers = self.decoder().layers.iter().enumerate();
        let router = |(layer, l): (usize, &crate::decoder::Layer<B>)| match &l.mlp {
            Mlp::Dense(_) => None,
            Mlp::Moe(m) => Some(Router { layer, experts: m.count, chosen: m.routing.chosen }),
        };
        layers.filter_map(router).collect()
    }

    /// Keeps what the routers say from now on, until it is taken.
    pub fn log_routers(&self) {
        self.logs().for_each(|log| log.open());
    }

    /// What the routers said since the last call: `[tokens, experts]` for each of [`Self::routers`].
    pub fn take_router_logits(&self) -> Vec<Vec<f32>> {
        self.logs().map(|log| log.take()).collect()
    }

    fn logs(&self) -> impl Iterator<Item = &crate::blocks::RouterLog> {
        self.decoder().layers.iter().filter_map(|l| match &l.mlp {
            Mlp::Dense(_) => None,
            Mlp::Moe(m) => Some(&m.log),
        })
    }
}

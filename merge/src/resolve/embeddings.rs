//! Input and output embedding: which tensors they are, whether they are one, and whether they still are
//! after the merge.

use std::ops::Range;

use serde_json::{Value, json};
use verify::checkpoint::{Config, TensorSpec};
use verify::rewrite::ModelView;
use verify::{Error, Result, Shown};

use super::target::Target;
use super::{Resolver, pieces_of};
use crate::adapter::Adapter;

/// The embeddings of the base.
#[derive(Debug, Clone)]
pub struct Embeddings {
    /// The input embedding.
    pub input: Option<TensorSpec>,
    /// Name of the output embedding, `lm_head.weight` where the base does not hold one.
    pub head: String,
    /// Its own tensor in the base.
    pub own_head: Option<TensorSpec>,
    /// True where config and tensors say that both are one matrix.
    pub tied: bool,
}

const INPUTS: [&str; 4] = ["embed_tokens", "wte", "embed_in", "word_embeddings"];
const HEADS: [&str; 2] = ["lm_head", "embed_out"];
/// Parts of paths whose embeddings are not the language model's.
const ELSEWHERE: [&str; 5] = ["visual", "vision_tower", "mtp", "audio_tower", "encoder"];

impl Embeddings {
    /// Finds them by name.
    pub fn of(view: &ModelView) -> Self {
        let named = |tails: &[&str]| {
            let all = view.tensors.tensors().iter().map(|t| &t.spec);
            all.filter(|s| {
                let mut parts: Vec<&str> = s.name.split('.').collect();
                let weight = parts.pop() == Some("weight");
                let elsewhere = parts.iter().any(|p| ELSEWHERE.contains(p) || p.parse::<usize>().is_ok());
                weight && s.shape.len() == 2 && !elsewhere && parts.last().is_some_and(|l| tails.contains(l))
            })
            .min_by_key(|s| s.name.len())
            .cloned()
        };
        let (input, own_head) = (named(&INPUTS), named(&HEADS));
        let head = match (&own_head, &input) {
            (Some(h), _) => h.name.clone(),
            (None, Some(i)) if i.name.starts_with("language_model.model.") => {
                "language_model.lm_head.weight".into()
            }
            _ => "lm_head.weight".to_string(),
        };
        let says_tied = tie_flag(&view.config);
        let tied = match (&own_head, &input) {
            (_, None) => false,
            (None, Some(_)) => says_tied != Some(false),
            (Some(h), Some(i)) => says_tied == Some(true) && h.shape == i.shape && h.dtype == i.dtype,
        };
        Embeddings { input, head, own_head, tied }
    }

    /// The matrix behind the head `name` of a tied model that holds no tensor of that name.
    pub fn shared_head(&self, name: &str) -> Option<&TensorSpec> {
        (self.tied && self.own_head.is_none() && name == self.head).then_some(self.input.as_ref()?)
    }

    /// True for the input embedding and the head.
    pub fn is_either(&self, name: &str) -> bool {
        name == self.head || self.input.as_ref().is_some_and(|i| i.name == name)
    }

    /// True for the head's bias, which has a value per row of the vocabulary.
    pub fn is_head_bias(&self, name: &str) -> bool {
        name == self.head_bias()
    }

    fn head_bias(&self) -> String {
        format!("{}bias", self.head.strip_suffix("weight").unwrap_or(&self.head))
    }

    /// True where `tail` names the input embedding's module.
    pub fn is_input_tail(&self, tail: &str) -> bool {
        let module = self.input.as_ref().and_then(|i| i.name.strip_suffix(".weight"));
        module.is_some_and(|m| super::is_tail(m, tail))
    }
}

/// `tie_word_embeddings`, of the top level first, as transformers reads it.
fn tie_flag(config: &Config) -> Option<bool> {
    let key = "tie_word_embeddings";
    let top = config.value().get(key).and_then(Value::as_bool);
    top.or_else(|| config.language().get(key).and_then(Value::as_bool))
}

/// What the merge does to embedding and head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tying {
    /// Nothing: each has its own tensor, or neither was touched.
    AsBefore,
    /// They were one and are still one, changed.
    StaysTied,
    /// They were one and now are two.
    Untied,
}

impl Resolver<'_> {
    /// Decides what a tied model becomes, and completes the targets of both sides.
    ///
    /// # Errors
    /// Exit 3 where both sides end with different row counts.
    pub fn settle_tying(&mut self, adapters: &[Adapter]) -> Result<Tying> {
        let embeddings = self.embeddings.clone();
        let (Some(input), true) = (embeddings.input, embeddings.tied) else { return Ok(Tying::AsBefore) };
        let head = embeddings.head;
        if !self.targets.contains_key(&input.name) && !self.targets.contains_key(&head) {
            return Ok(Tying::AsBefore);
        }
        let head_base = embeddings.own_head.as_ref().unwrap_or(&input).clone();
        if embeddings.own_head.is_some() && !self.equal_tensors(&input, &head_base)? {
            self.embeddings.tied = false;
            self.warnings.push(format!(
                "`tie_word_embeddings` is true but `{}` holds another matrix than `{}`: both are kept as they are stored",
                Shown(&head),
                Shown(&input.name)
            ));
            return Ok(Tying::AsBefore);
        }
        let mut e = match self.targets.remove(&input.name) {
            Some(t) => t,
            None => Target::new(&input.name, &input)?,
        };
        let mut h = match self.targets.remove(&head) {
            Some(t) => t,
            None => Target::new(&head, &head_base)?,
        };
        share_token_rows(&mut e, &mut h)?;
        for (number, _) in adapters.iter().enumerate().filter(|(_, a)| a.config.keeps_tying) {
            share(number, &mut e, &mut h)?;
            share(number, &mut h, &mut e)?;
        }
        let equal = same_operations(&e, &h)? || self.same_results(&e, &h)?;
        let keep_head = !equal || embeddings.own_head.is_some();
        for (target, keep) in [(e, true), (h, keep_head)] {
            if keep && target.job.changes() {
                self.targets.insert(target.name().to_string(), target);
            }
        }
        Ok(if equal { Tying::StaysTied } else { Tying::Untied })
    }

    fn equal_tensors(&self, a: &TensorSpec, b: &TensorSpec) -> Result<bool> {
        for rows in pieces_of(a.rows(), a.row_bytes()) {
            if self.reader.read_rows(&a.name, rows.clone())? != self.reader.read_rows(&b.name, rows)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Compares the rounded results; different ones differ early.
    fn same_results(&self, e: &Target, h: &Target) -> Result<bool> {
        if e.job.output.shape != h.job.output.shape || !e.job.changes() || !h.job.changes() {
            return Ok(false);
        }
        let bytes = |t: &Target, rows: Range<usize>| t.job.apply(rows, self.reader).map(|a| a.outputs);
        for rows in pieces_of(e.job.output.rows(), e.job.output.row_bytes()) {
            if bytes(e, rows.clone())? != bytes(h, rows)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The size of the vocabulary, where the merge changes it.
    ///
    /// # Errors
    /// Exit 3 where input and output side do not agree.
    pub fn new_vocabulary(&self, tying: Tying) -> Result<Option<usize>> {
        let first_axis = |s: &TensorSpec| s.shape.first().copied().unwrap_or(1);
        let rows = |name: &str, base: Option<&TensorSpec>| match self.targets.get(name) {
            Some(t) => Some(first_axis(&t.job.output)),
            None => base.map(first_axis),
        };
        let e = &self.embeddings;
        let Some(input) = &e.input else { return Ok(None) };
        let bias_name = e.head_bias();
        let bias = self.reader.index().get(&bias_name).map(|t| &t.spec);
        let own_head = e.own_head.as_ref().unwrap_or(input);
        let has_head = e.own_head.is_some() || self.targets.contains_key(&e.head) || tying == Tying::Untied;
        let sides = [
            (input.name.as_str(), rows(&input.name, Some(input))),
            (e.head.as_str(), rows(&e.head, Some(own_head)).filter(|_| has_head)),
            (bias_name.as_str(), rows(&bias_name, bias)),
        ];
        let old = [Some(input), Some(own_head), bias].map(|s| s.map(first_axis));
        let changed = sides.iter().zip(old).find_map(|((_, new), old)| new.filter(|n| Some(*n) != old));
        let Some(n) = changed else { return Ok(None) };
        if let Some((name, other)) = sides.iter().find(|(_, r)| r.is_some_and(|r| r != n)) {
            return Err(Error::input("the vocabulary does not have one size after the merge")
                .found(format!("{n} rows on one side, {} in `{}`", other.unwrap_or(0), Shown(name)))
                .expected("embed_tokens and lm_head with the same number of rows")
                .hint("save both in the trainer (`modules_to_save=[\"embed_tokens\", \"lm_head\"]`)"));
        }
        Ok(Some(n))
    }
}

/// New token rows of a tied model belong to the one matrix.
fn share_token_rows(e: &mut Target, h: &mut Target) -> Result<()> {
    if h.job.token_rows.is_empty() {
        h.job.token_rows = e.job.token_rows.clone();
    }
    Ok(())
}

/// What adapter `number` does to `from` only, it does to `to` as well.
fn share(number: usize, from: &mut Target, to: &mut Target) -> Result<()> {
    if let (Some(whole), true, None) = (&from.job.whole, from.whole_of == Some(number), to.whole_of) {
        to.replace(number, whole)?;
    }
    if !to.adapters.contains(&number) && from.job.pieces.iter().any(|p| p.adapter == number) {
        for piece in from.job.pieces.iter().filter(|p| p.adapter == number) {
            to.add(piece.clone())?;
        }
        if from.dora_of == Some(number) {
            (to.dora_of, to.job.dora) = (from.dora_of, from.job.dora.clone());
        }
    }
    Ok(())
}

/// True where both sides are made by the same operations on the same values.
fn same_operations(e: &Target, h: &Target) -> Result<bool> {
    let whole = match (&e.job.whole, &h.job.whole) {
        (None, None) => true,
        (Some(a), Some(b)) => a.same_values(b)?,
        _ => false,
    };
    let dora = match (&e.job.dora, &h.job.dora) {
        (None, None) => true,
        (Some(a), Some(b)) => std::sync::Arc::ptr_eq(a, b),
        _ => false,
    };
    let pieces = e.job.pieces.len() == h.job.pieces.len()
        && e.job.pieces.iter().zip(&h.job.pieces).all(|(a, b)| a.same_as(b));
    if !(whole && dora && pieces && e.job.token_rows.len() == h.job.token_rows.len()) {
        return Ok(false);
    }
    for (a, b) in e.job.token_rows.iter().zip(&h.job.token_rows) {
        if a.0 != b.0 || a.1.read_rows(a.2..a.2 + 1)? != b.1.read_rows(b.2..b.2 + 1)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Writes what changed for the embeddings into the config.
///
/// # Errors
/// Exit 3 where config.json cannot be edited.
pub fn edit_config(config: &mut Config, tying: Tying, vocabulary: Option<usize>) -> Result<()> {
    let in_text = |config: &Config, key: &str| {
        config.value().get("text_config").and_then(Value::as_object).is_some_and(|t| t.contains_key(key))
    };
    if tying == Tying::Untied {
        config.set(None, "tie_word_embeddings", &json!(false))?;
        if in_text(config, "tie_word_embeddings") {
            config.set(Some("text_config"), "tie_word_embeddings", &json!(false))?;
        }
    }
    if let Some(n) = vocabulary {
        let top = config.value().get("vocab_size").is_some();
        let inner = in_text(config, "vocab_size");
        if inner {
            config.set(Some("text_config"), "vocab_size", &json!(n))?;
        }
        if top || !inner {
            config.set(None, "vocab_size", &json!(n))?;
        }
    }
    Ok(())
}

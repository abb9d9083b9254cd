//! Adapters resolved to the tensors of a base: every tensor of every adapter has a target, or it is an error.

pub mod embeddings;
pub mod experts;
mod factors;
pub mod prefix;
pub mod target;
mod token_rows;
mod whole;

use std::collections::BTreeMap;
use std::ops::Range;

use serde::Serialize;
use verify::checkpoint::{TensorReader, TensorSpec, list_some};
use verify::rewrite::{ModelView, rows_per_chunk};
use verify::{Error, Result, Shown};

use self::embeddings::Embeddings;
use self::prefix::candidates;
use self::target::Target;
use crate::adapter::Adapter;

/// One module of an adapter and what became of it, for the report.
#[derive(Debug, Clone, Serialize)]
pub struct Use {
    /// Name of the adapter.
    pub adapter: String,
    /// Its tensors.
    pub tensors: Vec<String>,
    /// `LoRA`, `DoRA`, `whole tensor`, `token rows`, `copy of the base`, `unused`.
    pub kind: &'static str,
    /// Rank, of factors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<usize>,
    /// Scale of the product, without the adapter's weight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale: Option<f64>,
    /// Tensors of the result that it changes.
    pub targets: Vec<String>,
}

/// Collects the changes of all adapters.
pub struct Resolver<'a> {
    view: &'a ModelView,
    reader: &'a dyn TensorReader,
    /// Input and output embedding of the base.
    pub embeddings: Embeddings,
    /// Changed tensors by name.
    pub targets: BTreeMap<String, Target>,
    /// What became of every tensor of the adapters.
    pub uses: Vec<Use>,
    /// Adapter tensors that went through a path rewrite: (adapter, rewrite) and count.
    pub rewrites: BTreeMap<(usize, String), usize>,
    /// Adapter tensors without a target.
    pub unmatched: Vec<String>,
    /// Things to tell the user.
    pub warnings: Vec<String>,
}

/// What is changed, once all is resolved.
pub struct Changes {
    /// Changed tensors by name.
    pub targets: BTreeMap<String, Target>,
    /// Input and output embedding of the base.
    pub embeddings: Embeddings,
}

/// A tensor of the base that a path leads to.
struct Found {
    /// Name in the result.
    name: String,
    /// The base tensor it is made from (for the head of a tied model, the embedding).
    base: TensorSpec,
    rule: Option<String>,
}

impl<'a> Resolver<'a> {
    /// A resolver over the base `view`; `reader` gives values to the few rules that compare them.
    pub fn new(view: &'a ModelView, reader: &'a dyn TensorReader) -> Self {
        Resolver {
            view,
            reader,
            embeddings: Embeddings::of(view),
            targets: BTreeMap::new(),
            uses: Vec::new(),
            rewrites: BTreeMap::new(),
            unmatched: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// Resolves all tensors of all adapters: whole tensors first, since factors must fit what is then there.
    ///
    /// # Errors
    /// Exit 3 for what does not fit the base; tensors without a target are collected instead.
    pub fn resolve(&mut self, adapters: &[Adapter]) -> Result<()> {
        for (number, adapter) in adapters.iter().enumerate() {
            adapter.wholes.iter().try_for_each(|w| self.whole((adapter, number), w))?;
        }
        for (number, adapter) in adapters.iter().enumerate() {
            self.all_factors(adapter, number)?;
        }
        for (number, adapter) in adapters.iter().enumerate() {
            self.token_rows(adapter, number)?;
            let copies = adapter.copies.clone();
            if !copies.is_empty() {
                self.note_use(adapter, copies, "copy of the base", Vec::new());
            }
        }
        Ok(())
    }

    /// The changes by themselves.
    pub fn into_changes(self) -> Changes {
        Changes { targets: self.targets, embeddings: self.embeddings }
    }

    fn note_use(
        &mut self,
        adapter: &Adapter,
        tensors: Vec<String>,
        kind: &'static str,
        targets: Vec<String>,
    ) {
        let adapter = adapter.name.clone();
        self.uses.push(Use { adapter, tensors, kind, rank: None, scale: None, targets });
    }

    fn no_target(&mut self, adapter: &Adapter, tensors: Vec<String>) {
        self.unmatched.extend(tensors.iter().map(|t| Shown(t).to_string()));
        self.note_use(adapter, tensors, "unused", Vec::new());
    }

    fn count_rewrite(&mut self, number: usize, rule: Option<String>, tensors: usize) {
        if let Some(rule) = rule {
            *self.rewrites.entry((number, rule)).or_default() += tensors;
        }
    }

    /// The tensor that the full name `path` of the trained model is in the base.
    fn find_tensor(&self, path: &str) -> Option<Found> {
        candidates(path).into_iter().find_map(|c| {
            let spec = match self.view.tensors.get(&c.path) {
                Some(t) => &t.spec,
                None => self.embeddings.shared_head(&c.path)?,
            };
            Some(Found { name: c.path, base: spec.clone(), rule: c.rule })
        })
    }

    fn target(&mut self, found: &Found) -> Result<&mut Target> {
        if !self.targets.contains_key(&found.name) {
            self.targets.insert(found.name.clone(), Target::new(&found.name, &found.base)?);
        }
        self.targets.get_mut(&found.name).ok_or_else(|| verify::checkpoint::no_tensor(&found.name))
    }
}

/// Row ranges of about 4 MiB.
pub fn pieces_of(rows: usize, row_bytes: usize) -> impl Iterator<Item = Range<usize>> {
    let step = rows_per_chunk(row_bytes, 1);
    (0..rows).step_by(step).map(move |start| start..(start + step).min(rows))
}

/// True where `tail` is `path` or its end after a dot.
pub fn is_tail(path: &str, tail: &str) -> bool {
    path == tail || path.strip_suffix(tail).is_some_and(|head| head.ends_with('.'))
}

fn check_classifier(path: &str) -> Result<()> {
    let first = path.split('.').find(|p| *p != "model").unwrap_or(path);
    match matches!(first, "score" | "classifier") {
        false => Ok(()),
        true => Err(Error::input(format!("adapter tensor `{}` belongs to a classifier", Shown(path)))
            .found("a classification adapter")
            .expected("an adapter of the language model")
            .hint("a chat model has no such head: there is nothing to merge it into")),
    }
}

/// The error for tensors without a target.
pub fn refuse_unmatched(unmatched: &[String]) -> Error {
    Error::input("adapter tensors fit no tensor of the base")
        .found(list_some(unmatched))
        .expected("a target for every tensor")
        .hint("the adapter was trained on another model; see `base_model_name_or_path` in adapter_config.json (--allow-unused merges the rest)")
}

//! Adapters resolved to the tensors of a base: every tensor of every adapter has a target, or it is an error.

pub mod embeddings;
pub mod experts;
pub mod prefix;
pub mod target;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use serde::Serialize;
use verify::checkpoint::{TensorReader, TensorSpec, list_some};
use verify::rewrite::{ModelView, rows_per_chunk};
use verify::{Error, Result, Shown};

use self::embeddings::Embeddings;
use self::experts::{Base, Layout, Parameter};
use self::prefix::candidates;
use self::target::Target;
use crate::adapter::key::Whole;
use crate::adapter::stored::{Stored, View, shown};
use crate::adapter::{Adapter, Factors, Kind, WholeTensor};
use crate::compute::dora::{Axis, Dora};
use crate::compute::piece::{Columns, Piece};
use crate::compute::real::{decode, encode};

/// Models whose layers are transformers' Conv1D, stored (in, out).
const CONV1D_MODELS: [&str; 4] = ["gpt2", "openai-gpt", "imagegpt", "decision_transformer"];
const CONV1D_LAYERS: [&str; 4] = ["c_attn", "c_proj", "c_fc", "q_attn"];

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

    fn whole(&mut self, (adapter, number): (&Adapter, usize), whole: &WholeTensor) -> Result<()> {
        let key = whole.tensor.spec.name.clone();
        let Some(found) = self.find_tensor(&whole.path) else {
            check_classifier(&whole.path)?;
            self.no_target(adapter, vec![key]);
            return Ok(());
        };
        let resized = self.check_whole_shape(&found, &whole.tensor)?;
        if !resized && self.equals_base(&found, &whole.tensor)? {
            self.note_use(adapter, vec![key], "copy of the base", Vec::new());
            return Ok(());
        }
        let twin = adapter.config.keeps_tying && self.embeddings.is_either(&found.name);
        if !resized && !twin && !declared(adapter, whole) {
            return Err(undeclared(&whole.tensor, &found.name));
        }
        self.target(&found)?.replace(number, &whole.tensor)?;
        if adapter.weight != 1.0 {
            self.warnings.push(format!(
                "`{}` of adapter {} replaces a whole tensor: the weight {} does not act on it",
                Shown(&key),
                adapter.name,
                adapter.weight
            ));
        }
        self.note_use(adapter, vec![key], "whole tensor", vec![found.name.clone()]);
        self.count_rewrite(number, found.rule, 1);
        Ok(())
    }

    /// True where the tensor changes the vocabulary's size, which embedding and head may.
    fn check_whole_shape(&self, found: &Found, whole: &Stored) -> Result<bool> {
        let (new, old) = (&whole.spec.shape, &found.base.shape);
        if new == old {
            return Ok(false);
        }
        let of_vocabulary =
            self.embeddings.is_either(&found.name) || self.embeddings.is_head_bias(&found.name);
        if of_vocabulary && new.len() == old.len() && new[1..] == old[1..] && new[0] > 0 {
            return Ok(true);
        }
        Err(Error::input(format!("adapter tensor {} does not fit its target", shown(whole)))
            .found(format!("{new:?}"))
            .expected(format!("{old:?} as `{}` of the base", Shown(&found.name)))
            .hint("the adapter was trained on another base; see `base_model_name_or_path` in adapter_config.json"))
    }

    /// True where `whole`, rounded to the base's dtype, is the base.
    fn equals_base(&self, found: &Found, whole: &Stored) -> Result<bool> {
        let (spec, dtype) = (&found.base, found.base.dtype);
        for rows in pieces_of(spec.rows(), spec.row_bytes()) {
            let base = self.reader.read_rows(&spec.name, rows.clone())?;
            let mut rounded = Vec::with_capacity(base.len());
            let values = decode(&whole.read_rows(rows)?, whole.spec.dtype);
            values.into_iter().for_each(|v| encode(v, dtype, &mut rounded));
            if base != rounded {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn all_factors(&mut self, adapter: &Adapter, number: usize) -> Result<()> {
        let mut at = 0;
        while at < adapter.factors.len() {
            let f = &adapter.factors[at];
            // Wrappers of one module stand together: they are sorted by module and depth.
            let same = adapter.factors[at..].iter().take_while(|g| g.module == f.module).count();
            let group = &adapter.factors[at..at + same];
            at += same;
            group.iter().try_for_each(check_moves)?;
            if f.module.rsplit('.').next() == Some("experts") {
                self.fused_experts((adapter, number), group)?;
            } else if let [f] = group {
                self.one_module((adapter, number), f)?;
            } else {
                return Err(Error::input(format!("module `{}` has nested factors", Shown(&f.module)))
                    .found(format!("{same} pairs"))
                    .expected("one pair (only fused experts hold two)"));
            }
        }
        Ok(())
    }

    fn fused_experts(&mut self, (adapter, number): (&Adapter, usize), group: &[Factors]) -> Result<()> {
        let module = group[0].module.clone();
        refuse_dora_on_experts(group)?;
        let Some((layout, rule)) = experts::find(&self.view.tensors, &module) else {
            self.no_target(adapter, group.iter().flat_map(keys).collect());
            return Ok(());
        };
        if let Some(f) = group.iter().enumerate().find(|(at, f)| f.depth != *at || f.kind != Kind::Linear) {
            return Err(Error::input(format!("the factors of `{}` are not nested in order", Shown(&module)))
                .found(format!("depth {} of a wrapper", f.1.depth)));
        }
        let parameters = experts::wrapped(&adapter.config, &module, group.len())?;
        for (f, parameter) in group.iter().zip(parameters) {
            self.fused_pair((adapter, number), f, (&layout, parameter))?;
            self.count_rewrite(number, rule.clone(), f.tensors());
        }
        Ok(())
    }

    fn fused_pair(
        &mut self,
        (adapter, number): (&Adapter, usize),
        f: &Factors,
        (layout, parameter): (&Layout, Parameter),
    ) -> Result<()> {
        let base = self.base();
        let Some(experts) = base.count(layout, parameter)? else {
            self.no_target(adapter, keys(f));
            return Ok(());
        };
        if !f.rank().is_multiple_of(experts) {
            return Err(Error::input(format!("the factors of `{}` are not those of {experts} experts", Shown(&f.module)))
                .found(format!("{}, {}", shown(&f.a), shown(&f.b)))
                .expected(format!("{experts} times the rank as rows of A"))
                .hint("the adapter was trained on another base; see `base_model_name_or_path` in adapter_config.json"));
        }
        let rank = f.rank() / experts;
        let path = format!("{}.{}", f.module, parameter.name());
        let scale = self.scale(adapter, &path, rank, f)?;
        let placed = self.base().place_fused(
            (adapter, number),
            f,
            (layout, parameter),
            (rank, scale * adapter.weight),
        )?;
        let mut targets: Vec<String> = Vec::new();
        for (name, piece) in placed {
            self.existing_target(&name)?.add(piece)?;
            if targets.last() != Some(&name) {
                targets.push(name);
            }
        }
        self.note_factors(adapter, f, (rank, scale), targets);
        Ok(())
    }

    fn base(&self) -> Base<'a> {
        Base { index: &self.view.tensors, model_type: self.view.config.model_type() }
    }

    fn existing_target(&mut self, name: &str) -> Result<&mut Target> {
        let t = self.view.tensors.get(name).ok_or_else(|| verify::checkpoint::no_tensor(name))?;
        let found = Found { name: name.to_string(), base: t.spec.clone(), rule: None };
        self.target(&found)
    }

    fn note_factors(
        &mut self,
        adapter: &Adapter,
        f: &Factors,
        (rank, scale): (usize, f64),
        targets: Vec<String>,
    ) {
        let kind = if f.magnitude.is_some() { "DoRA" } else { "LoRA" };
        self.note_use(adapter, keys(f), kind, targets);
        if let Some(last) = self.uses.last_mut() {
            (last.rank, last.scale) = (Some(rank), Some(scale));
        }
    }

    /// A linear layer, an embedding, a router, or one matrix of one expert.
    fn one_module(&mut self, (adapter, number): (&Adapter, usize), f: &Factors) -> Result<()> {
        if f.depth > 0 {
            return Err(Error::input(format!("module `{}` has nested factors", Shown(&f.module)))
                .expected("one pair (only fused experts hold two)"));
        }
        let expert = experts::per_expert(&f.module);
        if expert.is_some() {
            refuse_dora_on_experts(std::slice::from_ref(f))?;
        }
        let weight = self.find_tensor(&format!("{}.weight", f.module));
        let bare = || self.find_tensor(&f.module).filter(|t| t.base.shape.len() == 2);
        if let Some(found) = weight.or_else(bare) {
            return self.plain((adapter, number), f, found);
        }
        let Some((module, e, part)) = expert else {
            check_classifier(&f.module)?;
            self.no_target(adapter, keys(f));
            return Ok(());
        };
        let Some((layout, rule)) = experts::find(&self.view.tensors, module) else {
            self.no_target(adapter, keys(f));
            return Ok(());
        };
        if let Some(spec) = self.base().own_tensor(&layout, e, part) {
            let found = Found { name: spec.name.clone(), base: spec.clone(), rule };
            return self.plain((adapter, number), f, found);
        }
        let Layout::Fused { module } = &layout else {
            self.no_target(adapter, keys(f));
            return Ok(());
        };
        let scale = self.scale(adapter, &f.module, f.rank(), f)?;
        let placed = self.base().place_expert(number, f, (module, e, part), scale * adapter.weight)?;
        let Some((name, piece)) = placed else {
            self.no_target(adapter, keys(f));
            return Ok(());
        };
        if f.bias.is_some() {
            return Err(no_bias(f));
        }
        self.existing_target(&name)?.add(piece)?;
        self.count_rewrite(number, rule, f.tensors());
        self.note_factors(adapter, f, (f.rank(), scale), vec![name]);
        Ok(())
    }

    /// A pair that covers a whole matrix.
    fn plain(&mut self, (adapter, number): (&Adapter, usize), f: &Factors, found: Found) -> Result<()> {
        let scale = self.scale(adapter, &self.pattern_path(adapter, f), f.rank(), f)?;
        let turned = f.kind == Kind::Embedding || self.is_conv1d(&f.module);
        let (rows, cols) = match turned {
            true => (f.a.spec.shape[1], f.b.spec.shape[0]),
            false => (f.b.spec.shape[0], f.a.spec.shape[1]),
        };
        let target = self.target(&found)?;
        if target.job.output.shape != [rows, cols] {
            return Err(Error::input(format!("the factors of `{}` do not fit their target", Shown(&f.module)))
                .found(format!("{}, {}", shown(&f.a), shown(&f.b)))
                .expected(format!("a product of {:?} as `{}`", target.job.output.shape, Shown(&found.name)))
                .hint("the adapter was trained on another base; see `base_model_name_or_path` in adapter_config.json"));
        }
        let (left, right) = match turned {
            true => (View::transposed(&f.a), View::transposed(&f.b)),
            false => (View::plain(&f.b), View::plain(&f.a)),
        };
        let (rank, weighted) = (f.rank(), scale * adapter.weight);
        let cols = Columns::all(cols);
        target.add(Piece { rows: 0..rows, cols, left, right, rank, scale: weighted, adapter: number })?;
        if let Some(magnitude) = &f.magnitude {
            let axis = if turned { Axis::Columns } else { Axis::Rows };
            target.scale(number, Dora::new(magnitude.values()?, axis))?;
        }
        let mut targets = vec![found.name.clone()];
        if let Some(bias) = &f.bias {
            targets.push(self.bias(number, f, bias, weighted)?);
        }
        self.count_rewrite(number, found.rule, f.tensors());
        self.note_factors(adapter, f, (rank, scale), targets);
        Ok(())
    }

    /// `b' = b + s · bias_B`, as a product of rank 1.
    fn bias(&mut self, number: usize, f: &Factors, bias: &Arc<Stored>, scale: f64) -> Result<String> {
        let found = self.find_tensor(&format!("{}.bias", f.module)).ok_or_else(|| no_bias(f))?;
        let count = bias.spec.elements();
        let target = self.target(&found)?;
        if target.job.output.shape != [count] {
            return Err(Error::input(format!("the bias {} does not fit its target", shown(bias)))
                .expected(format!("{:?} as `{}`", target.job.output.shape, Shown(&found.name))));
        }
        let (left, right) = (View::plain(&Arc::new(Stored::one())), View::new(bias, 0, (count, 1)));
        let cols = Columns::all(count);
        target.add(Piece { rows: 0..1, cols, left, right, rank: 1, scale, adapter: number })?;
        Ok(found.name)
    }

    fn is_conv1d(&self, module: &str) -> bool {
        let layer = module.rsplit('.').next().unwrap_or(module);
        CONV1D_MODELS.contains(&self.view.config.model_type()) && CONV1D_LAYERS.contains(&layer)
    }

    /// The path that rank and alpha patterns see: a parameter's where it was targeted as such.
    fn pattern_path(&self, adapter: &Adapter, f: &Factors) -> String {
        let parameter = format!("{}.weight", f.module);
        match adapter.config.target_parameters.iter().any(|e| is_tail(&parameter, e)) {
            true => parameter,
            false => f.module.clone(),
        }
    }

    /// The scale of a pair of `rank`, by the config's patterns for `path`.
    fn scale(&mut self, adapter: &Adapter, path: &str, rank: usize, f: &Factors) -> Result<f64> {
        let config = &adapter.config;
        let ranks = config.rank_pattern.matching(path)?;
        let fits = |r: &f64| *r == rank as f64;
        // With overlapping patterns the first one may not be that of training, since PEFT sorts them when it
        // saves: the tensors know.
        let default = config.rank == rank && (ranks.is_empty() || !ranks.iter().any(fits));
        if !default && !ranks.iter().any(fits) {
            let wanted = match ranks.is_empty() {
                true => format!("rank {} (`r`)", config.rank),
                false => format!("rank {ranks:?} (`rank_pattern`) or {} (`r`)", config.rank),
            };
            return Err(Error::input(format!(
                "the rank of `{}` is not that of adapter_config.json",
                Shown(path)
            ))
            .found(format!("rank {rank}: {}, {}", shown(&f.a), shown(&f.b)))
            .expected(wanted)
            .hint("config and weights are of two adapters: fetch both again"));
        }
        let alphas = config.alpha_pattern.matching(path)?;
        let alpha = alphas.first().copied().unwrap_or(config.alpha);
        if alphas.iter().any(|a| *a != alpha) {
            self.warnings.push(format!(
                "{}: several alpha_pattern entries match {alphas:?}: the first one, {alpha}, is used",
                Shown(path)
            ));
        }
        let scale = config.scaling.scale(alpha, rank);
        if scale == 0.0 && !f.b.all_zero() {
            return Err(Error::input(format!(
                "the scale of `{}` is 0: its factors would be lost",
                Shown(path)
            ))
            .found(format!("lora_alpha {alpha}"))
            .hint("check `lora_alpha` and `alpha_pattern` in adapter_config.json"));
        }
        Ok(scale)
    }

    fn token_rows(&mut self, adapter: &Adapter, number: usize) -> Result<()> {
        for (module, tensor) in &adapter.token_rows {
            let Some(found) = self.find_tensor(&format!("{module}.weight")) else {
                self.no_target(adapter, vec![tensor.spec.name.clone()]);
                continue;
            };
            let indices = self.indices_of(adapter, module, &found)?;
            let target = self.target(&found)?;
            let (rows, cols) = (target.job.output.rows(), target.job.output.cols());
            if tensor.spec.shape != [indices.len(), cols] {
                return Err(Error::input(format!("the new rows {} do not fit", shown(tensor)))
                    .expected(format!(
                        "[{}, {cols}]: a row for each of `trainable_token_indices`",
                        indices.len()
                    ))
                    .hint("config and weights are of two adapters: fetch both again"));
            }
            if let Some(beyond) = indices.iter().find(|i| **i >= rows) {
                return Err(Error::input(format!("`trainable_token_indices` names row {beyond}"))
                    .found(format!("{rows} rows in `{}`", Shown(&found.name)))
                    .expected("rows of the embedding")
                    .hint("the adapter was trained on another base, or on one with a larger vocabulary"));
            }
            for (from, row) in indices.into_iter().enumerate() {
                target.put_row(row, tensor, from)?;
            }
            self.count_rewrite(number, found.rule, 1);
            self.note_use(adapter, vec![tensor.spec.name.clone()], "token rows", vec![found.name]);
        }
        Ok(())
    }

    fn indices_of(&self, adapter: &Adapter, module: &str, found: &Found) -> Result<Vec<usize>> {
        let rows = &adapter.config.token_rows;
        let named = rows.iter().find(|(tail, _)| tail.as_ref().is_some_and(|t| is_tail(module, t)));
        // A list means the input embedding; with tied weights its twin on the head may be stored as well.
        let of_input = || match self.embeddings.is_either(&found.name) {
            true => rows.iter().find(|(tail, _)| {
                tail.as_ref().is_none_or(|t| self.embeddings.tied && self.embeddings.is_input_tail(t))
            }),
            false => None,
        };
        let (_, indices) = named.or_else(of_input).ok_or_else(|| {
            Error::input(format!("which rows of `{}` are new is not said", Shown(module)))
                .expected("`trainable_token_indices` in adapter_config.json")
                .hint("config and weights are of two adapters: fetch both again")
        })?;
        Ok(indices.clone())
    }
}

/// Row ranges of about 4 MiB.
pub fn pieces_of(rows: usize, row_bytes: usize) -> impl Iterator<Item = Range<usize>> {
    let step = rows_per_chunk(row_bytes, 1);
    (0..rows).step_by(step).map(move |start| start..(start + step).min(rows))
}

fn keys(f: &Factors) -> Vec<String> {
    let parts = [Some(&f.a), Some(&f.b), f.bias.as_ref(), f.magnitude.as_ref()];
    parts.into_iter().flatten().map(|t| t.spec.name.clone()).collect()
}

/// True where `tail` is `path` or its end after a dot.
pub fn is_tail(path: &str, tail: &str) -> bool {
    path == tail || path.strip_suffix(tail).is_some_and(|head| head.ends_with('.'))
}

/// Factors whose product is zero though B is not would be an adapter that lost its A.
fn check_moves(f: &Factors) -> Result<()> {
    match f.a.all_zero() && !f.b.all_zero() {
        false => Ok(()),
        true => Err(Error::input(format!("the factors of `{}` have no effect", Shown(&f.module)))
            .found("lora_A all zero, lora_B not")
            .expected("a trained pair")
            .hint("the file is not whole: save the adapter again")),
    }
}

fn no_bias(f: &Factors) -> Error {
    Error::input(format!("`{}` has no bias in the base", Shown(&f.module)))
        .found("a bias of lora_B in the adapter (`lora_bias`)")
        .expected(format!("`{}.bias` in the base", Shown(&f.module)))
        .hint("a base without this bias cannot hold the merged layer: train without `lora_bias`")
}

fn refuse_dora_on_experts(group: &[Factors]) -> Result<()> {
    match group.iter().find(|f| f.magnitude.is_some()) {
        None => Ok(()),
        Some(f) => Err(Error::input(format!("DoRA on experts is not defined (`{}`)", Shown(&f.module)))
            .expected("LoRA on experts")
            .hint("PEFT has no such layer: train the experts without `use_dora`")),
    }
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

/// Whether the config says that this whole tensor was trained.
fn declared(adapter: &Adapter, whole: &WholeTensor) -> bool {
    let config = &adapter.config;
    let (module, parameter) = whole.path.rsplit_once('.').unwrap_or((&whole.path, ""));
    let wrapped = adapter.factors.iter().any(|f| f.module == module)
        || adapter.token_rows.iter().any(|(m, _)| m == module);
    let under = |name: &String| {
        let ends = whole.path.match_indices('.').map(|(at, _)| &whole.path[..at]);
        // PEFT wraps every module whose path ends so, whole name or not: `norm` is `input_layernorm` too.
        !name.is_empty() && ends.chain([whole.path.as_str()]).any(|p| p.ends_with(name.as_str()))
    };
    match whole.how {
        Whole::Saved => true,
        Whole::BaseLayer => wrapped || config.modules_to_save.iter().any(under),
        Whole::Plain => {
            config.modules_to_save.iter().any(under)
                || wrapped
                || (parameter == "bias" && config.trains_bias)
                || config.target_modules.iter().any(|t| is_tail(module, t))
        }
    }
}

fn undeclared(tensor: &Stored, target: &str) -> Error {
    Error::input(format!("adapter tensor {} would replace a whole tensor of the base", shown(tensor)))
        .found(format!("other values than `{}`, and no mention in adapter_config.json", Shown(target)))
        .expected("its module in `modules_to_save` (or `bias`, or `trainable_token_indices`)")
        .hint("if it was trained on purpose, add the module to `modules_to_save` in adapter_config.json")
}

/// The error for tensors without a target.
pub fn refuse_unmatched(unmatched: &[String]) -> Error {
    Error::input("adapter tensors fit no tensor of the base")
        .found(list_some(unmatched))
        .expected("a target for every tensor")
        .hint("the adapter was trained on another model; see `base_model_name_or_path` in adapter_config.json (--allow-unused merges the rest)")
}

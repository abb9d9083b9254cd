//! The merge as a stage of a rewrite: planned from metadata, computed row by row.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::PathBuf;

use serde_json::{Value, json};
use verify::checkpoint::{TensorReader, TensorSpec, list_some};
use verify::rewrite::{
    Applied, Built, Decision, InputFile, ModelView, Note, Rewrite, Stage, StageBuilder, UnitKind, Work,
};
use verify::{Error, FileName, Result, Shown};

use crate::account::{Account, AdapterLine};
use crate::adapter::{Adapter, folder_name};
use crate::compute::job::Job;
use crate::files;
use crate::fp8::{BaseReader, Fp8Base, WRITTEN};
use crate::resolve::embeddings::{Embeddings, Tying, edit_config};
use crate::resolve::target::Target;
use crate::resolve::{Changes, Resolver, is_tail, refuse_unmatched};
use crate::tokens;

/// What to do with adapter tensors that fit no tensor of the base.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Unused {
    /// Refuse the adapter: the usual, since a skipped tensor is the most common silent failure.
    #[default]
    Refuse,
    /// Merge the rest, with a warning in the report.
    Warn,
}

/// How adapters are merged.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Tensors without a target.
    pub unused: Unused,
}

/// Adapters that were read and can be merged into a base as one stage: `W' = W + Σ wᵢ·ΔWᵢ`, rounded once.
#[derive(Debug)]
pub struct MergeLora {
    adapters: Vec<Adapter>,
    options: Options,
}

impl MergeLora {
    /// Opens the adapters, each with its weight, and checks all that can be checked without the base.
    ///
    /// # Errors
    /// Exit 2 for a weight that is zero or not finite; exit 3 for adapters that are broken or cannot be merged.
    pub fn open(adapters: &[(PathBuf, f64)], options: Options) -> Result<Self> {
        if adapters.is_empty() {
            return Err(Error::usage("no adapter is given").hint("give at least one adapter folder"));
        }
        if let Some((dir, weight)) = adapters.iter().find(|(_, w)| !w.is_finite() || *w == 0.0) {
            return Err(Error::usage(format!("adapter {} has weight {weight}", Shown::path(dir)))
                .expected("a finite weight other than 0"));
        }
        let adapters =
            adapters.iter().map(|(dir, weight)| Adapter::open(dir, *weight)).collect::<Result<_>>()?;
        Ok(MergeLora { adapters, options })
    }

    fn inputs(&self) -> Vec<InputFile> {
        let several = self.adapters.len() > 1;
        let of = |(at, a): (usize, &Adapter)| -> Vec<InputFile> {
            let named = |i: &InputFile| match several {
                true => InputFile {
                    name: i.name.replacen("adapter/", &format!("adapter-{}/", at + 1), 1),
                    ..i.clone()
                },
                false => i.clone(),
            };
            a.inputs.iter().map(named).collect()
        };
        self.adapters.iter().enumerate().flat_map(of).collect()
    }

    fn stage_options(&self) -> Value {
        let adapters = self.adapters.iter().map(|a| json!({"name": a.name, "weight": a.weight}));
        json!({
            "adapters": adapters.collect::<Vec<_>>(),
            "allow_unused": self.options.unused == Unused::Warn,
        })
    }
}

impl Rewrite for MergeLora {
    fn plan(&self, stored: &ModelView, reader: &dyn TensorReader) -> Result<Stage> {
        let fp8 = Fp8Base::of(stored)?;
        let input = fp8.as_ref().map_or(stored, |f| &f.view);
        let reader = BaseReader { stored: reader, fp8: fp8.as_ref() };
        let mut resolver = Resolver::new(input, &reader);
        resolver.resolve(&self.adapters)?;
        let mut warnings: Vec<String> =
            self.adapters.iter().flat_map(|a| a.config.warnings.clone()).collect();
        if !resolver.unmatched.is_empty() {
            match self.options.unused {
                Unused::Refuse => return Err(refuse_unmatched(&resolver.unmatched)),
                Unused::Warn => warnings.push(format!(
                    "adapter tensors without a target are not merged: {}",
                    list_some(&resolver.unmatched)
                )),
            }
        }
        if resolver.uses.iter().all(|u| u.targets.is_empty()) {
            return Err(Error::input("nothing of the adapter can be merged")
                .found("no tensor with a target")
                .hint("give the folder of a trained adapter"));
        }
        let tying = resolver.settle_tying(&self.adapters)?;
        let vocabulary = resolver.new_vocabulary(tying)?;
        warnings.append(&mut resolver.warnings);
        warnings.extend(self.adapters.iter().flat_map(|a| about_base(a, input)));
        warnings.extend(self.adapters.iter().filter_map(|a| partial_upload(a, input, &resolver)));

        let mut output = input.clone();
        edit_config(&mut output.config, tying, vocabulary)?;
        let (choices, about_files) = files::choose(&mut output, &self.adapters)?;
        warnings.extend(about_files);
        warnings.extend(check_tokens(input, &output, &resolver, vocabulary)?);

        let mut decisions = decisions(&resolver, tying, vocabulary, &choices);
        decisions.extend(fp8.as_ref().map(|_| Decision {
            what: "quantization".to_string(),
            choice: format!("removed: all weights are written in {WRITTEN}, twice as large"),
            reason: "the base is FP8, and a merge never quantizes again by itself".to_string(),
        }));
        let account = self.account(&resolver, tying, vocabulary, choices);
        let Changes { targets, embeddings } = resolver.into_changes();
        let layout = Layout { stored, input, tying, embeddings };
        let (built, jobs) = layout.build(targets, fp8.as_ref())?;
        let work = Merging { jobs, account, fp8 };
        output.tensors = built.tensors;
        Ok(Stage {
            name: "merge-lora",
            options: self.stage_options(),
            inputs: self.inputs(),
            output,
            units: built.units,
            dropped: built.dropped,
            decisions,
            warnings,
            work: Box::new(work),
        })
    }
}

impl MergeLora {
    fn account(
        &self,
        resolver: &Resolver<'_>,
        tying: Tying,
        vocabulary: Option<usize>,
        files: Vec<files::FileChoice>,
    ) -> Account {
        let version = |(a, b, c)| format!("{a}.{b}.{c}");
        let line = |a: &Adapter| AdapterLine {
            name: a.name.clone(),
            weight: a.weight,
            tensors: a.tensors,
            base_model: a.config.base_model.clone(),
            peft_version: a.config.peft_version.map(version),
        };
        let rewrites = resolver.rewrites.iter();
        Account {
            adapters: self.adapters.iter().map(line).collect(),
            modules: resolver.uses.clone(),
            rewrites: rewrites
                .map(|((a, rule), n)| (self.adapters[*a].name.clone(), rule.clone(), *n))
                .collect(),
            embeddings: match (tying, resolver.embeddings.tied) {
                (Tying::Untied, _) => "untied",
                (_, true) => "tied",
                (_, false) => "separate",
            },
            vocabulary,
            files,
        }
    }
}

/// Warnings where the adapter names another base than the one given.
fn about_base(adapter: &Adapter, input: &ModelView) -> Vec<String> {
    let Some(named) = adapter.config.base_model.as_deref().filter(|n| !n.is_empty()) else {
        return Vec::new();
    };
    let mut out = Vec::new();
    let last = named.trim_end_matches(['/', '\\']).rsplit(['/', '\\']).next().unwrap_or(named);
    let given = input.config.path().parent().map(folder_name).unwrap_or_default();
    if !last.eq_ignore_ascii_case(&given) {
        out.push(format!(
            "adapter `{}` was trained on `{}`, the base given is `{}`: check that they are the same model",
            adapter.name,
            Shown(named),
            Shown(&given)
        ));
    }
    let lower = last.to_ascii_lowercase();
    if ["-bnb-4bit", "-fp8", "-awq", "-gptq", "-int4", "-4bit"].iter().any(|q| lower.contains(q)) {
        out.push(format!(
            "adapter `{}` was trained on the quantized `{}`: merged into 16-bit weights it may act a little differently",
            adapter.name,
            Shown(named)
        ));
    }
    out
}

/// A warning where some layers have factors for a target module and others do not.
fn partial_upload(adapter: &Adapter, input: &ModelView, resolver: &Resolver<'_>) -> Option<String> {
    if adapter.config.limited || adapter.config.target_modules.is_empty() {
        return None;
    }
    let without_numbers = |name: &str| -> String {
        let part = |p: &str| if p.parse::<u32>().is_ok() { "*".to_string() } else { p.to_string() };
        name.split('.').map(part).collect::<Vec<_>>().join(".")
    };
    let mut layers: HashMap<String, (usize, Vec<String>)> = HashMap::new();
    for t in input.tensors.tensors() {
        let Some(module) = t.spec.name.strip_suffix(".weight") else { continue };
        if !adapter.config.target_modules.iter().any(|m| is_tail(module, m)) {
            continue;
        }
        let (adapted, missing) = layers.entry(without_numbers(module)).or_default();
        match resolver.targets.contains_key(&t.spec.name) {
            true => *adapted += 1,
            false => missing.push(Shown(&t.spec.name).to_string()),
        }
    }
    let mut missing: Vec<String> =
        layers.into_values().filter(|(adapted, _)| *adapted > 0).flat_map(|(_, missing)| missing).collect();
    missing.sort();
    (!missing.is_empty()).then(|| {
        format!(
            "adapter {} has no factors for tensors whose siblings in other layers have them (is the upload whole?): {}",
            adapter.name,
            list_some(&missing)
        )
    })
}

/// Every token id needs a row. A base whose own tokenizer goes beyond its rows is only worth a warning.
fn check_tokens(
    input: &ModelView,
    output: &ModelView,
    resolver: &Resolver<'_>,
    vocabulary: Option<usize>,
) -> Result<Option<String>> {
    let Some(embedding) = &resolver.embeddings.input else { return Ok(None) };
    let rows = vocabulary.unwrap_or(embedding.shape[0]) as u64;
    let Some(highest) = tokens::highest(output)?.filter(|h| *h >= rows) else { return Ok(None) };
    let known = vocabulary.is_none() && tokens::highest(input)? == Some(highest);
    if known {
        return Ok(Some(format!(
            "the base's tokenizer has token id {highest}, its embedding only {rows} rows: such a token breaks the server"
        )));
    }
    Err(Error::input("the tokenizer has tokens beyond the vocabulary of the merged model")
        .found(format!("token id {highest}, {rows} rows in the embedding"))
        .expected(format!("at least {} rows", highest + 1))
        .hint("the new rows were not saved: add `embed_tokens` and `lm_head` to `modules_to_save` when training"))
}

fn decisions(
    resolver: &Resolver<'_>,
    tying: Tying,
    vocabulary: Option<usize>,
    files: &[files::FileChoice],
) -> Vec<Decision> {
    let decision = |what: &str, choice: &str, reason: &str| Decision {
        what: what.to_string(),
        choice: choice.to_string(),
        reason: reason.to_string(),
    };
    let mut out = Vec::new();
    let head = &resolver.embeddings.head;
    match tying {
        Tying::AsBefore => {}
        Tying::StaysTied => out.push(decision(head, "stays tied", "both sides change alike")),
        Tying::Untied => out.push(decision(
            head,
            "untied: written as its own tensor, tie_word_embeddings = false; the model grows by one embedding",
            "the adapter changes one side of a shared matrix only",
        )),
    }
    if let Some(n) = vocabulary {
        out.push(decision("vocab_size", &n.to_string(), "the adapter brings embeddings with that many rows"));
    }
    for u in resolver.uses.iter().filter(|u| u.kind == "whole tensor") {
        let reason = format!("whole tensor `{}` of adapter {}", Shown(&u.tensors.join(", ")), u.adapter);
        out.push(decision(&u.targets.join(", "), "replaced", &reason));
    }
    for f in files {
        out.push(decision(&f.name, &format!("of {}", f.from), f.compared));
    }
    out
}

/// Where the units go.
struct Layout<'a> {
    stored: &'a ModelView,
    input: &'a ModelView,
    tying: Tying,
    embeddings: Embeddings,
}

/// Jobs by unit; `None` for copies.
type Jobs = Vec<Option<Job>>;

impl Layout<'_> {
    /// Lays the units out: every base tensor in its place, changed or copied; a new head at the end.
    fn build(self, mut targets: BTreeMap<String, Target>, fp8: Option<&Fp8Base>) -> Result<(Built, Jobs)> {
        let mut builder = StageBuilder::new(self.stored);
        let mut jobs: Vec<(usize, Job)> = Vec::new();
        let mut add = |builder: &mut StageBuilder<'_>, mut job: Job, shard: usize| {
            let base = job.base.name.clone();
            if fp8.is_some_and(|f| f.is_fp8(&base)) {
                job.output.dtype = WRITTEN;
            }
            let rows = (job.output.rows(), job.step());
            let reads = fp8.map_or(vec![base.as_str()], |f| f.reads(&base));
            let unit = builder.compute(shard, vec![job.output.clone()], rows, &reads);
            jobs.push((unit, job));
        };
        for tensor in self.input.tensors.tensors() {
            let name = &tensor.spec.name;
            match targets.remove(name) {
                Some(target) => add(&mut builder, target.job, tensor.shard),
                None if fp8.is_some_and(|f| f.is_fp8(name)) => {
                    add(&mut builder, Target::new(name, &tensor.spec)?.job, tensor.shard);
                }
                None => builder.copy(tensor),
            }
        }
        let shards: Vec<FileName> = self.input.tensors.shards().to_vec();
        let new_head = self.tying == Tying::Untied && self.embeddings.own_head.is_none();
        let (head, last) = (&self.embeddings.head, shards.len().saturating_sub(1));
        match (new_head, targets.remove(head), &self.embeddings.input) {
            (true, Some(target), _) => add(&mut builder, target.job, last),
            (true, None, Some(input)) => {
                let output = TensorSpec::new(head, input.dtype, input.shape.clone());
                builder.copy_as(output, last, UnitKind::Copy { from: input.name.clone(), first_row: 0 });
            }
            _ => {}
        }
        for name in fp8.into_iter().flat_map(|f| &f.dropped) {
            builder.drop(name, "the weight that it belongs to is written in bf16");
        }
        let built = builder.finish(shards)?;
        let mut by_unit: Jobs = built.units.iter().map(|_| None).collect();
        for (unit, job) in jobs {
            by_unit[built.renumber[unit]] = Some(job);
        }
        Ok((built, by_unit))
    }
}

/// The computing of the stage.
struct Merging {
    jobs: Jobs,
    account: Account,
    fp8: Option<Fp8Base>,
}

impl Work for Merging {
    fn apply(&self, unit: usize, rows: Range<usize>, input: &dyn TensorReader) -> Result<Applied> {
        match self.jobs.get(unit).and_then(Option::as_ref) {
            Some(job) => job.apply(rows, &BaseReader { stored: input, fp8: self.fp8.as_ref() }),
            None => Ok(Applied::default()),
        }
    }

    fn conclude(&self, notes: &[Note]) -> Result<Value> {
        Ok(self.account.conclude(notes))
    }
}

//! The merge as a stage of a rewrite: planned from metadata, computed row by row.

use std::ops::Range;
use std::path::PathBuf;

use serde_json::{Value, json};
use verify::checkpoint::{TensorReader, list_some};
use verify::rewrite::{Applied, Decision, InputFile, ModelView, Note, Rewrite, Stage, Work};
use verify::{Error, Result, Shown};

use crate::account::{Account, AdapterLine};
use crate::adapter::Adapter;
use crate::files;
use crate::fit::{about_base, check_tokens, partial_upload};
use crate::fp8::{BaseReader, Fp8Base, WRITTEN};
use crate::layout::{Jobs, Layout};
use crate::resolve::embeddings::{Tying, edit_config};
use crate::resolve::{Changes, Resolver, refuse_unmatched};

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

//! `prep run`: everything that a recipe says, in one pass over the base, then verified.

use std::path::{Path, PathBuf};

use merge::MergeLora;
use verify::rewrite::Rewrite;
use verify::template::{ChatTemplate, EmbedTemplate};
use verify::{Error, Result, parsers};

use super::inputs::{Inputs, Local};
use super::rewrite::{Job, print_plan, say};
use super::{quantize, verify as verification};
use crate::args::{Global, Parts, Run};
use crate::output::Output;
use crate::recipe::{Format, Quantize, Recipe, Verify};

pub fn run(args: &Run, global: &Global, output: &Output) -> Result<u8> {
    let recipe = Recipe::read(&args.recipe, &args.set)?;
    let out = args.out.clone().or(recipe.out.clone()).ok_or_else(|| {
        Error::usage("no output folder").expected("--out DIR, or `out` in the recipe").hint("add --out DIR")
    })?;
    // Looked up first: a misspelt parser must not cost an hour of quantizing.
    let verify = recipe.verify.as_ref().map(|v| verification_of(v, &out)).transpose()?;
    let places = Inputs { out: &out, dry_run: args.dry_run, global, output };
    let Some((base, adapters)) = local_inputs(&recipe, &places)? else {
        output.text("nothing was fetched (--dry-run); the plan itself needs the files above");
        output.result(0, serde_json::json!({"plan": null}));
        return Ok(0);
    };
    let stages = Stages::of(&recipe, &adapters)?;
    let suite = recipe.verify.as_ref().and_then(|v| v.suite.clone());
    let single = [recipe.template.from.clone(), suite, Some(args.recipe.clone())].into_iter().flatten();
    let inputs: Vec<PathBuf> = adapters.into_iter().map(|(dir, _)| dir).chain(single).collect();
    let job = Job { base: &base.dir, stages: stages.list(), inputs, out: &out, parts: Parts::default() };
    let plan = job.plan()?;
    if args.dry_run {
        print_plan(&plan, &out, global, output);
        return Ok(0);
    }
    let mut done = job.run(&plan, global)?;
    if base.pinned.is_some() && !done.already {
        base.name_in(&mut done.report);
        done.report.write(&out)?;
    }
    say(&done, output);
    let Some(job) = verify else {
        output.result(0, serde_json::json!(done.report));
        return Ok(0);
    };
    let verified = verification::verify(&job, global, output)?;
    done.report.verification = Some(verified.json);
    done.report.write(&out)?;
    output.text(&format!("report: {}", out.join("prep-report.json").display()));
    let code = u8::from(!verified.pass);
    output.result(code, serde_json::json!(done.report));
    Ok(code)
}

/// An adapter's folder and its weight in the sum.
type Weighted = (PathBuf, f64);

/// Base and adapters as folders; `None` where a dry run would have to download one first.
fn local_inputs(recipe: &Recipe, places: &Inputs) -> Result<Option<(Local, Vec<Weighted>)>> {
    let base = places.local(&recipe.base)?;
    let mut adapters = Vec::new();
    for adapter in &recipe.adapter {
        match places.local(&adapter.path)? {
            Some(local) => adapters.push((local.dir, adapter.weight)),
            None => return Ok(None),
        }
    }
    Ok(base.map(|b| (b, adapters)))
}

fn verification_of<'a>(v: &Verify, out: &'a Path) -> Result<verification::Job<'a>> {
    verification::check_reports(&v.report, out)?;
    Ok(verification::Job {
        model: out,
        run: verification::Running {
            parser: parsers::find(&v.parser)?,
            suite: verification::suite_of(v.suite.as_deref())?,
            min_score: v.min_score,
            max_new: v.max_new,
            reasoning: verification::Reasoning::of(v.reasoning_parser.as_deref())?,
            sampling: verify::suite::Sampling::default(),
            runs: 1,
        },
        reports: v.report.clone(),
        baseline: None,
    })
}

fn quantize_of(q: &Quantize) -> Result<quant::Fp8> {
    match q.format {
        Format::Fp8 => quantize::stage(q.scheme, &q.ignore),
    }
}

/// The stages that a recipe asks for.
struct Stages {
    merge: Option<MergeLora>,
    quantize: Option<quant::Fp8>,
    template: EmbedTemplate,
}

impl Stages {
    fn of(recipe: &Recipe, adapters: &[Weighted]) -> Result<Self> {
        let merge = match adapters.is_empty() {
            true => None,
            false => Some(MergeLora::open(adapters, merge::Options::default())?),
        };
        let quantize = recipe.quantize.as_ref().map(quantize_of).transpose()?;
        let template = recipe.template.from.as_deref().map(ChatTemplate::open).transpose()?;
        Ok(Stages { merge, quantize, template: EmbedTemplate { template } })
    }

    fn list(&self) -> Vec<&dyn Rewrite> {
        let merge = self.merge.iter().map(|m| m as &dyn Rewrite);
        let quantize = self.quantize.iter().map(|q| q as &dyn Rewrite);
        merge.chain(quantize).chain([&self.template as &dyn Rewrite]).collect()
    }
}

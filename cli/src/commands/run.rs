//! `prep run`: everything that a recipe says, in one pass over the base, then verified.

use std::path::{Path, PathBuf};
use std::time::Duration;

use merge::MergeLora;
use quant::Awq;
use quant::calibration::data::{Samples, Voice};
use runner::Wish;
use verify::private::Paths;
use verify::rewrite::Rewrite;
use verify::template::{ChatTemplate, EmbedTemplate};
use verify::{Error, Result, parsers};

use super::inputs::{Inputs, Local};
use super::rewrite::{Job, print_plan, say};
use super::verify::Baseline;
use super::{quantize, verify as verification};
use crate::args::{self, Global, Parts, Run};
use crate::machine::or_on_cpu;
use crate::output::Output;
use crate::recipe::{Format, Quantize, Recipe, Verify};

pub fn run(args: &Run, global: &Global, output: &Output) -> Result<u8> {
    let recipe = Recipe::read(&args.recipe, &args.set)?;
    let out = args.out.clone().or(recipe.out.clone()).ok_or_else(|| {
        Error::usage("no output folder").expected("--out DIR, or `out` in the recipe").hint("add --out DIR")
    })?;
    // Looked up first: a misspelt parser must not cost an hour of quantizing.
    let mut verify = recipe
        .verify
        .as_ref()
        .map(|v| verification_of(v, (&out, args.on.wish()), args.rewriting.paths()))
        .transpose()?;
    let mut rewriting = args.rewriting;
    rewriting.keep_code |= recipe.keep_code;
    let lock_wait = Duration::from_secs(args.rewriting.lock_wait.into());
    let places = Inputs {
        out: &out,
        dry_run: args.dry_run,
        paths: rewriting.paths(),
        keep_code: rewriting.keep_code,
        lock_wait,
        locking: rewriting.locking(),
        global,
        output,
    };
    let Some((base, adapters)) = local_inputs(&recipe, &places)? else {
        output.text("nothing was fetched (--dry-run); the plan itself needs the files above");
        output.result(0, serde_json::json!({"plan": null}));
        return Ok(0);
    };
    if let (Some(job), Some(v)) = (&mut verify, &recipe.verify) {
        job.baseline = baseline_of(v, &places)?;
    }
    let suite = recipe.verify.as_ref().and_then(|v| v.suite.clone());
    let calibration = recipe.quantize.as_ref().and_then(|q| q.calibration.clone());
    let baseline = verify.iter().filter_map(|job| job.baseline.as_ref()).map(|b| b.folder().to_path_buf());
    let single = [recipe.template.from.clone(), suite, calibration, Some(args.recipe.clone())];
    let single = single.into_iter().flatten().chain(baseline);
    let inputs: Vec<PathBuf> = adapters.iter().map(|(dir, _)| dir.clone()).chain(single).collect();
    let done = or_on_cpu(args.on.wish(), output, |wish| {
        let stages = Stages::of(&recipe, &base.dir, &adapters, (args.dry_run, wish))?;
        let (stages, inputs) = (stages.list(), inputs.clone());
        let (parts, rewriting) = (Parts::default(), rewriting);
        let job = Job { base: &base.dir, stages, inputs, out: &out, parts, rewriting };
        let plan = job.plan()?;
        if args.dry_run {
            print_plan(&plan, &out, global, output);
            return Ok(None);
        }
        job.run(&plan, global).map(Some)
    })?;
    let Some(mut done) = done else { return Ok(0) };
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
    done.report.hide(&done.hiding);
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

/// What the result is compared with; none where a dry run would have to download it first.
fn baseline_of(v: &Verify, places: &Inputs) -> Result<Option<Baseline>> {
    let Some(model) = &v.baseline else { return Ok(None) };
    let Some(local) = places.local(model)? else { return Ok(None) };
    Baseline::of(&args::Baseline {
        baseline: Some(local.dir),
        text: v.text.clone(),
        max_score_drop: v.max_score_drop,
        max_kl: v.max_kl,
    })
}

fn verification_of<'a>(
    v: &Verify,
    (out, wish): (&'a Path, Wish),
    paths: Paths,
) -> Result<verification::Job<'a>> {
    v.check()?;
    verification::check_reports(&v.report, out)?;
    let drawn = v.sampling()?;
    let suite = verification::suite_of(v.suite.as_deref())?;
    Ok(verification::Job {
        model: out,
        run: verification::Running {
            parser: parsers::find(&v.parser)?,
            suite: v.kwargs.iter().fold(suite, |suite, kwargs| suite.with_kwargs(kwargs)),
            min_score: v.min_score,
            max_new: v.max_new,
            reasoning: verification::Reasoning::of(v.reasoning_parser.as_deref())?,
            sampling: verification::drawn(&drawn, true)?,
            runs: drawn.repeat as usize,
        },
        reports: verification::Reports { files: v.report.clone(), hiding: paths.hiding([out]) },
        baseline: None,
        wish,
    })
}

/// The stage that quantizes. `folders` are the base and the adapters in their order: the last that brings a tokenizer
/// or a template has it in the result.
fn quantize_of(
    q: &Quantize,
    folders: &[&Path],
    recipe: &Recipe,
    (dry_run, wish): (bool, Wish),
) -> Result<Box<dyn Rewrite>> {
    if let Some(key) = q.misplaced() {
        return Err(Error::usage(format!("`quantize.{key}` means nothing beside the other keys"))
            .hint("`prep run --help` lists what belongs together"));
    }
    let samples = || match dry_run {
        // A plan needs none.
        true => Ok(Samples::default()),
        false => {
            let options = quantize::data_options(q.samples, q.seq_len);
            Samples::read_in(q.calibration.as_deref(), voice(folders, recipe)?, &options)
        }
    };
    match q.format {
        Format::Fp8 => {
            let scales = quantize::Scales { inputs: q.static_activations, cache: q.kv_cache };
            let mut fp8 = quantize::stage(q.scheme, scales, &q.ignore)?;
            fp8.coder = quantize::coder(wish, dry_run)?;
            fp8.nonfinite = quantize::nonfinite(q.allow_nonfinite);
            if fp8.calibrates() {
                fp8.walker = quantize::engine(wish, dry_run)?.cpu();
                fp8.experts = quantize::experts(q.experts);
                fp8.samples = samples()?;
            }
            Ok(Box::new(fp8))
        }
        Format::Awq => {
            let plain = Awq::new(samples()?);
            let awq = Awq {
                layout: q.packing.map_or(plain.layout, quantize::layout),
                group: q.group_size.unwrap_or(plain.group),
                symmetric: q.symmetric.unwrap_or(plain.symmetric),
                experts: quantize::experts(q.experts),
                cache: quantize::kv_cache(q.kv_cache),
                ignore: quantize::patterns(&q.ignore)?,
                nonfinite: quantize::nonfinite(q.allow_nonfinite),
                engine: quantize::engine(wish, dry_run)?,
                ..plain
            };
            Ok(Box::new(awq))
        }
    }
}

/// The last folder that brings a tokenizer, and the template that the result will have.
fn voice<'a>(folders: &[&'a Path], recipe: &Recipe) -> Result<Voice<'a>> {
    let last = |has: &dyn Fn(&Path) -> bool| folders.iter().rev().find(|f| has(f)).copied();
    let base = folders[0];
    let template = match &recipe.template.from {
        Some(path) => Some(ChatTemplate::open(path)?),
        None => last(&|f| ChatTemplate::open(f).is_ok()).map(ChatTemplate::open).transpose()?,
    };
    let tokenizer = last(&|f| f.join("tokenizer.json").is_file()).unwrap_or(base);
    Ok(Voice { config: base, tokenizer, template })
}

/// The stages that a recipe asks for.
struct Stages {
    merge: Option<MergeLora>,
    quantize: Option<Box<dyn Rewrite>>,
    template: EmbedTemplate,
}

impl Stages {
    fn of(
        recipe: &Recipe,
        base: &Path,
        adapters: &[Weighted],
        (dry_run, wish): (bool, Wish),
    ) -> Result<Self> {
        let merge = match adapters.is_empty() {
            true => None,
            false => Some(MergeLora::open(adapters, merge::Options::default())?),
        };
        let folders: Vec<&Path> =
            std::iter::once(base).chain(adapters.iter().map(|(dir, _)| dir.as_path())).collect();
        let quantize = recipe
            .quantize
            .as_ref()
            .map(|q| quantize_of(q, &folders, recipe, (dry_run, wish)))
            .transpose()?;
        let template = recipe.template.from.as_deref().map(ChatTemplate::open).transpose()?;
        Ok(Stages { merge, quantize, template: EmbedTemplate { template } })
    }

    fn list(&self) -> Vec<&dyn Rewrite> {
        let merge = self.merge.iter().map(|m| m as &dyn Rewrite);
        let quantize = self.quantize.iter().map(|q| &**q);
        merge.chain(quantize).chain([&self.template as &dyn Rewrite]).collect()
    }
}

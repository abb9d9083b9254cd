//! The baseline: run as the model was, compared with it, and told.

use std::path::PathBuf;

use runner::compare::{Compared, Talk, compare};
use runner::{Engine, Machine, Options};
use verify::checkpoint::json::read_text;
use verify::names::folder_name;
use verify::parsers::ReasoningParser;
use verify::suite::compare::{Change, Divergence, LayerRouting, Limits, Run, scores};
use verify::suite::{self, Reading, Running, Sampling, Transcript};
use verify::template::Renderer;
use verify::{Result, Shown};

use super::job::{Job, runner_sampling};
use crate::args;
use crate::args::Global;
use crate::commands::folder_of;
use crate::console::Console;
use crate::output::{Output, table};

/// Longest text to compare over.
const MAX_TEXT: u64 = 16 << 20;

/// What a model is compared with.
#[derive(Clone)]
pub struct Baseline {
    model: PathBuf,
    text: Option<String>,
    pub limits: Limits,
}

impl Baseline {
    /// As the command line or a recipe says; none where it names no baseline.
    ///
    /// # Errors
    /// Exit 3 where the baseline is no folder, or the text cannot be read: told before anything runs.
    pub fn of(args: &args::Baseline) -> Result<Option<Self>> {
        let Some(model) = args.baseline.clone() else { return Ok(None) };
        folder_of(&model).map_err(|e| e.at("the baseline"))?;
        let text = args.text.as_deref().map(|path| read_text(path, MAX_TEXT)).transpose()?;
        let limits = Limits { max_score_drop: args.max_score_drop, max_kl: args.max_kl };
        Ok(Some(Baseline { model, text, limits }))
    }

    /// Its folder.
    pub fn folder(&self) -> &std::path::Path {
        &self.model
    }

    /// Runs the suite through the baseline, then both models over the same tokens.
    ///
    /// # Errors
    /// Those of opening and running the baseline.
    pub fn compare<M: Machine>(
        &self,
        (job, sampling, reasoning): (&Job<'_>, Sampling, Option<&'static ReasoningParser>),
        (engine, run): (&Engine<M>, Run<'_>),
        (global, console): (&Global, &Console),
    ) -> Result<Change> {
        let renderer = Renderer::open(&self.model)?;
        let reading = Reading { reasoning, ..Reading::of_folder(&self.model, job.run.parser)? };
        let running = Running { max_new: job.run.max_new, reading };
        let mut baseline = Engine::<M>::load(&self.model, &Options { threads: Some(global.threads()) })?
            .with_sampling(runner_sampling(&sampling))?;
        let transcripts = suite::run(&mut baseline, &renderer, &job.run.suite, &running, console)?;
        console.clear();
        let evaluation = suite::evaluate(&job.run.suite, &transcripts, &running.reading);
        let talks: Vec<Talk> = transcripts.iter().filter_map(talk).collect();
        let (predictions, not_compared) =
            match compare(&baseline, engine, &talks, self.text.as_deref(), console)? {
                Compared::Numbers(predictions) => (Some(predictions), None),
                Compared::Unlike(why) => (None, Some(why)),
            };
        console.clear();
        let before = Run { evaluation: &evaluation, transcripts: &transcripts };
        Ok(Change {
            baseline: folder_name(&self.model),
            score: scores(before, run),
            predictions,
            not_compared,
        })
    }
}

fn talk(transcript: &Transcript) -> Option<Talk<'_>> {
    Some(Talk { prompt: transcript.prompt.as_deref()?, answer: &transcript.answer.as_ref()?.text })
}

/// Tells what changed.
pub fn say(change: &Change, output: &Output) {
    let s = &change.score;
    output.text(&format!(
        "\n  beside the baseline {}: {} of {} points before, {} now ({:+}); {} of {} answers are the same text",
        Shown(&change.baseline),
        s.baseline,
        s.max,
        s.model,
        s.difference,
        s.same_text,
        s.answers
    ));
    if !s.cases.is_empty() {
        let mut rows = vec![row(["case", "before", "now", "fault now (or before)"])];
        rows.extend(s.cases.iter().map(|c| {
            let fault = c.fault.as_deref().or(c.baseline_fault.as_deref()).unwrap_or_default();
            let fault = Shown(fault).to_string();
            row([&Shown(&c.id).to_string(), &c.baseline.to_string(), &c.model.to_string(), &fault])
        }));
        output.text(&table(&rows));
    }
    let Some(p) = &change.predictions else { return };
    let mut rows = vec![row(["predictions", "positions", "same top-1", "mean KL", "p95 KL", "largest KL"])];
    rows.extend(p.prompts.map(|d| divergence("within the suite's prompts", &d)));
    rows.extend(p.answers.map(|d| divergence("at the baseline's answers", &d)));
    rows.extend(p.text.map(|t| divergence("over the text", &t.divergence)));
    output.text(&format!("\n{}", table(&rows)));
    if let Some((t, perplexity)) = p.text.and_then(|t| Some((t, t.perplexity?))) {
        output.text(&format!(
            "  perplexity of the text {:.4} before, {:.4} now ({} tokens in windows of {})",
            perplexity.baseline, perplexity.model, t.tokens, t.window
        ));
    }
    if !p.routers.is_empty() {
        let mut rows = vec![row(["layer", "same experts", "in common", "busiest", "never used", "before"])];
        rows.extend(p.routers.iter().map(routing));
        output.text(&format!("\n{}", table(&rows)));
    }
}

fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(String::from).to_vec()
}

fn divergence(name: &str, d: &Divergence) -> Vec<String> {
    let cells = [d.mean_kl, d.p95_kl, d.max_kl].map(nats);
    let agreement = percent(d.top1_agreement);
    row([name, &d.positions.to_string(), &agreement, &cells[0], &cells[1], &cells[2]])
}

fn routing(r: &LayerRouting) -> Vec<String> {
    let all: u64 = r.load.iter().sum();
    let busiest = r.load.iter().copied().enumerate().max_by_key(|(e, n)| (*n, std::cmp::Reverse(*e)));
    let busiest =
        busiest.map_or(String::new(), |(e, n)| format!("{} (expert {e})", percent(n as f64 / all as f64)));
    let unused = |experts: &[usize]| format!("{} of {}", experts.len(), r.experts);
    row([
        &r.layer.to_string(),
        &percent(r.agreement),
        &percent(r.overlap),
        &busiest,
        &unused(&r.unused),
        &unused(&r.baseline_unused),
    ])
}

fn percent(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}

/// Small divergences keep their first digits.
fn nats(x: f64) -> String {
    if x == 0.0 || x >= 1e-4 { format!("{x:.5}") } else { format!("{x:.1e}") }
}

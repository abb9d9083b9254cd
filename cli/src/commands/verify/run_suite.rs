//! Running the suite through the built-in runner and judging what came out.

use runner::{Engine, Machine, Options};
use verify::suite::compare::Run;
use verify::suite::{self, Reading};
use verify::template::{Finding, Level, Renderer};
use verify::{Result, diagnose};

use super::folder::is_misread;
use super::job::{Job, runner_sampling};
use super::outcome::{Lowest, Outcome, lowest_of};
use crate::args::Global;
use crate::console::Console;
use crate::machine::{self, Work};

/// Runs the suite; `findings` of the folder join the verdict's reasons.
pub fn run(
    job: &Job<'_>,
    template: (&Renderer, &diagnose::Taught),
    (findings, reading): (&[Finding], Reading),
    (global, console): (&Global, &Console),
) -> Result<Outcome> {
    machine::run(job.wish, console, &SuiteRun { job, template, findings, reading, global, console })
}

struct SuiteRun<'a> {
    job: &'a Job<'a>,
    template: (&'a Renderer, &'a diagnose::Taught),
    findings: &'a [Finding],
    reading: Reading,
    global: &'a Global,
    console: &'a Console,
}

impl Work for SuiteRun<'_> {
    type Out = Outcome;

    fn on<M: Machine>(&self) -> Result<Outcome> {
        let SuiteRun { job, template: (renderer, taught), findings, reading, global, console } = self;
        let suite = &job.run.suite;
        let mut engine = Engine::<M>::load(job.model, &Options { threads: Some(global.threads()) })?;
        let running = suite::Running { max_new: job.run.max_new, reading: reading.clone() };
        let lowest = lowest_of(&job.run, reading, |sampling| {
            engine.set_sampling(runner_sampling(sampling))?;
            suite::run(&mut engine, renderer, suite, &running, *console)
        })?;
        console.clear();
        let Lowest { evaluation, transcripts, sampling, stability } = lowest;
        let matrix = suite::matrix(suite, &transcripts, reading);
        let judged = (*taught, job.run.parser);
        let mut verdict = suite::judge(&evaluation, &matrix, &transcripts, judged, job.run.min_score);
        // The verdict says itself whether template and parser fit.
        verdict.reasons.extend(findings.iter().filter(|f| !is_misread(f, job, taught)).cloned());
        let baseline = job.baseline.as_ref().map(|baseline| {
            // Drawn by the same seed where tokens are drawn at all.
            let run = Run { evaluation: &evaluation, transcripts: &transcripts };
            baseline.compare((job, sampling, reading.reasoning), (&engine, run), (global, console))
        });
        let baseline = baseline.transpose()?;
        if let (Some(change), Some(of)) = (&baseline, &job.baseline) {
            verdict.reasons.extend(change.findings(&of.limits));
        }
        verdict.reasons = verdict.reasons.into_iter().map(|f| f.about(job.model)).collect();
        verdict.reasons.sort_by_key(|f| std::cmp::Reverse(f.level));
        verdict.pass = verdict.reasons.iter().all(|f| f.level < Level::Error);
        let settings = job.run.settings(reading, None);
        Ok(Outcome {
            name: job.name(),
            endpoint: None,
            suite: suite.clone(),
            settings,
            taught: Some((*taught).clone()),
            evaluation,
            matrix,
            verdict,
            transcripts,
            stability,
            baseline,
        })
    }
}

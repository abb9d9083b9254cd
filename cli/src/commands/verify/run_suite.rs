//! Running the suite through the model and judging what came out.

use runner::{Engine, Options};
use verify::suite::compare::{Change, Run};
use verify::suite::{self, Evaluation, MatrixRow, Reading, Running, Transcript, Verdict};
use verify::template::{Finding, Level, Renderer};
use verify::{Result, diagnose};

use super::folder::is_misread;
use super::job::Job;
use crate::args::Global;
use crate::console::Console;

/// What the suite came to.
pub struct Outcome {
    pub evaluation: Evaluation,
    pub matrix: Vec<MatrixRow>,
    pub verdict: Verdict,
    pub transcripts: Vec<Transcript>,
    /// What changed from the baseline, where there is one.
    pub baseline: Option<Change>,
}

/// Runs the suite; `findings` of the folder join the verdict's reasons.
pub fn run(
    job: &Job<'_>,
    (renderer, taught): (&Renderer, &diagnose::Taught),
    findings: &[Finding],
    (global, console): (&Global, &Console),
) -> Result<Outcome> {
    let mut engine = Engine::open(job.model, &Options { threads: Some(global.threads()) })?;
    let reading = Reading { reasoning: job.reasoning, ..Reading::of_folder(job.model, job.parser)? };
    let running = Running { max_new: job.max_new, reading: reading.clone() };
    let transcripts = suite::run(&mut engine, renderer, &job.suite, &running, console)?;
    console.clear();
    let evaluation = suite::evaluate(&job.suite, &transcripts, &reading);
    let matrix = suite::matrix(&job.suite, &transcripts, &reading);
    let mut verdict = suite::judge(&evaluation, &matrix, &transcripts, (taught, job.parser), job.min_score);
    // The verdict says itself whether template and parser fit.
    verdict.reasons.extend(findings.iter().filter(|f| !is_misread(f, job, taught)).cloned());
    let run = Run { evaluation: &evaluation, transcripts: &transcripts };
    let baseline =
        job.baseline.as_ref().map(|b| b.compare(job, (&engine, run), (global, console))).transpose()?;
    let limits = job.baseline.as_ref().map(|b| b.limits).unwrap_or_default();
    verdict.reasons.extend(baseline.iter().flat_map(|change| change.findings(&limits)));
    verdict.reasons.sort_by_key(|f| std::cmp::Reverse(f.level));
    verdict.pass = verdict.reasons.iter().all(|f| f.level < Level::Error);
    Ok(Outcome { evaluation, matrix, verdict, transcripts, baseline })
}

impl Outcome {
    /// The outcome as a report.
    pub fn report<'a>(&'a self, job: &'a Job<'_>, taught: &'a diagnose::Taught) -> suite::Report<'a> {
        suite::Report {
            model: job.name(),
            suite: &job.suite,
            verdict: &self.verdict,
            evaluation: &self.evaluation,
            matrix: &self.matrix,
            taught,
            stability: None,
            transcripts: &self.transcripts,
            baseline: self.baseline.as_ref(),
        }
    }
}

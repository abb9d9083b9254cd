//! What a suite came to, wherever it was run.

use verify::Result;
use verify::diagnose::Taught;
use verify::suite::compare::Change;
use verify::suite::{
    self, Evaluation, LostTo, MatrixRow, Reading, Sampling, Settings, Stability, Suite, Transcript, Verdict,
};

use super::job::Running;

/// What the suite came to. Of several runs, that with the fewest points.
pub struct Outcome {
    /// Name of the model, without any path of the machine.
    pub name: String,
    /// Address of the server; none for a folder.
    pub endpoint: Option<String>,
    pub suite: Suite,
    pub settings: Settings,
    pub taught: Option<Taught>,
    pub evaluation: Evaluation,
    pub matrix: Vec<MatrixRow>,
    pub verdict: Verdict,
    pub transcripts: Vec<Transcript>,
    /// How far several runs agree.
    pub stability: Option<Stability>,
    /// What changed from the baseline.
    pub baseline: Option<Change>,
}

impl Outcome {
    /// The outcome as a report.
    pub fn report(&self) -> suite::Report<'_> {
        suite::Report {
            model: &self.name,
            endpoint: self.endpoint.as_deref(),
            settings: &self.settings,
            suite: &self.suite,
            verdict: &self.verdict,
            evaluation: &self.evaluation,
            matrix: &self.matrix,
            taught: self.taught.as_ref(),
            stability: self.stability.as_ref(),
            transcripts: &self.transcripts,
            baseline: self.baseline.as_ref(),
        }
    }

    /// The exit code: what was lost to the network says nothing about the model.
    pub fn code(&self) -> u8 {
        let lost = |t: &Transcript| t.lost.as_ref().is_some_and(|l| l.to == LostTo::Network);
        match (self.verdict.pass, self.transcripts.iter().any(lost)) {
            (_, true) => verify::Class::Network.exit_code(),
            (pass, false) => u8::from(!pass),
        }
    }
}

/// The run with the fewest points of several.
pub struct Lowest {
    pub evaluation: Evaluation,
    pub transcripts: Vec<Transcript>,
    /// What it drew with.
    pub sampling: Sampling,
    /// How far all runs agree.
    pub stability: Option<Stability>,
}

/// Runs the suite as often as asked for, each time with the next seed: `once` gives the transcripts.
pub fn lowest_of(
    running: &Running,
    reading: &Reading,
    mut once: impl FnMut(&Sampling) -> Result<Vec<Transcript>>,
) -> Result<Lowest> {
    let (mut evaluations, mut all) = (Vec::new(), Vec::new());
    for run in 0..running.runs {
        let transcripts = once(&running.seeded(run))?;
        evaluations.push(suite::evaluate(&running.suite, &transcripts, reading));
        all.push(transcripts);
    }
    let at = evaluations.iter().enumerate().min_by_key(|(_, e)| e.points).map_or(0, |(at, _)| at);
    let stability = if evaluations.len() > 1 { suite::stability(&evaluations) } else { None };
    let (evaluation, transcripts) = (evaluations.swap_remove(at), all.swap_remove(at));
    Ok(Lowest { evaluation, transcripts, sampling: running.seeded(at), stability })
}

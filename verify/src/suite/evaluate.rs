//! Scores the transcripts of a run, under one parser or under all of them.

use std::time::Duration;

use serde::Serialize;

use super::format::{Expect, Step, Suite};
use super::reading::Reading;
use super::run::Transcript;
use super::score::{self, Score};
use crate::generate::{Answer, Finish};
use crate::parsers::{self, Parsed};

/// A whole run under one parser.
#[derive(Debug, Clone, Serialize)]
pub struct Evaluation {
    /// The parser's name.
    pub parser: &'static str,
    /// Points of the scored cases.
    pub points: u32,
    /// The most that they could be.
    pub max: u32,
    /// Scored cases with full points.
    pub perfect: usize,
    /// Calls found, controls included.
    pub calls: usize,
    /// False where refusals were not counted because not one call was found.
    pub refusals_count: bool,
    /// Points by class, in the order of the suite.
    pub classes: Vec<ClassScore>,
    /// Case by case, controls last.
    pub cases: Vec<CaseScore>,
    /// How fast the answers came.
    pub speed: Speed,
}

/// Points of one class.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClassScore {
    /// Its name.
    pub class: String,
    /// Points.
    pub points: u32,
    /// The most that they could be.
    pub max: u32,
    /// Cases with full points.
    pub perfect: usize,
    /// Cases.
    pub cases: usize,
}

/// Points of one case and what the parser found.
#[derive(Debug, Clone, Serialize)]
pub struct CaseScore {
    /// Name of the case.
    pub id: String,
    /// Its class.
    pub class: String,
    /// False for controls.
    pub scored: bool,
    /// Points and fault.
    #[serde(flatten)]
    pub score: Score,
    /// The calls found.
    pub calls: Vec<FoundCall>,
    /// Text beside the calls.
    pub content: Option<String>,
    /// The answer was cut at the limit of new tokens.
    pub cut: bool,
}

/// One call that the parser found.
#[derive(Debug, Clone, Serialize)]
pub struct FoundCall {
    /// Function name.
    pub name: String,
    /// The argument string.
    pub arguments: String,
}

/// How fast the answers came.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Speed {
    /// Mean time from the start of a prompt to its last token, in seconds.
    pub mean_secs: f64,
    /// The time that half of the answers stay under (nearest rank), in seconds.
    pub p50_secs: f64,
    /// The time that 95 of 100 answers stay under (nearest rank), in seconds.
    pub p95_secs: f64,
    /// Mean time to the first token, in seconds; of a server that is not streamed from, to the whole answer.
    pub first_token_secs: f64,
    /// New tokens per second of answer time.
    pub tokens_per_sec: f64,
}

/// Scores the transcripts of [`run`] as `reading` reads them.
pub fn evaluate(suite: &Suite, transcripts: &[Transcript], reading: &Reading) -> Evaluation {
    let steps = suite.steps();
    let mut cases: Vec<_> =
        steps.iter().zip(transcripts).map(|(step, t)| read_step(step, t, reading)).collect();
    let calls = cases.iter().map(|c| c.calls.len()).sum();
    if calls == 0 {
        close_gate(&steps, &mut cases);
    }
    let scored = || cases.iter().filter(|c| c.scored);
    Evaluation {
        parser: reading.parser.name,
        points: scored().map(|c| c.score.points).sum(),
        max: score::MAX * scored().count() as u32,
        perfect: scored().filter(|c| c.score.points == score::MAX).count(),
        calls,
        refusals_count: calls > 0,
        classes: by_class(scored()),
        speed: speed(transcripts),
        cases,
    }
}

fn read_step(step: &Step<'_>, transcript: &Transcript, reading: &Reading) -> CaseScore {
    let text = transcript.text();
    let parsed = match (&transcript.served, &transcript.answer) {
        (Some(served), _) => served.whole.parsed(),
        (None, Some(_)) => reading.read(step.case, text).parsed,
        (None, None) => Parsed::default(),
    };
    let score = match (&transcript.refused, &transcript.skipped, &transcript.answer) {
        (Some(failure), ..) => Score::less(0, format!("no prompt: {failure}")),
        (None, Some(why), _) => Score::less(0, why.clone()),
        (None, None, None) => match &transcript.lost {
            Some(lost) => Score::less(0, format!("no answer: {lost}")),
            None => Score::less(0, "no answer"),
        },
        (None, None, Some(_)) => score::score(step.expect, text, &parsed),
    };
    let calls = parsed.tool_calls.into_iter().map(|c| FoundCall { name: c.name, arguments: c.arguments });
    CaseScore {
        id: step.id.clone(),
        class: step.case.class.clone(),
        scored: step.scored,
        score,
        calls: calls.collect(),
        content: parsed.content,
        cut: transcript.answer.as_ref().is_some_and(|a| a.finish == Finish::Length),
    }
}

/// A run that never calls has shown nothing by not calling.
fn close_gate(steps: &[Step<'_>], cases: &mut [CaseScore]) {
    for (step, result) in steps.iter().zip(cases) {
        if matches!(step.expect, Expect::Refusal(_) | Expect::NoCall(_)) && result.score.points > 0 {
            result.score = Score::less(0, "does not call, but not one call was found in the whole run");
        }
    }
}

fn by_class<'a>(cases: impl Iterator<Item = &'a CaseScore>) -> Vec<ClassScore> {
    let mut classes: Vec<ClassScore> = Vec::new();
    for case in cases {
        let at = classes.iter().position(|c| c.class == case.class).unwrap_or_else(|| {
            classes.push(ClassScore { class: case.class.clone(), points: 0, max: 0, perfect: 0, cases: 0 });
            classes.len() - 1
        });
        classes[at].points += case.score.points;
        classes[at].max += score::MAX;
        classes[at].perfect += usize::from(case.score.points == score::MAX);
        classes[at].cases += 1;
    }
    classes
}

fn speed(transcripts: &[Transcript]) -> Speed {
    let answers: Vec<&Answer> = transcripts.iter().filter_map(|t| t.answer.as_ref()).collect();
    if answers.is_empty() {
        return Speed::default();
    }
    let mut times: Vec<Duration> = answers.iter().map(|a| a.latency).collect();
    times.sort_unstable();
    let mean = |sum: f64| sum / answers.len() as f64;
    let total: f64 = times.iter().map(Duration::as_secs_f64).sum();
    let tokens: usize = answers.iter().map(|a| a.tokens).sum();
    let percentile = |percent: usize| times[(times.len() * percent).div_ceil(100) - 1].as_secs_f64();
    Speed {
        mean_secs: mean(total),
        p50_secs: percentile(50),
        p95_secs: percentile(95),
        first_token_secs: mean(answers.iter().map(|a| a.first_token.as_secs_f64()).sum()),
        tokens_per_sec: if total > 0.0 { tokens as f64 / total } else { 0.0 },
    }
}

/// The score of the same outputs under one parser.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MatrixRow {
    /// The parser's name.
    pub parser: &'static str,
    /// Points.
    pub points: u32,
    /// Scored cases with full points.
    pub perfect: usize,
    /// Calls found.
    pub calls: usize,
}

/// The same outputs under every parser, best first, equal ones in the parsers' order.
pub fn matrix(suite: &Suite, transcripts: &[Transcript], reading: &Reading) -> Vec<MatrixRow> {
    let mut rows: Vec<_> = parsers::all()
        .iter()
        .map(|parser| {
            let e = evaluate(suite, transcripts, &Reading { parser, ..reading.clone() });
            MatrixRow { parser: e.parser, points: e.points, perfect: e.perfect, calls: e.calls }
        })
        .collect();
    rows.sort_by_key(|r| std::cmp::Reverse(r.points));
    rows
}

/// How far several runs of one suite agree.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Stability {
    /// Runs.
    pub runs: usize,
    /// Lowest points of a run.
    pub min: u32,
    /// Highest points of a run.
    pub max: u32,
    /// Mean points.
    pub mean: f64,
    /// Cases whose points differ between runs.
    pub unstable: Vec<String>,
}

/// Compares the runs of one suite; `None` without any.
pub fn stability(runs: &[Evaluation]) -> Option<Stability> {
    let points = || runs.iter().map(|r| r.points);
    let (min, max, first) = (points().min()?, points().max()?, runs.first()?);
    let differs = |at: usize| {
        let of = |r: &Evaluation| r.cases.get(at).map(|c| c.score.points);
        runs.iter().any(|r| of(r) != of(first))
    };
    let cases = first.cases.iter().enumerate();
    let unstable = cases.filter(|(at, _)| differs(*at)).map(|(_, c)| c.id.clone()).collect();
    let mean = f64::from(points().sum::<u32>()) / runs.len() as f64;
    Some(Stability { runs: runs.len(), min, max, mean, unstable })
}

//! What became of the points: in all, by class, and case by case.

use serde::Serialize;

use crate::suite::evaluate::{CaseScore, ClassScore, Evaluation};
use crate::suite::run::Transcript;

/// The points of a model beside those of its baseline.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ScoreChange {
    /// Points of the baseline.
    pub baseline: u32,
    /// Points of the model.
    pub model: u32,
    /// The most that either could reach.
    pub max: u32,
    /// The model's points less the baseline's.
    pub difference: i64,
    /// Class by class.
    pub classes: Vec<ClassChange>,
    /// The turns whose points differ.
    pub cases: Vec<CaseChange>,
    /// Turns that both answered.
    pub answers: usize,
    /// Turns that both answered with the same text.
    pub same_text: usize,
}

/// The points of one class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ClassChange {
    /// Its name.
    pub class: String,
    /// Points of the baseline.
    pub baseline: u32,
    /// Points of the model.
    pub model: u32,
    /// The most that either could reach.
    pub max: u32,
}

/// A turn that gained or lost points.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CaseChange {
    /// Name of the case, with the turn behind it from the second on.
    pub id: String,
    /// Its class.
    pub class: String,
    /// Points of the baseline.
    pub baseline: u32,
    /// Points of the model.
    pub model: u32,
    /// What was wrong with the baseline's answer.
    pub baseline_fault: Option<String>,
    /// What is wrong with the model's answer.
    pub fault: Option<String>,
}

/// One run of the suite.
#[derive(Clone, Copy)]
pub struct Run<'a> {
    /// Its scores.
    pub evaluation: &'a Evaluation,
    /// What was asked and answered.
    pub transcripts: &'a [Transcript],
}

/// Compares two runs of one suite.
pub fn scores(baseline: Run<'_>, model: Run<'_>) -> ScoreChange {
    let (before, after) = (baseline.evaluation, model.evaluation);
    let cases =
        before.cases.iter().zip(&after.cases).filter(|(b, a)| b.scored && b.score.points != a.score.points);
    let answers = || {
        let texts = baseline.transcripts.iter().zip(model.transcripts);
        texts.filter_map(|(b, a)| Some((&b.answer.as_ref()?.text, &a.answer.as_ref()?.text)))
    };
    ScoreChange {
        baseline: before.points,
        model: after.points,
        max: after.max,
        difference: i64::from(after.points) - i64::from(before.points),
        classes: before.classes.iter().zip(&after.classes).map(class).collect(),
        cases: cases.map(case).collect(),
        answers: answers().count(),
        same_text: answers().filter(|(b, a)| b == a).count(),
    }
}

fn class((before, after): (&ClassScore, &ClassScore)) -> ClassChange {
    ClassChange { class: after.class.clone(), baseline: before.points, model: after.points, max: after.max }
}

fn case((before, after): (&CaseScore, &CaseScore)) -> CaseChange {
    CaseChange {
        id: after.id.clone(),
        class: after.class.clone(),
        baseline: before.score.points,
        model: after.score.points,
        baseline_fault: before.score.fault.clone(),
        fault: after.score.fault.clone(),
    }
}

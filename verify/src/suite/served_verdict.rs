//! Pass or fail of a server: its score, and whether its calls are those of its own text, streamed or not.

use super::evaluate::{Evaluation, MatrixRow};
use super::exchange::{Check, Exchange, read_raw, same_calls};
use super::format::{Step, Suite};
use super::reading::Reading;
use super::run::Transcript;
use super::server::{Lost, LostTo};
use super::verdict::{Verdict, below, better_parser};
use crate::diagnose::{self, Format, Written};
use crate::generate::Finish;
use crate::parsers;
use crate::template::{Finding, Level};

/// Judges a run against a server that `reading` says how it was started: fails below `min_score`, without a single
/// call, for every answer that did not come, and where calls are not those of the raw text or not those of the
/// streamed answer.
pub fn judge_served(
    suite: &Suite,
    evaluation: &Evaluation,
    matrix: &[MatrixRow],
    (transcripts, reading): (&[Transcript], &Reading),
    min_score: Option<u32>,
) -> Verdict {
    let answers = transcripts.iter().filter_map(|t| t.answer.as_ref());
    let written = Written::of(answers.map(|a| (a.text.as_str(), a.finish == Finish::Length)));
    let run = Run { steps: suite.steps(), transcripts, reading };
    let mut reasons = Vec::new();
    reasons.extend(run.lost());
    reasons.extend(below(evaluation, min_score));
    reasons.extend(no_call(evaluation, &written));
    if run.has_raw() {
        reasons.extend(diagnose::wrong_parser(reading.parser, &written));
    }
    reasons.extend(run.other_calls());
    reasons.extend(run.streamed_otherwise());
    reasons.extend(better_parser(evaluation, matrix));
    reasons.extend(run.not_comparable());
    reasons.extend(run.another_prompt());
    reasons.extend(run.thinking_as_content());
    reasons.extend(cut(&written));
    reasons.sort_by_key(|r| std::cmp::Reverse(r.level));
    Verdict { pass: reasons.iter().all(|r| r.level < Level::Error), reasons, written }
}

fn no_call(evaluation: &Evaluation, written: &Written) -> Option<Finding> {
    if evaluation.calls > 0 {
        return None;
    }
    let advice = match written.format.and_then(|f: &Format| Some((f.title, *f.parsers.first()?))) {
        Some((title, parser)) => format!(
            "the model writes {title}: start vLLM with --enable-auto-tool-choice --tool-call-parser {parser}"
        ),
        None => "start the server with a tool-call parser (vLLM: --enable-auto-tool-choice --tool-call-parser NAME), \
                 and see what it answers: add --report verify.html"
            .into(),
    };
    Some(Finding::new(Level::Error, "the server returned not one call in the whole run", advice))
}

fn cut(written: &Written) -> Option<Finding> {
    (written.cut * 4 > written.answers).then(|| {
        Finding::new(
            Level::Warning,
            format!("{} of {} answers were cut at the limit of new tokens", written.cut, written.answers),
            "raise --max-new, or check the model's stop tokens",
        )
    })
}

/// A run and what is needed to look at its answers again.
struct Run<'a> {
    steps: Vec<Step<'a>>,
    transcripts: &'a [Transcript],
    reading: &'a Reading,
}

impl<'a> Run<'a> {
    fn exchanges(&self) -> impl Iterator<Item = (&'a Transcript, &'a Exchange, &Step<'a>)> {
        let pairs = self.transcripts.iter().zip(&self.steps);
        pairs.filter_map(|(t, step)| Some((t, t.served.as_deref()?, step)))
    }

    fn has_raw(&self) -> bool {
        self.exchanges().any(|(_, e, _)| e.raw.is_some())
    }

    fn lost(&self) -> Option<Finding> {
        let lost: Vec<(&str, &Lost)> =
            self.transcripts.iter().filter_map(|t| Some((t.id.as_str(), t.lost.as_ref()?))).collect();
        let (id, first) = lost.first()?;
        let advice = match first.to {
            LostTo::Network => "see that the server is up and reachable, then run again",
            LostTo::Server => "see the server's own log for these requests",
        };
        let answers = if lost.len() == 1 { "1 answer".into() } else { format!("{} answers", lost.len()) };
        Some(Finding::new(Level::Error, format!("{answers} did not come, first `{id}`: {first}"), advice))
    }

    /// Calls that are not those of the raw text; named with the parser that would give them, if one does.
    fn other_calls(&self) -> Option<Finding> {
        let compared =
            self.exchanges().filter(|(_, e, _)| matches!(e.parser_check, Check::Same | Check::Differs));
        let compared = compared.count();
        let differing: Vec<_> =
            self.exchanges().filter(|(_, e, _)| e.parser_check == Check::Differs).collect();
        let (first, ..) = differing.first()?;
        let explains = |parser: &&'static parsers::Parser| {
            differing.iter().all(|(_, e, step)| {
                let reading = Reading { parser, ..self.reading.clone() };
                let read = e.raw().map(|raw| read_raw(&raw, step.case, &reading).tool_calls);
                read.is_some_and(|calls| same_calls(&calls, &e.whole.tool_calls))
            })
        };
        let name = self.reading.parser.name;
        let silent = differing.iter().all(|(_, e, _)| e.whole.tool_calls.is_empty());
        let advice = match parsers::all().iter().find(explains) {
            _ if silent => format!(
                "the server returned no calls there: start it with --enable-auto-tool-choice --tool-call-parser {name}"
            ),
            Some(other) => format!(
                "the server answers as parser `{}` would: start it with --tool-call-parser {name}, or verify with \
                 --parser {}",
                other.name, other.name
            ),
            None => format!(
                "see that the server runs with --tool-call-parser {name}, and compare its version with vLLM 0.33"
            ),
        };
        let what = format!(
            "the server's calls are not what `{name}` finds in its text in {} of {compared} answers, first `{}`",
            differing.len(),
            first.id
        );
        Some(Finding::new(Level::Error, what, advice))
    }

    fn streamed_otherwise(&self) -> Option<Finding> {
        let compared = self.exchanges().filter(|(_, e, _)| e.streamed.is_some()).count();
        let mut lost = self.exchanges().filter_map(|(t, e, _)| match &e.stream_check {
            Check::Lost(lost) => Some((t, lost)),
            _ => None,
        });
        if let Some((t, first)) = lost.next() {
            let answers = match lost.count() {
                0 => "1 streamed answer".into(),
                more => format!("{} streamed answers", more + 1),
            };
            let what = format!("{answers} did not come, first `{}`: {first}", t.id);
            return Some(Finding::new(
                Level::Error,
                what,
                "see the server's own log; --no-stream leaves streaming out",
            ));
        }
        let differing: Vec<_> =
            self.exchanges().filter(|(_, e, _)| e.stream_check == Check::Differs).collect();
        let (first, ..) = differing.first()?;
        Some(Finding::new(
            Level::Error,
            format!(
                "streamed calls are not those of the whole answer in {} of {compared} answers, first `{}`",
                differing.len(),
                first.id
            ),
            "do not stream with this parser, or use another version of the server; --no-stream leaves the check out",
        ))
    }

    fn not_comparable(&self) -> Vec<Finding> {
        let count = |wanted: fn(&Exchange) -> bool| self.exchanges().filter(|(_, e, _)| wanted(e)).count();
        let all = count(|_| true);
        let mut notes = Vec::new();
        let unsteady =
            count(|e| e.parser_check == Check::Unrepeatable || e.stream_check == Check::Unrepeatable);
        if unsteady > 0 {
            notes.push(Finding::new(
                Level::Note,
                format!(
                    "{unsteady} of {all} answers could not be compared: the server does not repeat itself"
                ),
                "with --temperature 0 and --concurrency 1 more servers do",
            ));
        }
        let mute = count(|e| e.parser_check == Check::NotMade);
        if !self.reading.parser.is_read() {
            notes.push(Finding::new(
                Level::Note,
                format!("prep does not read what `{}` reads: the server's own calls were scored, and nothing else", self.reading.parser.name),
                "see that the server runs with the parser that its model's makers name",
            ));
        } else if mute > 0 {
            notes.push(Finding::new(
                Level::Note,
                format!("the server gave no raw text for {mute} of {all} answers: its parser was not checked there"),
                "vLLM 0.33 and SGLang tell the token ids; for other servers give the served folder with --folder DIR",
            ));
        }
        let lost = self.exchanges().find_map(|(t, e, _)| match &e.parser_check {
            Check::Lost(lost) => Some((t, lost)),
            _ => None,
        });
        if let Some((t, lost)) = lost {
            notes.push(Finding::new(
                Level::Warning,
                format!("the raw text of `{}` and perhaps others did not come: {lost}", t.id),
                "see the server's own log",
            ));
        }
        notes
    }

    fn another_prompt(&self) -> Option<Finding> {
        let other = |e: &Exchange| {
            let (there, here) = (e.whole.prompt_tokens?, e.own_prompt_tokens?);
            (there != here).then_some((there, here))
        };
        let (id, there, here) =
            self.exchanges().find_map(|(t, e, _)| other(e).map(|(a, b)| (&t.id, a, b)))?;
        Some(Finding::new(
            Level::Warning,
            format!("the server's prompt for `{id}` has {there} tokens, the folder's template gives {here}"),
            "the server does not use this folder's chat template: see its --chat-template, or what it serves",
        ))
    }

    fn thinking_as_content(&self) -> Option<Finding> {
        let marks = ["<think>", "</think>"];
        let thinks = |e: &Exchange| {
            e.whole.content.as_deref().is_some_and(|content| marks.iter().any(|m| content.contains(m)))
        };
        let (first, ..) = self.exchanges().find(|(_, e, _)| thinks(e))?;
        Some(Finding::new(
            Level::Warning,
            format!("the server returns the model's thinking as content, first in `{}`", first.id),
            "start it with --reasoning-parser NAME",
        ))
    }
}

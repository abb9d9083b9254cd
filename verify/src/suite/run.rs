//! Runs a suite once through a model, and scores the same outputs under any parser.

use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use super::format::{Case, Expect, Suite};
use super::score::{self, Score};
use crate::checkpoint::json;
use crate::error::Result;
use crate::generate::{Answer, Finish, Generate, Prompt};
use crate::parsers::{self, Context, Parsed, Parser, ReasoningParser};
use crate::progress::Progress;
use crate::template::{Failure, Renderer, Request};

/// New tokens where nothing else is asked for: calls are short, and the limit ends a model that never stops.
pub const MAX_NEW: usize = 256;

/// What one case came to, before any parser.
#[derive(Debug, Clone, Serialize)]
pub struct Transcript {
    /// Name of the case.
    pub id: String,
    /// The prompt, where the template gave one.
    pub prompt: Option<String>,
    /// Why it gave none.
    pub refused: Option<Failure>,
    /// The answer.
    pub answer: Option<Answer>,
}

impl Transcript {
    /// What the model wrote; empty without an answer.
    pub fn text(&self) -> &str {
        self.answer.as_ref().map_or("", |a| &a.text)
    }
}

/// Renders and runs every case and control, `max_new` tokens at most each.
///
/// # Errors
/// Those of the model; a case that the template refuses is no error but scores nothing.
pub fn run(
    generate: &mut dyn Generate,
    renderer: &Renderer,
    suite: &Suite,
    max_new: usize,
    progress: &dyn Progress,
) -> Result<Vec<Transcript>> {
    let rendered: Vec<_> = suite.all().map(|case| renderer.render(&request(case))).collect();
    let prompts: Vec<_> =
        rendered.iter().flatten().map(|text| Prompt { text: text.clone(), max_new }).collect();
    let mut answers = generate.generate(&prompts, progress)?.into_iter();
    let transcripts = suite.all().zip(rendered).map(|(case, rendered)| match rendered {
        Ok(prompt) => {
            Transcript { id: case.id.clone(), prompt: Some(prompt), refused: None, answer: answers.next() }
        }
        Err(failure) => {
            Transcript { id: case.id.clone(), prompt: None, refused: Some(failure), answer: None }
        }
    });
    Ok(transcripts.collect())
}

fn request(case: &Case) -> Request {
    Request { kwargs: case.chat_template_kwargs.clone(), ..Request::new(&case.messages, &case.tools) }
}

/// How the texts are read.
#[derive(Clone)]
pub struct Reading {
    /// The tool-call parser.
    pub parser: &'static Parser,
    /// The reasoning parser that cuts the text first.
    pub reasoning: Option<&'static ReasoningParser>,
    /// Tokens that the tokenizer flags special.
    pub special_tokens: Vec<String>,
}

impl Reading {
    /// With `parser` alone.
    pub fn new(parser: &'static Parser) -> Self {
        Reading { parser, reasoning: None, special_tokens: Vec::new() }
    }

    fn read(&self, case: &Case, text: &str) -> Parsed {
        let context = Context {
            tools: case.tools.clone(),
            special_tokens: self.special_tokens.clone(),
            template_kwargs: case.chat_template_kwargs.clone(),
            after_reasoning: self.reasoning.is_some(),
            ..Context::default()
        };
        match self.reasoning {
            Some(reasoning) => {
                let content = reasoning.split(text, &context).1.unwrap_or_default();
                self.parser.parse(&content, &context)
            }
            None => self.parser.parse(text, &context),
        }
    }
}

/// Texts of the tokens that a folder's tokenizer flags special, sorted.
///
/// # Errors
/// Exit 3 where a tokenizer file is there and cannot be read.
pub fn special_texts(dir: &Path) -> Result<Vec<String>> {
    let mut texts = Vec::new();
    let mut add = |token: &Value| {
        if token["special"] == true
            && let Some(text) = token["content"].as_str()
        {
            texts.push(text.to_string());
        }
    };
    let (config, tokenizer) = (dir.join("tokenizer_config.json"), dir.join("tokenizer.json"));
    if config.exists() {
        let value = json::read(&config)?;
        value["added_tokens_decoder"].as_object().into_iter().flat_map(|m| m.values()).for_each(&mut add);
    }
    if tokenizer.exists() {
        let value = json::parse(&json::read_text(&tokenizer, json::MAX_TOKENIZER)?, &tokenizer)?;
        value["added_tokens"].as_array().into_iter().flatten().for_each(&mut add);
    }
    texts.sort();
    texts.dedup();
    Ok(texts)
}

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
    /// The time that 95 of 100 answers stay under (nearest rank), in seconds.
    pub p95_secs: f64,
    /// Mean time to the first token, in seconds.
    pub first_token_secs: f64,
    /// New tokens per second of answer time.
    pub tokens_per_sec: f64,
}

/// Scores the transcripts of [`run`] as `reading` reads them.
pub fn evaluate(suite: &Suite, transcripts: &[Transcript], reading: &Reading) -> Evaluation {
    let mut cases: Vec<_> = suite
        .all()
        .zip(transcripts)
        .enumerate()
        .map(|(at, (case, transcript))| read_case(case, transcript, reading, at < suite.cases.len()))
        .collect();
    let calls = cases.iter().map(|c| c.calls.len()).sum();
    if calls == 0 {
        close_gate(suite, &mut cases);
    }
    let scored = || cases.iter().filter(|c| c.scored);
    Evaluation {
        parser: reading.parser.name,
        points: scored().map(|c| c.score.points).sum(),
        max: score::MAX * suite.cases.len() as u32,
        perfect: scored().filter(|c| c.score.points == score::MAX).count(),
        calls,
        refusals_count: calls > 0,
        classes: by_class(scored()),
        speed: speed(transcripts),
        cases,
    }
}

fn read_case(case: &Case, transcript: &Transcript, reading: &Reading, scored: bool) -> CaseScore {
    let text = transcript.text();
    let parsed = reading.read(case, text);
    let score = match (&transcript.refused, &transcript.answer) {
        (Some(failure), _) => Score::less(0, format!("no prompt: {failure}")),
        (None, None) => Score::less(0, "no answer"),
        (None, Some(_)) => score::score(case, text, &parsed),
    };
    CaseScore {
        id: case.id.clone(),
        class: case.class.clone(),
        scored,
        score,
        calls: parsed
            .tool_calls
            .into_iter()
            .map(|c| FoundCall { name: c.name, arguments: c.arguments })
            .collect(),
        content: parsed.content,
        cut: transcript.answer.as_ref().is_some_and(|a| a.finish == Finish::Length),
    }
}

/// A run that never calls has shown nothing by not calling.
fn close_gate(suite: &Suite, cases: &mut [CaseScore]) {
    for (case, result) in suite.all().zip(cases) {
        if matches!(case.expect, Expect::Refusal(_)) && result.score.points > 0 {
            result.score = Score::less(0, "refuses, but not one call was found in the whole run");
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
    let rank = (times.len() * 95).div_ceil(100);
    Speed {
        mean_secs: mean(total),
        p95_secs: times[rank - 1].as_secs_f64(),
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

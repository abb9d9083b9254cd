//! Runs a suite against a server: every first turn, then the follow-ups of the cases that called.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::evaluate::{MatrixRow, matrix};
use super::exchange::{Exchange, exchange};
use super::format::{Case, Suite};
use super::reading::Reading;
use super::run::{Talk, Transcript};
use super::server::{Ask, Lost, LostTo, RawSource, Server};
use crate::error::Result;
use crate::generate::{Answer, Finish};
use crate::progress::Progress;

/// After so many answers in a row that the network lost, the rest is not asked for.
const GIVE_UP: usize = 3;

/// How a server is asked.
pub struct Asking {
    /// Ask for each answer streamed too.
    pub stream: bool,
    /// Answers asked for at once.
    pub concurrency: usize,
    /// Reads the raw texts.
    pub reading: Reading,
}

/// Asks for every turn of every case and control; transcripts come in the order of [`Suite::steps`]. An answer that
/// does not come costs its own case alone.
///
/// # Errors
/// Where the user stopped it.
pub fn run_served(
    server: &dyn Server,
    suite: &Suite,
    asking: &Asking,
    progress: &dyn Progress,
) -> Result<Vec<Transcript>> {
    let mut talks: Vec<_> = suite.all().map(Talk::new).collect();
    let turns = suite.all().map(|c| 1 + c.then.len()).max().unwrap_or(0);
    for turn in 0..turns {
        let mut asks = Vec::new();
        for (at, talk) in talks.iter_mut().enumerate().filter(|(_, t)| turn <= t.case.then.len()) {
            let before = talk.turns.last().and_then(|t| t.served.as_ref()).map(|served| served.read());
            let transcript = talk.begin(turn, before);
            if transcript.skipped.is_none() {
                asks.push((at, talk.case, ask(talk)));
            }
            talk.turns.push(transcript);
        }
        if asks.is_empty() {
            continue;
        }
        progress.begin_steps("requests", asks.len() as u64);
        let answers = all(server, &asks, asking, progress);
        progress.check()?;
        for ((at, ..), answer) in asks.iter().zip(answers) {
            if let Some(last) = talks[*at].turns.last_mut() {
                put(last, answer);
            }
        }
    }
    Ok(talks.into_iter().flat_map(|t| t.turns).collect())
}

fn ask(talk: &Talk<'_>) -> Ask {
    Ask {
        messages: talk.messages.clone(),
        tools: talk.case.tools.clone(),
        kwargs: talk.case.chat_template_kwargs.clone(),
    }
}

/// The answers in the order of `asks`, several at once.
fn all(
    server: &dyn Server,
    asks: &[(usize, &Case, Ask)],
    asking: &Asking,
    progress: &dyn Progress,
) -> Vec<Result<Exchange, Lost>> {
    let (next, silent) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let answers: Vec<Mutex<Option<Result<Exchange, Lost>>>> = asks.iter().map(|_| Mutex::new(None)).collect();
    let work = || {
        while !progress.stopped() {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some((_, case, ask)) = asks.get(at) else { return };
            let answer = match silent.load(Ordering::Relaxed) {
                n if n >= GIVE_UP => Err(Lost::network("not asked: the server had stopped answering")),
                _ => exchange(server, (case, ask), &asking.reading, asking.stream),
            };
            match &answer {
                Err(Lost { to: LostTo::Network, .. }) => silent.fetch_add(1, Ordering::Relaxed),
                _ => silent.swap(0, Ordering::Relaxed),
            };
            *answers[at].lock().unwrap_or_else(|p| p.into_inner()) = Some(answer);
            progress.advance(1);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..asking.concurrency.min(asks.len()) {
            scope.spawn(work);
        }
        work();
    });
    let taken = |slot: Mutex<Option<_>>| slot.into_inner().unwrap_or_else(|p| p.into_inner());
    answers.into_iter().map(|slot| taken(slot).unwrap_or_else(|| Err(Lost::network("not asked")))).collect()
}

fn put(transcript: &mut Transcript, answer: Result<Exchange, Lost>) {
    match answer {
        Err(lost) => transcript.lost = Some(lost),
        Ok(exchange) => {
            // A client that streams sees these times; the other answer only shows that both are equal.
            let timed = exchange.streamed.as_ref().unwrap_or(&exchange.whole);
            let text = exchange.raw_text.clone().or(exchange.whole.content.clone()).unwrap_or_default();
            transcript.answer = Some(Answer {
                text,
                prompt_tokens: exchange.whole.prompt_tokens.unwrap_or(0),
                tokens: timed.tokens.unwrap_or(0),
                finish: if exchange.whole.is_cut() { Finish::Length } else { Finish::Stop },
                first_token: timed.first_token.unwrap_or(timed.latency),
                latency: timed.latency,
            });
            transcript.served = Some(Box::new(exchange));
        }
    }
}

/// The raw texts under every parser; empty where the server did not tell all of them.
pub fn served_matrix(suite: &Suite, transcripts: &[Transcript], reading: &Reading) -> Vec<MatrixRow> {
    let exchanges = || transcripts.iter().filter_map(|t| t.served.as_ref());
    if exchanges().next().is_none() || exchanges().any(|e| e.raw.is_none()) {
        return Vec::new();
    }
    let cut = exchanges().all(|e| e.raw == Some(RawSource::ToolChoiceNone));
    let reading = Reading { reasoning: reading.reasoning.filter(|_| !cut), ..reading.clone() };
    let bare = |t: &Transcript| Transcript { served: None, ..t.clone() };
    matrix(suite, &transcripts.iter().map(bare).collect::<Vec<_>>(), &reading)
}

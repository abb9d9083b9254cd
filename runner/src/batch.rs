//! Runs requests together: each step feeds one token of every running answer and a piece of every prompt taken in.
//!
//! ```text
//!   waiting ──room?──▶ running ──step──▶ done
//!      ▲                  │ at a branch
//!      └── prefix ◀───────┘
//! ```
//!
//! A prompt that begins as an earlier one does waits until that has read the shared part, and goes on from there.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use verify::Result;
use verify::generate::Finish;

use crate::backend::Backend;
use crate::decoder::{Part, Sequence, Want};
use crate::engine::{Completion, PIECE, Request, Stop, Tell};
use crate::model::Model;
use crate::sampling::{Sampler, Sampling};
use crate::shared::{Branch, branches};

/// Tokens of a step at which no further prompt is taken in.
const STEP: usize = 512;

/// Requests on their way.
pub struct Batch<'a, B: Backend> {
    model: &'a Model<B>,
    sampling: Sampling,
    /// Bytes of keys, values and state for everything that runs or is kept.
    memory: u64,
    /// In the order of the requests.
    waiting: Vec<Waiting<'a>>,
    running: Vec<Running<'a, B>>,
    /// What waiting prompts branch from.
    prefixes: HashMap<Branch, Prefix<B>>,
}

#[derive(Clone, Copy)]
struct Waiting<'a> {
    number: usize,
    request: &'a Request,
    branch: Option<Branch>,
}

/// A shared beginning that was read.
struct Prefix<B: Backend> {
    sequence: Sequence<B>,
    /// How long reading took.
    spent: Duration,
}

/// An answer on its way.
struct Running<'a, B: Backend> {
    number: usize,
    request: &'a Request,
    sequence: Sequence<B>,
    /// Tokens read by another prompt.
    shared: usize,
    /// Tokens after which others branch off.
    cuts: BTreeSet<usize>,
    sampler: Sampler,
    new: Vec<u32>,
    room: usize,
    since: Instant,
    first_token: Duration,
}

impl<'a, B: Backend> Batch<'a, B> {
    /// Nothing runs yet.
    pub fn new(model: &'a Model<B>, sampling: Sampling, memory: u64, requests: &'a [Request]) -> Self {
        // What needs no new token is never read, so that nothing can branch from it.
        let prompts = requests.iter().map(|r| if r.max_new == 0 { &[][..] } else { &r.tokens });
        let of = |(number, (request, branch))| Waiting { number, request, branch };
        let waiting =
            requests.iter().zip(branches(prompts, model.decoder().grain())).enumerate().map(of).collect();
        Batch { model, sampling, memory, waiting, running: Vec::new(), prefixes: HashMap::new() }
    }

    /// True when every request is answered.
    pub fn is_done(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Takes in what there is room for, feeds one step and returns the answers that it ended, by number.
    ///
    /// # Errors
    /// The backend's, and those of `tell`.
    pub fn step(&mut self, tell: &mut Tell<'_>) -> Result<Vec<(usize, Completion)>> {
        self.admit()?;
        feed(self.model, &mut self.running, tell)?;
        self.keep_prefixes()?;
        let mut done = Vec::new();
        let stop = self.model.stop_tokens();
        self.running.retain_mut(|r| match r.finished(stop) {
            None => true,
            Some(finish) => {
                done.push((r.number, r.completion(finish)));
                false
            }
        });
        Ok(done)
    }

    fn admit(&mut self) -> Result<()> {
        let mut at = 0;
        while at < self.waiting.len() {
            let next = self.waiting[at];
            if next.branch.is_some_and(|b| !self.prefixes.contains_key(&b)) {
                at += 1;
                continue;
            }
            let load: usize = self.running.iter().map(|r| r.next_tokens().len()).sum();
            let fits = self.taken().saturating_add(cost(self.model, next.request)) <= self.memory;
            if !self.running.is_empty() && (load >= STEP || !fits) {
                break;
            }
            if !fits {
                self.forget_prefixes();
            }
            let Waiting { number, request, branch } = self.waiting.remove(at);
            let prefix = match branch {
                Some(branch) => self.prefix(branch)?,
                None => None,
            };
            self.start(number, request, prefix)?;
        }
        Ok(())
    }

    /// A sequence after the shared tokens, and how long they took. The last that branches takes what the others copied.
    fn prefix(&mut self, branch: Branch) -> Result<Option<Prefix<B>>> {
        if self.waiting.iter().all(|w| w.branch != Some(branch)) {
            return Ok(self.prefixes.remove(&branch));
        }
        let Some(kept) = self.prefixes.get(&branch) else { return Ok(None) };
        Ok(Some(Prefix { sequence: self.model.branch(&kept.sequence)?, spent: kept.spent }))
    }

    fn start(&mut self, number: usize, request: &'a Request, prefix: Option<Prefix<B>>) -> Result<()> {
        let now = Instant::now();
        let (sequence, since) = match prefix {
            Some(p) => (p.sequence, now.checked_sub(p.spent).unwrap_or(now)),
            None => (self.model.sequence()?, now),
        };
        let cuts = self.waiting.iter().filter_map(|w| w.branch).filter(|b| b.from == number).map(|b| b.at);
        self.running.push(Running {
            number,
            request,
            shared: sequence.len(),
            sequence,
            cuts: cuts.collect(),
            sampler: Sampler::new(self.sampling, &request.tokens),
            new: Vec::new(),
            room: request.max_new.min(self.model.context() - request.tokens.len()),
            since,
            first_token: Duration::ZERO,
        });
        Ok(())
    }

    /// Keeps a copy where others branch off; without room for it they read the shared part themselves.
    fn keep_prefixes(&mut self) -> Result<()> {
        let mut taken = self.taken();
        for r in &mut self.running {
            let branch = Branch { from: r.number, at: r.sequence.len() };
            if !r.cuts.remove(&branch.at) {
                continue;
            }
            let needed = bytes(self.model, branch.at);
            if taken.saturating_add(needed) <= self.memory {
                taken += needed;
                let prefix = Prefix { sequence: self.model.branch(&r.sequence)?, spent: r.since.elapsed() };
                self.prefixes.insert(branch, prefix);
            } else {
                unbranch(&mut self.waiting, branch);
            }
        }
        Ok(())
    }

    fn forget_prefixes(&mut self) {
        for branch in std::mem::take(&mut self.prefixes).into_keys() {
            unbranch(&mut self.waiting, branch);
        }
    }

    /// Bytes that everything running can grow to, and of what is kept.
    fn taken(&self) -> u64 {
        let running = self.running.iter().map(|r| cost(self.model, r.request));
        let kept = self.prefixes.keys().map(|b| bytes(self.model, b.at));
        running.chain(kept).fold(0, u64::saturating_add)
    }
}

/// Where the piece from `fed` on ends. Also after a branch pieces end at multiples of [`PIECE`]: whether a last token is
/// fed alone, and so rounds as one does, must not depend on who else is there.
fn piece_end(fed: usize, len: usize, cuts: &BTreeSet<usize>) -> usize {
    let end = len.min((fed / PIECE + 1) * PIECE);
    cuts.range(fed + 1..).next().map_or(end, |cut| end.min(*cut))
}

fn unbranch(waiting: &mut [Waiting], branch: Branch) {
    waiting.iter_mut().filter(|w| w.branch == Some(branch)).for_each(|w| w.branch = None);
}

/// Bytes that an answer can grow to.
fn cost<B: Backend>(model: &Model<B>, request: &Request) -> u64 {
    bytes(model, request.tokens.len().saturating_add(request.max_new).min(model.context()))
}

/// Bytes of a sequence of so many tokens.
fn bytes<B: Backend>(model: &Model<B>, tokens: usize) -> u64 {
    let needs = model.needs();
    let tokens = tokens.checked_next_multiple_of(B::CACHE_STEP).unwrap_or(usize::MAX);
    needs.each_sequence.saturating_add(needs.each_token.saturating_mul(tokens as u64))
}

fn feed<B: Backend>(model: &Model<B>, running: &mut [Running<B>], tell: &mut Tell<'_>) -> Result<()> {
    let pieces: Vec<Vec<u32>> = running.iter().map(|r| r.next_tokens().to_vec()).collect();
    let alone = |n: usize| !B::MIXES && pieces[n].len() == 1;
    for singles in [false, true] {
        let chosen = running.iter_mut().enumerate().filter(|(n, r)| r.room > 0 && alone(*n) == singles);
        let mut chosen: Vec<(&mut Running<B>, &[u32])> = chosen.map(|(n, r)| (r, &pieces[n][..])).collect();
        if !chosen.is_empty() {
            feed_together(model, &mut chosen, tell)?;
        }
    }
    Ok(())
}

fn feed_together<B: Backend>(
    model: &Model<B>,
    running: &mut [(&mut Running<B>, &[u32])],
    tell: &mut Tell<'_>,
) -> Result<()> {
    let wants: Vec<bool> = running.iter().map(|(r, _)| r.wants_logits()).collect();
    let mut samplers = Vec::new();
    let mut parts = Vec::with_capacity(running.len());
    for ((r, tokens), wants) in running.iter_mut().zip(&wants) {
        let Running { sequence, sampler, .. } = &mut **r;
        parts.push(Part { sequence, tokens, want: if *wants { Want::Last } else { Want::Nothing } });
        samplers.extend(wants.then_some(sampler));
    }
    let tokens = model.next_tokens(&mut parts, &mut samplers)?;
    let wanting = running.iter_mut().zip(wants).filter_map(|((r, _), wants)| wants.then_some(r));
    for (r, token) in wanting.zip(tokens) {
        r.new.push(token);
        tell(r.number, token)?;
        if r.new.len() == 1 {
            r.first_token = r.since.elapsed();
        }
    }
    Ok(())
}

impl<B: Backend> Running<'_, B> {
    fn next_tokens(&self) -> &[u32] {
        let (fed, prompt) = (self.sequence.len(), &self.request.tokens);
        if fed >= prompt.len() {
            return &self.new[self.new.len() - 1..];
        }
        &prompt[fed..piece_end(fed, prompt.len(), &self.cuts)]
    }

    fn wants_logits(&self) -> bool {
        self.sequence.len() + self.next_tokens().len() >= self.request.tokens.len()
    }

    fn finished(&self, stop: &[u32]) -> Option<Finish> {
        let stopped = self.request.stop == Stop::Model && self.new.last().is_some_and(|t| stop.contains(t));
        match stopped {
            true => Some(Finish::Stop),
            false => (self.new.len() >= self.room).then_some(Finish::Length),
        }
    }

    fn completion(&mut self, finish: Finish) -> Completion {
        Completion {
            tokens: std::mem::take(&mut self.new),
            shared: self.shared,
            finish,
            first_token: self.first_token,
            latency: self.since.elapsed(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_end_where_they_would_without_branches() {
        let ends = |from: usize, len: usize, cuts: &[usize]| {
            let cuts = cuts.iter().copied().collect();
            let mut ends = vec![from];
            while ends[ends.len() - 1] < len {
                ends.push(piece_end(ends[ends.len() - 1], len, &cuts));
            }
            ends
        };
        assert_eq!(ends(0, 513, &[]), [0, 256, 512, 513]);
        assert_eq!(ends(64, 513, &[]), [64, 256, 512, 513]);
        assert_eq!(ends(0, 513, &[64, 256, 448]), [0, 64, 256, 448, 512, 513]);
    }
}

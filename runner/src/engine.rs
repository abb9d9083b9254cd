//! Many prompts at once: each step feeds one token of every running answer and a piece of every waiting prompt.

use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

use verify::generate::{Answer, Finish, Generate, Prompt};
use verify::progress::Progress;
use verify::{Error, Result};

use crate::backend::Backend;
use crate::cpu::Cpu;
use crate::decoder::{Part, Sequence, Want};
use crate::model::{Model, Options};
use crate::sampling::{Sampler, Sampling};
use crate::tokenizer::Tokenizer;

/// Tokens of a prompt fed in one step. Pieces of every prompt end at the same positions, whoever else is running: the
/// chunks of a DeltaNet layer, hence its rounding, depend on them. A multiple of those chunks.
pub const PIECE: usize = 256;
/// Tokens of a step at which no further prompt is taken in.
const STEP: usize = 512;

/// A model with its tokenizer, answering prompts.
pub struct Engine<B: Backend = Cpu> {
    model: Model<B>,
    tokenizer: Tokenizer,
    sampling: Sampling,
    memory: u64,
}

/// A prompt in token ids.
#[derive(Debug, Clone)]
pub struct Request {
    /// The ids, at least one.
    pub tokens: Vec<u32>,
    /// At most so many new tokens.
    pub max_new: usize,
    /// What ends the answer before.
    pub stop: Stop,
}

/// Which tokens end an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// The model's own.
    Model,
    /// None: always `max_new` tokens.
    Never,
}

/// The answer to a [`Request`].
#[derive(Debug, Clone)]
pub struct Completion {
    /// New tokens, the stop token included.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub finish: Finish,
    /// From the start of this prompt's work to its first token.
    pub first_token: Duration,
    /// From the start of this prompt's work to its last token.
    pub latency: Duration,
}

impl Engine<Cpu> {
    /// Opens the folder `dir` on the CPU.
    ///
    /// # Errors
    /// Exit 3 where model or tokenizer cannot be used.
    pub fn open(dir: &Path, options: &Options) -> Result<Self> {
        let tokenizer = Tokenizer::open(dir)?;
        Ok(Engine::new(Model::open(dir, options)?, tokenizer))
    }
}

impl<B: Backend> Engine<B> {
    /// Greedy, with 4 GiB for keys, values and state.
    pub fn new(model: Model<B>, tokenizer: Tokenizer) -> Self {
        Engine { model, tokenizer, sampling: Sampling::default(), memory: 4 << 30 }
    }

    /// Chooses tokens another way.
    ///
    /// # Errors
    /// Exit 2 for settings that make no sense.
    pub fn with_sampling(self, sampling: Sampling) -> Result<Self> {
        sampling.check()?;
        Ok(Engine { sampling, ..self })
    }

    /// Runs as many prompts at once as fit into `bytes` of keys, values and state; at least one.
    pub fn with_memory(self, bytes: u64) -> Self {
        Engine { memory: bytes, ..self }
    }

    /// The model.
    pub fn model(&self) -> &Model<B> {
        &self.model
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Answers in the order of the requests. An answer depends on its own request alone, to the last bit.
    ///
    /// # Errors
    /// Exit 3 where a prompt is empty or does not fit the context; and the backend's errors.
    pub fn complete(&self, requests: &[Request], progress: &dyn Progress) -> Result<Vec<Completion>> {
        self.complete_telling(requests, progress, &mut |_, _| Ok(()))
    }

    /// As [`Self::complete`]; `tell` is given the number of the request and each new token as it comes.
    ///
    /// # Errors
    /// As there, and what `tell` returns.
    pub fn complete_telling(
        &self,
        requests: &[Request],
        progress: &dyn Progress,
        tell: &mut Tell<'_>,
    ) -> Result<Vec<Completion>> {
        complete(&self.model, (self.sampling, self.memory), requests, progress, tell)
    }
}

impl<B: Backend> Generate for Engine<B> {
    fn generate(&mut self, prompts: &[Prompt], progress: &dyn Progress) -> Result<Vec<Answer>> {
        let request = |p: &Prompt| {
            let tokens = self.tokenizer.encode(&p.text)?;
            Ok(Request { tokens, max_new: p.max_new, stop: Stop::Model })
        };
        let requests: Vec<Request> = prompts.iter().map(request).collect::<Result<_>>()?;
        let completions = self.complete(&requests, progress)?;
        let answer = |(r, c): (&Request, Completion)| {
            let text = match c.finish {
                Finish::Stop => &c.tokens[..c.tokens.len() - 1],
                Finish::Length => &c.tokens[..],
            };
            Ok(Answer {
                text: self.tokenizer.decode(text)?,
                prompt_tokens: r.tokens.len(),
                tokens: c.tokens.len(),
                finish: c.finish,
                first_token: c.first_token,
                latency: c.latency,
            })
        };
        requests.iter().zip(completions).map(answer).collect()
    }
}

/// An answer on its way.
struct Running<'a, B: Backend> {
    number: usize,
    request: &'a Request,
    sequence: Sequence<B>,
    sampler: Sampler,
    new: Vec<u32>,
    room: usize,
    since: Instant,
    first_token: Duration,
}

/// Takes the number of a request and its next token.
pub type Tell<'a> = dyn FnMut(usize, u32) -> Result<()> + 'a;

/// [`Engine::complete_telling`] without a tokenizer.
///
/// # Errors
/// As there.
pub fn complete<B: Backend>(
    model: &Model<B>,
    (sampling, memory): (Sampling, u64),
    requests: &[Request],
    progress: &dyn Progress,
    tell: &mut Tell<'_>,
) -> Result<Vec<Completion>> {
    requests.iter().enumerate().try_for_each(|(n, r)| check(n, r, model.context()))?;
    progress.begin("prompts", requests.len() as u64);
    let mut done: Vec<Option<Completion>> = requests.iter().map(|_| None).collect();
    let mut waiting: VecDeque<(usize, &Request)> = requests.iter().enumerate().collect();
    let mut running: Vec<Running<B>> = Vec::new();
    while !(waiting.is_empty() && running.is_empty()) {
        progress.check()?;
        while let Some((number, request)) = waiting.front().copied() {
            let load: usize = running.iter().map(|r| r.next_tokens().len()).sum();
            let taken: u64 = running.iter().map(|r| cost(model, r.request)).sum();
            if !running.is_empty() && (load >= STEP || taken + cost(model, request) > memory) {
                break;
            }
            waiting.pop_front();
            let room = request.max_new.min(model.context() - request.tokens.len());
            running.push(Running {
                number,
                request,
                sequence: model.sequence()?,
                sampler: Sampler::new(sampling, &request.tokens),
                new: Vec::new(),
                room,
                since: Instant::now(),
                first_token: Duration::ZERO,
            });
        }
        step(model, &mut running, tell)?;
        running.retain_mut(|r| match r.finished(model.stop_tokens()) {
            None => true,
            Some(finish) => {
                let tokens = std::mem::take(&mut r.new);
                let latency = r.since.elapsed();
                done[r.number] = Some(Completion { tokens, finish, first_token: r.first_token, latency });
                progress.advance(1);
                false
            }
        });
    }
    Ok(done.into_iter().flatten().collect())
}

fn check(number: usize, request: &Request, context: usize) -> Result<()> {
    let wrong = |what: &str| Error::input(format!("prompt {number} {what}"));
    match request.tokens.len() {
        0 => Err(wrong("is empty").expected("at least one token")),
        n if n >= context => Err(wrong("does not fit the model's context")
            .found(format!("{n} tokens"))
            .expected(format!("fewer than {context} (`max_position_embeddings`)"))
            .hint("shorten the prompt, or offer fewer tools")),
        _ => Ok(()),
    }
}

/// Bytes that an answer can grow to.
fn cost<B: Backend>(model: &Model<B>, request: &Request) -> u64 {
    let needs = model.needs();
    let tokens = request.tokens.len().saturating_add(request.max_new).min(model.context());
    needs.each_sequence + needs.each_token * tokens as u64
}

fn step<B: Backend>(model: &Model<B>, running: &mut [Running<B>], tell: &mut Tell<'_>) -> Result<()> {
    let wants: Vec<bool> = running.iter().map(Running::wants_logits).collect();
    let pieces: Vec<Vec<u32>> = running.iter().map(|r| r.next_tokens().to_vec()).collect();
    let parts = running.iter_mut().zip(&pieces).zip(&wants).filter(|((r, _), _)| r.room > 0);
    let mut parts: Vec<Part<B>> = parts
        .map(|((r, tokens), wants)| Part {
            sequence: &mut r.sequence,
            tokens,
            want: if *wants { Want::Last } else { Want::Nothing },
        })
        .collect();
    if parts.is_empty() {
        return Ok(());
    }
    let logits = model.forward(&mut parts)?;
    let mut rows = logits.chunks_exact(model.vocab());
    for (r, wants) in running.iter_mut().zip(wants).filter(|(r, _)| r.room > 0) {
        if let Some(row) = wants.then(|| rows.next()).flatten() {
            let token = r.sampler.next(row);
            r.new.push(token);
            tell(r.number, token)?;
            if r.new.len() == 1 {
                r.first_token = r.since.elapsed();
            }
        }
    }
    Ok(())
}

impl<B: Backend> Running<'_, B> {
    fn next_tokens(&self) -> &[u32] {
        let (fed, prompt) = (self.sequence.len(), &self.request.tokens);
        match fed < prompt.len() {
            true => &prompt[fed..prompt.len().min(fed + PIECE)],
            false => &self.new[self.new.len() - 1..],
        }
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
}

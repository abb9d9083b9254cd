//! Answers to many prompts at once.

use std::path::Path;
use std::time::Duration;

use verify::generate::{Answer, Finish, Generate, Prompt};
use verify::progress::Progress;
use verify::{Class, Error, Result};

use crate::backend::{Backend, CHUNK};
use crate::batch::Batch;
use crate::cpu::Cpu;
use crate::model::{Model, Options};
use crate::sampling::Sampling;
use crate::tokenizer::Tokenizer;

/// Tokens of a prompt fed in one step. Pieces of every prompt end at the same positions, whoever else is running: the
/// chunks of a DeltaNet layer, hence its rounding, depend on them.
pub const PIECE: usize = 4 * CHUNK;

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
    /// Tokens of the prompt that were read once for it and an earlier prompt which begins alike.
    pub shared: usize,
    /// Why it ended.
    pub finish: Finish,
    /// From the start of this prompt's work, the shared part of it included, to its first token.
    pub first_token: Duration,
    /// From the same start to its last token.
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
    pub fn with_sampling(mut self, sampling: Sampling) -> Result<Self> {
        self.set_sampling(sampling)?;
        Ok(self)
    }

    /// The same for an engine that is in use.
    ///
    /// # Errors
    /// As [`Self::with_sampling`].
    pub fn set_sampling(&mut self, sampling: Sampling) -> Result<()> {
        sampling.check()?;
        self.sampling = sampling;
        Ok(())
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

    /// Answers in the order of the requests. An answer depends on its own request alone, to the last bit; what prompts
    /// have in common at their beginning is read once.
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
    progress.begin_steps("prompts", requests.len() as u64);
    let mut work = Work { done: requests.iter().map(|_| None).collect(), told: vec![0; requests.len()] };
    match work.go_on(model, (sampling, memory), requests, progress, tell) {
        // What else runs on the machine may have taken what was free: half as many at once, and that is all.
        Err(e) if e.class() == Class::GpuMemory => {
            progress.warn(&format!("{}; once more with half as much at once", e.what()));
            work.go_on(model, (sampling, memory / 2), requests, progress, tell)?;
        }
        ended => ended?,
    }
    Ok(work.done.into_iter().flatten().collect())
}

/// What is answered, and how far others have come.
struct Work {
    done: Vec<Option<Completion>>,
    /// Tokens of each request that were told.
    told: Vec<usize>,
}

impl Work {
    /// Answers what is not answered yet.
    fn go_on<B: Backend>(
        &mut self,
        model: &Model<B>,
        (sampling, memory): (Sampling, u64),
        requests: &[Request],
        progress: &dyn Progress,
        tell: &mut Tell<'_>,
    ) -> Result<()> {
        let open: Vec<usize> = (0..requests.len()).filter(|n| self.done[*n].is_none()).collect();
        let rest: Vec<Request> = open.iter().map(|n| requests[*n].clone()).collect();
        let mut batch = Batch::new(model, sampling, memory, &rest);
        let mut come = vec![0; rest.len()];
        while !batch.is_done() {
            progress.check()?;
            let completions = batch.step(&mut |at, token| {
                come[at] += 1;
                let told = &mut self.told[open[at]];
                if come[at] <= *told {
                    return Ok(());
                }
                *told = come[at];
                tell(open[at], token)
            })?;
            for (at, completion) in completions {
                self.done[open[at]] = Some(completion);
                progress.advance(1);
            }
        }
        Ok(())
    }
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

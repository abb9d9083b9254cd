//! A model folder, ready to run.

use std::path::Path;
use std::sync::Arc;

use verify::checkpoint::Config;
use verify::{Checkpoint, Class, Error, Result};

use crate::backend::Backend;
use crate::cpu::Cpu;
use crate::decoder::{Decoder, Mixer, Part, Sequence};
use crate::families;
use crate::sampling::Sampler;
use crate::stop::stop_tokens;
use crate::weights::Invented;

/// How to run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Threads; all cores where not said. Results do not depend on it.
    pub threads: Option<usize>,
}

/// Memory that running takes, from metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    /// All tensors of the checkpoint. On the CPU they are mapped, not copied.
    pub weights: u64,
    /// Keys and values of one token of one sequence.
    pub each_token: u64,
    /// Recurrent state of one sequence, whatever its length.
    pub each_sequence: u64,
}

/// A model on a backend.
pub struct Model<B: Backend> {
    backend: B,
    decoder: Decoder<B>,
    stop: Vec<u32>,
    weights: u64,
    pool: rayon::ThreadPool,
}

impl Model<Cpu> {
    /// Opens the folder `dir` on the CPU. Reads metadata and small tensors; the weights are mapped.
    ///
    /// # Errors
    /// Exit 3 where the folder is no sound checkpoint or holds a model that cannot be run.
    pub fn open(dir: &Path, options: &Options) -> Result<Self> {
        Model::on(Cpu::default(), &Checkpoint::open(dir)?, options)
    }
}

impl<B: Backend> Model<B> {
    /// Puts `checkpoint` on `backend`.
    ///
    /// # Errors
    /// Exit 3 where the checkpoint holds a model that cannot be run; and the backend's errors.
    pub fn on(backend: B, checkpoint: &Checkpoint, options: &Options) -> Result<Self> {
        let map = Arc::new(checkpoint.map()?);
        let decoder = families::blueprint(&map, checkpoint.config(), &backend)?.decoder()?;
        let stop = stop_tokens(checkpoint.dir(), checkpoint.config())?;
        Ok(Model { backend, decoder, stop, weights: map.index().total_bytes(), pool: pool(options)? })
    }

    /// A model of this config whose weights are made up.
    ///
    /// # Errors
    /// As [`Self::on`].
    pub fn invented(backend: B, config: &Config, made: &Invented, options: &Options) -> Result<Self> {
        let decoder = families::invented(made, config, &backend)?.decoder()?;
        let of = made.made();
        let weights = of.experts + of.others + of.table;
        Ok(Model { backend, decoder, stop: Vec::new(), weights, pool: pool(options)? })
    }

    /// Token ids are below this.
    pub fn vocab(&self) -> usize {
        self.decoder.vocab
    }

    /// Positions the model was made for.
    pub fn context(&self) -> usize {
        self.decoder.context
    }

    /// Tokens that end an answer, sorted.
    pub fn stop_tokens(&self) -> &[u32] {
        &self.stop
    }

    /// The parts, for working layer by layer.
    pub fn decoder(&self) -> &Decoder<B> {
        &self.decoder
    }

    /// The machine.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// Memory for running.
    pub fn needs(&self) -> Needs {
        let (mut token, mut sequence) = (0, 0);
        for layer in &self.decoder.layers {
            match &layer.mixer {
                Mixer::Attention(a) => token += 2 * a.heads.pairs * a.heads.dim,
                Mixer::Delta(d) => {
                    let r = &d.rule;
                    sequence += r.value_heads * r.key_dim * r.value_dim + (r.taps - 1) * r.channels();
                }
            }
        }
        Needs { weights: self.weights, each_token: 4 * token as u64, each_sequence: 4 * sequence as u64 }
    }

    /// A sequence without tokens.
    ///
    /// # Errors
    /// The backend's.
    pub fn sequence(&self) -> Result<Sequence<B>> {
        self.decoder.sequence(&self.backend)
    }

    /// A second sequence that begins as `sequence` does so far.
    ///
    /// # Errors
    /// The backend's.
    pub fn branch(&self, sequence: &Sequence<B>) -> Result<Sequence<B>> {
        self.decoder.branch(&self.backend, sequence)
    }

    /// Feeds the parts; the wanted logits `[wanted rows, vocab]`, part by part.
    ///
    /// # Errors
    /// As [`Decoder::forward`].
    pub fn forward(&self, parts: &mut [Part<B>]) -> Result<Vec<f32>> {
        self.install(|| self.backend.to_host(&self.backend.forward(&self.decoder, parts)?))
    }

    /// Feeds the parts; the token after each wanted position, in the order of `samplers`.
    ///
    /// # Errors
    /// As [`Decoder::forward`].
    pub fn next_tokens(&self, parts: &mut [Part<B>], samplers: &mut [&mut Sampler]) -> Result<Vec<u32>> {
        self.install(|| {
            let logits = self.backend.forward(&self.decoder, parts)?;
            let Some(how) = samplers.first().map(|s| s.how()) else { return Ok(Vec::new()) };
            let mut states: Vec<u64> = samplers.iter().map(|s| s.state()).collect();
            if let Some(tokens) = self.backend.choose(&logits, how, &mut states)? {
                samplers.iter_mut().zip(states).for_each(|(s, state)| s.move_to(state));
                return Ok(tokens);
            }
            let logits = self.backend.to_host(&logits)?;
            let rows = logits.chunks_exact(self.vocab());
            Ok(samplers.iter_mut().zip(rows).map(|(s, row)| s.next(row)).collect())
        })
    }

    /// Runs `work` on this model's threads.
    pub fn install<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        self.pool.install(work)
    }
}

fn pool(options: &Options) -> Result<rayon::ThreadPool> {
    rayon::ThreadPoolBuilder::new()
        .num_threads(options.threads.unwrap_or(0))
        .build()
        .map_err(|e| Error::new(Class::Disk, "cannot start threads").found(e.to_string()))
}

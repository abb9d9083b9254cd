//! The walk through the layers.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use runner::Cpu;
use runner::backend::{Backend, Span};
use runner::blocks::Rope;
use runner::cpu::{Array, Watch};
use runner::decoder::{Layer, Memory, Step};
use runner::families;
use runner::weights::ReadStore;
use verify::checkpoint::{Config, TensorReader};
use verify::progress::Progress;
use verify::{Class, Error, Result};

use super::hidden::MEMORY_LIMIT;
use super::{Hidden, Record, Records};

/// Tokens that go through a layer at once, where samples are not longer than this.
const BATCH: usize = 1024;

/// What is walked through, and where.
pub struct Task<'a> {
    /// The model.
    pub input: &'a dyn TensorReader,
    /// Its config.
    pub config: &'a Config,
    /// Samples as token ids, none empty.
    pub samples: &'a [Vec<u32>],
    /// Where records are kept.
    pub folder: &'a Path,
    /// Who computes.
    pub cpu: Cpu,
    /// Worker threads.
    pub threads: usize,
    /// Whom to tell.
    pub progress: &'a dyn Progress,
}

/// What is looked for in every layer.
pub trait Visitor: Send {
    /// Looks at a layer, and moves `visit.hidden` on to what enters the next one.
    ///
    /// # Errors
    /// Where nothing can be found.
    fn visit(&mut self, visit: &mut Visit) -> Result<Record>;

    /// Moves the hidden states on as [`Self::visit`] did when it made the record of this layer.
    ///
    /// # Errors
    /// As the machine's.
    fn pass(&mut self, visit: &mut Visit, records: &Records) -> Result<()>;
}

/// One layer with all samples before it.
pub struct Visit<'a> {
    /// Which layer.
    pub number: usize,
    /// Its weights.
    pub layer: Layer<Cpu>,
    /// The machine.
    pub cpu: Cpu,
    /// `[tokens, hidden]` on the way into the layer, or into its second half.
    pub hidden: &'a mut Hidden,
    /// Samples, as ranges of rows of `hidden`.
    pub samples: &'a [Range<usize>],
    /// The model's tensors.
    pub input: &'a dyn TensorReader,
    /// Asked to stop now and then.
    pub progress: &'a dyn Progress,
    rope: Rope,
}

/// Walks through all layers that have no record yet and returns the records of all.
///
/// # Errors
/// Exit 3 where the model cannot be run, 5 for disk trouble, 130 when stopped.
pub fn walk(task: &Task<'_>, visitor: &mut dyn Visitor) -> Result<Records> {
    std::fs::create_dir_all(task.folder).map_err(|e| Error::io("create", task.folder, &e))?;
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(task.threads)
        .build()
        .map_err(|e| Error::new(Class::Disk, "cannot start threads").found(e.to_string()))?;
    pool.install(|| in_pool(task, visitor))
}

fn in_pool(task: &Task<'_>, visitor: &mut dyn Visitor) -> Result<Records> {
    let (store, cpu) = (ReadStore::new(task.input), task.cpu.clone());
    let model = families::blueprint(&store, task.config, &cpu)?;
    let mut records = Records::open(task.folder, model.layers())?;
    if records.len() == model.layers() {
        return Ok(records);
    }
    let samples = ranges(task.samples);
    // Bytes of weights, as everything else is counted in.
    let bytes = task.input.index().total_bytes() / model.layers().max(1) as u64;
    task.progress.begin("calibrating", bytes * model.layers() as u64);
    let mut hidden = embedded(task, &model.embedding()?, &cpu)?;
    for number in 0..model.layers() {
        task.progress.check()?;
        let mut visit = Visit {
            number,
            layer: model.layer(number)?,
            cpu: cpu.clone(),
            hidden: &mut hidden,
            samples: &samples,
            input: task.input,
            progress: task.progress,
            rope: model.rope(),
        };
        if number < records.len() {
            visitor.pass(&mut visit, &records)?;
        } else {
            visitor.visit(&mut visit)?.write(task.folder, number)?;
            records.add(task.folder)?;
        }
        task.progress.advance(bytes);
    }
    Ok(records)
}

fn ranges(samples: &[Vec<u32>]) -> Vec<Range<usize>> {
    let mut at = 0;
    let mut range = |s: &Vec<u32>| {
        at += s.len();
        at - s.len()..at
    };
    samples.iter().map(&mut range).collect()
}

fn embedded(task: &Task<'_>, table: &runner::weights::Matrix, cpu: &Cpu) -> Result<Hidden> {
    let total = task.samples.iter().map(Vec::len).sum();
    if let Some(bad) = task.samples.iter().flatten().find(|t| **t as usize >= table.rows) {
        return Err(Error::input("a token of the calibration data is not in the vocabulary")
            .found(bad.to_string())
            .expected(format!("ids below {}", table.rows))
            .hint("the tokens were made with another tokenizer"));
    }
    let mut hidden = Hidden::new(total, table.cols, task.folder, MEMORY_LIMIT)?;
    let mut at = 0;
    for sample in task.samples {
        hidden.write(at, &cpu.embed(table, sample)?)?;
        at += sample.len();
    }
    Ok(hidden)
}

impl Visit<'_> {
    /// Samples in batches, each a range of [`Self::samples`].
    pub fn batches(&self) -> Vec<Range<usize>> {
        let mut batches: Vec<Range<usize>> = Vec::new();
        let mut tokens = 0;
        for (n, sample) in self.samples.iter().enumerate() {
            match batches.last_mut() {
                Some(last) if tokens + sample.len() <= BATCH => {
                    last.end = n + 1;
                    tokens += sample.len();
                }
                _ => {
                    batches.push(n..n + 1);
                    tokens = sample.len();
                }
            }
        }
        batches
    }

    /// Rows of the hidden states of consecutive samples.
    pub fn rows(&self, samples: &Range<usize>) -> Range<usize> {
        self.samples[samples.start].start..self.samples[samples.end - 1].end
    }

    /// What the mixer makes of the samples `spans` in `x`, normalised; with `watch` seeing what it computes on.
    ///
    /// # Errors
    /// The machine's.
    pub fn mixed(&self, x: &Array, spans: &[Span], watch: Option<Arc<dyn Watch>>) -> Result<Array> {
        let cpu = self.watched(watch);
        let step = Step::new(&self.rope, &cpu, spans)?;
        let mut memories: Vec<Memory<Cpu>> =
            spans.iter().map(|_| self.layer.memory(&cpu)).collect::<Result<_>>()?;
        self.layer.mixer.forward(&step, x, memories.iter_mut().collect())
    }

    /// The samples of a batch as the machine wants to know them.
    pub fn spans(&self, samples: &Range<usize>) -> Vec<Span> {
        self.samples[samples.clone()].iter().map(|r| Span { start: 0, len: r.len() }).collect()
    }

    /// Moves all samples through the first half of the layer.
    ///
    /// # Errors
    /// The machine's, and exit 130 when stopped.
    pub fn mix(&mut self, watch: Option<Arc<dyn Watch>>) -> Result<()> {
        self.mix_some(&self.batches(), watch)
    }

    /// Moves the samples of some [`Self::batches`] through the first half of the layer.
    ///
    /// # Errors
    /// As [`Self::mix`].
    pub fn mix_some(&mut self, batches: &[Range<usize>], watch: Option<Arc<dyn Watch>>) -> Result<()> {
        for batch in batches {
            self.progress.check()?;
            let rows = self.rows(batch);
            let mut h = self.hidden.read(rows.clone())?;
            let x = self.cpu.norm(&h, &self.layer.norm_in)?;
            let y = self.mixed(&x, &self.spans(batch), watch.clone())?;
            self.cpu.add(&mut h, &y)?;
            self.hidden.write(rows.start, &h)?;
        }
        Ok(())
    }

    /// Moves all samples through the second half of the layer.
    ///
    /// # Errors
    /// As [`Self::mix`].
    pub fn feed(&mut self, watch: Option<Arc<dyn Watch>>) -> Result<()> {
        self.feed_some(&self.batches(), watch)
    }

    /// Moves the samples of some [`Self::batches`] through the second half of the layer.
    ///
    /// # Errors
    /// As [`Self::mix`].
    pub fn feed_some(&mut self, batches: &[Range<usize>], watch: Option<Arc<dyn Watch>>) -> Result<()> {
        let cpu = self.watched(watch);
        for batch in batches {
            self.progress.check()?;
            let rows = self.rows(batch);
            let mut h = self.hidden.read(rows.clone())?;
            let x = cpu.norm(&h, &self.layer.norm_post)?;
            cpu.add(&mut h, &self.layer.mlp.forward(&cpu, &x)?)?;
            self.hidden.write(rows.start, &h)?;
        }
        Ok(())
    }

    fn watched(&self, watch: Option<Arc<dyn Watch>>) -> Cpu {
        match watch {
            None => self.cpu.clone(),
            Some(watch) => self.cpu.clone().watched(watch),
        }
    }
}

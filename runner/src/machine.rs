//! Machines that can be opened: this processor, and GPUs.

use std::path::Path;
use std::time::Instant;

use rayon::prelude::*;
use verify::checkpoint::TensorReader;
use verify::{Checkpoint, Class, Error, Result, TensorIndex};

use crate::backend::Backend;
use crate::cpu::Cpu;
use crate::cuda::{self, Cuda, measure};
use crate::engine::Engine;
use crate::model::{Model, Options};
use crate::tokenizer::Tokenizer;

/// A backend that is there when it is asked for.
pub trait Machine: Backend {
    /// Opens it; of several the first that can be used.
    ///
    /// # Errors
    /// Exit 6 where it is missing.
    fn open() -> Result<Self>;

    /// Whether `weights` bytes of weights fit, before any is brought.
    ///
    /// # Errors
    /// Exit 6 with the need and the have.
    fn check_room(&self, weights: u64) -> Result<()>;

    /// What to ask for to have it.
    const WISH: Wish;

    /// Whether it reads weights from where the host has them.
    const READS_HOST: bool;

    /// Bytes that it reads and writes in a second when it copies its own memory.
    ///
    /// # Errors
    /// The machine's. (So for the next.)
    fn copy_rate(&self) -> Result<f64>;

    /// Bytes that come to it from the host in a second; none where they need not come.
    fn upload_rate(&self) -> Result<Option<f64>>;

    /// Bytes for keys, values and state, once the weights are there.
    ///
    /// # Errors
    /// The machine's.
    fn room_for_sequences(&self) -> Result<u64>;
}

impl Machine for Cpu {
    fn open() -> Result<Self> {
        Ok(Cpu::default())
    }

    /// Weights are mapped, not copied: they always fit.
    fn check_room(&self, _: u64) -> Result<()> {
        Ok(())
    }

    const WISH: Wish = Wish::Cpu;
    const READS_HOST: bool = true;

    fn copy_rate(&self) -> Result<f64> {
        let (from, mut to) = (vec![1u8; COPIED], vec![0u8; COPIED]);
        let mut copy = || {
            let began = Instant::now();
            to.par_chunks_mut(1 << 20)
                .zip(from.par_chunks(1 << 20))
                .for_each(|(to, from)| to.copy_from_slice(from));
            began.elapsed().as_secs_f64()
        };
        copy();
        let best = (0..4).map(|_| copy()).fold(f64::MAX, f64::min);
        Ok(2.0 * COPIED as f64 / best.max(1e-9))
    }

    fn upload_rate(&self) -> Result<Option<f64>> {
        Ok(None)
    }

    fn room_for_sequences(&self) -> Result<u64> {
        Ok(4 << 30)
    }
}

/// Bytes that the processor copies to measure itself: more than its caches hold.
const COPIED: usize = 256 << 20;

/// Of the memory that the weights leave free, what sequences may be planned with: caches grow by doubling, and a step
/// needs room for its activations.
const SHARE: u64 = 3;
/// Bytes that a step of a small model works in, and the driver keeps for itself.
const WORK: u64 = 256 << 20;

impl Machine for Cuda {
    fn open() -> Result<Self> {
        Cuda::open(first_usable(cuda::gpus()?)?.ordinal)
    }

    fn check_room(&self, weights: u64) -> Result<()> {
        let (free, all) = self.device().context().memory()?;
        let needed = weights.saturating_add(WORK);
        if needed <= free {
            return Ok(());
        }
        let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
        Err(Error::new(Class::GpuMemory, "the model does not fit the GPU's memory")
            .found(format!("{:.2} GiB free of {:.2} GiB", gib(free), gib(all)))
            .expected(format!("{:.2} GiB for its weights and a step's work", gib(needed)))
            .hint("quantize it first, end other programs on this GPU, or run with `--device cpu`"))
    }

    const WISH: Wish = Wish::Cuda;
    const READS_HOST: bool = false;

    fn copy_rate(&self) -> Result<f64> {
        measure::copy_rate(self.device())
    }

    fn upload_rate(&self) -> Result<Option<f64>> {
        measure::upload_rate(self.device()).map(Some)
    }

    fn room_for_sequences(&self) -> Result<u64> {
        Ok(self.device().context().memory()?.0 / SHARE)
    }
}

/// Bytes of the tensors that the runner loads: not those of a vision tower or of multi-token prediction.
pub fn loaded_bytes(index: &TensorIndex) -> u64 {
    let loaded = |name: &str| !name.starts_with("mtp.") && !name.contains("visual.");
    let tensors = index.tensors().iter().filter(|t| loaded(&t.spec.name));
    tensors.map(|t| t.spec.byte_len()).fold(0, u64::saturating_add)
}

impl<M: Machine> Model<M> {
    /// Opens the folder `dir` on a machine of this kind.
    ///
    /// # Errors
    /// Exit 3 where the folder is no sound checkpoint or holds a model that cannot be run; exit 6 where the machine is
    /// missing or too small.
    pub fn load(dir: &Path, options: &Options) -> Result<Self> {
        let checkpoint = Checkpoint::open(dir)?;
        let machine = M::open()?;
        machine.check_room(loaded_bytes(checkpoint.index()))?;
        Model::on(machine, &checkpoint, options)
    }
}

impl<M: Machine> Engine<M> {
    /// Opens the folder `dir` on a machine of this kind.
    ///
    /// # Errors
    /// As [`Model::load`], and exit 3 where the tokenizer cannot be used.
    pub fn load(dir: &Path, options: &Options) -> Result<Self> {
        let tokenizer = Tokenizer::open(dir)?;
        let model = Model::<M>::load(dir, options)?;
        let memory = model.backend().room_for_sequences()?;
        Ok(Engine::new(model, tokenizer).with_memory(memory))
    }
}

/// Where to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// On the processor.
    Cpu,
    /// On this GPU.
    Cuda(Box<cuda::Gpu>),
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Cpu => f.write_str("CPU"),
            Place::Cuda(gpu) => f.write_str(&gpu.name),
        }
    }
}

/// The kernels are for this compute capability and later ones.
const OLDEST: (i32, i32) = (8, 0);

/// The first GPU that has what the kernels need.
///
/// # Errors
/// Exit 6 where none has.
pub fn first_usable(gpus: Vec<cuda::Gpu>) -> Result<cuda::Gpu> {
    let names: Vec<String> =
        gpus.iter().map(|g| format!("{} (sm_{}{})", g.name, g.capability.0, g.capability.1)).collect();
    gpus.into_iter().find(|g| g.capability >= OLDEST).ok_or_else(|| {
        Error::new(Class::Gpu, "no GPU is new enough")
            .found(names.join(", "))
            .expected("sm_80 or later: Ampere, Ada, Hopper, Blackwell")
            .hint("run with `--device cpu`")
    })
}

/// What a user asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Wish {
    /// A GPU where there is one that can be used.
    #[default]
    Auto,
    /// The processor.
    Cpu,
    /// A GPU.
    Cuda,
}

impl Wish {
    /// What it comes to on this machine.
    ///
    /// # Errors
    /// Exit 6 where a GPU was asked for and there is none that can be used.
    pub fn place(self) -> Result<Place> {
        let first = || cuda::gpus().and_then(first_usable).map(|gpu| Place::Cuda(Box::new(gpu)));
        match self {
            Wish::Cpu => Ok(Place::Cpu),
            Wish::Cuda => first(),
            Wish::Auto => Ok(first().unwrap_or(Place::Cpu)),
        }
    }
}

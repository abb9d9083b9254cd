//! The CUDA backend: f32 activations, weights as they are stored.
//!
//! A row's result does not depend on the other rows of a step: steps of single tokens go through kernels that work on
//! one row, longer ones through tiles whose sums have a fixed order, and the two are never mixed ([`Backend::MIXES`]).

mod attention;
mod choose;
mod delta;
mod experts;
mod linear;
mod replay;
mod weights;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use verify::Result;

use super::device::{Device, Input};
use super::driver::{At, Memory};
use super::launches::{Add, Clamp, Columns, Embed, Fp8Kept, Gate, RmsNorm, Rope, Rows, Swiglu};
use super::pool::Buffer;
use super::staging::Staging;
use crate::backend::{Backend, DeltaInputs, DeltaRule, Heads, Linear, Norm, Routing, Span};
use crate::cpu::Isa;
use crate::decoder::{Decoder, Part};
use crate::sampling::Sampling;
use crate::weights::Matrix;

pub use attention::Kv;
pub use delta::DeltaState;
pub use experts::Experts;
pub use weights::Stored;

/// A GPU as a machine for models. Steps run one at a time, whoever asks.
pub struct Cuda {
    device: Device,
    staging: Staging,
    isa: Isa,
    tiles: Tiles,
    step: Mutex<Current>,
    /// Lists of columns that were asked for: a model has a few, and asks in every step.
    columns: Mutex<HashMap<Vec<usize>, Arc<Memory>>>,
    replay: replay::Replays,
    /// Held through a step.
    turn: Mutex<()>,
}

/// How exactly prompts are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tiles {
    /// In f32, as single tokens are.
    #[default]
    Exact,
    /// Activations in bf16, as servers do: a third of the work.
    Bf16,
}

impl Tiles {
    /// bf16 parts of an activation.
    fn parts(self) -> u32 {
        match self {
            Tiles::Exact => 3,
            Tiles::Bf16 => 1,
        }
    }
}

/// Activations `[rows, cols]`.
#[derive(Debug)]
pub struct Tensor {
    buffer: Buffer,
    rows: usize,
    cols: usize,
}

/// What kernels need to know of the step that runs.
#[derive(Debug, Default)]
struct Current {
    /// True where every span is one token.
    single: bool,
    /// u32 `[tokens]`.
    positions: Option<Arc<Buffer>>,
    /// u32 `[spans + 1]`.
    firsts: Option<Arc<Buffer>>,
}

impl Tensor {
    fn at(&self) -> At<'_> {
        self.buffer.at(0)
    }

    fn len(&self) -> usize {
        self.rows * self.cols
    }
}

impl Cuda {
    /// GPU number `ordinal`.
    ///
    /// # Errors
    /// Exit 6 where there is none that can be used.
    pub fn open(ordinal: usize) -> Result<Self> {
        Ok(Cuda {
            device: Device::open(ordinal)?,
            staging: Staging::default(),
            isa: Isa::best(),
            tiles: Tiles::default(),
            step: Mutex::default(),
            columns: Mutex::default(),
            replay: replay::Replays::default(),
            turn: Mutex::default(),
        })
    }

    /// Reads prompts another way.
    pub fn with_tiles(self, tiles: Tiles) -> Self {
        Cuda { tiles, ..self }
    }

    /// The GPU.
    pub fn device(&self) -> &Device {
        &self.device
    }

    fn room(&self, rows: usize, cols: usize) -> Result<Tensor> {
        Ok(Tensor { buffer: self.device.take(rows * cols * 4)?, rows, cols })
    }

    fn words(&self, input: Input, words: impl IntoIterator<Item = u32>) -> Result<Buffer> {
        self.device.upload(input, &words.into_iter().flat_map(u32::to_le_bytes).collect::<Vec<_>>())
    }

    fn longs(&self, words: impl IntoIterator<Item = u64>) -> Result<Buffer> {
        self.device.upload(Input::Constant, &words.into_iter().flat_map(u64::to_le_bytes).collect::<Vec<_>>())
    }

    /// What FP8 keeps of `x`, each row in as many equal parts as there are `scales`; `out` may be `x`.
    fn keep_fp8(&self, x: &Tensor, scales: &[f32], out: &Tensor) -> Result<()> {
        let list = self.words(Input::Constant, scales.iter().map(|s| s.to_bits()))?;
        let launch = Fp8Kept {
            x: x.at(),
            scales: list.at(0),
            width: x.cols as u32,
            part: (x.cols / scales.len()) as u32,
            n: x.len() as u64,
            out: out.at(),
        };
        self.device.run(&launch.launch())
    }

    /// `x` as the matrix `w` takes it: rounded where the checkpoint tells the scale that a server rounds with.
    fn taken_by(&self, w: &Stored, x: &Tensor) -> Result<Option<Tensor>> {
        w.inputs().map(|scale| self.kept_in_fp8(x, scale)).transpose()
    }

    /// What FP8 keeps of `x`, beside it.
    fn kept_in_fp8(&self, x: &Tensor, scale: f32) -> Result<Tensor> {
        let kept = self.room(x.rows, x.cols)?;
        self.keep_fp8(x, &[scale], &kept)?;
        Ok(kept)
    }

    /// True in a step of single tokens.
    fn single(&self) -> bool {
        lock(&self.step).single
    }

    fn column_list(&self, columns: &[usize]) -> Result<Arc<Memory>> {
        let mut lists = lock(&self.columns);
        if let Some(list) = lists.get(columns) {
            return Ok(Arc::clone(list));
        }
        let list = self.device.keep(columns.len() * 4)?;
        list.write(0, &columns.iter().flat_map(|c| (*c as u32).to_le_bytes()).collect::<Vec<_>>())?;
        let list = Arc::new(list);
        lists.insert(columns.to_vec(), Arc::clone(&list));
        Ok(list)
    }
}

impl Backend for Cuda {
    type Tensor = Tensor;
    type Matrix = Stored;
    type Experts = Experts;
    type Kv = Kv;
    type Delta = DeltaState;

    const MIXES: bool = false;
    const CACHE_STEP: usize = attention::FIRST_ROOM;

    fn begin(&self, spans: &[Span]) -> Result<()> {
        let positions = spans.iter().flat_map(|s| s.start..s.start + s.len).map(|p| p as u32);
        let positions = Some(Arc::new(self.words(Input::Positions, positions)?));
        let ends = spans.iter().scan(0, |end, s| {
            *end += s.len as u32;
            Some(*end)
        });
        let firsts = Some(Arc::new(self.words(Input::Constant, std::iter::once(0).chain(ends))?));
        *lock(&self.step) = Current { single: spans.iter().all(|s| s.len == 1), positions, firsts };
        Ok(())
    }

    fn forward(&self, decoder: &Decoder<Self>, parts: &mut [Part<Self>]) -> Result<Tensor> {
        let _turn = lock(&self.turn);
        replay::forward(self, decoder, parts)
    }

    fn choose(&self, logits: &Tensor, how: Sampling, states: &mut [u64]) -> Result<Option<Vec<u32>>> {
        // What was there before is known to the host.
        match how.repetition_penalty == 1.0 {
            true => choose::choose(self, logits, how, states).map(Some),
            false => Ok(None),
        }
    }

    fn matrix(&self, matrix: Matrix) -> Result<Stored> {
        weights::store(self, &[matrix])
    }

    fn experts_of(&self, experts: Vec<[Matrix; 3]>) -> Result<Experts> {
        Experts::new(self, experts)
    }

    fn tensor(&self, [rows, cols]: [usize; 2], values: Vec<f32>) -> Result<Tensor> {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Ok(Tensor { buffer: self.device.upload(Input::Angles, &bytes)?, rows, cols })
    }

    fn to_host(&self, x: &Tensor) -> Result<Vec<f32>> {
        Ok(x.buffer.read_numbers(x.len())?.into_iter().map(f32::from_le_bytes).collect())
    }

    fn new_kv(&self, heads: Heads) -> Result<Kv> {
        Kv::new(self, heads)
    }

    fn new_delta(&self, rule: &DeltaRule<Self>) -> Result<DeltaState> {
        DeltaState::new(self, rule)
    }

    fn copy_kv(&self, kv: &Kv) -> Result<Kv> {
        kv.copy(self)
    }

    fn copy_delta(&self, state: &DeltaState) -> Result<DeltaState> {
        state.copy(self)
    }

    fn embed(&self, table: &Stored, tokens: &[u32]) -> Result<Tensor> {
        let out = self.room(tokens.len(), table.cols())?;
        let ids = self.words(Input::Tokens, tokens.iter().copied())?;
        let count = tokens.len() as u32;
        self.device.run(&Embed { table: table.weights(), ids: ids.at(0), out: out.at(), count }.launch())?;
        Ok(out)
    }

    fn rows(&self, x: &Tensor, rows: &[usize]) -> Result<Tensor> {
        let out = self.room(rows.len(), x.cols)?;
        let list = self.words(Input::Constant, rows.iter().map(|r| *r as u32))?;
        let (width, count) = (x.cols as u32, rows.len() as u32);
        self.device.run(&Rows { x: x.at(), rows: list.at(0), out: out.at(), width, count }.launch())?;
        Ok(out)
    }

    fn columns(&self, x: &Tensor, columns: &[usize]) -> Result<Tensor> {
        let out = self.room(x.rows, columns.len())?;
        let list = self.column_list(columns)?;
        let launch = Columns {
            x: x.at(),
            columns: list.at(0),
            out: out.at(),
            rows: x.rows as u32,
            width: x.cols as u32,
            count: columns.len() as u32,
        };
        self.device.run(&launch.launch())?;
        Ok(out)
    }

    fn linear<const N: usize>(&self, x: &Tensor, layers: [&Linear<Self>; N]) -> Result<[Tensor; N]> {
        linear::all(self, x, layers)
    }

    fn norm(&self, x: &Tensor, norm: &Norm<Self>) -> Result<Tensor> {
        let y = self.room(x.rows, x.cols)?;
        let width = norm.weight.cols;
        let runs = (x.len() / width) as u32;
        let launch = RmsNorm {
            x: x.at(),
            weight: norm.weight.at(),
            y: y.at(),
            runs,
            width: width as u32,
            eps: norm.eps,
        };
        self.device.run(&launch.launch())?;
        Ok(y)
    }

    fn add(&self, x: &mut Tensor, y: &Tensor) -> Result<()> {
        self.device.run(&Add { x: x.at(), y: y.at(), n: x.len() as u64 }.launch())
    }

    fn clamp(&self, x: &mut Tensor, limit: f32) -> Result<()> {
        self.device.run(&Clamp { x: x.at(), limit, n: x.len() as u64 }.launch())
    }

    fn round_to_fp8(&self, x: &mut Tensor, scales: &[f32]) -> Result<()> {
        self.keep_fp8(x, scales, x)
    }

    fn gate(&self, x: &mut Tensor, gate: &Tensor) -> Result<()> {
        let shared = (x.cols / gate.cols) as u32;
        self.device.run(&Gate { x: x.at(), gate: gate.at(), shared, n: x.len() as u64 }.launch())
    }

    fn swiglu(&self, gate: Tensor, up: &Tensor) -> Result<Tensor> {
        self.device.run(&Swiglu { gate: gate.at(), up: up.at(), n: gate.len() as u64 }.launch())?;
        Ok(gate)
    }

    fn rotate(&self, x: &mut Tensor, dim: usize, angles: &Tensor) -> Result<()> {
        let launch = Rope {
            x: x.at(),
            token_stride: x.cols as u32,
            head_stride: dim as u32,
            norm: None,
            angles: angles.at(),
            positions: None,
            half: (angles.cols / 2) as u32,
            tokens: x.rows as u32,
            heads: (x.cols / dim) as u32,
            dim: dim as u32,
            out: x.at(),
        };
        self.device.run(&launch.launch())
    }

    fn attention(
        &self,
        qkv: [Tensor; 3],
        heads: Heads,
        spans: &[Span],
        caches: Vec<&mut Kv>,
    ) -> Result<Tensor> {
        attention::attend(self, qkv, heads, spans, caches)
    }

    fn delta_rule(
        &self,
        inputs: DeltaInputs<Tensor>,
        rule: &DeltaRule<Self>,
        spans: &[Span],
        states: Vec<&mut DeltaState>,
    ) -> Result<Tensor> {
        delta::delta_rule(self, inputs, rule, spans, states)
    }

    fn experts(&self, x: &Tensor, router: &Tensor, routing: Routing, experts: &Experts) -> Result<Tensor> {
        experts::mix(self, x, router, routing, experts)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

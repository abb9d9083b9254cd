//! What a machine must be able to do so that the families' forward passes, written once, run on it.

use verify::Result;

use crate::decoder::{Decoder, Part};
use crate::sampling::Sampling;
use crate::weights::Matrix;

/// Tokens of a prompt that a DeltaNet layer works on together. Where these chunks begin is part of its arithmetic, so
/// that prompts are only cut at multiples, on every machine.
pub const CHUNK: usize = 64;

/// A run of consecutive tokens of one sequence within a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Position of its first token in its sequence.
    pub start: usize,
    /// Its tokens.
    pub len: usize,
}

/// Shape of an attention layer's heads; query head `h` reads key-value head `h / (queries / pairs)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heads {
    /// Query heads.
    pub queries: usize,
    /// Key-value heads, a divisor of `queries`.
    pub pairs: usize,
    /// Entries of a head.
    pub dim: usize,
}

/// How a router chooses: softmax over all experts, then the largest `chosen`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Routing {
    /// Experts for each token.
    pub chosen: usize,
    /// What the weights of the chosen are divided by.
    pub divide: Divide,
}

/// Whether the weights of the chosen experts are made to sum to one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Divide {
    /// By nothing: they are the softmax's.
    Never,
    /// By their sum.
    BySum,
}

/// A linear layer: `y = W x`, plus the bias where there is one.
pub struct Linear<B: Backend> {
    /// `[out, in]`.
    pub weight: B::Matrix,
    /// `[1, out]`.
    pub bias: Option<B::Tensor>,
}

/// An RMSNorm: `x / sqrt(mean(x^2) + eps) * weight`. Zero-centred weights have their 1 added at load.
pub struct Norm<B: Backend> {
    /// `[1, width]`.
    pub weight: B::Tensor,
    /// Inside the root.
    pub eps: f32,
}

/// A SwiGLU block: `down(silu(gate(x)) * up(x))`.
pub struct SwiGlu<B: Backend> {
    /// `[inter, hidden]`.
    pub gate: Linear<B>,
    /// `[inter, hidden]`.
    pub up: Linear<B>,
    /// `[hidden, inter]`.
    pub down: Linear<B>,
}

/// Parameters of a Gated DeltaNet layer besides its projections.
pub struct DeltaRule<B: Backend> {
    /// Key heads.
    pub key_heads: usize,
    /// Value heads, a multiple of `key_heads`; value head `n` belongs to key head `n / (value / key)`.
    pub value_heads: usize,
    /// Entries of a key head.
    pub key_dim: usize,
    /// Entries of a value head.
    pub value_dim: usize,
    /// Taps of the convolution.
    pub taps: usize,
    /// Convolution `[channels, taps]`, the last tap for the current token.
    pub conv: B::Tensor,
    /// `-exp(A_log)`, `[1, value_heads]`.
    pub decay: B::Tensor,
    /// `[1, value_heads]`.
    pub dt_bias: B::Tensor,
    /// The gated norm over one value head.
    pub norm: Norm<B>,
    /// The gate's activation.
    pub gate: GateActivation,
}

impl<B: Backend> DeltaRule<B> {
    /// Channels of the convolution: all q, all k, all v.
    pub fn channels(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }
}

/// The activation of the DeltaNet's output gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GateActivation {
    /// `x * sigmoid(x)`.
    Silu,
    /// `sigmoid(x)`.
    Sigmoid,
}

/// Projections of one step that enter the delta rule.
#[derive(Debug)]
pub struct DeltaInputs<T> {
    /// `[tokens, channels]`, before the convolution.
    pub qkv: T,
    /// Output gate `[tokens, value_heads * value_dim]`.
    pub z: T,
    /// `[tokens, value_heads]`.
    pub b: T,
    /// `[tokens, value_heads]`.
    pub a: T,
}

/// A machine. Activations are f32 tensors `[rows, cols]`, one row for each token of the step.
///
/// A row's result never depends on the other rows of the step: every sum has an order fixed by its own length.
pub trait Backend: Sized + Send + Sync {
    /// Activations on the machine.
    type Tensor: Send + Sync;
    /// A weight matrix on the machine.
    type Matrix: Clone + Send + Sync;
    /// All routed experts of a layer.
    type Experts: Send + Sync;
    /// Keys and values of one sequence in one attention layer.
    type Kv: Send;
    /// State of one sequence in one DeltaNet layer.
    type Delta: Send;

    /// Whether a step may hold spans of one token beside longer ones without a change of any bit.
    const MIXES: bool;

    /// Tokens that a sequence's memory grows by at least.
    const CACHE_STEP: usize = 1;

    /// A step of these spans begins.
    ///
    /// # Errors
    /// The machine's.
    fn begin(&self, spans: &[Span]) -> Result<()> {
        let _ = spans;
        Ok(())
    }

    /// [`Decoder::forward`] the machine's way: the same numbers, perhaps sooner.
    ///
    /// # Errors
    /// As there.
    fn forward(&self, decoder: &Decoder<Self>, parts: &mut [Part<Self>]) -> Result<Self::Tensor> {
        decoder.forward(self, parts)
    }

    /// The token after each row of `logits`, chosen there; `None` where that is left to the host. `states` say where
    /// the random numbers of each row stand, before and after.
    ///
    /// # Errors
    /// The machine's.
    fn choose(&self, logits: &Self::Tensor, how: Sampling, states: &mut [u64]) -> Result<Option<Vec<u32>>> {
        let _ = (logits, how, states);
        Ok(None)
    }

    /// Brings a weight to the machine.
    ///
    /// # Errors
    /// When it does not fit there. (So for all that follow: errors are the machine's.)
    fn matrix(&self, matrix: Matrix) -> Result<Self::Matrix>;
    /// Brings the gate, up and down matrices of a layer's experts to the machine.
    fn experts_of(&self, experts: Vec<[Matrix; 3]>) -> Result<Self::Experts>;
    /// Brings numbers to the machine.
    fn tensor(&self, shape: [usize; 2], values: Vec<f32>) -> Result<Self::Tensor>;
    /// Brings numbers back.
    fn to_host(&self, x: &Self::Tensor) -> Result<Vec<f32>>;
    /// Empty keys and values.
    fn new_kv(&self, heads: Heads) -> Result<Self::Kv>;
    /// Zero state.
    fn new_delta(&self, rule: &DeltaRule<Self>) -> Result<Self::Delta>;
    /// The same keys and values for another sequence.
    fn copy_kv(&self, kv: &Self::Kv) -> Result<Self::Kv>;
    /// The same state for another sequence.
    fn copy_delta(&self, state: &Self::Delta) -> Result<Self::Delta>;

    /// Rows `tokens` of `table`; ids are in range.
    fn embed(&self, table: &Self::Matrix, tokens: &[u32]) -> Result<Self::Tensor>;
    /// Some rows of `x`.
    fn rows(&self, x: &Self::Tensor, rows: &[usize]) -> Result<Self::Tensor>;
    /// Some columns of `x`, in the given order.
    fn columns(&self, x: &Self::Tensor, columns: &[usize]) -> Result<Self::Tensor>;
    /// Several linear layers of one input.
    fn linear<const N: usize>(&self, x: &Self::Tensor, w: [&Linear<Self>; N]) -> Result<[Self::Tensor; N]>;
    /// The norm over each run of `weight`'s width (a whole row, or each head of it).
    fn norm(&self, x: &Self::Tensor, norm: &Norm<Self>) -> Result<Self::Tensor>;
    /// `x += y`.
    fn add(&self, x: &mut Self::Tensor, y: &Self::Tensor) -> Result<()>;
    /// Clamps to `-limit..=limit`.
    fn clamp(&self, x: &mut Self::Tensor, limit: f32) -> Result<()>;
    /// Rounds to what FP8 (e4m3) codes times a scale can be: each row in as many equal parts as there are `scales`.
    fn round_to_fp8(&self, x: &mut Self::Tensor, scales: &[f32]) -> Result<()>;
    /// `x *= sigmoid(gate)`; a gate of one column holds for its whole row.
    fn gate(&self, x: &mut Self::Tensor, gate: &Self::Tensor) -> Result<()>;
    /// `silu(gate) * up`.
    fn swiglu(&self, gate: Self::Tensor, up: &Self::Tensor) -> Result<Self::Tensor>;
    /// Rotary embedding of every head of `dim` entries; `angles` holds for each token cosines, then sines, of
    /// half the rotated entries.
    fn rotate(&self, x: &mut Self::Tensor, dim: usize, angles: &Self::Tensor) -> Result<()>;
    /// Appends `k` and `v` to the sequences' caches and attends causally; `caches` stand in the order of `spans`.
    fn attention(
        &self,
        qkv: [Self::Tensor; 3],
        heads: Heads,
        spans: &[Span],
        caches: Vec<&mut Self::Kv>,
    ) -> Result<Self::Tensor>;
    /// Convolution, gated delta rule and gated norm; states stand in the order of `spans`.
    fn delta_rule(
        &self,
        inputs: DeltaInputs<Self::Tensor>,
        rule: &DeltaRule<Self>,
        spans: &[Span],
        states: Vec<&mut Self::Delta>,
    ) -> Result<Self::Tensor>;
    /// The weighted sum of the experts that `router` (logits `[tokens, experts]`) chooses for each token.
    fn experts(
        &self,
        x: &Self::Tensor,
        router: &Self::Tensor,
        routing: Routing,
        experts: &Self::Experts,
    ) -> Result<Self::Tensor>;
}

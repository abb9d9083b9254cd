//! Memory of a running server, by formula. Every figure is checked in tests against published ones.
//!
//! | what | bytes |
//! |---|---|
//! | keys and values of a token | 2 x attention layers x KV heads x head width x bytes of an entry |
//! | recurrent state of a sequence | DeltaNet layers x (value heads x key width x value width x bytes of the state + (taps - 1) x channels x 2) |
//! | activations | tokens of a step x (4 x hidden + widest block) x 2 + sequences x vocabulary x 8 |
//! | overhead | 1 GiB (CUDA context, libraries, allocator) + 2 MiB for each sequence of the decode graphs, at most 256 |
//!
//! Cache and state are exact. Activations and overhead are estimates: a server measures them when it starts.
//! Widest block: what is alive at once beside the residual stream in the widest of attention, DeltaNet, MLP and
//! experts. The 8 bytes of a logit are F32 logits and the sampler's copy.
//! Source of the graph figure: SGLang 0.5.23, `reserve_for_graph_mb`. Tokens of a step: vLLM 0.33, defaults of
//! `max_num_batched_tokens` for a server (2048, from 70 GiB on 8192, from 160 GiB on 16384).

use serde::Serialize;

use super::format::CacheFormat;
use crate::inspect::Dimensions;

/// What a model needs besides its weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Bytes of keys and values of a token in bf16.
    pub kv_per_token: u64,
    /// Bytes of the recurrent state of a sequence.
    pub state_per_sequence: u64,
}

/// How a server is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Load {
    /// Tokens of a conversation, prompt and answer.
    pub context: u64,
    /// Conversations at once.
    pub concurrency: u64,
}

/// Tokens of a conversation where nobody says, of models that take more.
const CONTEXT: u64 = 32_768;
/// Conversations at once where nobody says.
pub const CONCURRENCY: u64 = 8;

impl Load {
    /// What is asked for, with defaults: `own` is the model's context, where it is told.
    pub fn asked(context: Option<u64>, concurrency: Option<u64>, own: Option<u64>) -> Self {
        let default = own.map_or(CONTEXT, |own| own.min(CONTEXT));
        Load { context: context.unwrap_or(default), concurrency: concurrency.unwrap_or(CONCURRENCY) }
    }
}

/// Memory that is neither weights nor cache, of one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Activations {
    /// Tokens that a step takes at most.
    pub step_tokens: u64,
    /// Bytes of the largest step.
    pub activations: u64,
    /// CUDA context, libraries, graphs.
    pub overhead: u64,
}

const GIB: u64 = 1 << 30;

impl Memory {
    /// Of a model.
    pub fn of(d: &Dimensions) -> Self {
        let state = d.linear.map_or(0, |l| {
            let state = l.value_heads as u64 * l.key_dim as u64 * l.value_dim as u64 * l.state_bytes as u64;
            let taps = (l.kernel as u64).saturating_sub(1) * l.channels() as u64 * 2;
            d.linear_layers as u64 * (state + taps)
        });
        Memory { kv_per_token: kv_per_head(d).saturating_mul(d.kv_heads as u64), state_per_sequence: state }
    }

    /// Keys and values of a token in `format`.
    pub fn kv(&self, format: CacheFormat) -> u64 {
        self.kv_per_token.saturating_mul(format.bytes()) / 2
    }

    /// Cache and state of a whole load.
    pub fn of_load(&self, load: Load, format: CacheFormat) -> u64 {
        load.concurrency.saturating_mul(self.of_sequence(load.context, format))
    }

    /// Cache and state of one sequence of `tokens`.
    pub fn of_sequence(&self, tokens: u64, format: CacheFormat) -> u64 {
        tokens.saturating_mul(self.kv(format)).saturating_add(self.state_per_sequence)
    }

    /// What one of `gpus` keeps: heads are shared out, and where there are fewer KV heads than GPUs each keeps one.
    pub fn per_gpu(d: &Dimensions, gpus: u64) -> Self {
        let whole = Memory::of(d);
        let heads = (d.kv_heads as u64).div_ceil(gpus.max(1));
        Memory {
            kv_per_token: kv_per_head(d).saturating_mul(heads),
            state_per_sequence: whole.state_per_sequence.div_ceil(gpus.max(1)),
        }
    }
}

/// Bytes of keys and values of a token and a head over all attention layers, in bf16.
fn kv_per_head(d: &Dimensions) -> u64 {
    (2 * d.attention_layers as u64 * CacheFormat::Bf16.bytes()).saturating_mul(d.head_dim as u64)
}

impl Activations {
    /// Of one of `gpus` cards with `vram` bytes.
    pub fn of(d: &Dimensions, load: Load, vram: u64, gpus: u64) -> Self {
        let step_tokens = match vram {
            v if v >= 160 * GIB => 16_384,
            v if v >= 70 * GIB => 8192,
            _ => 2048,
        };
        let stream = 4 * d.hidden as u64;
        let step = step_tokens * (stream + widest_block(d, gpus)) * 2;
        let logits = load.concurrency * (d.vocabulary as u64).div_ceil(gpus) * 8;
        let graphs = load.concurrency.min(256) * (2 << 20);
        Activations { step_tokens, activations: step + logits, overhead: GIB + graphs }
    }

    /// Both.
    pub fn bytes(&self) -> u64 {
        self.activations + self.overhead
    }
}

/// Numbers of a token that are alive at once in the widest block, on one of `gpus`.
fn widest_block(d: &Dimensions, gpus: u64) -> u64 {
    let queries = (d.heads * d.head_dim) as u64;
    let gate = if d.gated_attention { queries } else { 0 };
    let attention = 2 * queries + gate + 2 * (d.kv_heads * d.head_dim) as u64;
    let linear = d.linear.map_or(0, |l| 2 * l.channels() as u64 + 2 * (l.value_heads * l.value_dim) as u64);
    // Gate, up and their product; experts also keep one copy of the stream for each chosen expert.
    let dense = 3 * d.intermediate as u64;
    let experts = d.experts.map_or(0, |e| 3 * (e.per_token * e.intermediate + e.shared) as u64);
    let copies = d.experts.map_or(0, |e| (e.per_token * d.hidden) as u64);
    let shared_out = [attention, linear, dense].into_iter().max().unwrap_or(0).div_ceil(gpus);
    shared_out.max(experts.div_ceil(gpus) + copies)
}

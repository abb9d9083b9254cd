//! Whether a model fits a deployment, and up to which context.

use serde::Serialize;

use super::card::Vram;
use super::format::{CacheFormat, WeightFormat};
use super::memory::{Activations, Load, Memory};
use super::weights::Weights;
use crate::inspect::Dimensions;

/// The GPUs that a model is to run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deployment {
    /// Memory of each.
    pub vram: Vram,
    /// How many, tensor-parallel.
    pub gpus: u64,
    /// What is to be served.
    pub load: Load,
}

/// The share of a card that servers take: vLLM 0.33's default of `--gpu-memory-utilization`, in thousandths.
const SHARE: u64 = 920;
/// Shorter contexts serve nobody.
const LEAST_CONTEXT: u64 = 1024;

impl Deployment {
    /// Bytes of one card that a server may use.
    pub fn usable(&self) -> u64 {
        self.vram.bytes() / 1000 * SHARE
    }

    /// The share as servers take it on the command line.
    pub fn share() -> f64 {
        SHARE as f64 / 1000.0
    }
}

/// How a format fits.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Fit {
    /// Format of the weights.
    pub weights: WeightFormat,
    /// Format of the cache.
    pub cache: CacheFormat,
    /// Bytes of weights on one GPU.
    pub weight_bytes: u64,
    /// Bytes of cache and state on one GPU for the whole load.
    pub cache_bytes: u64,
    /// Everything else on one GPU.
    #[serde(flatten)]
    pub rest: Activations,
    /// All of it.
    pub total_bytes: u64,
    /// Bytes that a server may use of one GPU.
    pub usable_bytes: u64,
    /// Tokens of cache and state that are left for all conversations together.
    pub cache_tokens: u64,
    /// The answer.
    pub verdict: Verdict,
}

/// Whether it fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Verdict {
    /// The whole load.
    Fits,
    /// All conversations, each up to this context.
    UpTo {
        /// Tokens.
        context: u64,
    },
    /// Not even a short context.
    No {
        /// Bytes that one GPU lacks for it.
        lacks: u64,
    },
}

impl Fit {
    /// Reckons one format.
    pub fn of(d: &Dimensions, weights: &Weights, cache: CacheFormat, deployment: &Deployment) -> Self {
        let Deployment { vram, gpus, load } = *deployment;
        let memory = Memory::per_gpu(d, gpus);
        let rest = Activations::of(d, load, vram.bytes(), gpus);
        let weight_bytes = weights.per_gpu(gpus);
        let cache_bytes = memory.of_load(load, cache);
        let usable_bytes = deployment.usable();
        let fixed = weight_bytes + rest.bytes();
        let total_bytes = fixed + cache_bytes;
        let left = usable_bytes.saturating_sub(fixed);
        let states = load.concurrency * memory.state_per_sequence;
        let cache_tokens = left.saturating_sub(states) / memory.kv(cache).max(1);
        let each = cache_tokens / load.concurrency.max(1) / 16 * 16;
        let verdict = match each {
            _ if total_bytes <= usable_bytes => Verdict::Fits,
            context if context >= LEAST_CONTEXT => Verdict::UpTo { context },
            _ => {
                let least = Load { context: LEAST_CONTEXT.min(load.context), ..load };
                Verdict::No { lacks: (fixed + memory.of_load(least, cache)).saturating_sub(usable_bytes) }
            }
        };
        Fit {
            weights: weights.format,
            cache,
            weight_bytes,
            cache_bytes,
            rest,
            total_bytes,
            usable_bytes,
            cache_tokens,
            verdict,
        }
    }
}

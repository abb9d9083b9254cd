//! Gated DeltaNet layers.

use std::sync::Arc;

use verify::{Class, Error, Result};

use super::{Cuda, Tensor, lock};
use crate::backend::{DeltaInputs, DeltaRule, Span};
use crate::cuda::launches::{self, Conv, DeltaGates, DeltaShape, RmsNormGated, UnitNorm};
use crate::cuda::pool::Buffer;

/// What one sequence keeps in one layer.
pub struct DeltaState {
    /// f32 `[taps - 1, channels]`: the last inputs of the convolution.
    recent: Buffer,
    /// f32 `[value_heads, key_dim, value_dim]`.
    state: Buffer,
}

impl DeltaState {
    /// Zero.
    pub fn new(cuda: &Cuda, rule: &DeltaRule<Cuda>) -> Result<Self> {
        let recent = cuda.device.take((rule.taps - 1) * rule.channels() * 4)?;
        let state = cuda.device.take(rule.value_heads * rule.key_dim * rule.value_dim * 4)?;
        recent.clear()?;
        state.clear()?;
        Ok(DeltaState { recent, state })
    }

    /// The same for another sequence.
    pub fn copy(&self, cuda: &Cuda) -> Result<Self> {
        let copied = |from: &Buffer| {
            let to = cuda.device.take(from.bytes())?;
            to.copy(from, from.bytes())?;
            Ok::<_, Error>(to)
        };
        Ok(DeltaState { recent: copied(&self.recent)?, state: copied(&self.state)? })
    }

    /// Where it lies.
    pub fn place(&self) -> u64 {
        self.state.order()
    }
}

/// Heads that the chunked kernel takes.
const MOST_CHUNKED: u32 = 128;

/// Convolution, delta rule and gated norm.
pub fn delta_rule(
    cuda: &Cuda,
    inputs: DeltaInputs<Tensor>,
    rule: &DeltaRule<Cuda>,
    spans: &[Span],
    states: Vec<&mut DeltaState>,
) -> Result<Tensor> {
    let (firsts, single) = {
        let step = lock(&cuda.step);
        (step.firsts.as_ref().map(Arc::clone), step.single)
    };
    let Some(firsts) = firsts else {
        return Err(Error::new(Class::Gpu, "a DeltaNet layer outside of a step"));
    };
    let states: Vec<&DeltaState> = states.into_iter().map(|s| &*s).collect();
    let recents: Vec<&Buffer> = states.iter().map(|s| &s.recent).collect();
    let states: Vec<&Buffer> = states.iter().map(|s| &s.state).collect();
    let lowest = |all: &[&Buffer]| all.iter().map(|b| b.order()).enumerate().min_by_key(|(_, at)| *at);
    let (Some((r, _)), Some((s, _))) = (lowest(&recents), lowest(&states)) else {
        return cuda.room(0, inputs.z.cols);
    };
    let (first_recent, first_state) = (recents[r], states[s]);
    let apart = |all: &[&Buffer], base: &Buffer| cuda.longs(all.iter().map(|b| b.numbers_after(base, 4)));
    let (recents, states) = (apart(&recents, first_recent)?, apart(&states, first_state)?);
    let shape = DeltaShape {
        key_heads: rule.key_heads as u32,
        value_heads: rule.value_heads as u32,
        key_dim: rule.key_dim as u32,
        value_dim: rule.value_dim as u32,
    };
    let (tokens, channels, heads) = (inputs.qkv.rows as u32, shape.channels(), shape.value_heads);
    let mixed = cuda.room(inputs.qkv.rows, inputs.qkv.cols)?;
    let conv = Conv {
        x: inputs.qkv.at(),
        taps: rule.conv.at(),
        count: rule.taps as u32,
        channels,
        firsts: firsts.at(0),
        states: recents.at(0),
        recent: first_recent.at(0),
        out: mixed.at(),
        spans: spans.len() as u32,
    };
    cuda.device.run(&conv.launch())?;
    let unit = |first: usize, scale: f32| UnitNorm {
        x: mixed.buffer.at(first * 4),
        stride: channels,
        heads: shape.key_heads,
        dim: shape.key_dim,
        tokens,
        scale,
    };
    cuda.device.run(&unit(0, 1.0 / (rule.key_dim as f32).sqrt()).launch())?;
    cuda.device.run(&unit(rule.key_heads * rule.key_dim, 1.0).launch())?;
    let (beta, log_decay) =
        (cuda.room(inputs.b.rows, inputs.b.cols)?, cuda.room(inputs.b.rows, inputs.b.cols)?);
    let gates = DeltaGates {
        b: inputs.b.at(),
        a: inputs.a.at(),
        rate: rule.decay.at(),
        dt_bias: rule.dt_bias.at(),
        heads,
        tokens,
        beta: beta.at(),
        log_decay: log_decay.at(),
    };
    cuda.device.run(&gates.launch())?;
    let y = cuda.room(inputs.z.rows, inputs.z.cols)?;
    let launch = launches::DeltaRule {
        qkv: mixed.at(),
        beta: beta.at(),
        log_decay: log_decay.at(),
        firsts: firsts.at(0),
        states: states.at(0),
        shape,
        state: first_state.at(0),
        out: y.at(),
        spans: spans.len() as u32,
    };
    let chunked = !single && shape.key_dim <= MOST_CHUNKED;
    cuda.device.run(&if chunked { launch.launch_chunked() } else { launch.launch() })?;
    let norm = RmsNormGated {
        y: y.at(),
        z: inputs.z.at(),
        weight: rule.norm.weight.at(),
        runs: tokens * heads,
        width: shape.value_dim,
        eps: rule.norm.eps,
        gate: rule.gate,
    };
    cuda.device.run(&norm.launch())?;
    Ok(y)
}

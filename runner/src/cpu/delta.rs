//! The gated delta rule: convolution, state update, gated norm.

use rayon::prelude::*;

use super::elementwise::{dot, exp, sigmoid, silu};
use super::isa::{Isa, Kernel, LANES, Lanes};
use super::{Array, Cpu};
use crate::backend::{DeltaInputs, DeltaRule, GateActivation, Span};

/// What one sequence remembers in one layer.
#[derive(Debug, Clone)]
pub struct DeltaState {
    /// The last `taps - 1` inputs of the convolution, oldest first, `[taps - 1, channels]`.
    recent: Vec<f32>,
    /// For each value head `[key_dim, value_dim]`, rows filled up to whole lanes.
    heads: Vec<f32>,
}

impl DeltaState {
    /// Before the first token.
    pub fn new(rule: &DeltaRule<Cpu>) -> Self {
        DeltaState {
            recent: vec![0.0; (rule.taps - 1) * rule.channels()],
            heads: vec![0.0; rule.value_heads * rule.key_dim * row(rule)],
        }
    }
}

fn row(rule: &DeltaRule<Cpu>) -> usize {
    rule.value_dim.next_multiple_of(LANES)
}

/// `[tokens, value_heads * value_dim]`, gated and normalised.
pub fn delta_rule(
    isa: Isa,
    inputs: DeltaInputs<Array>,
    rule: &DeltaRule<Cpu>,
    spans: &[Span],
    states: Vec<&mut DeltaState>,
) -> Array {
    let width = rule.value_heads * rule.value_dim;
    let mut out = Array::zeros(inputs.z.rows(), width);
    let mut first = 0;
    for (span, state) in spans.iter().zip(states) {
        let mixed = convolved(isa, &inputs.qkv, first, span.len, rule, &mut state.recent);
        let size = rule.key_dim * row(rule);
        let heads: Vec<Array> = state
            .heads
            .par_chunks_exact_mut(size)
            .enumerate()
            .map(|(head, state)| {
                isa.run(Recurrent { mixed: &mixed, inputs: &inputs, first, rule, head, state })
            })
            .collect();
        for (head, y) in heads.iter().enumerate() {
            for (t, y) in y.each_row().enumerate() {
                let at = (first + t) * width + head * rule.value_dim;
                out.values_mut()[at..at + rule.value_dim].copy_from_slice(y);
            }
        }
        first += span.len;
    }
    isa.run(GatedNorm { y: &mut out, z: &inputs.z, rule });
    out
}

/// Causal depthwise convolution, then silu; keeps the last inputs for the next step.
fn convolved(
    isa: Isa,
    x: &Array,
    first: usize,
    len: usize,
    rule: &DeltaRule<Cpu>,
    recent: &mut Vec<f32>,
) -> Array {
    let channels = rule.channels();
    let mut window = std::mem::take(recent);
    window.extend_from_slice(&x.values()[first * channels..][..len * channels]);
    let mut y = Array::zeros(len, channels);
    isa.run(Convolve { window: &window, taps: &rule.conv, y: &mut y });
    silu(isa, y.values_mut());
    *recent = window.split_off(len * channels);
    y
}

struct Convolve<'a> {
    /// `[taps - 1 + tokens, channels]`
    window: &'a [f32],
    /// `[channels, taps]`
    taps: &'a Array,
    y: &'a mut Array,
}

impl Kernel for Convolve<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let channels = self.y.cols();
        for j in 0..self.taps.cols() {
            let mut tap = Vec::with_capacity(channels);
            for taps in self.taps.each_row() {
                tap.push(taps[j]);
            }
            for (t, y) in self.y.values_mut().chunks_exact_mut(channels).enumerate() {
                let x = &self.window[(t + j) * channels..][..channels];
                for ((y, x), tap) in y.iter_mut().zip(x).zip(&tap) {
                    *y = tap.mul_add(*x, *y);
                }
            }
        }
    }
}

/// Token by token: one value head of one sequence.
struct Recurrent<'a> {
    /// Of this sequence, `[span, channels]`.
    mixed: &'a Array,
    /// Of the whole step; this sequence's rows begin at `first`.
    inputs: &'a DeltaInputs<Array>,
    first: usize,
    rule: &'a DeltaRule<Cpu>,
    head: usize,
    /// `[key_dim, row]`
    state: &'a mut [f32],
}

impl Kernel for Recurrent<'_> {
    type Out = Array;

    #[inline(always)]
    fn run<L: Lanes>(self) -> Array {
        let rule = self.rule;
        let (dk, dv, row) = (rule.key_dim, rule.value_dim, row(rule));
        let key_head = self.head / (rule.value_heads / rule.key_heads);
        let keys = rule.key_heads * dk;
        let mut out = Array::zeros(self.mixed.rows(), dv);
        let (mut memory, mut read) = (vec![0.0; row], vec![0.0; row]);
        for (t, y) in out.values_mut().chunks_exact_mut(dv).enumerate() {
            let mixed = self.mixed.row(t);
            let q = unit::<L>(&mixed[key_head * dk..][..dk], 1.0 / (dk as f32).sqrt());
            let k = unit::<L>(&mixed[keys + key_head * dk..][..dk], 1.0);
            let v = &mixed[2 * keys + self.head * dv..][..dv];
            let at = self.first + t;
            let beta = sigmoid(self.inputs.b.row(at)[self.head]);
            let step = self.inputs.a.row(at)[self.head] + rule.dt_bias.values()[self.head];
            let decay = exp(rule.decay.values()[self.head] * softplus(step));
            memory.fill(0.0);
            for (s, k) in self.state.chunks_exact_mut(row).zip(&k) {
                for (s, m) in s.iter_mut().zip(&mut memory) {
                    *s *= decay;
                    *m = k.mul_add(*s, *m);
                }
            }
            for (m, v) in memory.iter_mut().zip(v) {
                *m = beta * (v - *m);
            }
            read.fill(0.0);
            for ((s, k), q) in self.state.chunks_exact_mut(row).zip(&k).zip(&q) {
                for ((s, u), r) in s.iter_mut().zip(&memory).zip(&mut read) {
                    *s = k.mul_add(*u, *s);
                    *r = q.mul_add(*s, *r);
                }
            }
            y.copy_from_slice(&read[..dv]);
        }
        out
    }
}

/// `x / sqrt(sum x^2 + 1e-6) * scale`.
#[inline(always)]
fn unit<L: Lanes>(x: &[f32], scale: f32) -> Vec<f32> {
    let factor = 1.0 / (dot::<L>(x, x) + 1e-6).sqrt();
    let mut unit = x.to_vec();
    for x in &mut unit {
        *x = *x * factor * scale;
    }
    unit
}

/// `ln(1 + e^x)`.
fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { f64::from(x).exp().ln_1p() as f32 }
}

/// `weight * y / rms(y) * act(z)` over each value head.
struct GatedNorm<'a> {
    y: &'a mut Array,
    z: &'a Array,
    rule: &'a DeltaRule<Cpu>,
}

impl Kernel for GatedNorm<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let width = self.rule.value_dim;
        let norm = &self.rule.norm;
        let heads = self.y.values_mut().chunks_exact_mut(width).zip(self.z.values().chunks_exact(width));
        for (y, z) in heads {
            let scale = 1.0 / (dot::<L>(y, y) / width as f32 + norm.eps).sqrt();
            for ((y, w), z) in y.iter_mut().zip(norm.weight.values()).zip(z) {
                let gate = match self.rule.gate {
                    GateActivation::Silu => z * sigmoid(*z),
                    GateActivation::Sigmoid => sigmoid(*z),
                };
                *y = *y * scale * w * gate;
            }
        }
    }
}

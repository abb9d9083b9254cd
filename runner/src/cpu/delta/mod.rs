//! The gated delta rule: convolution, state update, gated norm.
//!
//! One token updates the state directly ([`recurrent`]); a prompt goes through it in chunks ([`chunked`]). The two
//! round differently, so a prompt is cut at fixed positions whoever else is in the step.

mod chunked;
mod recurrent;

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
            .map(|(head, state)| isa.run(Update { mixed: &mixed, inputs: &inputs, first, rule, head, state }))
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

/// One value head of one sequence, after the convolution.
struct Head {
    /// Rows `[tokens]` of `dim` each: q and k of unit length (q divided by sqrt(dim) besides), v.
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    /// Strength of each token's correction.
    beta: Vec<f32>,
    /// Logarithm of each token's decay, not positive.
    log_decay: Vec<f32>,
    key_dim: usize,
    value_dim: usize,
}

/// Cuts the head out of what all heads share, and passes its tokens through its state.
struct Update<'a> {
    /// Of this sequence, `[span, channels]`.
    mixed: &'a Array,
    /// Of the whole step; this sequence's rows begin at `first`.
    inputs: &'a DeltaInputs<Array>,
    first: usize,
    rule: &'a DeltaRule<Cpu>,
    head: usize,
    /// `[key_dim, row]`, `row` being `value_dim` filled up to whole lanes.
    state: &'a mut [f32],
}

impl Kernel for Update<'_> {
    type Out = Array;

    #[inline(always)]
    fn run<L: Lanes>(self) -> Array {
        let rule = self.rule;
        let (dk, dv, tokens) = (rule.key_dim, rule.value_dim, self.mixed.rows());
        let key_head = self.head / (rule.value_heads / rule.key_heads);
        let keys = rule.key_heads * dk;
        let mut head = Head {
            q: Vec::with_capacity(tokens * dk),
            k: Vec::with_capacity(tokens * dk),
            v: Vec::with_capacity(tokens * dv),
            beta: Vec::with_capacity(tokens),
            log_decay: Vec::with_capacity(tokens),
            key_dim: dk,
            value_dim: dv,
        };
        for (t, mixed) in self.mixed.each_row().enumerate() {
            let at = self.first + t;
            push_unit::<L>(&mut head.q, &mixed[key_head * dk..][..dk], 1.0 / (dk as f32).sqrt());
            push_unit::<L>(&mut head.k, &mixed[keys + key_head * dk..][..dk], 1.0);
            head.v.extend_from_slice(&mixed[2 * keys + self.head * dv..][..dv]);
            head.beta.push(sigmoid(self.inputs.b.row(at)[self.head]));
            let step = self.inputs.a.row(at)[self.head] + rule.dt_bias.values()[self.head];
            head.log_decay.push(rule.decay.values()[self.head] * softplus(step));
        }
        let values = match tokens {
            1 => recurrent::run(&head, self.state),
            _ => chunked::run::<L>(&head, self.state),
        };
        Array::new(tokens, dv, values)
    }
}

/// Appends `x / sqrt(sum x^2 + 1e-6) * scale`.
#[inline(always)]
fn push_unit<L: Lanes>(to: &mut Vec<f32>, x: &[f32], scale: f32) {
    let factor = 1.0 / (dot::<L>(x, x) + 1e-6).sqrt();
    for x in x {
        to.push(x * factor * scale);
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A head of `tokens` pseudo-random tokens.
    fn head(tokens: usize) -> Head {
        let (dk, dv) = (8, 20);
        let wave = |i: usize, k: f32| ((i * 7919 + 13) as f32 * k).sin();
        let of = |len: usize, k: f32| (0..len).map(|i| wave(i, k)).collect::<Vec<_>>();
        let unit = |x: Vec<f32>| x.iter().map(|x| x / (dk as f32 / 2.0).sqrt()).collect();
        Head {
            q: unit(of(tokens * dk, 0.37)),
            k: unit(of(tokens * dk, 0.91)),
            v: of(tokens * dv, 0.53),
            beta: of(tokens, 0.71).iter().map(|b| 0.5 + 0.4 * b).collect(),
            log_decay: of(tokens, 0.29).iter().map(|g| -0.2 * (1.1 + g)).collect(),
            key_dim: dk,
            value_dim: dv,
        }
    }

    struct Chunked<'a>(Head, &'a mut [f32]);
    impl Kernel for Chunked<'_> {
        type Out = Vec<f32>;
        #[inline(always)]
        fn run<L: Lanes>(self) -> Vec<f32> {
            chunked::run::<L>(&self.0, self.1)
        }
    }

    struct Recurrent<'a>(Head, &'a mut [f32]);
    impl Kernel for Recurrent<'_> {
        type Out = Vec<f32>;
        #[inline(always)]
        fn run<L: Lanes>(self) -> Vec<f32> {
            recurrent::run(&self.0, self.1)
        }
    }

    #[test]
    fn chunks_and_single_steps_agree() {
        for tokens in [1, 2, 63, 64, 65, 130] {
            let (mut a, mut b) = (vec![0.25; 8 * 32], vec![0.25; 8 * 32]);
            let (x, y) = (
                Isa::PLAIN.run(Recurrent(head(tokens), &mut a)),
                Isa::best().run(Chunked(head(tokens), &mut b)),
            );
            let real =
                |state: &[f32]| state.chunks(32).flat_map(|row| row[..20].to_vec()).collect::<Vec<_>>();
            for (x, y) in x.iter().zip(&y).chain(real(&a).iter().zip(&real(&b))) {
                assert!((x - y).abs() < 2e-5, "{tokens} tokens: {x} {y}");
            }
        }
    }

    struct Unit<'a>(&'a [f32]);
    impl Kernel for Unit<'_> {
        type Out = Vec<f32>;
        #[inline(always)]
        fn run<L: Lanes>(self) -> Vec<f32> {
            let mut to = Vec::new();
            push_unit::<L>(&mut to, self.0, 0.5);
            to
        }
    }

    #[test]
    fn eps_of_a_unit_vector_stands_inside_the_root() {
        // Of length 1e-3, whose square is the eps.
        let got = Isa::best().run(Unit(&[0.6e-3, 0.0, -0.8e-3, 0.0]));
        for (got, want) in got.iter().zip([0.6f32, 0.0, -0.8, 0.0]) {
            assert!((got - 0.5 * want / 2f32.sqrt()).abs() < 1e-6, "{got}");
        }
    }

    #[test]
    fn the_gate_comes_after_the_norm_with_the_activation_that_is_asked_for() {
        let one = |len: usize, x: f32| Array::new(1, len, vec![x; len]);
        for (gate, want) in
            [(GateActivation::Silu, 1.5 * sigmoid(1.5)), (GateActivation::Sigmoid, sigmoid(1.5))]
        {
            let norm = crate::backend::Norm { weight: one(4, 3.0), eps: 0.0 };
            let rule = DeltaRule::<Cpu> {
                key_heads: 1,
                value_heads: 1,
                key_dim: 4,
                value_dim: 4,
                taps: 1,
                conv: one(12, 1.0),
                decay: one(1, -1.0),
                dt_bias: one(1, 0.0),
                norm,
                gate,
            };
            let mut y = one(4, 7.0);
            Isa::best().run(GatedNorm { y: &mut y, z: &one(4, 1.5), rule: &rule });
            y.values().iter().for_each(|y| assert!((y - 3.0 * want).abs() < 1e-5, "{gate:?} {y}"));
        }
    }

    #[test]
    fn every_set_gives_the_same_bits() {
        let run = |isa: Isa| {
            let mut state = vec![0.25; 8 * 32];
            let mut out = isa.run(Chunked(head(70), &mut state));
            out.extend(isa.run(Recurrent(head(3), &mut state)));
            (out, state)
        };
        for isa in Isa::available() {
            assert_eq!(run(isa), run(Isa::PLAIN), "{}", isa.name());
        }
    }
}

//! The gated delta rule, whole: convolution, unit norm, gates, state, gated norm.

use runner::Backend;
use runner::backend::{DeltaInputs, DeltaRule, GateActivation, Norm, Span};
use runner::cpu::{Array, Cpu};
use runner::cuda::launches::{self, Conv, DeltaGates, DeltaShape, RmsNormGated, UnitNorm};

use super::machine::{At, Machine, random};

fn rule(shape: DeltaShape, taps: usize) -> DeltaRule<Cpu> {
    let heads = shape.value_heads as usize;
    let channels = shape.channels() as usize;
    let row = |values: Vec<f32>| Array::new(1, values.len(), values);
    DeltaRule {
        key_heads: shape.key_heads as usize,
        value_heads: heads,
        key_dim: shape.key_dim as usize,
        value_dim: shape.value_dim as usize,
        taps,
        conv: Array::new(channels, taps, random(channels * taps, 1)),
        decay: row(random(heads, 2).iter().map(|v| -0.5 - 0.4 * v).collect()),
        dt_bias: row(random(heads, 3)),
        norm: Norm { weight: row(random(shape.value_dim as usize, 4)), eps: 1e-6 },
        gate: GateActivation::Silu,
    }
}

struct Device {
    chunked: bool,
    recent: At,
    state: At,
}

/// One step of all spans on the machine.
fn step(
    m: &mut Machine,
    shape: DeltaShape,
    rule: &DeltaRule<Cpu>,
    inputs: &DeltaInputs<Array>,
    spans: &[Span],
    device: &Device,
) -> Vec<f32> {
    let tokens = inputs.qkv.rows();
    let (channels, heads, count) = (shape.channels(), shape.value_heads, tokens as u32);
    let mut firsts = vec![0u32];
    spans.iter().for_each(|s| firsts.push(firsts.last().unwrap() + s.len as u32));
    let firsts = m.words(&firsts);
    // Sequences lie in another order.
    let mut apart =
        |each: u32| m.longs(&(0..spans.len() as u64).rev().map(|i| i * u64::from(each)).collect::<Vec<_>>());
    let recents = apart((rule.taps as u32 - 1) * shape.channels());
    let states = apart(shape.value_heads * shape.key_dim * shape.value_dim);
    let [x, taps, z, b, a] =
        [&inputs.qkv, &rule.conv, &inputs.z, &inputs.b, &inputs.a].map(|v| m.floats(v.values()));
    let [rate, dt_bias, weight] =
        [&rule.decay, &rule.dt_bias, &rule.norm.weight].map(|v| m.floats(v.values()));
    let out = m.room(tokens * channels as usize * 4);
    let spans_u32 = spans.len() as u32;
    let conv = Conv {
        x,
        taps,
        count: rule.taps as u32,
        channels,
        firsts,
        states: recents,
        recent: device.recent,
        out,
        spans: spans_u32,
    };
    m.run(&conv.launch());
    let (key_heads, dim) = (shape.key_heads, shape.key_dim);
    let scale = 1.0 / (dim as f32).sqrt();
    m.run(&UnitNorm { x: out, stride: channels, heads: key_heads, dim, tokens: count, scale }.launch());
    let k = out.plus((key_heads * dim * 4) as usize);
    m.run(&UnitNorm { x: k, stride: channels, heads: key_heads, dim, tokens: count, scale: 1.0 }.launch());
    let [beta, log_decay] = [m.room(tokens * heads as usize * 4), m.room(tokens * heads as usize * 4)];
    m.run(&DeltaGates { b, a, rate, dt_bias, heads, tokens: count, beta, log_decay }.launch());
    let y = m.room(tokens * (heads * shape.value_dim) as usize * 4);
    let rule_launch = launches::DeltaRule {
        qkv: out,
        beta,
        log_decay,
        firsts,
        states,
        shape,
        state: device.state,
        out: y,
        spans: spans_u32,
    };
    m.run(&if device.chunked { rule_launch.launch_chunked() } else { rule_launch.launch() });
    let (runs, width) = (count * heads, shape.value_dim);
    m.run(&RmsNormGated { y, z, weight, runs, width, eps: rule.norm.eps, gate: rule.gate }.launch());
    m.read_floats(y)
}

#[test]
fn sequences_pass_through_the_rule_like_the_cpus() {
    let shapes = [(1, 2, 8, 20, 4), (2, 2, 32, 32, 4), (2, 6, 128, 40, 3), (1, 1, 200, 8, 2)];
    let ways = shapes.into_iter().flat_map(|s| [(s, false), (s, true)]);
    for ((key_heads, value_heads, key_dim, value_dim, taps), chunked) in ways {
        if chunked && key_dim > 128 {
            continue;
        }
        let Some(mut m) = Machine::new() else { return };
        let shape = DeltaShape { key_heads, value_heads, key_dim, value_dim };
        let rule = rule(shape, taps);
        let cpu = Cpu::default();
        let mut states = [cpu.new_delta(&rule).unwrap(), cpu.new_delta(&rule).unwrap()];
        let channels = shape.channels() as usize;
        let device = Device {
            chunked,
            recent: m.floats(&vec![0.0; 2 * (taps - 1) * channels]),
            state: m.floats(&vec![0.0; (2 * value_heads * key_dim * value_dim) as usize]),
        };
        // A prompt shorter than the taps and one longer than a chunk of the CPU; then a step of each.
        let lens = [[2, 70], [1, 1], [3, 1]];
        let mut start = [0, 0];
        for (i, lens) in lens.into_iter().enumerate() {
            let spans = [0, 1].map(|s| Span { start: start[s], len: lens[s] });
            let tokens = lens[0] + lens[1];
            let salt = 10 * i as u64 + 10;
            let array = |cols: usize, salt: u64| Array::new(tokens, cols, random(tokens * cols, salt));
            let inputs = DeltaInputs {
                qkv: array(channels, salt),
                z: array((value_heads * value_dim) as usize, salt + 1),
                b: array(value_heads as usize, salt + 2),
                a: array(value_heads as usize, salt + 3),
            };
            let got = step(&mut m, shape, &rule, &inputs, &spans, &device);
            let want = cpu.delta_rule(inputs, &rule, &spans, states.iter_mut().collect()).unwrap();
            // Two orders of sums that feed back into themselves.
            let (got, want): (Vec<f32>, Vec<f32>) = (got, want.values().to_vec());
            let size = want.iter().fold(0.0f32, |a, b| a.max(b.abs()));
            for (g, w) in got.iter().zip(&want) {
                assert!((g - w).abs() <= 3e-5 * size, "{shape:?} chunked {chunked} step {i}: {g} {w}");
            }
            start = [0, 1].map(|s| start[s] + lens[s]);
        }
    }
}

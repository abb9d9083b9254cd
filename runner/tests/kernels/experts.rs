//! Mixtures of experts: each kernel, and both ways through a whole one.

use runner::Backend;
use runner::backend::{Divide, Linear, Routing, SwiGlu};
use runner::cpu::{Array, Cpu};
use runner::cuda::launches::{
    Combine, Down, Gate, GateUp, Grouped, Router, Shared, SortVisits, Swiglu, Tile, Weights,
};
use runner::weights::Matrix;

use super::machine::{At, Machine, assert_close, random};
use super::matrices::{KINDS, Kind, matrix, upload};
use super::product::product;

/// A mixture and what it is asked.
struct Mixture {
    gate: Vec<Matrix>,
    up: Vec<Matrix>,
    down: Vec<Matrix>,
    shared: [Matrix; 3],
    x: Array,
    logits: Array,
    shared_gate: Vec<f32>,
    routing: Routing,
}

const EXPERTS: usize = 6;
const CHOSEN: u32 = 3;

impl Mixture {
    fn new(tokens: usize, hidden: usize, inter: usize, kind: Kind) -> Self {
        let some =
            |rows, cols, salt| (0..EXPERTS as u64).map(|e| matrix(rows, cols, kind, salt + e)).collect();
        let one = |rows, cols, salt| matrix(rows, cols, kind, salt);
        Mixture {
            gate: some(inter, hidden, 100),
            up: some(inter, hidden, 200),
            down: some(hidden, inter, 300),
            shared: [one(2 * inter, hidden, 400), one(2 * inter, hidden, 401), one(hidden, 2 * inter, 402)],
            x: Array::new(tokens, hidden, random(tokens * hidden, 1)),
            logits: Array::new(tokens, EXPERTS, random(tokens * EXPERTS, 2)),
            shared_gate: random(tokens, 3),
            routing: Routing { chosen: CHOSEN as usize, divide: Divide::BySum },
        }
    }

    /// By the CPU, with the shared expert or without.
    fn outputs(&self, with_shared: bool) -> Vec<f32> {
        let cpu = Cpu::default();
        let linear = |w: &Matrix| Linear { weight: w.clone(), bias: None };
        let swiglu = |g, u, d| SwiGlu::<Cpu> { gate: linear(g), up: linear(u), down: linear(d) };
        let experts: Vec<_> =
            (0..EXPERTS).map(|e| swiglu(&self.gate[e], &self.up[e], &self.down[e])).collect();
        let mut y = cpu.experts(&self.x, &self.logits, self.routing, &experts).unwrap();
        if with_shared {
            let [g, u, d] = &self.shared;
            let mut shared = swiglu(g, u, d).forward(&cpu, &self.x).unwrap();
            cpu.gate(&mut shared, &Array::new(self.x.rows(), 1, self.shared_gate.clone())).unwrap();
            cpu.add(&mut y, &shared).unwrap();
        }
        y.values().to_vec()
    }

    fn tokens(&self) -> u32 {
        self.x.rows() as u32
    }
}

struct Uploaded {
    gate: Weights<At>,
    up: Weights<At>,
    down: Weights<At>,
    shared: [Weights<At>; 3],
    x: At,
    ids: At,
    weights: At,
    shared_gate: At,
}

fn uploaded(m: &mut Machine, moe: &Mixture) -> Uploaded {
    let mut all = |w: &[Matrix]| upload(m, &w.iter().collect::<Vec<_>>());
    let [gate, up, down] = [all(&moe.gate), all(&moe.up), all(&moe.down)];
    let shared = [0, 1, 2].map(|i| upload(m, &[&moe.shared[i]]));
    let visits = (moe.tokens() * CHOSEN) as usize;
    let (ids, weights, logits) = (m.room(visits * 4), m.room(visits * 4), m.floats(moe.logits.values()));
    let (experts, divide, tokens) = (EXPERTS as u32, moe.routing.divide, moe.tokens());
    m.run(&Router { logits, experts, chosen: CHOSEN, divide, ids, weights, tokens }.launch());
    let (x, shared_gate) = (m.floats(moe.x.values()), m.floats(&moe.shared_gate));
    Uploaded { gate, up, down, shared, x, ids, weights, shared_gate }
}

#[test]
fn few_tokens_go_through_a_mixture() {
    let shapes: [[usize; 2]; 2] = [[40, 24], [96, 530]];
    for (kind, [hidden, inter]) in KINDS.iter().flat_map(|k| shapes.map(|s| (*k, s))) {
        let Some(mut m) = Machine::new() else { return };
        let whole = if matches!(kind, Kind::Int4(128, ..)) { 128 } else { 32 };
        let moe = Mixture::new(2, hidden.next_multiple_of(whole), inter.next_multiple_of(whole), kind);
        let u = uploaded(&mut m, &moe);
        let (tokens, visits) = (moe.tokens(), moe.tokens() * CHOSEN);
        let (hidden, inter) = (u.gate.cols, u.gate.rows);
        let inner = m.room((visits * inter * 4) as usize);
        let ids = Some(u.ids);
        m.run(&GateUp { gate: u.gate, up: u.up, x: u.x, ids, per: CHOSEN, out: inner, visits }.launch());
        let shared_inner = m.room((tokens * 2 * inter * 4) as usize);
        let [gate, up, w] = u.shared;
        m.run(&GateUp { gate, up, x: u.x, ids: None, per: 1, out: shared_inner, visits: tokens }.launch());
        for with_shared in [false, true] {
            let shared = with_shared.then_some(Shared { w, inner: shared_inner, gate: u.shared_gate });
            let out = m.room((tokens * hidden * 4) as usize);
            let (ids, weights) = (u.ids, u.weights);
            let launch = Down { w: u.down, inner, ids, weights, chosen: CHOSEN, shared, out, tokens };
            m.run(&launch.launch());
            assert_close(&m.read_floats(out), &moe.outputs(with_shared), &format!("{kind:?} {with_shared}"));
        }
    }
}

#[test]
fn many_tokens_go_through_a_mixture_sorted() {
    let Some(mut m) = Machine::new() else { return };
    let moe = Mixture::new(50, 64, 96, Kind::E4m3([128, 128]));
    let u = uploaded(&mut m, &moe);
    let (tokens, visits) = (moe.tokens(), moe.tokens() * CHOSEN);
    let (hidden, inter, experts) = (u.gate.cols, u.gate.rows, EXPERTS as u32);
    let offsets = m.room((experts as usize + 1) * 4);
    let [order, positions] = [m.room(visits as usize * 4), m.room(visits as usize * 4)];
    m.run(&SortVisits { ids: u.ids, visits, experts, offsets, order, positions }.launch());
    let mut tile = |w: Weights<At>, x, order, per, grouped: bool, count: u32| {
        let y = m.room((count * w.rows * 4) as usize);
        let grouped = grouped.then_some(Grouped { offsets, order, experts });
        m.run(&Tile { w, x, grouped, per, count, bias: None, y, parts: 3 }.launch());
        y
    };
    let gate = tile(u.gate, u.x, Some(order), CHOSEN, true, visits);
    let up = tile(u.up, u.x, Some(order), CHOSEN, true, visits);
    let shared_gate = tile(u.shared[0], u.x, None, 1, false, tokens);
    let shared_up = tile(u.shared[1], u.x, None, 1, false, tokens);
    m.run(&Swiglu { gate, up, n: u64::from(visits * inter) }.launch());
    m.run(&Swiglu { gate: shared_gate, up: shared_up, n: u64::from(tokens * 2 * inter) }.launch());
    let mut tile = |w: Weights<At>, x, grouped: bool, count: u32| {
        let y = m.room((count * w.rows * 4) as usize);
        let grouped = grouped.then_some(Grouped { offsets, order: None, experts });
        m.run(&Tile { w, x, grouped, per: 1, count, bias: None, y, parts: 3 }.launch());
        y
    };
    let y = tile(u.down, gate, true, visits);
    let shared = tile(u.shared[2], shared_gate, false, tokens);
    for with_shared in [false, true] {
        let shared = with_shared.then_some([shared, u.shared_gate]);
        let out = m.room((tokens * hidden * 4) as usize);
        let weights = u.weights;
        m.run(
            &Combine { y, positions, weights, chosen: CHOSEN, shared, width: hidden, tokens, out }.launch(),
        );
        assert_close(&m.read_floats(out), &moe.outputs(with_shared), "mixture");
    }
}

/// The weights of the chosen, read off a mixture of experts that answer with their own number.
#[test]
fn router_chooses_like_the_cpu() {
    let Some(mut m) = Machine::new() else { return };
    for (experts, chosen) in [(4usize, 2usize), (40, 8), (128, 8), (257, 10), (33, 32)] {
        for divide in [Divide::Never, Divide::BySum] {
            let tokens = 4;
            let mut logits: Vec<f32> = random(tokens * experts, 5).iter().map(|v| v * 6.0).collect();
            // Ties: of equal ones the lower number.
            logits[experts..2 * experts].iter_mut().for_each(|v| *v = v.round());
            logits[2 * experts..3 * experts].fill(0.5);
            let (at, ids, weights) =
                (m.floats(&logits), m.room(tokens * chosen * 4), m.room(tokens * chosen * 4));
            let (e, chosen_u32) = (experts as u32, chosen as u32);
            m.run(
                &Router { logits: at, experts: e, chosen: chosen_u32, divide, ids, weights, tokens: 4 }
                    .launch(),
            );
            let got: Vec<(u32, f32)> = m.read_words(ids).into_iter().zip(m.read_floats(weights)).collect();
            let want = chosen_by_cpu(&logits, experts, Routing { chosen, divide });
            for (token, (got, want)) in got.chunks(chosen).zip(&want).enumerate() {
                let ids = |of: &[(u32, f32)]| of.iter().map(|c| c.0).collect::<Vec<_>>();
                assert_eq!(ids(got), ids(want), "{experts} experts, token {token}");
                let weights = |of: &[(u32, f32)]| of.iter().map(|c| c.1).collect::<Vec<_>>();
                assert_close(&weights(got), &weights(want), "weights");
            }
        }
    }
}

/// Expert `e` answers 1 in column `e`, so that the output is each expert's weight.
fn chosen_by_cpu(logits: &[f32], experts: usize, routing: Routing) -> Vec<Vec<(u32, f32)>> {
    use runner::weights::{Bytes, Format};
    let plain = |rows: usize, cols: usize, values: Vec<f32>| Linear::<Cpu> {
        weight: Matrix {
            name: "w".into(),
            rows,
            cols,
            bytes: Bytes::owned(values.iter().flat_map(|v| v.to_le_bytes()).collect()),
            format: Format::F32,
        },
        bias: None,
    };
    // silu(100) * 0.01 is 1.
    let answers = |e: usize| SwiGlu {
        gate: plain(1, experts, vec![100.0; experts]),
        up: plain(1, experts, vec![0.01; experts]),
        down: plain(experts, 1, (0..experts).map(|c| f32::from(u8::from(c == e))).collect()),
    };
    let mixture: Vec<_> = (0..experts).map(answers).collect();
    let tokens = logits.len() / experts;
    let mut x = Array::zeros(tokens, experts);
    x.values_mut().iter_mut().step_by(experts).for_each(|x| *x = 1.0);
    let y =
        Cpu::default().experts(&x, &Array::new(tokens, experts, logits.to_vec()), routing, &mixture).unwrap();
    let chosen = |row: &[f32]| {
        let all = row.iter().enumerate().map(|(e, w)| (e as u32, *w));
        all.filter(|(_, w)| *w > 0.0).collect()
    };
    y.each_row().map(chosen).collect()
}

#[test]
fn visits_are_sorted_stably() {
    let Some(mut m) = Machine::new() else { return };
    for (visits, experts) in [(1u32, 1u32), (33, 4), (200, 9), (64, 300)] {
        let ids: Vec<u32> = random(visits as usize, 6)
            .iter()
            .map(|v| (((v + 1.0) / 2.0 * experts as f32) as u32).min(experts - 1))
            .collect();
        let at = m.words(&ids);
        let offsets = m.room((experts as usize + 1) * 4);
        let [order, positions] = [m.room(visits as usize * 4), m.room(visits as usize * 4)];
        m.run(&SortVisits { ids: at, visits, experts, offsets, order, positions }.launch());
        let mut want: Vec<u32> = (0..visits).collect();
        want.sort_by_key(|v| ids[*v as usize]);
        assert_eq!(m.read_words(order), want);
        let below = |e: u32| ids.iter().filter(|id| **id < e).count() as u32;
        assert_eq!(m.read_words(offsets), (0..=experts).map(below).collect::<Vec<_>>());
        let order = m.read_words(order);
        for (v, p) in m.read_words(positions).iter().enumerate() {
            assert_eq!(order[*p as usize] as usize, v);
        }
    }
}

#[test]
fn dense_layers_are_a_mixture_of_one() {
    let Some(mut m) = Machine::new() else { return };
    let [g, u, d] =
        [matrix(50, 40, Kind::Bf16, 1), matrix(50, 40, Kind::Bf16, 2), matrix(40, 50, Kind::Bf16, 3)];
    let x = Array::new(3, 40, random(120, 4));
    let [gate, up, _] = [&g, &u, &d].map(|w| upload(&mut m, &[w]));
    let (at, out, factors) = (m.floats(x.values()), m.room(3 * 50 * 4), m.floats(&random(3, 5)));
    m.run(&GateUp { gate, up, x: at, ids: None, per: 1, out, visits: 3 }.launch());
    let cpu = Cpu::default();
    let inner =
        cpu.swiglu(Array::new(3, 50, product(&x, &g, None)), &Array::new(3, 50, product(&x, &u, None)));
    assert_close(&m.read_floats(out), inner.unwrap().values(), "dense");
    m.run(&Gate { x: out, gate: factors, shared: 50, n: 150 }.launch());
}

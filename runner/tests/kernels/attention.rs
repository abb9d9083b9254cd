//! Attention: cache, splits, combination.

use runner::Backend;
use runner::backend::{Heads, Span};
use runner::cpu::{Array, Cpu};
use runner::cuda::launches::{Attention, AttentionCombine, KvKind, KvWrite};

use super::machine::{Machine, assert_close, random};

const SHAPES: [Heads; 4] = [
    Heads { queries: 6, pairs: 2, dim: 8 },
    Heads { queries: 4, pairs: 4, dim: 64 },
    Heads { queries: 8, pairs: 1, dim: 80 },
    Heads { queries: 5, pairs: 1, dim: 33 },
];

#[test]
fn sequences_attend_like_the_cpus() {
    for (heads, gated) in SHAPES.into_iter().zip([false, true, false, true]) {
        let Some(mut m) = Machine::new() else { return };
        let cpu = Cpu::default();
        let Heads { queries, pairs, dim } = heads;
        let width = pairs * dim;
        // Positions lie further apart than they are wide.
        let stride = width + 4;
        // Two sequences: their first tokens, then steps of both; the pool holds them apart.
        let starts = [3u64, 100].map(|slot| slot * stride as u64);
        let spans = [
            [Span { start: 0, len: 5 }, Span { start: 0, len: 40 }],
            [Span { start: 5, len: 1 }, Span { start: 40, len: 2 }],
        ];
        let mut caches = [cpu.new_kv(heads).unwrap(), cpu.new_kv(heads).unwrap()];
        let slots = 200;
        let [keys, values] = [m.room(slots * stride * 4), m.room(slots * stride * 4)];
        for (step, spans) in spans.iter().enumerate() {
            let tokens = spans[0].len + spans[1].len;
            let salt = step as u64 * 10;
            let [q, k, v] =
                [(queries, 1), (pairs, 2), (pairs, 3)].map(|(n, s)| random(tokens * n * dim, salt + s));
            let gate = random(tokens * queries * 2 * dim, salt + 4);
            let [q_at, k_at, v_at, gate_at] = [&q, &k, &v, &gate].map(|x| m.floats(x));
            let firsts: Vec<u64> = spans.iter().zip(starts).flat_map(|(s, f)| vec![f; s.len]).collect();
            let places: Vec<u32> =
                spans.iter().flat_map(|s| s.start..s.start + s.len).map(|p| p as u32).collect();
            let (firsts, places) = (m.longs(&firsts), m.words(&places));
            let tokens_u32 = tokens as u32;
            let write = KvWrite {
                kind: KvKind::F32,
                k: k_at,
                v: v_at,
                starts: firsts,
                positions: places,
                width: width as u32,
                stride: stride as u32,
                keys,
                values,
                tokens: tokens_u32,
            };
            m.run(&write.launch());
            let array = |x: Vec<f32>, n: usize| Array::new(tokens, n * dim, x);
            let qkv = [array(q, queries), array(k, pairs), array(v, pairs)];
            let mut want = cpu.attention(qkv, heads, spans, caches.iter_mut().collect()).unwrap();
            if gated {
                let gates = gate.chunks(2 * dim).flat_map(|h| &h[dim..]).copied().collect();
                cpu.gate(&mut want, &array(gates, queries)).unwrap();
            }
            for (splits, length) in [(1u32, 64u32), (3, 32), (2, 64)] {
                let parts = m.room(tokens * queries * splits as usize * (dim + 2) * 4);
                let out = m.room(tokens * queries * dim * 4);
                let attention = Attention {
                    kind: KvKind::F32,
                    q: q_at,
                    keys,
                    values,
                    starts: firsts,
                    positions: places,
                    stride: stride as u32,
                    heads,
                    splits,
                    length,
                    parts,
                    tokens: tokens_u32,
                };
                m.run(&attention.launch());
                let combine = AttentionCombine {
                    parts,
                    gate: gated.then(|| gate_at.plus(dim * 4)),
                    gate_stride: (queries * 2 * dim) as u32,
                    gate_head: 2 * dim as u32,
                    heads,
                    splits,
                    out,
                    tokens: tokens_u32,
                };
                m.run(&combine.launch());
                let what = format!("{heads:?}, {splits} splits of {length}");
                assert_close(&m.read_floats(out), want.values(), &what);
            }
        }
    }
}

#[test]
fn cache_in_half_the_memory_holds_rounded_numbers() {
    let Some(mut m) = Machine::new() else { return };
    let heads = Heads { queries: 4, pairs: 2, dim: 16 };
    let (tokens, width) = (40usize, 32usize);
    let rounded = |x: Vec<f32>| x.iter().map(|x| half::bf16::from_f32(*x).to_f32()).collect::<Vec<_>>();
    let [q, k, v] = [random(tokens * 64, 1), random(tokens * width, 2), random(tokens * width, 3)];
    let [q_at, k_at, v_at] = [&q, &k, &v].map(|x| m.floats(x));
    let (starts, positions) = (m.longs(&vec![0; tokens]), m.words(&(0..tokens as u32).collect::<Vec<_>>()));
    let [keys, values] = [m.room(tokens * width * 2), m.room(tokens * width * 2)];
    let kind = KvKind::Bf16;
    let count = tokens as u32;
    let (width, stride) = (32, 32);
    let write =
        KvWrite { kind, k: k_at, v: v_at, starts, positions, width, stride, keys, values, tokens: count };
    m.run(&write.launch());
    assert_eq!(m.read_bytes(keys), verify::codec::Float::BF16.to_bytes(&k));
    let (parts, out) = (m.room(tokens * 4 * 18 * 2 * 4), m.room(tokens * 64 * 4));
    let (splits, length) = (2, 32);
    let q = Array::new(tokens, 64, q);
    let launch = Attention {
        kind,
        q: q_at,
        keys,
        values,
        starts,
        positions,
        stride,
        heads,
        splits,
        length,
        parts,
        tokens: count,
    };
    m.run(&launch.launch());
    let (gate, gate_stride, gate_head) = (None, 0, 0);
    m.run(
        &AttentionCombine { parts, gate, gate_stride, gate_head, heads, splits, out, tokens: count }.launch(),
    );
    let cpu = Cpu::default();
    let mut kv = cpu.new_kv(heads).unwrap();
    let [k, v] = [k, v].map(|x| Array::new(tokens, 32, rounded(x)));
    let span = Span { start: 0, len: tokens };
    let want = cpu.attention([q, k, v], heads, &[span], vec![&mut kv]).unwrap();
    assert_close(&m.read_floats(out), want.values(), "bf16 cache");
}

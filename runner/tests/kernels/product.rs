//! Linear layers, tables, repacking.

use runner::Backend;
use runner::backend::Linear;
use runner::cpu::{Array, Cpu};
use runner::cuda::launches::{Embed, Gemv, Grouped, Tile};
use runner::weights::{Bytes, Format, Matrix};

use super::machine::{Machine, assert_close, random};
use super::matrices::{KINDS, Kind, matrix, numbers, upload};

/// `[tokens, out]` by the CPU.
pub fn product(x: &Array, weight: &Matrix, bias: Option<&[f32]>) -> Vec<f32> {
    let bias = bias.map(|b| Array::new(1, b.len(), b.to_vec()));
    let layer = Linear::<Cpu> { weight: weight.clone(), bias };
    let [y] = Cpu::default().linear(x, [&layer]).unwrap();
    y.values().to_vec()
}

/// One token each of several visits to experts of a stack, and many tokens of one matrix.
const SHAPES: [[usize; 2]; 4] = [[3, 5], [20, 70], [9, 2100], [130, 256]];

#[test]
fn rows_of_tables_are_exact() {
    let Some(mut m) = Machine::new() else { return };
    for kind in KINDS {
        let w = matrix(11, 70, kind, 3);
        let ids = [10u32, 0, 7, 7];
        let table = upload(&mut m, &[&w]);
        let (at, out) = (m.words(&ids), m.room(4 * w.cols * 4));
        m.run(&Embed { table, ids: at, out, count: 4 }.launch());
        let all = numbers(&w);
        let want: Vec<f32> =
            ids.iter().flat_map(|id| &all[*id as usize * w.cols..][..w.cols]).copied().collect();
        assert_eq!(m.read_floats(out), want, "{kind:?}");
        if !matches!(kind, Kind::Awq(_)) {
            assert_eq!(Cpu::default().embed(&w, &ids).unwrap().values(), want, "{kind:?}");
        }
    }
}

#[test]
fn few_tokens_multiply_like_the_cpu() {
    let Some(mut m) = Machine::new() else { return };
    for (kind, [rows, cols]) in KINDS.iter().flat_map(|k| SHAPES.map(|s| (*k, s))) {
        let w = matrix(rows, cols, kind, 5);
        let x = Array::new(2, w.cols, random(2 * w.cols, 6));
        let bias = random(w.rows, 7);
        for bias in [None, Some(&bias[..])] {
            let mut m = Machine::new().unwrap();
            let (at, given) = (m.floats(x.values()), bias.map(|b| m.floats(b)));
            let weights = upload(&mut m, &[&w]);
            let y = m.room(2 * w.rows * 4);
            m.run(&Gemv { w: weights, x: at, ids: None, per: 1, bias: given, y, visits: 2 }.launch());
            let what = format!("{kind:?} {} x {}", w.rows, w.cols);
            assert_close(&m.read_floats(y), &product(&x, &w, bias), &what);
        }
    }
    // Visits to experts that share an input in threes.
    for kind in KINDS {
        let experts: Vec<Matrix> = (0..4).map(|e| matrix(10, 96, kind, 20 + e)).collect();
        let cols = experts[0].cols;
        let x = Array::new(2, cols, random(2 * cols, 8));
        let ids = [3u32, 0, 2, 1, 1, 3];
        let weights = upload(&mut m, &experts.iter().collect::<Vec<_>>());
        let (at, ids_at) = (m.floats(x.values()), m.words(&ids));
        let rows = experts[0].rows;
        let y = m.room(6 * rows * 4);
        m.run(&Gemv { w: weights, x: at, ids: Some(ids_at), per: 3, bias: None, y, visits: 6 }.launch());
        let one = |(v, e): (usize, &u32)| {
            product(&Array::new(1, cols, x.row(v / 3).to_vec()), &experts[*e as usize], None)
        };
        let want: Vec<f32> = ids.iter().enumerate().flat_map(one).collect();
        assert_close(&m.read_floats(y), &want, &format!("experts, {kind:?}"));
    }
}

#[test]
fn many_tokens_multiply_like_the_cpu() {
    for (kind, [rows, cols]) in KINDS.iter().flat_map(|k| [[70, 50], [64, 96], [3, 200]].map(|s| (*k, s))) {
        let Some(mut m) = Machine::new() else { return };
        let w = matrix(rows, cols, kind, 9);
        let weights = upload(&mut m, &[&w]);
        if !weights.fit_tiles() {
            continue;
        }
        let tokens = 75;
        let x = Array::new(tokens, w.cols, random(tokens * w.cols, 10));
        let bias = random(w.rows, 11);
        let want = product(&x, &w, Some(&bias));
        let (at, bias) = (m.floats(x.values()), m.floats(&bias));
        for (parts, tolerance) in [(1, 1e-2), (3, 2e-6)] {
            let y = m.room(tokens * w.rows * 4);
            let count = tokens as u32;
            m.run(
                &Tile { w: weights, x: at, grouped: None, per: 1, count, bias: Some(bias), y, parts }
                    .launch(),
            );
            let size = want.iter().fold(0.0f32, |a, b| a.max(b.abs()));
            for (i, (got, want)) in m.read_floats(y).iter().zip(&want).enumerate() {
                let what = format!("{kind:?} {} x {} in {parts} parts, number {i}", w.rows, w.cols);
                assert!((got - want).abs() <= tolerance * size, "{what}: {got} {want}");
            }
        }
    }
}

#[test]
fn tiles_find_their_experts() {
    let Some(mut m) = Machine::new() else { return };
    let experts: Vec<Matrix> = (0..5).map(|e| matrix(66, 64, Kind::Bf16, 30 + e)).collect();
    let weights = upload(&mut m, &experts.iter().collect::<Vec<_>>());
    // Empty, longer than a tile, just a tile; the last one ends in the middle.
    let offsets = [0u32, 0, 70, 134, 135, 150];
    let order: Vec<u32> = (0..150).map(|p| p * 7 % 150).collect();
    let x = Array::new(50, 64, random(50 * 64, 12));
    let (at, offsets_at, order_at) = (m.floats(x.values()), m.words(&offsets), m.words(&order));
    let y = m.room(150 * 66 * 4);
    let grouped = Some(Grouped { offsets: offsets_at, order: Some(order_at), experts: 5 });
    m.run(&Tile { w: weights, x: at, grouped, per: 3, count: 150, bias: None, y, parts: 3 }.launch());
    let mut want = Vec::new();
    for p in 0..150u32 {
        let e = (0..5).find(|e| p < offsets[e + 1]).unwrap();
        let row = x.row(order[p as usize] as usize / 3).to_vec();
        want.extend(product(&Array::new(1, 64, row), &experts[e], None));
    }
    assert_close(&m.read_floats(y), &want, "grouped");
}

#[test]
fn nan_codes_are_seen() {
    let Some(mut m) = Machine::new() else { return };
    let mut w = matrix(3, 48, Kind::E4m3([1, 0]), 13);
    let mut bytes = w.bytes.as_slice().to_vec();
    bytes[48 + 40] = 0xff;
    w.bytes = Bytes::owned(bytes);
    assert!(matches!(w.format, Format::E4m3(_)));
    let x = m.floats(&random(48, 14));
    let weights = upload(&mut m, &[&w]);
    let (y, z) = (m.room(12), m.room(12));
    m.run(&Gemv { w: weights, x, ids: None, per: 1, bias: None, y, visits: 1 }.launch());
    m.run(&Tile { w: weights, x, grouped: None, per: 1, count: 1, bias: None, y: z, parts: 3 }.launch());
    for y in [y, z] {
        assert_eq!(m.read_floats(y).iter().map(|y| y.is_nan()).collect::<Vec<_>>(), [false, true, false]);
    }
}

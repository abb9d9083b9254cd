//! Norms, rotation and what works on each number alone.

use runner::Backend;
use runner::backend::{GateActivation, Norm};
use runner::cpu::{Array, Cpu};
use runner::cuda::launches::{
    Add, Bias, Clamp, Columns, Fp8Kept, Gate, RmsNorm, RmsNormAdd, RmsNormGated, Rope, Rows, Swiglu,
};

use super::machine::{Machine, assert_close, random};

fn norm(weight: &[f32]) -> Norm<Cpu> {
    Norm { weight: Array::new(1, weight.len(), weight.to_vec()), eps: 1e-6 }
}

#[test]
fn norms_are_those_of_the_cpu() {
    let Some(mut m) = Machine::new() else { return };
    let cpu = Cpu::default();
    for (runs, width) in [(1u32, 7u32), (3, 64), (2, 130), (1, 2048), (2, 3001)] {
        let n = (runs * width) as usize;
        let (x, add, weight) = (random(n, 1), random(n, 2), random(width as usize, 3));
        let [x_at, add_at, weight_at] = [&x, &add, &weight].map(|v| m.floats(v));
        let y = m.room(n * 4);
        let eps = 1e-6;
        m.run(&RmsNorm { x: x_at, weight: weight_at, y, runs, width, eps }.launch());
        let mut rows = Array::new(runs as usize, width as usize, x.clone());
        let want = cpu.norm(&rows, &norm(&weight)).unwrap();
        assert_close(&m.read_floats(y), want.values(), &format!("norm of {width}"));

        m.run(&RmsNormAdd { x: x_at, add: add_at, weight: weight_at, y, runs, width, eps }.launch());
        cpu.add(&mut rows, &Array::new(runs as usize, width as usize, add)).unwrap();
        assert_eq!(m.read_floats(x_at), rows.values(), "sum");
        let want = cpu.norm(&rows, &norm(&weight)).unwrap();
        assert_close(&m.read_floats(y), want.values(), &format!("norm of a sum of {width}"));
    }
}

#[test]
fn gated_norm_is_a_norm_times_a_gate() {
    let Some(mut m) = Machine::new() else { return };
    let cpu = Cpu::default();
    for gate in [GateActivation::Silu, GateActivation::Sigmoid] {
        let (runs, width) = (5, 40);
        let (y, z, weight) = (random(runs * width, 4), random(runs * width, 5), random(width, 6));
        let [y_at, z_at, weight_at] = [&y, &z, &weight].map(|v| m.floats(v));
        let (runs, width) = (runs as u32, width as u32);
        m.run(&RmsNormGated { y: y_at, z: z_at, weight: weight_at, runs, width, eps: 1e-6, gate }.launch());
        let normed = cpu.norm(&Array::new(5, 40, y), &norm(&weight)).unwrap();
        let z = Array::new(5, 40, z);
        let want = match gate {
            GateActivation::Silu => cpu.swiglu(z, &normed).unwrap(),
            GateActivation::Sigmoid => {
                let mut y = normed;
                cpu.gate(&mut y, &z).unwrap();
                y
            }
        };
        assert_close(&m.read_floats(y_at), want.values(), &format!("{gate:?}"));
    }
}

#[test]
fn each_number_has_the_bits_of_the_cpu() {
    let Some(mut m) = Machine::new() else { return };
    let cpu = Cpu::default();
    let (rows, cols) = (7, 90);
    let n = (rows * cols) as u64;
    let wide = |salt| random(rows * cols, salt).iter().map(|v| v * 12.0).collect::<Vec<f32>>();
    let array = |v: &[f32]| Array::new(rows, cols, v.to_vec());
    let (x, y) = (wide(1), wide(2));
    let [a, b] = [&x, &y].map(|v| m.floats(v));

    let mut want = array(&x);
    m.run(&Add { x: a, y: b, n }.launch());
    cpu.add(&mut want, &array(&y)).unwrap();
    assert_eq!(m.read_floats(a), want.values(), "add");

    m.run(&Clamp { x: a, limit: 3.0, n }.launch());
    cpu.clamp(&mut want, 3.0).unwrap();
    assert_eq!(m.read_floats(a), want.values(), "clamp");

    m.run(&Gate { x: a, gate: b, shared: 1, n }.launch());
    cpu.gate(&mut want, &array(&y)).unwrap();
    assert_eq!(m.read_floats(a), want.values(), "gate");

    let one = wide(3)[..rows].to_vec();
    let one_at = m.floats(&one);
    m.run(&Gate { x: a, gate: one_at, shared: cols as u32, n }.launch());
    cpu.gate(&mut want, &Array::new(rows, 1, one)).unwrap();
    assert_eq!(m.read_floats(a), want.values(), "gate of a row");

    m.run(&Swiglu { gate: b, up: a, n }.launch());
    let swiglu = cpu.swiglu(array(&y), &want).unwrap();
    assert_eq!(m.read_floats(b), swiglu.values(), "swiglu");

    let bias = wide(4)[..cols].to_vec();
    let bias_at = m.floats(&bias);
    m.run(&Bias { y: a, bias: bias_at, width: cols as u32, n }.launch());
    let sums: Vec<f32> = want.values().iter().enumerate().map(|(i, v)| v + bias[i % cols]).collect();
    assert_eq!(m.read_floats(a), sums, "bias");

    let columns = [89u32, 0, 4, 4, 17];
    let (columns_at, out) = (m.words(&columns), m.room(rows * 5 * 4));
    m.run(&Columns { x: b, columns: columns_at, out, rows: 7, width: 90, count: 5 }.launch());
    let want = cpu.columns(&swiglu, &columns.map(|c| c as usize)).unwrap();
    assert_eq!(m.read_floats(out), want.values(), "columns");

    let chosen = [6u32, 1, 1];
    let (rows_at, out) = (m.words(&chosen), m.room(3 * cols * 4));
    m.run(&Rows { x: b, rows: rows_at, out, width: 90, count: 3 }.launch());
    let want = cpu.rows(&swiglu, &chosen.map(|r| r as usize)).unwrap();
    assert_eq!(m.read_floats(out), want.values(), "rows");
}

#[test]
fn heads_are_normed_and_turned_like_the_cpus() {
    let Some(mut m) = Machine::new() else { return };
    let cpu = Cpu::default();
    // Heads, entries, half the rotated ones, whether a gate lies behind each head.
    for (heads, dim, half, gated) in
        [(3, 8, 4, false), (2, 64, 16, true), (5, 80, 40, false), (1, 256, 32, true)]
    {
        for normed in [false, true] {
            let tokens = 3;
            let stride = dim * (1 + usize::from(gated));
            let x = random(tokens * heads * stride, 7);
            let weight = random(dim, 8);
            let table = random(6 * 2 * half, 9);
            let positions = [5u32, 0, 3];
            let [x_at, weight_at, angles] = [&x, &weight, &table].map(|v| m.floats(v));
            let (rows, out) = (m.words(&positions), m.room(tokens * heads * dim * 4));
            let launch = Rope {
                x: x_at,
                token_stride: (heads * stride) as u32,
                head_stride: stride as u32,
                norm: normed.then_some((weight_at, 1e-6)),
                angles,
                positions: Some(rows),
                half: half as u32,
                tokens: tokens as u32,
                heads: heads as u32,
                dim: dim as u32,
                out,
            };
            m.run(&launch.launch());
            let queries = x.chunks(stride).flat_map(|h| &h[..dim]).copied().collect();
            let mut want = Array::new(tokens, heads * dim, queries);
            if normed {
                want = cpu.norm(&want, &norm(&weight)).unwrap();
            }
            let angles = positions.iter().flat_map(|p| &table[*p as usize * 2 * half..][..2 * half]);
            let angles = Array::new(tokens, 2 * half, angles.copied().collect());
            cpu.rotate(&mut want, dim, &angles).unwrap();
            let what = format!("{heads} heads of {dim}, norm {normed}");
            if !normed {
                assert_eq!(m.read_floats(out), want.values(), "{what}");
            }
            assert_close(&m.read_floats(out), want.values(), &what);

            // In place, each token its own row of the angles.
            if !gated {
                let angles = m.floats(angles.values());
                let again = Rope { angles, positions: None, out: x_at, ..launch };
                m.run(&again.launch());
                assert_eq!(m.read_floats(x_at), m.read_floats(out), "{what} in place");
            }
        }
    }
}

#[test]
fn what_fp8_keeps_has_the_bits_of_the_cpu() {
    let Some(mut m) = Machine::new() else { return };
    let (tokens, parts, part) = (5usize, 3usize, 33usize);
    let mut x: Vec<f32> = random(tokens * parts * part, 1).iter().map(|v| v * 40.0).collect();
    x[..6].copy_from_slice(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, 1e9, 1e-9]);
    for scales in [vec![0.02f32], vec![1.0, 0.125, 7e-3]] {
        let mut want = Array::new(tokens, parts * part, x.clone());
        Cpu::default().round_to_fp8(&mut want, &scales).unwrap();
        let (x_at, scales_at, out) = (m.floats(&x), m.floats(&scales), m.room(x.len() * 4));
        let width = parts * part;
        let launch = Fp8Kept {
            x: x_at,
            scales: scales_at,
            width: width as u32,
            part: (width / scales.len()) as u32,
            n: x.len() as u64,
            out,
        };
        m.run(&launch.launch());
        let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&m.read_floats(out)), bits(want.values()), "{scales:?}");
    }
}

//! 4-bit codes and AWQ's statistics.

use half::{bf16, f16};
use runner::cuda::launches::{Int4Quantize, Int4Rule, ScaleKind, SquaredDifference, WeightShares};
use verify::codec::Float;

use super::machine::{Machine, assert_close, random};

/// Codes, scale, zero and round trip of one group, by the formulas of the format.
fn group_of(v: &[f32], s: &[f32], rule: Int4Rule, kind: ScaleKind) -> (Vec<u8>, f32, u8, Vec<f32>) {
    let scaled: Vec<f32> = v.iter().zip(s).map(|(v, s)| v * s).collect();
    let (lo, hi) = scaled.iter().fold((0.0f32, 0.0f32), |(l, h), v| (l.min(*v), h.max(*v)));
    let exact = match rule {
        Int4Rule::Middle => hi.max(-lo) / 7.5,
        Int4Rule::Stored => (hi - lo) / 15.0,
        Int4Rule::AutoAwq => (hi - lo).max(1e-5) / 15.0,
    };
    let (mut scale, smallest, epsilon) = match kind {
        ScaleKind::F32 => (exact, f32::MIN_POSITIVE, f32::EPSILON),
        ScaleKind::F16 => (f16::from_f32(exact).to_f32(), 2f32.powi(-20), f16::EPSILON.to_f32()),
        ScaleKind::Bf16 => (bf16::from_f32(exact).to_f32(), f32::MIN_POSITIVE, bf16::EPSILON.to_f32()),
    };
    let mut zero = match rule {
        Int4Rule::Middle => 8.0,
        Int4Rule::Stored => (-8.0 - lo / exact).round_ties_even().clamp(-8.0, 7.0) + 8.0,
        Int4Rule::AutoAwq => (-(lo / exact).round_ties_even()).clamp(0.0, 15.0),
    };
    if rule != Int4Rule::AutoAwq && scale < smallest {
        (scale, zero) = (epsilon, 8.0);
    }
    let code = |v: f32| match rule {
        Int4Rule::AutoAwq => ((v / scale).round_ties_even() + zero).clamp(0.0, 15.0),
        _ => (v / scale + (zero - 8.0)).round_ties_even().clamp(-8.0, 7.0) + 8.0,
    };
    let codes: Vec<f32> = scaled.iter().map(|v| code(*v)).collect();
    let back = codes.iter().zip(s).map(|(c, s)| (c - zero) * scale / s).collect();
    (codes.iter().map(|c| *c as u8).collect(), scale, zero as u8, back)
}

#[test]
fn codes_follow_the_rules_bit_for_bit() {
    for (float, scaled) in [(Float::F32, true), (Float::F16, false), (Float::BF16, true)] {
        for rule in [Int4Rule::Middle, Int4Rule::Stored, Int4Rule::AutoAwq] {
            for kind in [ScaleKind::F32, ScaleKind::F16, ScaleKind::Bf16] {
                let Some(mut m) = Machine::new() else { return };
                let (rows, cols, group) = (6usize, 96usize, 48usize);
                let mut values = random(rows * cols, 1);
                values[..group].fill(0.0);
                values[cols..2 * cols].iter_mut().for_each(|v| *v = v.abs() + 0.5);
                values[2 * cols..3 * cols].iter_mut().for_each(|v| *v *= 1e-7);
                let bytes = float.to_bytes(&values);
                let values = float.to_f32(&bytes);
                let s: Vec<f32> = match scaled {
                    true => random(cols, 2).iter().map(|v| 1.0 + 0.7 * v).collect(),
                    false => vec![1.0; cols],
                };
                let groups = rows * cols / group;
                let w = m.bytes(&bytes);
                let s_at = scaled.then(|| m.floats(&s));
                let (codes, scales, zeros) = (m.room(rows * cols), m.room(groups * 4), m.room(groups));
                let (faults, back) = (m.room(groups * 4), m.room(rows * cols * 4));
                let launch = Int4Quantize {
                    float,
                    w,
                    s: s_at,
                    rows: rows as u32,
                    cols: cols as u32,
                    group: group as u32,
                    rule,
                    scale_kind: kind,
                    codes,
                    scales,
                    zeros,
                    faults,
                    back: Some(back),
                };
                m.run(&launch.launch());
                let what = format!("{float:?} {rule:?} {kind:?}");
                for (n, v) in values.chunks(group).enumerate() {
                    let s = &s[n % (cols / group) * group..][..group];
                    let (want_codes, scale, zero, want_back) = group_of(v, s, rule, kind);
                    assert_eq!(m.read_floats(scales)[n], scale, "{what}, scale {n}");
                    assert_eq!(m.read_bytes(zeros)[n], zero, "{what}, zero {n}");
                    assert_eq!(m.read_bytes(codes)[n * group..][..group], want_codes, "{what}, codes {n}");
                    assert_eq!(m.read_floats(back)[n * group..][..group], want_back, "{what}, back {n}");
                }
                assert_eq!(m.read_words(faults), vec![0; groups], "{what}");
            }
        }
    }
}

#[test]
fn faults_are_told_apart() {
    let Some(mut m) = Machine::new() else { return };
    let mut values = random(64, 3);
    values[5] = f32::NAN;
    values[40] = 1e7;
    let (w, codes, scales) = (m.floats(&values), m.room(64), m.room(8));
    let (zeros, faults) = (m.room(2), m.room(8));
    let launch = Int4Quantize {
        float: Float::F32,
        w,
        s: None,
        rows: 1,
        cols: 64,
        group: 32,
        rule: Int4Rule::Stored,
        scale_kind: ScaleKind::F16,
        codes,
        scales,
        zeros,
        faults,
        back: None,
    };
    m.run(&launch.launch());
    assert_eq!(m.read_words(faults), [1, 2]);
}

#[test]
fn statistics_of_the_search_are_sums() {
    let Some(mut m) = Machine::new() else { return };
    let (rows, cols, group, length) = (21usize, 120usize, 40usize, 8usize);
    for float in [Float::F32, Float::F16, Float::BF16] {
        let bytes = float.to_bytes(&random(rows * cols, 4));
        let values = float.to_f32(&bytes);
        let (w, parts) = (m.bytes(&bytes), m.room(3 * cols * 4));
        let [r, c, g, l] = [rows, cols, group, length].map(|n| n as u32);
        m.run(&WeightShares { float, w, rows: r, cols: c, group: g, length: l, parts }.launch());
        let mut want = vec![0.0f32; 3 * cols];
        for (i, v) in values.iter().enumerate() {
            let (r, c) = (i / cols, i % cols);
            let of_group = &values[r * cols + c / group * group..][..group];
            let top = of_group.iter().fold(0.0f32, |a, b| a.max(b.abs()));
            want[r / length * cols + c] += v.abs() * (1.0 / (top + 1e-6));
        }
        assert_eq!(m.read_floats(parts), want, "{float:?}");
    }

    let n = 70_000;
    let (a, b) = (random(n, 5), random(n, 6));
    let [a_at, b_at] = [&a, &b].map(|v| m.floats(v));
    let parts = m.room(2 * 8);
    m.run(&SquaredDifference { a: a_at, b: b_at, n: n as u64, parts }.launch());
    let got: f64 = m.read_longs(parts).into_iter().map(f64::from_bits).sum();
    let want: f64 = a.iter().zip(&b).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum();
    assert_close(&[got as f32], &[want as f32], "squared difference");
}

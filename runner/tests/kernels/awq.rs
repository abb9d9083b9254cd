//! What AWQ decides on: bit for bit what the processor computes.

use half::{bf16, f16};
use runner::Backend;
use runner::backend::Linear;
use runner::cpu::{Array, Cpu};
use runner::cuda::launches::{
    ColumnSquares, Descent, DescentOff, Gram, GridCodes, GridKeep, GridRound, GridTry, Groups, LanesProduct,
    ScaleKind,
};
use runner::weights::{Bytes, Format, Matrix};
use verify::codec::Float;

use super::machine::{Machine, random};

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

fn product(x: &Array, rows: usize, bytes: &[u8], float: Float) -> Array {
    let format = match float {
        Float::F32 => Format::F32,
        Float::F16 => Format::F16,
        Float::BF16 => Format::Bf16,
    };
    let bytes = Bytes::owned(bytes.to_vec());
    let weight = Matrix { name: "w".into(), rows, cols: x.cols(), bytes, format };
    let [y] = Cpu::default().linear(x, [&Linear { weight, bias: None }]).unwrap();
    y
}

#[test]
fn products_have_the_bits_of_the_cpu() {
    let Some(mut m) = Machine::new() else { return };
    for float in [Float::F32, Float::F16, Float::BF16] {
        for (tokens, rows, cols) in [(1, 1, 1), (5, 19, 33), (33, 9, 130), (2, 17, 320)] {
            let x = Array::new(tokens, cols, random(tokens * cols, 1));
            let bytes = float.to_bytes(&random(rows * cols, 2));
            let want = product(&x, rows, &bytes, float);
            let (x_at, w) = (m.floats(x.values()), m.bytes(&bytes));
            let (y, turned) = (m.room(tokens * rows * 4), m.room(tokens * rows * 4));
            let launch = LanesProduct {
                float,
                x: x_at,
                w,
                y,
                tokens: tokens as u32,
                rows: rows as u32,
                cols: cols as u32,
                x_stride: cols as u64,
                w_stride: cols as u64,
                y_strides: [rows as u64, 1],
                pieces: 1,
                steps: [0; 3],
            };
            m.run(&launch.launch());
            let what = format!("{float:?} {tokens} tokens, {rows} x {cols}");
            assert_eq!(bits(&m.read_floats(y)), bits(want.values()), "{what}");
            m.run(&LanesProduct { y: turned, y_strides: [1, tokens as u64], ..launch }.launch());
            let got = m.read_floats(turned);
            for (i, want) in want.values().iter().enumerate() {
                assert_eq!(got[i % rows * tokens + i / rows].to_bits(), want.to_bits(), "{what}, turned");
            }
        }
    }
}

#[test]
fn pieces_are_products_of_their_own() {
    let Some(mut m) = Machine::new() else { return };
    // Three groups of columns, each times its part of the diagonal.
    let (tokens, group, pieces) = (5, 32, 3);
    let cols = group * pieces;
    let (x, w) = (random(tokens * cols, 1), random(cols * cols, 2));
    let (x_at, w_at, y) = (m.floats(&x), m.floats(&w), m.room(tokens * cols * 4));
    let launch = LanesProduct {
        float: Float::F32,
        x: x_at,
        w: w_at,
        y,
        tokens: tokens as u32,
        rows: group as u32,
        cols: group as u32,
        x_stride: cols as u64,
        w_stride: cols as u64,
        y_strides: [cols as u64, 1],
        pieces: pieces as u32,
        steps: [group as u32, (group * (cols + 1)) as u32, group as u32],
    };
    m.run(&launch.launch());
    for piece in 0..pieces {
        let first = piece * group;
        let of = |v: &[f32], rows: std::ops::Range<usize>| -> Vec<f32> {
            rows.flat_map(|r| v[r * cols + first..][..group].to_vec()).collect()
        };
        let part = Float::F32.to_bytes(&of(&w, first..first + group));
        let want = product(&Array::new(tokens, group, of(&x, 0..tokens)), group, &part, Float::F32);
        assert_eq!(bits(&of(&m.read_floats(y), 0..tokens)), bits(want.values()), "{piece}");
    }
}

#[test]
fn moments_add_up_token_by_token() {
    let Some(mut m) = Machine::new() else { return };
    for (tokens, cols, first, width) in [(1, 3, 0, 3), (13, 200, 32, 150), (16, 64, 0, 64)] {
        let mut want = vec![0.0f32; width * width];
        let sums = m.floats(&want);
        for batch in 0..2 {
            let x = random(tokens * cols, batch);
            let x_at = m.floats(&x);
            let [t, c, f, w] = [tokens, cols, first, width].map(|n| n as u32);
            m.run(&Gram { x: x_at, tokens: t, cols: c, first: f, width: w, sums }.launch());
            for (i, sum) in want.iter_mut().enumerate() {
                for token in x.chunks(cols) {
                    *sum = token[first + i / width].mul_add(token[first + i % width], *sum);
                }
            }
        }
        assert_eq!(bits(&m.read_floats(sums)), bits(&want), "{tokens} tokens, {width} of {cols}");
    }
}

#[test]
fn squares_add_up_row_by_row() {
    let Some(mut m) = Machine::new() else { return };
    let (rows, cols) = (11, 300);
    let y = random(rows * cols, 1);
    let (y_at, sums) = (m.floats(&y), m.room(cols * 8));
    m.run(&ColumnSquares { y: y_at, rows: rows as u32, cols: cols as u32, sums }.launch());
    let want: Vec<u64> = (0..cols)
        .map(|c| y.chunks(cols).map(|row| f64::from(row[c]).powi(2)).sum::<f64>().to_bits())
        .collect();
    assert_eq!(m.read_longs(sums), want);
}

/// Scale and zero of a range, by quant::awq::grid.
fn grid(low: f32, high: f32, g: &Groups) -> [f32; 2] {
    let width = if g.symmetric { 2.0 * high.max(-low) } else { high - low };
    let exact = width / g.largest;
    let (scale, epsilon) = match g.scale_kind {
        ScaleKind::F32 => (exact, f32::EPSILON),
        ScaleKind::F16 => (f16::from_f32(exact).to_f32(), f16::EPSILON.to_f32()),
        ScaleKind::Bf16 => (bf16::from_f32(exact).to_f32(), bf16::EPSILON.to_f32()),
    };
    let scale = if scale > 0.0 { scale } else { epsilon };
    match g.symmetric {
        true => [scale, (g.largest + 1.0) / 2.0],
        false => [scale, (-low / scale).round_ties_even().clamp(0.0, g.largest)],
    }
}

fn range(values: &[f32]) -> [f32; 2] {
    values.iter().fold([0.0, 0.0], |[l, h], v| [v.min(l), v.max(h)])
}

fn code(x: f32, [scale, zero]: [f32; 2], largest: f32) -> f32 {
    ((x / scale).round_ties_even() + zero).clamp(0.0, largest)
}

/// Every kind of group: bits, symmetry, type of scales, width.
fn formats(rows: u32, groups: u32) -> Vec<Groups> {
    let kinds = [ScaleKind::F32, ScaleKind::F16, ScaleKind::Bf16];
    let of = |(n, kind): (usize, ScaleKind)| {
        let group = [32, 64, 128][n];
        [(15.0, false), (15.0, true), (255.0, false)].map(|(largest, symmetric)| Groups {
            rows,
            cols: groups * group,
            group,
            largest,
            symmetric,
            scale_kind: kind,
        })
    };
    kinds.into_iter().enumerate().flat_map(of).collect()
}

/// Weights with groups of zeros, of one sign, and of very small numbers.
fn weights(g: &Groups) -> Vec<f32> {
    let mut values = random((g.rows * g.cols) as usize, 7);
    for (n, group) in values.chunks_mut(g.group as usize).enumerate() {
        match n % 5 {
            1 => group.fill(0.0),
            2 => group.iter_mut().for_each(|v| *v = v.abs() + 0.5),
            3 => group.iter_mut().for_each(|v| *v *= 1e-7),
            _ => {}
        }
    }
    values
}

fn scales(cols: u32) -> Vec<f32> {
    random(cols as usize, 8).iter().map(|v| 1.0 + 0.7 * v).collect()
}

#[test]
fn weights_are_rounded_to_grids_and_back() {
    for g in formats(3, 11) {
        let Some(mut m) = Machine::new() else { return };
        let (n, cols) = ((g.rows * g.cols) as usize, g.cols as usize);
        let s = scales(g.cols);
        for float in [Float::F32, Float::F16, Float::BF16] {
            let bytes = float.to_bytes(&weights(&g));
            let w = float.to_f32(&bytes);
            let (w_at, s_at) = (m.bytes(&bytes), m.floats(&s));
            let errors = m.room(n * 4);
            m.run(&GridRound { float, w: w_at, s: s_at, groups: g, errors }.launch());
            let mut want = w.clone();
            for (n, group) in want.chunks_mut(g.group as usize).enumerate() {
                let s = &s[n * g.group as usize % cols..];
                group.iter_mut().zip(s).for_each(|(w, s)| *w *= s);
                let [low, high] = range(group);
                let [scale, zero] = grid(low, high, &g);
                let back = |v: f32| (code(v, [scale, zero], g.largest) - zero) * scale;
                group.iter_mut().zip(s).for_each(|(v, s)| *v = back(*v) * (1.0 / s));
            }
            want.iter_mut().zip(&w).for_each(|(t, w)| *t -= w);
            assert_eq!(bits(&m.read_floats(errors)), bits(&want), "{float:?} {g:?}");
        }
    }
}

#[test]
fn narrowed_grids_are_kept_where_they_lose_less() {
    for g in formats(3, 7) {
        let Some(mut m) = Machine::new() else { return };
        let (n, cols, count) = ((g.rows * g.cols) as usize, g.cols as usize, g.count() as usize);
        let (w, s, group) = (weights(&g), scales(g.cols), g.group as usize);
        let [w_at, s_at] = [&w, &s].map(|v| m.floats(v));
        let [whole, tried] = [(); 2].map(|()| [(); 2].map(|()| m.room(count * 4)));
        let (off, codes) = (m.room(n * 4), m.room(n));
        let all =
            GridTry { w: w_at, s: s_at, groups: g, ratio: 1.0, scales: whole[0], zeros: whole[1], off: None };
        m.run(&all.launch());
        m.run(&GridTry { ratio: 0.85, scales: tried[0], zeros: tried[1], off: Some(off), ..all }.launch());
        let mut want_off = w.clone();
        let (mut want_whole, mut want_tried) = (Vec::new(), Vec::new());
        for (n, part) in want_off.chunks_mut(group).enumerate() {
            let [low, high] = range(part);
            want_whole.push(grid(low, high, &g));
            let grid = grid(low * 0.85, high * 0.85, &g);
            want_tried.push(grid);
            let s = &s[n * group % cols..];
            let back = |v: f32| (code(v, grid, g.largest) - grid[1]) * grid[0];
            part.iter_mut().zip(s).for_each(|(v, s)| *v = (back(*v) - *v) * (1.0 / s));
        }
        let read = |m: &Machine, [scales, zeros]: [_; 2]| -> Vec<[f32; 2]> {
            m.read_floats(scales).into_iter().zip(m.read_floats(zeros)).map(|(s, z)| [s, z]).collect()
        };
        assert_eq!(read(&m, whole), want_whole, "{g:?}");
        assert_eq!(read(&m, tried), want_tried, "{g:?}");
        assert_eq!(bits(&m.read_floats(off)), bits(&want_off), "{g:?}");

        // Infinite in both directions in the last two.
        let mut through = random(n, 9);
        through[n - group..].fill(0.0);
        want_off[n - group] = 1e30;
        through[n - group] = f32::NEG_INFINITY;
        want_off[n - 2 * group] = 1e30;
        through[n - 2 * group] = f32::INFINITY;
        let (off, through_at) = (m.floats(&want_off), m.floats(&through));
        let least: Vec<f32> = (0..count).map(|i| if i % 2 == 0 { f32::INFINITY } else { -1e-3 }).collect();
        let (errors, kept) = (m.floats(&least), [whole, tried].map(|k| m.read_floats(k[0])));
        let kept = [m.floats(&vec![-1.0; kept[0].len()]), m.floats(&vec![-1.0; kept[1].len()])];
        let keep = GridKeep {
            off,
            through: through_at,
            groups: count as u64,
            group: g.group,
            tried,
            whole,
            errors,
            kept,
        };
        m.run(&keep.launch());
        let errors = m.read_floats(errors);
        for (i, [scale, zero]) in read(&m, kept).into_iter().enumerate() {
            let (mut lanes, pairs) = ([0.0f32; 16], i * group..(i + 1) * group);
            for (k, at) in pairs.enumerate() {
                lanes[k % 16] = want_off[at].mul_add(through[at], lanes[k % 16]);
            }
            for half in [8, 4, 2, 1] {
                (0..half).for_each(|l| lanes[l] += lanes[l + half]);
            }
            let (want, error) = match lanes[0] {
                e if e < least[i] => (if e.is_finite() { want_tried[i] } else { want_whole[i] }, e),
                _ => ([-1.0; 2], least[i]),
            };
            assert_eq!([scale, zero], want, "group {i} {g:?}");
            assert_eq!(errors[i].to_bits(), error.to_bits(), "group {i} {g:?}");
        }

        m.run(&GridCodes { w: w_at, groups: g, grids: tried, codes }.launch());
        let want: Vec<u8> =
            w.iter().enumerate().map(|(i, v)| code(*v, want_tried[i / group], g.largest) as u8).collect();
        assert_eq!(m.read_bytes(codes), want, "{g:?}");
    }
}

#[test]
fn codes_go_downhill_as_on_the_cpu() {
    for g in formats(5, 3) {
        let Some(mut m) = Machine::new() else { return };
        let (rows, cols, group) = (g.rows as usize, g.cols as usize, g.group as usize);
        // The last two groups are one block.
        let (first, width) = (group, 2 * group);
        let (w, s) = (random(rows * cols, 1), scales(g.cols));
        let grids: Vec<[f32; 2]> = w.chunks(group).map(|v| grid(range(v)[0], range(v)[1], &g)).collect();
        let mut codes: Vec<u8> =
            w.iter().enumerate().map(|(i, v)| code(*v, grids[i / group], g.largest) as u8).collect();
        // Inputs that go together, and a column without any.
        let x = random(40 * width, 2);
        let mut gram = vec![0.0f32; width * width];
        for token in x.chunks(width) {
            let common = token[0] * 2.0;
            let x = |c: usize| if c == 9 { 0.0 } else { token[c] + common };
            (0..width * width).for_each(|i| gram[i] = x(i / width).mul_add(x(i % width), gram[i]));
        }
        let [w_at, s_at, gram_at] = [&w, &s, &gram].map(|v| m.floats(v));
        let codes_at = m.bytes(&codes);
        let at = [0, 1].map(|k| m.floats(&grids.iter().map(|g| g[k]).collect::<Vec<_>>()));
        let off_at = m.room(rows * width * 4);
        let (first32, width32) = (first as u32, width as u32);
        let off = DescentOff {
            w: w_at,
            s: s_at,
            codes: codes_at,
            grids: at,
            groups: g,
            first: first32,
            width: width32,
            off: off_at,
        };
        m.run(&off.launch());
        let mut want_off = Vec::new();
        for r in 0..rows {
            for c in first..first + width {
                let [scale, zero] = grids[(r * cols + c) / group];
                want_off.push(((f32::from(codes[r * cols + c]) - zero) * scale - w[r * cols + c]) / s[c]);
            }
        }
        assert_eq!(bits(&m.read_floats(off_at)), bits(&want_off), "{g:?}");

        let deviations = Array::new(rows, width, want_off);
        let slopes = product(&deviations, width, &Float::F32.to_bytes(&gram), Float::F32);
        let slope = m.floats(slopes.values());
        let launch = Descent {
            gram: gram_at,
            s: s_at,
            scales: at[0],
            groups: g,
            first: first32,
            width: width32,
            slope,
            codes: codes_at,
        };
        m.run(&launch.launch());
        let mut moves = 0;
        for r in 0..rows {
            let mut slope = slopes.row(r).to_vec();
            for _ in 0..4 {
                let before = moves;
                for i in 0..width {
                    let at = r * cols + first + i;
                    let step = grids[at / group][0] / s[first + i];
                    let best = -slope[i] / (gram[i * width + i] * step);
                    if best.abs() <= 0.5 || !best.is_finite() {
                        continue;
                    }
                    let old = f32::from(codes[at]);
                    let by = best.clamp(-g.largest, g.largest).round_ties_even();
                    let new = (old + by).clamp(0.0, g.largest);
                    if new != old {
                        moves += 1;
                        codes[at] = new as u8;
                        let by = (new - old) * step;
                        (0..width).for_each(|j| slope[j] = by.mul_add(gram[i * width + j], slope[j]));
                    }
                }
                if moves == before {
                    break;
                }
            }
        }
        assert!(moves > rows, "{moves}");
        assert_eq!(m.read_bytes(codes_at), codes, "{g:?}");
    }
}

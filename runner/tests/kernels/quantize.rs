//! FP8 codes, scales and losses, bit for bit; calibration statistics.

use runner::cuda::launches::{ColumnStats, Fp8Amax, Fp8Quantize};
use verify::codec::Float;
use verify::codec::fp8::{self, Grid, Loss, NotFinite, Rows, ScaleValues};

use super::machine::{Machine, random};

/// Weights of very different sizes, some of them zero, in one type.
fn weights(float: Float, rows: usize, cols: usize) -> Vec<u8> {
    let mut values = random(rows * cols, (rows * cols) as u64);
    for (r, row) in values.chunks_mut(cols).enumerate() {
        let size = [1.0, 1e-3, 300.0, 1e-7][r % 4];
        row.iter_mut().for_each(|v| *v *= size);
    }
    values[..cols.min(20)].fill(0.0);
    float.to_bytes(&values)
}

/// The CPU's sums of a block's lanes.
fn loss_of(lanes: &[f32], scales: &[f32], amaxes: &[u32]) -> Loss {
    let mut loss = Loss::default();
    for ((lanes, scale), amax) in lanes.chunks(48).zip(scales).zip(amaxes) {
        let total = |lanes: &[f32]| lanes.iter().map(|l| f64::from(*l)).sum::<f64>();
        let (scale, amax) = (f64::from(*scale), f32::from_bits(*amax));
        loss.squared_error += total(&lanes[..16]) * scale * scale;
        loss.squared_weight += total(&lanes[16..32]) * scale * scale;
        let largest = lanes[32..].iter().fold(0.0f32, |a, b| a.max(*b));
        loss.largest = loss.largest.max(f64::from(largest) * scale);
        loss.zero_blocks += u64::from(amax == 0.0);
        loss.tiny_blocks += u64::from(amax != 0.0 && amax / 448.0 < f32::MIN_POSITIVE);
    }
    loss
}

#[test]
fn codes_scales_and_losses_have_the_bits_of_the_cpu() {
    let shapes = [(1, 1), (5, 33), (130, 150)];
    for (float, (rows, cols)) in
        [Float::F32, Float::F16, Float::BF16].into_iter().flat_map(|f| shapes.map(|s| (f, s)))
    {
        for (grid, values) in [Grid::Block, Grid::Channel, Grid::Tensor]
            .into_iter()
            .flat_map(|g| [ScaleValues::F32, ScaleValues::Bf16].map(|v| (g, v)))
        {
            let Some(mut m) = Machine::new() else { return };
            let bytes = weights(float, rows, cols);
            let want = fp8::quantize(Rows { bytes: &bytes, float, cols }, grid, values).unwrap();
            let block = match grid {
                Grid::Block => [128, 128],
                Grid::Channel => [1, cols as u32],
                Grid::Tensor => [rows as u32, cols as u32],
            };
            let n = want.scales.len();
            let (w, codes) = (m.bytes(&bytes), m.room(rows * cols));
            let (scales, amaxes, loss) = (m.room(n * 4), m.room(n * 4), m.room(n * 48 * 4));
            let (r, c) = (rows as u32, cols as u32);
            let launch = Fp8Quantize {
                float,
                w,
                rows: r,
                cols: c,
                block,
                values,
                given: None,
                codes,
                scales,
                amaxes,
                loss,
            };
            m.run(&launch.launch());
            let what = format!("{float:?} {rows} x {cols} {grid:?} {values:?}");
            assert_eq!(m.read_bytes(codes), want.codes, "{what}");
            assert_eq!(m.read_floats(scales), want.scales, "{what}");
            let got = loss_of(&m.read_floats(loss), &want.scales, &m.read_words(amaxes));
            assert_eq!(got, want.loss, "{what}");

            // With a scale that was found before, row by row; a block for each row takes long for many.
            if rows > 100 {
                continue;
            }
            let given = m.floats(&[0.37]);
            let (scales, amaxes, loss) = (m.room(rows * 4), m.room(rows * 4), m.room(rows * 48 * 4));
            let with = Fp8Quantize { block: [1, c], given: Some(given), scales, amaxes, loss, ..launch };
            m.run(&with.launch());
            let want = fp8::quantize_with(Rows { bytes: &bytes, float, cols }, 0.37).unwrap();
            assert_eq!(m.read_bytes(codes), want.codes, "{what}, given scale");
        }
    }
}

#[test]
fn largest_magnitude_tells_what_is_not_finite() {
    let Some(mut m) = Machine::new() else { return };
    for (float, bad) in [
        (Float::F32, None),
        (Float::BF16, None),
        (Float::F16, Some(f32::NAN)),
        (Float::BF16, Some(f32::INFINITY)),
        (Float::F32, Some(f32::NEG_INFINITY)),
    ] {
        let n = 70_000;
        let mut values = random(n, 3);
        if let Some(bad) = bad {
            values[66_000] = bad;
        }
        let bytes = float.to_bytes(&values);
        let (w, amaxes) = (m.bytes(&bytes), m.room(2 * 4));
        m.run(&Fp8Amax { float, w, n: n as u64, amaxes }.launch());
        let top = m.read_words(amaxes).into_iter().max().unwrap();
        let got = if top < f32::INFINITY.to_bits() { Ok(f32::from_bits(top)) } else { Err(NotFinite) };
        assert_eq!(got, fp8::amax(Rows { bytes: &bytes, float, cols: 7 }), "{float:?} {bad:?}");
    }
}

#[test]
fn column_statistics_do_not_depend_on_batches() {
    let Some(mut m) = Machine::new() else { return };
    let (tokens, cols) = (37, 300);
    let x = random(tokens * cols, 4);
    let run = |m: &mut Machine, batch: usize| {
        let [sums, tops] = [m.floats(&vec![0.0; cols]), m.floats(&vec![0.0; cols])];
        for rows in x.chunks(batch * cols) {
            let (at, tokens) = (m.floats(rows), (rows.len() / cols) as u32);
            m.run(&ColumnStats { x: at, tokens, cols: cols as u32, sums, tops }.launch());
        }
        [m.read_floats(sums), m.read_floats(tops)]
    };
    let mut want = [vec![0.0f32; cols], vec![0.0f32; cols]];
    for (i, v) in x.iter().enumerate() {
        want[0][i % cols] += v.abs();
        want[1][i % cols] = want[1][i % cols].max(v.abs());
    }
    for batch in [1, 10, 37] {
        assert_eq!(run(&mut m, batch), want, "{batch}");
    }
}

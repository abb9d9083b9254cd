//! Rounding that looks at what the inputs make of it: from the nearest codes downhill, code by code.
//!
//! The error of a row on the inputs is `d^T G d`, with `d` what rounding changed in each weight and `G` the inputs'
//! moments. Where inputs go together, errors can cancel: moving a code by a step pays off if it makes up for others.

use rayon::prelude::*;
use runner::Cpu;
use runner::backend::{Backend, Linear};
use runner::cpu::Array;
use runner::cpu::isa::{Kernel, LANES, Lanes};
use runner::weights::{Bytes, Format, Matrix};
use verify::Result;
use verify::codec::Float;

use super::grid::{Grid, IntFormat};
use super::moments::{Block, Moments};

/// Times that every code is looked at.
const SWEEPS: usize = 4;
/// Share of the mean of `G`'s diagonal that is added to it: what few samples say of columns is not trusted too far.
const DAMPING: f32 = 0.01;

/// Moves `codes` `[rows, cols]` of `weights` (columns already scaled by `s`) downhill; grids stay.
pub fn descend(
    cpu: &Cpu,
    weights: &[f32],
    s: &[f32],
    moments: &Moments,
    (grids, format): (&[Grid], IntFormat),
    codes: &mut [u8],
) -> Result<()> {
    let cols = s.len();
    let across = cols / format.group;
    for block in moments.blocks() {
        let gram = damped(block);
        let groups = block.first / format.group..(block.first + block.columns) / format.group;
        let steps = |r: usize| -> Vec<f32> {
            let of_row = &grids[r * across..][groups.clone()];
            let s = &s[block.first..][..block.columns];
            s.iter().enumerate().map(|(c, s)| of_row[c / format.group].scale / s).collect()
        };
        let off = |r: usize| -> Vec<f32> {
            let at = r * cols + block.first;
            let of_row = &grids[r * across..][groups.clone()];
            (0..block.columns)
                .map(|c| {
                    let grid = of_row[c / format.group];
                    ((f32::from(codes[at + c]) - grid.zero) * grid.scale - weights[at + c])
                        / s[block.first + c]
                })
                .collect()
        };
        let rows = weights.len() / cols;
        let deviations: Vec<f32> = (0..rows).into_par_iter().flat_map_iter(off).collect();
        let matrix = Matrix {
            name: "gram".into(),
            rows: block.columns,
            cols: block.columns,
            bytes: Bytes::owned(Float::F32.to_bytes(&gram)),
            format: Format::F32,
        };
        let deviations = Array::new(rows, block.columns, deviations);
        let [slopes] = cpu.linear(&deviations, [&Linear { weight: matrix, bias: None }])?;
        let largest = format.largest();
        codes.par_chunks_exact_mut(cols).enumerate().for_each(|(r, codes)| {
            let codes = &mut codes[block.first..][..block.columns];
            let slope = slopes.row(r).to_vec();
            cpu.isa().run(Descend { gram: &gram, steps: &steps(r), slope, largest, codes });
        });
    }
    Ok(())
}

/// The products of a block with something added to their diagonal.
pub fn damped(block: &Block) -> Vec<f32> {
    let n = block.columns;
    let mut gram = block.gram.clone();
    let mean = (0..n).map(|i| f64::from(gram[i * n + i])).sum::<f64>() / n as f64;
    (0..n).for_each(|i| gram[i * n + i] += DAMPING * mean as f32 + f32::MIN_POSITIVE);
    gram
}

/// One row of one block.
struct Descend<'a> {
    gram: &'a [f32],
    /// What a step of each code changes.
    steps: &'a [f32],
    /// `G d`.
    slope: Vec<f32>,
    largest: f32,
    codes: &'a mut [u8],
}

impl Kernel for Descend<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Descend { gram, steps, mut slope, largest, codes } = self;
        let n = codes.len();
        for _ in 0..SWEEPS {
            let mut moved = false;
            for i in 0..n {
                let best = -slope[i] / (gram[i * n + i] * steps[i]);
                // Less than half a step: the code is the best one.
                if best.abs() <= 0.5 || !best.is_finite() {
                    continue;
                }
                let old = f32::from(codes[i]);
                let new = (old + super::grid::nearest(best.clamp(-largest, largest))).max(0.0).min(largest);
                if new == old {
                    continue;
                }
                moved = true;
                codes[i] = new as u8;
                let by = L::splat((new - old) * steps[i]);
                let (slopes, _) = slope.as_chunks_mut::<LANES>();
                let (row, _) = gram[i * n..][..n].as_chunks::<LANES>();
                for (to, g) in slopes.iter_mut().zip(row) {
                    L::load(to).fma(by, L::load(g)).store(to);
                }
            }
            if !moved {
                break;
            }
        }
    }
}

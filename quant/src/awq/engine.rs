//! Who does the heavy sums of AWQ.
//!
//! On a GPU: moments of inputs, the search for the scales of a single reader, grids and codes; and, from a size on,
//! the linear layers of everything else. The calibration walk itself stays on the processor: hidden states lie there, and
//! norms, attention and routing are computed there, as are the rounded weights of searches by the output of a block.
//! Every sum has the processor's order, so that nothing differs.

use std::sync::Arc;

use runner::Cpu;
use runner::backend::{Backend, Linear};
use runner::cpu::Array;
use runner::cuda::awq::{self, AwqEngine, CodesJob, Downhill, GridFormat, Narrow};
use runner::weights::Matrix;
use verify::Result;

use super::grid::{Codes, Grid, IntFormat};
use super::layer::{power, squared};
use super::moments::Moments;
use super::probe::glance;
use super::search::{Candidate, Found, Sizes, search, shortlist};
use super::weights::{Give, float_of, rounded};
use super::{clip, descent};

/// The processor or a GPU; both give the same bytes.
#[derive(Debug, Clone, Default)]
pub enum Engine {
    /// The processor.
    #[default]
    Cpu,
    /// A GPU.
    Cuda(Arc<AwqEngine>),
}

/// The loss that the scales of columns give.
type Loss<'a> = dyn FnMut(&[f32]) -> Result<f64> + 'a;

/// What the codes of a matrix follow from.
pub struct ToStore<'a> {
    /// f32 `[rows, cols]`, columns already scaled by `s`.
    pub values: &'a [f32],
    /// `[cols]`.
    pub s: &'a [f32],
    /// How they are stored.
    pub format: IntFormat,
    /// Of the inputs, where ranges are narrowed.
    pub clip: Option<&'a Moments>,
    /// Of the inputs, where codes move downhill.
    pub descent: Option<&'a Moments>,
}

impl Engine {
    /// The processor of the walk, which has its products computed here.
    pub fn cpu(&self) -> Cpu {
        match self {
            Engine::Cpu => Cpu::default(),
            Engine::Cuda(gpu) => Cpu::default().with_products(gpu.clone()),
        }
    }

    /// Adds the rows of `x` to `moments`.
    ///
    /// # Errors
    /// Exit 6 where the GPU fails. (So for all that follow.)
    pub fn add(&self, cpu: &Cpu, moments: &mut Moments, x: &Array) -> Result<()> {
        match self {
            Engine::Cuda(gpu) if x.rows() > 0 => {
                let (sizes, blocks) = moments.begin_adding(x.rows());
                let blocks = blocks.iter_mut().map(|b| awq::Block {
                    first: b.first,
                    columns: b.columns,
                    gram: &mut b.gram,
                });
                gpu.add_moments(x, sizes, blocks)
            }
            _ => {
                moments.add(cpu.isa(), x);
                Ok(())
            }
        }
    }

    /// Scales by the output of `reader` on `x`, at least one token; `columns` gives those of its columns.
    ///
    /// # Errors
    /// As [`search`] and [`Self::add`].
    pub fn search(
        &self,
        cpu: &Cpu,
        (reader, x): (&Matrix, &Array),
        sizes: &Sizes,
        format: IntFormat,
        columns: impl Fn(&[f32]) -> Vec<f32>,
    ) -> Result<Found> {
        let candidates = match glance(x) {
            None => Candidate::coarse(),
            Some(few) => {
                let mut loss = self.loss(cpu, reader, &few, format)?;
                shortlist(sizes, |s| loss(&columns(s)))?
            }
        };
        let mut loss = self.loss(cpu, reader, x, format)?;
        search(sizes, candidates, |s| loss(&columns(s)))
    }

    /// The squared error of the output of `reader` on `x` by the scales of its columns, as a share of the output.
    fn loss<'a>(
        &'a self,
        cpu: &'a Cpu,
        reader: &'a Matrix,
        x: &'a Array,
        format: IntFormat,
    ) -> Result<Box<Loss<'a>>> {
        if let (Engine::Cuda(gpu), Some(float)) = (self, float_of(reader)) {
            let judge = gpu.judge(reader, float, x, of_gpu(format))?;
            let power = power(judge.power()?);
            return Ok(Box::new(move |columns| Ok(judge.loss(columns)? / power)));
        }
        let product = move |weight: Matrix| -> Result<f64> {
            let [y] = cpu.linear(x, [&Linear { weight, bias: None }])?;
            Ok(squared(&y))
        };
        let power = power(product(reader.clone())?);
        Ok(Box::new(move |columns| {
            Ok(product(rounded(cpu.isa(), reader, columns, format, Give::Error))? / power)
        }))
    }

    /// Codes `[rows, cols]` and grids `[rows, cols / group]`.
    ///
    /// # Errors
    /// As [`Self::add`].
    pub fn codes(&self, cpu: &Cpu, job: &ToStore<'_>) -> Result<(Vec<u8>, Vec<Grid>)> {
        match self {
            Engine::Cpu => on_cpu(cpu, job),
            Engine::Cuda(gpu) => on_gpu(gpu, job),
        }
    }
}

fn on_cpu(cpu: &Cpu, job: &ToStore<'_>) -> Result<(Vec<u8>, Vec<Grid>)> {
    let ToStore { values, s, format, .. } = *job;
    let cols = s.len();
    let grids: Vec<Grid> = match job.clip {
        Some(moments) => clip::grids(cpu, values, s, moments, format)?,
        None => values.chunks_exact(cols).flat_map(|row| format.grids(cpu.isa(), row)).collect(),
    };
    let mut codes = vec![0u8; values.len()];
    let rows = values.chunks_exact(cols).zip(codes.chunks_exact_mut(cols));
    for ((row, to), grids) in rows.zip(grids.chunks_exact(cols / format.group)) {
        cpu.isa().run(Codes { row, grids, format, to });
    }
    if let Some(moments) = job.descent {
        descent::descend(cpu, values, s, moments, (&grids, format), &mut codes)?;
    }
    Ok((codes, grids))
}

fn on_gpu(gpu: &AwqEngine, job: &ToStore<'_>) -> Result<(Vec<u8>, Vec<Grid>)> {
    let group = job.format.group;
    let parts: Option<Vec<f32>> = job.clip.map(|moments| {
        let places =
            moments.blocks().iter().flat_map(|b| (0..b.columns).step_by(group).map(move |at| (b, at)));
        places.flat_map(|(block, at)| block.part(at, group)).collect()
    });
    let downhill: &Downhill<'_> = &|n| {
        let block = job.descent?.blocks().get(n)?;
        Some((block.first, block.columns, descent::damped(block)))
    };
    let made = gpu.codes(&CodesJob {
        values: job.values,
        s: job.s,
        format: of_gpu(job.format),
        narrow: parts.as_deref().map(|parts| Narrow { parts, ratios: &clip::RATIOS }),
        downhill: job.descent.is_some().then_some(downhill),
    })?;
    let pairs = made.scales.into_iter().zip(made.zeros);
    Ok((made.codes, pairs.map(|(scale, zero)| Grid { scale, zero }).collect()))
}

fn of_gpu(format: IntFormat) -> GridFormat {
    GridFormat {
        largest: format.largest(),
        symmetric: format.symmetric,
        group: format.group,
        scale: format.scale,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_do_not_know_of_each_other() {
        let (rows, cols) = (12, 64);
        let number = |i: usize| ((i * 7919 + 13) % 251) as f32 / 128.0 - 0.97;
        let values: Vec<f32> = (0..rows * cols).map(number).collect();
        let x = Array::new(40, cols, (0..40 * cols).map(|i| number(i * 3 + 1)).collect());
        let cpu = Cpu::default();
        let mut moments = Moments::new(cols, 32);
        Engine::Cpu.add(&cpu, &mut moments, &x).unwrap();
        let s: Vec<f32> = (0..cols).map(|c| 0.5 + c as f32 / 50.0).collect();
        let format = IntFormat { bits: 4, symmetric: false, group: 32, scale: verify::codec::Float::BF16 };
        let codes = |values: &[f32]| {
            let job = ToStore { values, s: &s, format, clip: Some(&moments), descent: Some(&moments) };
            Engine::Cpu.codes(&cpu, &job).unwrap()
        };
        let whole = codes(&values);
        let (mut some, mut grids) = (Vec::new(), Vec::new());
        for values in values.chunks(5 * cols) {
            let (c, g) = codes(values);
            some.extend(c);
            grids.extend(g);
        }
        assert_eq!((some, grids), whole);
    }
}

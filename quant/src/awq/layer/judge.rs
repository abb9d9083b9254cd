//! How good scales are: by the output of a block, or of the one that reads.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use rayon::prelude::*;
use runner::Cpu;
use runner::backend::Linear;
use runner::cpu::{Array, Watch};
use runner::decoder::Layer;
use runner::weights::Matrix;
use verify::{Class, Error, Result, Shown};

use super::super::moments::Moments;
use super::super::pairs::Pair;
use super::super::probe::Probe;
use super::super::search::{Candidate, Found, Sizes, search, shortlist};
use super::super::trial;
use super::super::weights::{Give, not_finite, rounded, shares};
use super::{LayerSearch, STEP};
use crate::calibration::Visit;

impl LayerSearch<'_> {
    /// Scales of the pair by the output of a whole block; `output` gives it with the readers' columns scaled, their weights
    /// rounded and the scales taken back, or as they are.
    pub(super) fn by_block(
        &self,
        visit: &mut Visit,
        pair: &Pair,
        probe: &Probe,
        mut output: impl FnMut(&mut Visit, &Probe, Option<&[f32]>) -> Result<Array>,
    ) -> Result<Found> {
        let moments = self.moments_of(pair.readers[0])?;
        let sizes = self.sizes(pair, &self.quantized_readers(pair), &moments)?;
        let mut reference_on = |probe: &Probe| -> Result<_> {
            let reference = output(visit, probe, None)?;
            let power = power(squared(&reference));
            Ok((reference, power))
        };
        let few = probe.glance();
        let few = few.as_ref().map(|few| Ok((few, reference_on(few)?))).transpose()?;
        let all = (probe, reference_on(probe)?);
        let mut loss = |(probe, (reference, power)): &(&Probe, (Array, f64)), s: &[f32]| -> Result<f64> {
            visit.progress.check()?;
            let y = output(visit, probe, Some(&pair.columns(s)))?;
            Ok(squared_difference(&y, reference) / power)
        };
        let candidates = match &few {
            None => Candidate::coarse(),
            Some(few) => shortlist(&sizes, |s| loss(few, s))?,
        };
        search(&sizes, candidates, |s| loss(&all, s)).map_err(|e| self.named(pair, e))
    }

    /// An error of the model's numbers with the place where they were met.
    fn named(&self, pair: &Pair, e: Error) -> Error {
        match e.class() {
            Class::Input => {
                let (from, to) = (self.producer(pair), &self.module(pair.readers[0]).name);
                e.at(format!("scales between `{}` and `{}`", Shown(&from), Shown(to)))
            }
            _ => e,
        }
    }

    fn quantized_readers(&self, pair: &Pair) -> Vec<usize> {
        pair.readers.iter().copied().filter(|r| self.quantized(*r)).collect()
    }

    /// What the mixer makes of a probe; see [`Self::by_block`].
    pub(super) fn mixed(
        &self,
        visit: &mut Visit,
        pair: &Pair,
        probe: &Probe,
        columns: Option<&[f32]>,
    ) -> Result<Array> {
        let Some(columns) = columns else { return pieces(visit, probe, None) };
        let readers = self.quantized_readers(pair);
        self.replace(&mut visit.layer, &readers, |m| {
            rounded(self.cpu.isa(), m, columns, self.format, Give::Weights)
        })?;
        let y = pieces(visit, probe, None);
        self.replace(&mut visit.layer, &readers, Matrix::clone)?;
        y
    }

    /// What the MLP makes of a probe; see [`Self::by_block`].
    pub(super) fn fed(
        &self,
        visit: &Visit,
        pair: &Pair,
        probe: &Probe,
        columns: Option<&[f32]>,
    ) -> Result<Array> {
        let Some(columns) = columns else { return visit.layer.mlp.forward(&self.cpu, &probe.x) };
        let readers: HashSet<&str> =
            self.quantized_readers(pair).into_iter().map(|r| &*self.module(r).name).collect();
        trial::output(&self.cpu, &visit.layer.mlp, &probe.x, &|linear| {
            let (weight, bias) = (&linear.weight, linear.bias.clone());
            match readers.contains(&*weight.name) {
                true => {
                    let weight = rounded(self.cpu.isa(), weight, columns, self.format, Give::Weights);
                    Linear { weight, bias }
                }
                false => Linear { weight: weight.clone(), bias },
            }
        })
    }

    /// Scales of the pair by the output of its one reader on `x`.
    pub(super) fn by_reader(&self, pair: &Pair, x: &Array, moments: &Moments) -> Result<Found> {
        if x.rows() == 0 {
            let scales = vec![1.0; pair.channels()];
            return Ok(Found { candidate: Candidate::Identity, scales, before: 0.0, after: 0.0 });
        }
        let reader = self.weight(&self.module(pair.readers[0]).name)?;
        let sizes = self.sizes(pair, &pair.readers, moments)?;
        let found = self.of.engine.search(&self.cpu, (reader, x), &sizes, self.format, |s| pair.columns(s));
        found.map_err(|e| self.named(pair, e))
    }

    fn sizes(&self, pair: &Pair, readers: &[usize], moments: &Moments) -> Result<Sizes> {
        let weights: Vec<&Matrix> =
            readers.iter().map(|r| self.weight(&self.module(*r).name)).collect::<Result<_>>()?;
        let shares = shares(&weights, self.format.group);
        if shares.iter().any(|s| !s.is_finite()) {
            let overflow = || Error::input("weights are too large to be quantized").found("sums beyond f32");
            return Err(not_finite(weights.iter().copied()).unwrap_or_else(overflow));
        }
        Ok(Sizes { inputs: pair.fold(&moments.means()), weights: pair.fold(&shares) })
    }

    /// Puts `with(original)` in the place of the modules' weights.
    fn replace(
        &self,
        layer: &mut Layer<Cpu>,
        modules: &[usize],
        with: impl Fn(&Matrix) -> Matrix,
    ) -> Result<()> {
        let mut linears: HashMap<Arc<str>, &mut Linear<Cpu>> =
            layer.linears_mut().into_iter().map(|l| (l.weight.name.clone(), l)).collect();
        for m in modules {
            let original = self.weight(&self.module(*m).name)?;
            if let Some(linear) = linears.get_mut(&original.name) {
                linear.weight = with(original);
            }
        }
        Ok(())
    }
}

/// What the mixer makes of a probe, a few samples at a time.
pub(super) fn pieces(visit: &Visit, probe: &Probe, watch: Option<Arc<dyn Watch>>) -> Result<Array> {
    let (mut values, mut tokens) = (Vec::new(), 0);
    for piece in probe.pieces(STEP) {
        let y = visit.mixed(&piece.x, &piece.spans, watch.clone())?;
        tokens += y.rows();
        values.extend_from_slice(y.values());
    }
    Ok(Array::new(tokens, probe.x.cols(), values))
}

/// What a squared error is divided by: a block may give nothing but zeros, and then every loss is 0.
pub fn power(squares: f64) -> f64 {
    squares.max(f64::MIN_POSITIVE)
}

/// Sum of all squares, row by row.
pub fn squared(x: &Array) -> f64 {
    let rows: Vec<f64> = x
        .values()
        .par_chunks(x.cols().max(1))
        .map(|r| r.iter().map(|v| f64::from(*v).powi(2)).sum())
        .collect();
    rows.iter().sum()
}

fn squared_difference(x: &Array, y: &Array) -> f64 {
    let rows: Vec<f64> = x
        .values()
        .par_chunks(x.cols().max(1))
        .zip(y.values().par_chunks(x.cols().max(1)))
        .map(|(x, y)| x.iter().zip(y).map(|(x, y)| f64::from(x - y).powi(2)).sum())
        .collect();
    rows.iter().sum()
}

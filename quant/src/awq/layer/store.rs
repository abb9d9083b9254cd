//! What was found, folded into producers and made into tensors.

use rayon::prelude::*;
use verify::Result;
use verify::architecture::{Layer as Place, Module, Part, Role};
use verify::checkpoint::TensorReader;

use super::super::engine::ToStore;
use super::super::fold;
use super::super::moments::Moments;
use super::super::pairs::{Pair, Producer};
use super::super::search::Found;
use super::super::weights::numbers_of;
use super::super::{Clip, Rounding};
use super::{LayerSearch, STRETCH, TOGETHER};
use crate::calibration::{Tensors, Visit};

impl LayerSearch<'_> {
    /// Folds the scales of a pair into its producer, and remembers them for its readers.
    pub(super) fn settle(&mut self, input: &dyn TensorReader, pair: &Pair, found: Found) -> Result<()> {
        self.lines.push(self.line(pair, &found));
        if found.scaled().is_none() {
            return Ok(());
        }
        let mut scales = found.scales;
        match &pair.producer {
            Producer::Norm { module, zero_centred } => {
                self.record.tensors.push(fold::norm(input, module, *zero_centred, &mut scales)?);
            }
            Producer::Rows(m) => {
                self.record.tensors.extend(fold::bias(input, &self.module(*m).name, &scales)?);
                self.rows.insert(*m, scales.clone());
            }
        }
        for reader in &pair.readers {
            self.columns.insert(*reader, pair.columns(&scales));
        }
        Ok(())
    }

    /// Makes the tensors of the modules of some roles.
    pub(super) fn finish(&mut self, visit: &Visit, role: &dyn Fn(&Module) -> bool) -> Result<()> {
        let here = |m: &Module| m.layer == Some(Place::Body(visit.number)) && role(m);
        let mine: Vec<usize> = (0..self.of.fates.len()).filter(|m| here(self.module(*m))).collect();
        let mut rest = &mine[..];
        while !rest.is_empty() {
            let size = |m: &usize| self.module(*m).rows * self.module(*m).cols;
            let mut numbers = 0;
            let fit = rest.iter().take(TOGETHER).take_while(|m| (numbers += size(m), numbers <= STRETCH).1);
            let (some, others) = rest.split_at(fit.count().max(1));
            rest = others;
            let made: Vec<Tensors> =
                some.par_iter().map(|m| self.tensors_of(visit, *m)).collect::<Result<_>>()?;
            self.record.tensors.extend(made.into_iter().flatten());
        }
        Ok(())
    }

    /// The tensors of a module, none where it stays as it is.
    fn tensors_of(&self, visit: &Visit, at: usize) -> Result<Tensors> {
        let (columns, rows) = (self.columns.get(&at), self.rows.get(&at));
        let module = self.module(at);
        let known = self.moments.get(&module.name).map(|m| &**m);
        match self.quantized(at) {
            true => self.stored(module, columns.map(Vec::as_slice), rows.map(Vec::as_slice), known),
            false if columns.is_none() && rows.is_none() => Ok(Vec::new()),
            false => {
                let weight = self.weight(&module.name)?;
                Ok(vec![fold::weight(visit.input, module, weight, columns, rows)?])
            }
        }
    }

    /// Codes, scales and zeros of a module.
    pub(super) fn stored(
        &self,
        module: &Module,
        columns: Option<&[f32]>,
        rows: Option<&[f32]>,
        known: Option<&Moments>,
    ) -> Result<Tensors> {
        let m = self.weight(&module.name)?;
        let ones = vec![1.0; m.cols];
        let columns = columns.unwrap_or(&ones);
        let known = known.filter(|m| m.tokens() > 0);
        // Narrower ranges of query and key would bend the softmax (AutoAWQ leaves them out as well).
        let query_or_key = matches!(module.role, Role::Attention(Part::Q | Part::K));
        let (mut codes, mut grids) = (Vec::with_capacity(m.rows * m.cols), Vec::new());
        // Rows do not know of each other: a large matrix is never there as f32 as a whole.
        let step = (STRETCH / m.cols.max(1)).max(1);
        for first in (0..m.rows).step_by(step) {
            let here = first..m.rows.min(first + step);
            let mut values = numbers_of(m, here.clone());
            fold::scale(&mut values, m.cols, columns, rows.map(|rows| &rows[here]));
            let job = ToStore {
                values: &values,
                s: columns,
                format: self.format,
                clip: known.filter(|_| self.of.clip == Clip::Search && !query_or_key),
                descent: known.filter(|_| self.of.rounding == Rounding::Descent),
            };
            let (some_codes, some_grids) = self.of.engine.codes(&self.cpu, &job)?;
            codes.extend(some_codes);
            grids.extend(some_grids);
        }
        self.of.storage.tensors(&module.name, [m.rows, m.cols], codes, &grids)
    }
}

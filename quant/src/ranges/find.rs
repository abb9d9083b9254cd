//! One layer: ranges of its inputs and of its cache, and the scales that follow.

use std::sync::Arc;

use rayon::prelude::*;
use runner::backend::Backend;
use runner::blocks::Mlp;
use serde_json::{Value, json};
use verify::architecture::Architecture;
use verify::{Error, Result, Shown};

use super::groups::{self, Group};
use super::range::Range;
use super::seen::Seen;
use super::{Wanted, cache_specs, input_spec, scale_of, stored};
use crate::awq::weights::not_finite;
use crate::calibration::{Experts, Record, Records, SEEN, Visit, Visitor};
use crate::select::Fate;

/// Tokens that go through an expert at once.
const STEP: usize = 2048;

/// Looks for scales, layer by layer.
pub struct Finder<'a> {
    /// What the tensors are.
    pub arch: &'a Architecture,
    /// Which modules are quantized, by index of `Architecture::modules`.
    pub fates: &'a [Fate],
    /// Which scales.
    pub wanted: Wanted,
    /// Which tokens an expert sees.
    pub experts: Experts,
}

impl Visitor for Finder<'_> {
    fn visit(&mut self, visit: &mut Visit) -> Result<Record> {
        let groups = match self.wanted.inputs {
            true => groups::of_layer(self.arch, self.fates, visit.number),
            false => Vec::new(),
        };
        let seen = Arc::new(Seen::new(&groups));
        let batches = visit.batches();
        let (first, second) = batches.split_at(batches.len().div_ceil(2));
        visit.mix_some(first, Some(seen.clone()))?;
        seen.halfway();
        visit.mix_some(second, Some(seen.clone()))?;
        // The first that is no number is where to look; what follows it is none either.
        check(visit, &groups, &seen)?;
        let tokens = if self.wanted.inputs { self.all_experts(visit, &seen)? } else { Vec::new() };
        visit.feed_some(first, Some(seen.clone()))?;
        seen.halfway();
        visit.feed_some(second, Some(seen.clone()))?;
        check(visit, &groups, &seen)?;
        Ok(self.record(visit.number, &groups, &seen, &tokens))
    }

    fn pass(&mut self, visit: &mut Visit, _: &Records) -> Result<()> {
        visit.mix(None)?;
        visit.feed(None)
    }
}

impl Finder<'_> {
    /// Sends tokens to every expert, whatever the router says; returns how many of them chose each.
    fn all_experts(&self, visit: &Visit, seen: &Seen) -> Result<Vec<usize>> {
        let Mlp::Moe(moe) = &visit.layer.mlp else { return Ok(Vec::new()) };
        let x = visit.cpu.norm(&visit.spread(SEEN)?, &visit.layer.norm_post)?;
        let chosen = visit.chosen(&x)?;
        let watched = moe.experts.iter().filter(|e| seen.watches(&e.down.weight.name));
        if self.experts == Experts::All {
            let found = watched.collect::<Vec<_>>().into_par_iter().map(|expert| {
                let mut range = Range::default();
                for from in (0..x.rows()).step_by(STEP) {
                    visit.progress.check()?;
                    let rows: Vec<usize> = (from..x.rows().min(from + STEP)).collect();
                    range.add(&expert.inner(&visit.cpu, &visit.cpu.rows(&x, &rows)?)?);
                }
                Ok((expert.down.weight.name.clone(), range))
            });
            // In the order of the experts: sums do not depend on the threads.
            let found: Vec<_> = found.collect::<Result<_>>()?;
            found.iter().for_each(|(down, range)| seen.absorb(down, range));
        }
        Ok(chosen.iter().map(Vec::len).collect())
    }

    fn record(&self, layer: usize, groups: &[Group], seen: &Seen, tokens: &[usize]) -> Record {
        let mut record = Record::default();
        let mut lines = Vec::new();
        for (n, group) in groups.iter().enumerate() {
            let range = seen.inputs(n);
            let scale = scale_of(range.largest().unwrap_or_default());
            let members = group.members.iter().map(|m| &self.arch.modules()[*m].name);
            record.tensors.extend(members.map(|m| (input_spec(m), stored(scale))));
            lines.push(line(&group.name, &range, scale));
        }
        let mut attentions = groups::attentions(self.arch).into_iter();
        let here = attentions.find(|(n, ..)| *n == layer);
        if let Some((_, _, path)) = here.filter(|_| self.wanted.cache) {
            for (spec, range) in cache_specs(&path).into_iter().zip(seen.cached()) {
                let scale = scale_of(range.largest().unwrap_or_default());
                lines.push(line(&spec.name, &range, scale));
                record.tensors.push((spec, stored(scale)));
            }
        }
        record.report = json!({"layer": layer, "ranges": lines, "tokens_per_expert": tokens});
        record
    }
}

fn line(name: &str, range: &Range, scale: f32) -> Value {
    json!({
        "of": name,
        "scale": scale,
        "largest": range.largest(),
        "rms": range.rms(),
        "clipped": range.clipped(),
    })
}

/// Refuses what is no number, and names the weight that it comes from.
fn check(visit: &mut Visit, groups: &[Group], seen: &Seen) -> Result<()> {
    let inputs = groups.iter().enumerate().map(|(n, group)| (group.name.as_str(), seen.inputs(n)));
    let cached = ["keys", "values"].into_iter().zip(seen.cached());
    let Some((what, _)) = inputs.chain(cached).find(|(_, range)| range.largest().is_none()) else {
        return Ok(());
    };
    let weights = visit.layer.linears_mut().into_iter().map(|l| &l.weight);
    Err(not_finite(weights).unwrap_or_else(|| {
        Error::input(format!("layer {} cannot be calibrated", visit.number))
            .found(format!("NaN or infinity in {} on the calibration data", Shown(what)))
            .expected("finite numbers")
            .hint("the model cannot run these data: try `prep generate` with the source")
    }))
}

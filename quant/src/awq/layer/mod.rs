//! One layer: scales for every pair, then grids and codes for every matrix.

mod judge;
mod store;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use rayon::prelude::*;
use runner::Cpu;
use runner::backend::{Backend, Norm, Span, SwiGlu};
use runner::blocks::Mlp;
use runner::cpu::Array;
use runner::weights::Matrix;
use serde_json::{Value, json};
use verify::architecture::{Architecture, Layer as Place, Module, Part, Role};
use verify::checkpoint::Config;
use verify::{Error, Result, Shown};

pub use self::judge::{power, squared};
use super::engine::Engine;
use super::grid::IntFormat;
use super::moments::Moments;
use super::pairs::{self, Judge, Pair, Producer};
use super::probe::Probe;
use super::search::Found;
use super::storage::Storage;
use super::watch::{Keep, Sums};
use super::{Clip, Experts, Rounding};
use crate::calibration::{Record, Records, SEEN, Tensors, Visit, Visitor};
use crate::ranges::{KvCache, cache_specs, groups, scale_of, stored};
use crate::select::Fate;

/// Tokens, of whole samples, on which the output of a block is compared.
const PROBE: usize = 2048;
/// Tokens on which a single linear is compared.
const JUDGED: usize = 512;
/// Tokens that go through a mixer, or into a `down_proj`, at a time; a sample stays whole in a mixer.
const STEP: usize = 1024;
/// Numbers of matrices that are made at a time.
const STRETCH: usize = 1 << 22;
/// Modules that are looked at, or made, at a time: threads that wait for a part of one may begin another.
const TOGETHER: usize = 8;

/// AWQ as a visitor of layers.
pub struct Smoother<'a> {
    /// What the tensors are.
    pub arch: &'a Architecture,
    /// The config.
    pub config: &'a Config,
    /// Which modules are quantized, by index of `Architecture::modules`.
    pub fates: &'a [Fate],
    /// How they are stored.
    pub storage: Storage,
    /// Whether ranges are narrowed.
    pub clip: Clip,
    /// How codes are found.
    pub rounding: Rounding,
    /// Which tokens an expert sees.
    pub experts: Experts,
    /// Whether cached keys and values get scales.
    pub cache: KvCache,
    /// Who computes.
    pub engine: &'a Engine,
}

impl Visitor for Smoother<'_> {
    fn visit(&mut self, visit: &mut Visit) -> Result<Record> {
        let pairs = pairs::of_layer(self.arch, self.fates, self.config, visit.number)?;
        let mut search = LayerSearch::new(self, visit);
        search.first_half(visit, &pairs)?;
        search.second_half(visit, &pairs)?;
        search.record.report = json!({
            "layer": visit.number,
            "pairs": search.lines,
            "ranges": search.ranges,
            "tokens_per_expert": search.tokens,
        });
        Ok(search.record)
    }

    fn pass(&mut self, visit: &mut Visit, _: &Records) -> Result<()> {
        visit.mix(None)?;
        visit.feed(None)
    }
}

/// What is found in the course of one layer.
struct LayerSearch<'a> {
    of: &'a Smoother<'a>,
    cpu: Cpu,
    format: IntFormat,
    /// The layer's matrices by module.
    weights: HashMap<Arc<str>, Matrix>,
    /// What is known of inputs, by module.
    moments: HashMap<String, Arc<Moments>>,
    /// Scales of columns, by module.
    columns: HashMap<usize, Vec<f32>>,
    /// What rows are divided by, by module.
    rows: HashMap<usize, Vec<f32>>,
    /// What is kept.
    record: Record,
    /// What was found, for the report.
    lines: Vec<Value>,
    /// Scales of cached keys and values, for the report.
    ranges: Vec<Value>,
    /// Tokens that chose each expert.
    tokens: Vec<usize>,
}

impl<'a> LayerSearch<'a> {
    fn new(of: &'a Smoother<'a>, visit: &mut Visit) -> Self {
        let all = visit.layer.linears_mut().into_iter();
        let weights = all.map(|l| (l.weight.name.clone(), l.weight.clone())).collect();
        LayerSearch {
            of,
            cpu: visit.cpu.clone(),
            format: of.storage.format,
            weights,
            moments: HashMap::new(),
            columns: HashMap::new(),
            rows: HashMap::new(),
            record: Record::default(),
            lines: Vec::new(),
            ranges: Vec::new(),
            tokens: Vec::new(),
        }
    }

    fn module(&self, at: usize) -> &'a Module {
        &self.of.arch.modules()[at]
    }

    fn weight(&self, module: &str) -> Result<&Matrix> {
        self.weights.get(module).ok_or_else(|| {
            Error::input(format!("module `{}` is no part of its layer", Shown(module)))
                .hint("this is a fault of prep: please report it with the model's name")
        })
    }

    fn quantized(&self, at: usize) -> bool {
        self.of.fates[at] == Fate::Quantize
    }

    // ----- first half: what goes into the mixer, and what comes out of its heads

    fn first_half(&mut self, visit: &mut Visit, pairs: &[Pair]) -> Result<()> {
        let judged = |judge: Judge| pairs.iter().filter(move |p| p.judge == judge);
        let probe = self.probe(visit, &visit.layer.norm_in)?;
        let roles = |m: &Module| matches!(m.role, Role::Attention(_) | Role::DeltaNet(_));
        let out = |m: &Module| matches!(m.role, Role::Attention(Part::O) | Role::DeltaNet(Part::Out));
        // Readers of one producer share their input: the first stands for all.
        let follower =
            |m: &Module| pairs.iter().any(|p| p.readers[1..].iter().any(|r| self.module(*r).name == m.name));
        let sums = self.sums(self.names(visit.number, &|m| roles(m) && !follower(m)));
        visit.mix(Some(sums.clone()))?;
        self.take(&sums, pairs)?;
        for pair in judged(Judge::Mixer) {
            let found = self.by_block(visit, pair, &probe, |v, p, c| self.mixed(v, pair, p, c))?;
            self.settle(visit.input, pair, found)?;
        }
        let inner: Vec<&Pair> = judged(Judge::Reader).filter(|p| out(self.module(p.readers[0]))).collect();
        if !inner.is_empty() {
            let keep = Keep::of(self.names(visit.number, &out));
            judge::pieces(visit, &probe, Some(keep.clone()))?;
            for pair in inner {
                let input = keep.taken(&self.module(pair.readers[0]).name)?;
                let moments = self.moments_of(pair.readers[0])?;
                let found = self.by_reader(pair, &input, &moments)?;
                self.settle(visit.input, pair, found)?;
            }
        }
        if self.of.cache == KvCache::Fp8 {
            self.cache_scales(visit.number, &sums)?;
        }
        self.finish(visit, &roles)
    }

    /// Scales of the layer's keys and values. Where rows of `v_proj` are divided, values are.
    fn cache_scales(&mut self, layer: usize, sums: &Sums) -> Result<()> {
        let attentions = groups::attentions(self.of.arch).into_iter();
        for (_, _, path) in attentions.filter(|(n, ..)| *n == layer) {
            let v = format!("{path}.v_proj");
            let divided = self.rows.iter().find(|(m, _)| self.module(**m).name == v).map(|(_, by)| by);
            let found = [sums.keys.largest(None), sums.values.largest(divided.map(Vec::as_slice))];
            for (spec, largest) in cache_specs(&path).into_iter().zip(found) {
                if !largest.is_finite() {
                    return Err(Error::input(format!("`{}` cannot be calibrated", Shown(&spec.name)))
                        .found("NaN or infinity on the calibration data")
                        .expected("finite keys and values")
                        .hint("the model cannot run these data: try `prep generate` with the source"));
                }
                let scale = scale_of(largest);
                self.ranges.push(json!({"of": spec.name, "scale": scale, "largest": largest}));
                self.record.tensors.push((spec, stored(scale)));
            }
        }
        Ok(())
    }

    /// Whole samples, evenly spread, normalised by `norm`.
    fn probe(&self, visit: &Visit, norm: &Norm<Cpu>) -> Result<Probe> {
        let total = visit.hidden.rows();
        let every = total.div_ceil(PROBE).max(1);
        let (mut values, mut spans, mut tokens) = (Vec::new(), Vec::new(), 0);
        for rows in visit.samples.iter().step_by(every) {
            let rows = rows.start..rows.end.min(rows.start + PROBE);
            tokens += rows.len();
            spans.push(Span { start: 0, len: rows.len() });
            values.extend_from_slice(visit.hidden.read(rows)?.values());
        }
        let h = Array::new(tokens, visit.hidden.cols(), values);
        Ok(Probe { x: self.cpu.norm(&h, norm)?, spans })
    }

    // ----- second half

    fn second_half(&mut self, visit: &mut Visit, pairs: &[Pair]) -> Result<()> {
        let probe = self.probe(visit, &visit.layer.norm_post)?;
        for pair in pairs.iter().filter(|p| p.judge == Judge::Mlp) {
            self.input_of_mlp(visit, pair)?;
            let found = self.by_block(visit, pair, &probe, |v, p, c| self.fed(v, pair, p, c))?;
            self.settle(visit.input, pair, found)?;
        }
        drop(probe);
        let done = self.inner(visit, pairs)?;
        let rest = |m: &Module| !matches!(m.role, Role::Attention(_) | Role::DeltaNet(_));
        self.finish(visit, &|m| rest(m) && !done.contains(&m.name))?;
        visit.feed(None)
    }

    /// Moments of what goes into the MLP, for all that read it.
    fn input_of_mlp(&mut self, visit: &Visit, pair: &Pair) -> Result<()> {
        let mut moments = Moments::new(visit.hidden.cols(), self.format.group);
        for batch in visit.batches() {
            let h = visit.hidden.read(visit.rows(&batch))?;
            let x = self.cpu.norm(&h, &visit.layer.norm_post)?;
            self.of.engine.add(&self.cpu, &mut moments, &x)?;
        }
        let moments = Arc::new(moments);
        for reader in &pair.readers {
            self.moments.insert(self.module(*reader).name.clone(), moments.clone());
        }
        Ok(())
    }

    /// Scales of every pair inside the MLP, and the tensors of its `down_proj`; returns the names of these. What is known of
    /// the inputs of a `down_proj` is let go as soon as it is made: there may be hundreds.
    fn inner(&mut self, visit: &Visit, pairs: &[Pair]) -> Result<HashSet<String>> {
        let x = self.cpu.norm(&visit.spread(SEEN)?, &visit.layer.norm_post)?;
        let mut jobs: Vec<(&Pair, &SwiGlu<Cpu>, Option<usize>)> = Vec::new();
        let chosen = visit.chosen(&x)?;
        self.tokens = chosen.iter().map(Vec::len).collect();
        for pair in pairs {
            let (mlp, role) = (&visit.layer.mlp, self.module(pair.readers[0]).role);
            match (mlp, role) {
                (Mlp::Dense(mlp), Role::Mlp(Part::Down)) => jobs.push((pair, mlp, None)),
                (Mlp::Moe(moe), Role::SharedExpert(Part::Down)) => {
                    jobs.extend(moe.shared.iter().map(|(mlp, _)| (pair, mlp, None)));
                }
                (Mlp::Moe(moe), Role::Expert(e, Part::Down)) => jobs.push((pair, &moe.experts[e], Some(e))),
                _ => {}
            }
        }
        let mut done = HashSet::new();
        for some in jobs.chunks(TOGETHER) {
            let made: Vec<(Found, Tensors)> = some
                .par_iter()
                .map(|(pair, mlp, expert)| {
                    let own = expert.filter(|_| self.of.experts == Experts::Routed).map(|e| &chosen[e][..]);
                    let (judged, moments) = self.input_of_down(mlp, &x, own)?;
                    let found = self.by_reader(pair, &judged, &moments)?;
                    let columns = found.scaled().map(|s| pair.columns(s));
                    let down = self.module(pair.readers[0]);
                    let tensors = self.stored(down, columns.as_deref(), None, Some(&moments))?;
                    Ok((found, tensors))
                })
                .collect::<Result<_>>()?;
            for ((pair, ..), (found, tensors)) in some.iter().zip(made) {
                self.record.tensors.extend(tensors);
                done.insert(self.module(pair.readers[0]).name.clone());
                self.settle(visit.input, pair, found)?;
            }
        }
        Ok(done)
    }

    /// Inputs of a `down_proj` that it is judged on, and what is known of all of them; where there are `own` tokens, of
    /// these.
    fn input_of_down(&self, mlp: &SwiGlu<Cpu>, x: &Array, own: Option<&[usize]>) -> Result<(Array, Moments)> {
        let cols = mlp.down.weight.cols;
        let (mut moments, mut judged) = (Moments::new(cols, self.format.group), Vec::new());
        let tokens = own.map_or(x.rows(), <[usize]>::len);
        let every = tokens.div_ceil(JUDGED).max(1);
        for from in (0..tokens).step_by(STEP) {
            let here = from..tokens.min(from + STEP);
            let rows: Vec<usize> = match own {
                Some(own) => own[here.clone()].to_vec(),
                None => here.clone().collect(),
            };
            let inner = mlp.inner(&self.cpu, &self.cpu.rows(x, &rows)?)?;
            self.of.engine.add(&self.cpu, &mut moments, &inner)?;
            for (n, values) in here.zip(inner.each_row()) {
                if n % every == 0 {
                    judged.extend_from_slice(values);
                }
            }
        }
        Ok((Array::new(judged.len() / cols.max(1), cols, judged), moments))
    }

    // ----- what is seen on the way

    /// Modules of the layer of some roles.
    fn names(&self, layer: usize, role: &dyn Fn(&Module) -> bool) -> Vec<String> {
        let all = self.of.arch.modules().iter().filter(|m| m.layer == Some(Place::Body(layer)));
        all.filter(|m| role(m)).map(|m| m.name.clone()).collect()
    }

    fn sums(&self, names: Vec<String>) -> Arc<Sums> {
        Arc::new(Sums::of(names, (&self.cpu, self.of.engine), self.format.group))
    }

    fn take(&mut self, sums: &Sums, pairs: &[Pair]) -> Result<()> {
        for (name, moments) in sums.taken() {
            let moments = Arc::new(moments?);
            let readers = pairs.iter().find(|p| self.module(p.readers[0]).name == name).map(|p| &p.readers);
            for reader in readers.into_iter().flatten() {
                self.moments.insert(self.module(*reader).name.clone(), moments.clone());
            }
            self.moments.insert(name, moments);
        }
        Ok(())
    }

    fn moments_of(&self, module: usize) -> Result<Arc<Moments>> {
        let name = &self.module(module).name;
        self.moments.get(name).cloned().ok_or_else(|| {
            Error::input(format!("module `{}` was not reached by any sample", Shown(name)))
                .hint("this is a fault of prep: please report it with the model's name")
        })
    }

    fn producer(&self, pair: &Pair) -> String {
        match &pair.producer {
            Producer::Norm { module, .. } => module.clone(),
            Producer::Rows(m) => self.module(*m).name.clone(),
        }
    }

    fn line(&self, pair: &Pair, found: &Found) -> Value {
        json!({
            "from": self.producer(pair),
            "readers": pair.readers.len(),
            "chosen": found.candidate,
            "error_before": found.before,
            "error_after": found.after,
        })
    }
}

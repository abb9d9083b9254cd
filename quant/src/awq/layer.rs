//! One layer: scales for every pair, then grids and codes for every matrix.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use rayon::prelude::*;
use runner::Cpu;
use runner::backend::{Backend, Linear, Norm, Span, SwiGlu};
use runner::blocks::Mlp;
use runner::cpu::{Array, Watch};
use runner::decoder::Layer;
use runner::weights::Matrix;
use serde_json::{Value, json};
use verify::architecture::{Architecture, Layer as Place, Module, Part, Role};
use verify::checkpoint::{Config, TensorReader};
use verify::{Class, Error, Result, Shown};

use super::engine::{Engine, ToStore};
use super::fold;
use super::grid::IntFormat;
use super::moments::Moments;
use super::pairs::{self, Judge, Pair, Producer};
use super::probe::Probe;
use super::search::{Candidate, Found, Sizes, search, shortlist};
use super::storage::Storage;
use super::trial;
use super::watch::{Keep, Sums};
use super::weights::{Give, not_finite, numbers_of, rounded, shares};
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
            pieces(visit, &probe, Some(keep.clone()))?;
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

    // ----- the search

    /// Scales of the pair by the output of a whole block; `output` gives it with the readers' columns scaled, their weights
    /// rounded and the scales taken back, or as they are.
    fn by_block(
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
    fn mixed(&self, visit: &mut Visit, pair: &Pair, probe: &Probe, columns: Option<&[f32]>) -> Result<Array> {
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
    fn fed(&self, visit: &Visit, pair: &Pair, probe: &Probe, columns: Option<&[f32]>) -> Result<Array> {
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
    fn by_reader(&self, pair: &Pair, x: &Array, moments: &Moments) -> Result<Found> {
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

    // ----- what is kept

    /// Folds the scales of a pair into its producer, and remembers them for its readers.
    fn settle(&mut self, input: &dyn TensorReader, pair: &Pair, found: Found) -> Result<()> {
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
    fn finish(&mut self, visit: &Visit, role: &dyn Fn(&Module) -> bool) -> Result<()> {
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
    fn stored(
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

/// What the mixer makes of a probe, a few samples at a time.
fn pieces(visit: &Visit, probe: &Probe, watch: Option<Arc<dyn Watch>>) -> Result<Array> {
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

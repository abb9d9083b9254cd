//! Pairs of factors: to which tensors of the base they belong, and with which scale.

use std::sync::Arc;

use verify::{Error, Result, Shown};

use super::experts::{self, Base, Layout, Parameter};
use super::target::Target;
use super::{Found, Resolver, check_classifier, is_tail};
use crate::adapter::stored::{Stored, View, shown};
use crate::adapter::{Adapter, Factors, Kind};
use crate::compute::dora::{Axis, Dora};
use crate::compute::piece::{Columns, Piece};

/// Models whose layers are transformers' Conv1D, stored (in, out).
const CONV1D_MODELS: [&str; 4] = ["gpt2", "openai-gpt", "imagegpt", "decision_transformer"];
const CONV1D_LAYERS: [&str; 4] = ["c_attn", "c_proj", "c_fc", "q_attn"];

impl<'a> Resolver<'a> {
    /// Resolves all pairs of `adapter`.
    pub(super) fn all_factors(&mut self, adapter: &Adapter, number: usize) -> Result<()> {
        let mut at = 0;
        while at < adapter.factors.len() {
            let f = &adapter.factors[at];
            // Wrappers of one module stand together: they are sorted by module and depth.
            let same = adapter.factors[at..].iter().take_while(|g| g.module == f.module).count();
            let group = &adapter.factors[at..at + same];
            at += same;
            group.iter().try_for_each(check_moves)?;
            if f.module.rsplit('.').next() == Some("experts") {
                self.fused_experts((adapter, number), group)?;
            } else if let [f] = group {
                self.one_module((adapter, number), f)?;
            } else {
                return Err(Error::input(format!("module `{}` has nested factors", Shown(&f.module)))
                    .found(format!("{same} pairs"))
                    .expected("one pair (only fused experts hold two)"));
            }
        }
        Ok(())
    }

    fn fused_experts(&mut self, (adapter, number): (&Adapter, usize), group: &[Factors]) -> Result<()> {
        let module = group[0].module.clone();
        refuse_dora_on_experts(group)?;
        let Some((layout, rule)) = experts::find(&self.view.tensors, &module) else {
            self.no_target(adapter, group.iter().flat_map(keys).collect());
            return Ok(());
        };
        if let Some(f) = group.iter().enumerate().find(|(at, f)| f.depth != *at || f.kind != Kind::Linear) {
            return Err(Error::input(format!("the factors of `{}` are not nested in order", Shown(&module)))
                .found(format!("depth {} of a wrapper", f.1.depth)));
        }
        let parameters = experts::wrapped(&adapter.config, &module, group.len())?;
        for (f, parameter) in group.iter().zip(parameters) {
            self.fused_pair((adapter, number), f, (&layout, parameter))?;
            self.count_rewrite(number, rule.clone(), f.tensors());
        }
        Ok(())
    }

    fn fused_pair(
        &mut self,
        (adapter, number): (&Adapter, usize),
        f: &Factors,
        (layout, parameter): (&Layout, Parameter),
    ) -> Result<()> {
        let base = self.base();
        let Some(experts) = base.count(layout, parameter)? else {
            self.no_target(adapter, keys(f));
            return Ok(());
        };
        if !f.rank().is_multiple_of(experts) {
            return Err(Error::input(format!("the factors of `{}` are not those of {experts} experts", Shown(&f.module)))
                .found(format!("{}, {}", shown(&f.a), shown(&f.b)))
                .expected(format!("{experts} times the rank as rows of A"))
                .hint("the adapter was trained on another base; see `base_model_name_or_path` in adapter_config.json"));
        }
        let rank = f.rank() / experts;
        let path = format!("{}.{}", f.module, parameter.name());
        let scale = self.scale(adapter, &path, rank, f)?;
        let placed = self.base().place_fused(
            (adapter, number),
            f,
            (layout, parameter),
            (rank, scale * adapter.weight),
        )?;
        let mut targets: Vec<String> = Vec::new();
        for (name, piece) in placed {
            self.existing_target(&name)?.add(piece)?;
            if targets.last() != Some(&name) {
                targets.push(name);
            }
        }
        self.note_factors(adapter, f, (rank, scale), targets);
        Ok(())
    }

    fn base(&self) -> Base<'a> {
        Base { index: &self.view.tensors, model_type: self.view.config.model_type() }
    }

    fn existing_target(&mut self, name: &str) -> Result<&mut Target> {
        let t = self.view.tensors.get(name).ok_or_else(|| verify::checkpoint::no_tensor(name))?;
        let found = Found { name: name.to_string(), base: t.spec.clone(), rule: None };
        self.target(&found)
    }

    fn note_factors(
        &mut self,
        adapter: &Adapter,
        f: &Factors,
        (rank, scale): (usize, f64),
        targets: Vec<String>,
    ) {
        let kind = if f.magnitude.is_some() { "DoRA" } else { "LoRA" };
        self.note_use(adapter, keys(f), kind, targets);
        if let Some(last) = self.uses.last_mut() {
            (last.rank, last.scale) = (Some(rank), Some(scale));
        }
    }

    /// A linear layer, an embedding, a router, or one matrix of one expert.
    fn one_module(&mut self, (adapter, number): (&Adapter, usize), f: &Factors) -> Result<()> {
        if f.depth > 0 {
            return Err(Error::input(format!("module `{}` has nested factors", Shown(&f.module)))
                .expected("one pair (only fused experts hold two)"));
        }
        let expert = experts::per_expert(&f.module);
        if expert.is_some() {
            refuse_dora_on_experts(std::slice::from_ref(f))?;
        }
        let weight = self.find_tensor(&format!("{}.weight", f.module));
        let bare = || self.find_tensor(&f.module).filter(|t| t.base.shape.len() == 2);
        if let Some(found) = weight.or_else(bare) {
            return self.plain((adapter, number), f, found);
        }
        let Some((module, e, part)) = expert else {
            check_classifier(&f.module)?;
            self.no_target(adapter, keys(f));
            return Ok(());
        };
        let Some((layout, rule)) = experts::find(&self.view.tensors, module) else {
            self.no_target(adapter, keys(f));
            return Ok(());
        };
        if let Some(spec) = self.base().own_tensor(&layout, e, part) {
            let found = Found { name: spec.name.clone(), base: spec.clone(), rule };
            return self.plain((adapter, number), f, found);
        }
        let Layout::Fused { module } = &layout else {
            self.no_target(adapter, keys(f));
            return Ok(());
        };
        let scale = self.scale(adapter, &f.module, f.rank(), f)?;
        let placed = self.base().place_expert(number, f, (module, e, part), scale * adapter.weight)?;
        let Some((name, piece)) = placed else {
            self.no_target(adapter, keys(f));
            return Ok(());
        };
        if f.bias.is_some() {
            return Err(no_bias(f));
        }
        self.existing_target(&name)?.add(piece)?;
        self.count_rewrite(number, rule, f.tensors());
        self.note_factors(adapter, f, (f.rank(), scale), vec![name]);
        Ok(())
    }

    /// A pair that covers a whole matrix.
    fn plain(&mut self, (adapter, number): (&Adapter, usize), f: &Factors, found: Found) -> Result<()> {
        let scale = self.scale(adapter, &self.pattern_path(adapter, f), f.rank(), f)?;
        let turned = f.kind == Kind::Embedding || self.is_conv1d(&f.module);
        let (rows, cols) = match turned {
            true => (f.a.spec.shape[1], f.b.spec.shape[0]),
            false => (f.b.spec.shape[0], f.a.spec.shape[1]),
        };
        let target = self.target(&found)?;
        if target.job.output.shape != [rows, cols] {
            return Err(Error::input(format!("the factors of `{}` do not fit their target", Shown(&f.module)))
                .found(format!("{}, {}", shown(&f.a), shown(&f.b)))
                .expected(format!("a product of {:?} as `{}`", target.job.output.shape, Shown(&found.name)))
                .hint("the adapter was trained on another base; see `base_model_name_or_path` in adapter_config.json"));
        }
        let (left, right) = match turned {
            true => (View::transposed(&f.a), View::transposed(&f.b)),
            false => (View::plain(&f.b), View::plain(&f.a)),
        };
        let (rank, weighted) = (f.rank(), scale * adapter.weight);
        let cols = Columns::all(cols);
        target.add(Piece { rows: 0..rows, cols, left, right, rank, scale: weighted, adapter: number })?;
        if let Some(magnitude) = &f.magnitude {
            let axis = if turned { Axis::Columns } else { Axis::Rows };
            target.scale(number, Dora::new(magnitude.values()?, axis))?;
        }
        let mut targets = vec![found.name.clone()];
        if let Some(bias) = &f.bias {
            targets.push(self.bias(number, f, bias, weighted)?);
        }
        self.count_rewrite(number, found.rule, f.tensors());
        self.note_factors(adapter, f, (rank, scale), targets);
        Ok(())
    }

    /// `b' = b + s · bias_B`, as a product of rank 1.
    fn bias(&mut self, number: usize, f: &Factors, bias: &Arc<Stored>, scale: f64) -> Result<String> {
        let found = self.find_tensor(&format!("{}.bias", f.module)).ok_or_else(|| no_bias(f))?;
        let count = bias.spec.elements();
        let target = self.target(&found)?;
        if target.job.output.shape != [count] {
            return Err(Error::input(format!("the bias {} does not fit its target", shown(bias)))
                .expected(format!("{:?} as `{}`", target.job.output.shape, Shown(&found.name))));
        }
        let (left, right) = (View::plain(&Arc::new(Stored::one())), View::new(bias, 0, (count, 1)));
        let cols = Columns::all(count);
        target.add(Piece { rows: 0..1, cols, left, right, rank: 1, scale, adapter: number })?;
        Ok(found.name)
    }

    fn is_conv1d(&self, module: &str) -> bool {
        let layer = module.rsplit('.').next().unwrap_or(module);
        CONV1D_MODELS.contains(&self.view.config.model_type()) && CONV1D_LAYERS.contains(&layer)
    }

    /// The path that rank and alpha patterns see: a parameter's where it was targeted as such.
    fn pattern_path(&self, adapter: &Adapter, f: &Factors) -> String {
        let parameter = format!("{}.weight", f.module);
        match adapter.config.target_parameters.iter().any(|e| is_tail(&parameter, e)) {
            true => parameter,
            false => f.module.clone(),
        }
    }

    /// The scale of a pair of `rank`, by the config's patterns for `path`.
    fn scale(&mut self, adapter: &Adapter, path: &str, rank: usize, f: &Factors) -> Result<f64> {
        let config = &adapter.config;
        let ranks = config.rank_pattern.matching(path)?;
        let fits = |r: &f64| *r == rank as f64;
        // With overlapping patterns the first one may not be that of training, since PEFT sorts them when it
        // saves: the tensors know.
        let default = config.rank == rank && (ranks.is_empty() || !ranks.iter().any(fits));
        if !default && !ranks.iter().any(fits) {
            let wanted = match ranks.is_empty() {
                true => format!("rank {} (`r`)", config.rank),
                false => format!("rank {ranks:?} (`rank_pattern`) or {} (`r`)", config.rank),
            };
            return Err(Error::input(format!(
                "the rank of `{}` is not that of adapter_config.json",
                Shown(path)
            ))
            .found(format!("rank {rank}: {}, {}", shown(&f.a), shown(&f.b)))
            .expected(wanted)
            .hint("config and weights are of two adapters: fetch both again"));
        }
        let alphas = config.alpha_pattern.matching(path)?;
        let alpha = alphas.first().copied().unwrap_or(config.alpha);
        if alphas.iter().any(|a| *a != alpha) {
            self.warnings.push(format!(
                "{}: several alpha_pattern entries match {alphas:?}: the first one, {alpha}, is used",
                Shown(path)
            ));
        }
        let scale = config.scaling.scale(alpha, rank);
        if scale == 0.0 && !f.b.all_zero() {
            return Err(Error::input(format!(
                "the scale of `{}` is 0: its factors would be lost",
                Shown(path)
            ))
            .found(format!("lora_alpha {alpha}"))
            .hint("check `lora_alpha` and `alpha_pattern` in adapter_config.json"));
        }
        Ok(scale)
    }
}

fn keys(f: &Factors) -> Vec<String> {
    let parts = [Some(&f.a), Some(&f.b), f.bias.as_ref(), f.magnitude.as_ref()];
    parts.into_iter().flatten().map(|t| t.spec.name.clone()).collect()
}

/// Factors whose product is zero though B is not would be an adapter that lost its A.
fn check_moves(f: &Factors) -> Result<()> {
    match f.a.all_zero() && !f.b.all_zero() {
        false => Ok(()),
        true => Err(Error::input(format!("the factors of `{}` have no effect", Shown(&f.module)))
            .found("lora_A all zero, lora_B not")
            .expected("a trained pair")
            .hint("the file is not whole: save the adapter again")),
    }
}

fn no_bias(f: &Factors) -> Error {
    Error::input(format!("`{}` has no bias in the base", Shown(&f.module)))
        .found("a bias of lora_B in the adapter (`lora_bias`)")
        .expected(format!("`{}.bias` in the base", Shown(&f.module)))
        .hint("a base without this bias cannot hold the merged layer: train without `lora_bias`")
}

fn refuse_dora_on_experts(group: &[Factors]) -> Result<()> {
    match group.iter().find(|f| f.magnitude.is_some()) {
        None => Ok(()),
        Some(f) => Err(Error::input(format!("DoRA on experts is not defined (`{}`)", Shown(&f.module)))
            .expected("LoRA on experts")
            .hint("PEFT has no such layer: train the experts without `use_dora`")),
    }
}

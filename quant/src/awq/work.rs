//! What comes out of each tensor, and where its bytes come from: the source, or the records of the calibration.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::OnceLock;

use serde_json::Value;
use verify::architecture::{Architecture, Layer, Module};
use verify::checkpoint::{Config, TensorMeta, TensorReader, TensorSpec};
use verify::error::{Error, Result};
use verify::rewrite::{
    Applied, ModelView, Needs, Note, Preparation, StageBuilder, UnitKind, Work, rows_per_chunk,
};

use super::layer::Smoother;
use super::pairs::{self, Producer};
use super::storage::Storage;
use super::{Awq, is_quantized, report};
use crate::calibration::{Records, Task, walk};
use crate::ranges::{cache_specs, groups};
use crate::select::{Fate, Selection, modules_by_tensor};

/// Outputs that go to one shard together.
pub struct Piece {
    outputs: Vec<TensorSpec>,
    shard: usize,
    from: From,
}

enum From {
    /// Carried over.
    Source(UnitKind),
    /// Made by the calibration, reading this tensor.
    Records(String),
}

impl Piece {
    /// The shard of the source, and the bytes that stay together.
    pub fn place(&self) -> (usize, u64) {
        (self.shard, self.outputs.iter().map(TensorSpec::byte_len).sum())
    }

    /// True for the numbers of a module, not for its bias.
    fn is_weight(&self) -> bool {
        self.outputs.iter().all(|o| !o.name.ends_with(".bias"))
    }

    /// The tensor of the source that it is made of.
    fn reads(&self) -> &str {
        match &self.from {
            From::Source(UnitKind::Copy { from, .. }) => from,
            From::Source(UnitKind::Computed) => "",
            From::Records(reads) => reads,
        }
    }

    /// Adds its outputs, each a unit of its own; returns the units that are not copies, with their outputs' names.
    pub fn add(self, builder: &mut StageBuilder<'_>, shard: usize) -> Vec<(usize, String)> {
        let mut made = Vec::new();
        for spec in self.outputs {
            match &self.from {
                From::Source(kind) => builder.copy_as(spec, shard, kind.clone()),
                From::Records(reads) => {
                    let (name, size) =
                        (spec.name.clone(), (spec.rows(), rows_per_chunk(spec.row_bytes(), 1)));
                    made.push((builder.compute(shard, vec![spec], size, &[reads]), name));
                }
            }
        }
        made
    }
}

/// All pieces, in file order. Experts of a stack come out one by one, as servers expect of quantized checkpoints.
///
/// # Errors
/// Exit 3 for counts in the config that are none.
pub fn pieces(
    storage: Storage,
    input: &ModelView,
    arch: &Architecture,
    selection: &Selection,
) -> Result<Vec<Piece>> {
    let held = modules_by_tensor(arch);
    let scaled = may_change(input, arch, selection)?;
    let mut out = Vec::new();
    for t in input.tensors.tensors() {
        let modules = held.get(t.spec.name.as_str()).map_or(&[][..], Vec::as_slice);
        if modules.is_empty() {
            let from = match scaled.contains(&t.spec.name) {
                true => From::Records(t.spec.name.clone()),
                false => From::Source(UnitKind::Copy { from: t.spec.name.clone(), first_row: 0 }),
            };
            out.push(Piece { outputs: vec![t.spec.clone()], shard: t.shard, from });
        }
        for &m in modules {
            let module = &arch.modules()[m];
            out.push(match is_quantized(selection, m) {
                true => Piece {
                    outputs: storage.specs(&module.name, [module.rows, module.cols]),
                    shard: t.shard,
                    from: From::Records(t.spec.name.clone()),
                },
                false => kept(t, module, &scaled),
            });
        }
    }
    Ok(out)
}

/// The same with the scales of cached keys and values, each beside its attention's `k_proj`.
pub fn with_cache_scales(pieces: Vec<Piece>, arch: &Architecture) -> Vec<Piece> {
    let attentions: HashMap<String, String> = groups::attentions(arch)
        .into_iter()
        .map(|(_, k, path)| (arch.modules()[k].name.clone(), path))
        .collect();
    let mut out = Vec::with_capacity(pieces.len() + attentions.len());
    for piece in pieces {
        let module = piece.outputs.first().and_then(|o| o.name.rsplit_once('.')).map(|(module, _)| module);
        let scales = module.and_then(|m| attentions.get(m)).filter(|_| piece.is_weight()).map(|path| Piece {
            outputs: cache_specs(path).into(),
            shard: piece.shard,
            from: From::Records(piece.reads().to_string()),
        });
        out.push(piece);
        out.extend(scales);
    }
    out
}

fn kept(t: &TensorMeta, m: &Module, scaled: &HashSet<String>) -> Piece {
    let spec = match t.spec.shape.len() {
        2 => t.spec.clone(),
        _ => TensorSpec::new(format!("{}.weight", m.name), t.spec.dtype, [m.rows, m.cols]),
    };
    let from = match scaled.contains(&spec.name) {
        true => From::Records(t.spec.name.clone()),
        false => From::Source(UnitKind::Copy { from: t.spec.name.clone(), first_row: m.source.first_row }),
    };
    Piece { outputs: vec![spec], shard: t.shard, from }
}

/// Tensors in 16 bit that a scale may be folded into: norms, biases, and readers that are not quantized.
fn may_change(input: &ModelView, arch: &Architecture, selection: &Selection) -> Result<HashSet<String>> {
    let mut names = HashSet::new();
    let weight = |module: &str| format!("{module}.weight");
    for n in 0..arch.layers() {
        for pair in pairs::of_layer(arch, &selection.fates, &input.config, n)? {
            match &pair.producer {
                Producer::Norm { module, .. } => {
                    names.insert(weight(module));
                }
                Producer::Rows(m) => {
                    let module = &arch.modules()[*m];
                    names.insert(format!("{}.bias", module.name));
                    if !is_quantized(selection, *m) {
                        names.insert(weight(&module.name));
                    }
                }
            }
            let kept = pair.readers.iter().filter(|r| !is_quantized(selection, **r));
            names.extend(kept.map(|r| weight(&arch.modules()[*r].name)));
        }
    }
    Ok(names)
}

/// The calibration, and after it the tensors that it made.
pub struct AwqWork {
    /// What the tensors are.
    pub arch: Architecture,
    /// The source's config.
    pub config: Config,
    /// Which modules are quantized.
    pub fates: Vec<Fate>,
    /// How.
    pub storage: Storage,
    /// Options and samples.
    pub awq: Awq,
    /// What the calibration takes, with its records.
    pub needs: Needs,
    /// The output of each unit that is not a copy.
    pub tensors: Vec<Option<String>>,
    /// What the calibration made.
    pub records: OnceLock<Records>,
}

impl Work for AwqWork {
    fn needs(&self) -> Needs {
        self.needs
    }

    fn prepare(&self, with: &Preparation<'_>) -> Result<()> {
        let task = Task {
            input: with.input,
            config: &self.config,
            samples: &self.awq.samples.sequences,
            folder: with.folder,
            cpu: self.awq.engine.cpu(),
            threads: with.threads,
            progress: with.progress,
        };
        let mut smoother = Smoother {
            arch: &self.arch,
            config: &self.config,
            fates: &self.fates,
            storage: self.storage,
            clip: self.awq.clip,
            rounding: self.awq.rounding,
            experts: self.awq.experts,
            cache: self.awq.cache,
            engine: &self.awq.engine,
        };
        let records = walk(&task, &mut smoother)?;
        // A second preparation of the same plan finds the same records.
        let _ = self.records.set(records);
        Ok(())
    }

    fn apply(&self, unit: usize, rows: Range<usize>, input: &dyn TensorReader) -> Result<Applied> {
        let (name, records) = match (self.tensors.get(unit).and_then(Option::as_ref), self.records.get()) {
            (Some(name), Some(records)) => (name, records),
            _ => {
                return Err(Error::input(format!("unit {unit} was not calibrated"))
                    .hint("this is a fault of prep: please report it"));
            }
        };
        let bytes = match records.contains(name) {
            true => records.read_rows(name, rows)?,
            // No scale was folded into it.
            false => self.unchanged(name, rows, input)?,
        };
        Ok(Applied { outputs: vec![bytes], note: None })
    }

    fn conclude(&self, _: &[Note]) -> Result<Value> {
        let Some(records) = self.records.get() else { return Ok(Value::Null) };
        let mut summary = report::summary(records.reports(), self.storage);
        summary["calibration"] = serde_json::json!(self.awq.samples.report);
        Ok(summary)
    }
}

impl AwqWork {
    fn unchanged(&self, name: &str, rows: Range<usize>, input: &dyn TensorReader) -> Result<Vec<u8>> {
        if input.index().contains(name) {
            return input.read_rows(name, rows);
        }
        let module = self.arch.module(name.strip_suffix(".weight").unwrap_or(name));
        let module =
            module.filter(|m| matches!(m.layer, Some(Layer::Body(_) | Layer::Mtp(_)))).ok_or_else(|| {
                Error::input(format!("tensor `{name}` was not made"))
                    .hint("this is a fault of prep: please report it")
            })?;
        let first = module.source.first_row;
        input.read_rows(&module.source.tensor, first + rows.start..first + rows.end)
    }
}

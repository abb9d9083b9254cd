//! AWQ: 4- and 8-bit integer weights whose scales were chosen on calibration data.
//!
//! ```text
//!   plan (metadata): which modules, which tensors come out
//!   prepare: calibration walks the layers ─▶ pairs ─▶ search ─▶ clip ─▶ codes ─▶ a record for each layer
//!   apply: tensors out of the records
//! ```
//!
//! Lin et al. 2023, "AWQ: Activation-aware Weight Quantization for LLM Compression and Acceleration".

mod clip;
mod config;
mod descent;
mod engine;
#[cfg(test)]
mod exactness;
mod fold;
mod grid;
mod layer;
mod moments;
mod pairs;
mod probe;
mod report;
mod search;
mod storage;
mod trial;
mod watch;
pub(crate) mod weights;
mod work;

use std::sync::OnceLock;

use serde_json::json;
use verify::architecture::{Architecture, Layer as Place, Module, Unit};
use verify::checkpoint::{TensorReader, TensorSpec};
use verify::codec::Float;
use verify::error::{Error, Result};
use verify::names::Shown;
use verify::rewrite::{ModelView, Rewrite, Stage, StageBuilder};

pub use self::engine::Engine;
pub use self::grid::IntFormat;
pub use self::storage::Storage;
use self::work::{AwqWork, Piece};
use crate::calibration;
pub use crate::calibration::Experts;
use crate::calibration::data::Samples;
use crate::nonfinite::NonFinite;
use crate::pattern::Pattern;
use crate::ranges::{self, KvCache, Wanted};
use crate::select::{Fate, Selection, select};
use crate::shards;
pub use verify::codec::int4::Layout;

/// Whether the ranges of groups are narrowed where that loses less.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Clip {
    /// No: from the smallest to the largest weight.
    Off,
    /// Yes, but for query and key.
    #[default]
    Search,
}

/// How codes are found once scales and ranges are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rounding {
    /// The nearest code.
    Nearest,
    /// From the nearest codes downhill in the error on the calibration data: neighbours make up for each other.
    #[default]
    Descent,
}

/// Quantizes a model with AWQ.
#[derive(Debug, Clone)]
pub struct Awq {
    /// Names and order of what is stored.
    pub layout: Layout,
    /// 4 or 8.
    pub bits: u32,
    /// 32, 64 or 128 columns under one scale.
    pub group: usize,
    /// True where zeros stay in the middle.
    pub symmetric: bool,
    /// Whether ranges are narrowed.
    pub clip: Clip,
    /// How codes are found.
    pub rounding: Rounding,
    /// Which tokens an expert sees.
    pub experts: Experts,
    /// How keys and values are cached while serving.
    pub cache: KvCache,
    /// Modules to leave in 16 bit.
    pub ignore: Vec<Pattern>,
    /// Modules that no scale fits.
    pub nonfinite: NonFinite,
    /// What to calibrate on.
    pub samples: Samples,
    /// Who does the heavy sums.
    pub engine: Engine,
}

impl Awq {
    /// The defaults over these samples.
    pub fn new(samples: Samples) -> Self {
        Awq {
            layout: Layout::PackQuantized,
            bits: 4,
            group: 128,
            symmetric: false,
            clip: Clip::default(),
            rounding: Rounding::default(),
            experts: Experts::default(),
            cache: KvCache::default(),
            ignore: Vec::new(),
            nonfinite: NonFinite::default(),
            samples,
            engine: Engine::default(),
        }
    }

    fn check(&self) -> Result<()> {
        let wrong = |what: String| Err(Error::usage(what));
        match (self.bits, self.layout) {
            (4, _) | (8, Layout::PackQuantized) => {}
            (8, _) => return wrong("AutoAWQ has no 8-bit format: use --format compressed-tensors".into()),
            (n, _) => return wrong(format!("{n} bits: AWQ knows 4 and 8")),
        }
        if ![32, 64, 128].contains(&self.group) {
            return wrong(format!("groups of {}: servers know 32, 64 and 128", self.group));
        }
        match self.layout == Layout::AwqGemm {
            true if self.symmetric => {
                wrong("AutoAWQ's gemm format always stores zeros: leave out --symmetric".into())
            }
            true if self.cache == KvCache::Fp8 => wrong(
                "servers read no cache scales beside AutoAWQ's format: use --format compressed-tensors"
                    .into(),
            ),
            _ => Ok(()),
        }
    }
}

impl Rewrite for Awq {
    fn plan(&self, input: &ModelView, reader: &dyn TensorReader) -> Result<Stage> {
        self.check()?;
        crate::fp8::refuse_quantized(input)?;
        let arch = Architecture::of(&input.config, &input.tensors)?;
        let storage = self.storage(input, &arch)?;
        let broken = self.nonfinite.find(&arch, reader)?;
        broken.refuse_calibration(&arch)?;
        let obstacle = |_: &Unit, m: &Module| match m.layer {
            Some(Place::Mtp(_)) => {
                Some("draft layers are not run, so there is nothing to calibrate on".into())
            }
            _ => storage.obstacle([m.rows, m.cols]),
        };
        let selection = select(&arch, &self.ignore, &obstacle)?;
        let pieces = work::pieces(storage, input, &arch, &selection)?;
        let pieces = match self.cache {
            KvCache::Bits16 => pieces,
            KvCache::Fp8 => work::with_cache_scales(pieces, &arch),
        };
        let sizes: Vec<_> = pieces.iter().map(Piece::place).collect();
        let placed = shards::assign(input.tensors.shards(), &sizes, shards::LIMIT)?;
        let mut builder = StageBuilder::new(input);
        let mut names = Vec::new();
        for (piece, &shard) in pieces.into_iter().zip(&placed.of) {
            names.extend(piece.add(&mut builder, shard));
        }
        let built = builder.finish(placed.names)?;
        let mut by_unit = vec![None; built.units.len()];
        names.into_iter().for_each(|(unit, name)| by_unit[built.renumber[unit]] = Some(name));
        let mut output = input.clone();
        output.tensors = built.tensors;
        let skipped = crate::fp8::config::skipped(&arch, &selection);
        let mut quantization = config::quantization(storage, &skipped);
        if self.cache == KvCache::Fp8 {
            quantization["kv_cache_scheme"] = ranges::cache_scheme();
        }
        output.config.set(None, "quantization_config", &quantization)?;
        let mut warnings = crate::fp8::warnings(&arch, &selection);
        warnings.extend(broken.warnings(&arch));
        warnings.extend(self.samples.report.warnings.iter().cloned());
        let mut decisions = selection.decisions(&arch, &storage.describe());
        let cache = self.cache == KvCache::Fp8;
        decisions.extend(ranges::decisions(Wanted { inputs: false, cache }, &arch));
        let mut needs = calibration::needs(&arch, input, &self.samples)?;
        let made = built.units.iter().zip(&by_unit).filter(|(_, name)| name.is_some());
        needs.disk += made.flat_map(|(unit, _)| &unit.outputs).map(TensorSpec::byte_len).sum::<u64>();
        Ok(Stage {
            name: "quantize",
            options: self.options(storage),
            inputs: Vec::new(),
            output,
            units: built.units,
            dropped: built.dropped,
            decisions,
            warnings,
            work: Box::new(AwqWork {
                arch,
                config: input.config.clone(),
                fates: selection.fates,
                storage,
                awq: self.clone(),
                needs,
                tensors: by_unit,
                records: OnceLock::new(),
            }),
        })
    }
}

impl Awq {
    fn storage(&self, input: &ModelView, arch: &Architecture) -> Result<Storage> {
        let first = arch.units().first().map(|u| &arch.modules()[u.members[0]].source.tensor);
        let model = first.and_then(|t| Float::of(input.tensors.get(t)?.spec.dtype)).ok_or_else(|| {
            Error::input(format!("{} cannot be quantized", Shown::path(input.config.path())))
                .expected("linears in F32, F16 or BF16")
                .hint("start from the 16-bit model")
        })?;
        let scale = storage::scale_type(self.layout, model);
        let format = IntFormat { bits: self.bits, symmetric: self.symmetric, group: self.group, scale };
        Ok(Storage { layout: self.layout, format })
    }

    fn options(&self, storage: Storage) -> serde_json::Value {
        let ignore: Vec<_> = self.ignore.iter().map(Pattern::text).collect();
        let mut options = json!({
            "format": storage.describe(),
            "clip": match self.clip { Clip::Off => "off", Clip::Search => "search" },
            "rounding": match self.rounding { Rounding::Nearest => "nearest", Rounding::Descent => "descent" },
            "experts": self.experts.name(),
            "ignore": ignore,
            "calibration": self.samples.digest,
            "samples": self.samples.sequences.len(),
        });
        if self.nonfinite == NonFinite::Keep {
            options["allow_nonfinite"] = true.into();
        }
        if self.cache == KvCache::Fp8 {
            options["kv_cache"] = self.cache.name().into();
        }
        options
    }
}

/// True where a module is quantized.
fn is_quantized(selection: &Selection, module: usize) -> bool {
    selection.fates[module] == Fate::Quantize
}

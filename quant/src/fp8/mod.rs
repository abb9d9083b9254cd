//! FP8: codes of 8 bits with scales over blocks, rows or whole matrices. Weights need no calibration data; scales of
//! inputs and of the key and value cache do.

mod coder;
pub(crate) mod config;
mod layout;
mod loss;
mod parallel;
mod scheme;
mod work;

use std::sync::OnceLock;

use runner::Cpu;
use serde_json::json;
use verify::architecture::{Architecture, Layer, Module, Unit, UnitKind};
use verify::checkpoint::{TensorReader, list_some};
use verify::codec::fp8::{BLOCK, Grid};
use verify::error::{Error, Result};
use verify::names::Shown;
use verify::rewrite::{Built, Decision, ModelView, Rewrite, Stage, StageBuilder, rows_per_chunk};

pub use self::coder::Coder;
use self::layout::{How, Piece};
use self::parallel::Sizes;
pub use self::scheme::Scheme;
use self::work::{Made, QuantizeWork};
use crate::calibration::data::Samples;
use crate::calibration::{self, Experts};
use crate::nonfinite::{NOT_FINITE, NonFinite};
use crate::pattern::Pattern;
use crate::ranges::{self, Activations, Calibration, KvCache, Wanted};
use crate::select::{Fate, Selection, select, without_numbers};
use crate::shards;

/// What becomes of a linear whose sides are no multiples of 128, under [`Scheme::Block`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tails {
    /// It stays in 16 bit, with all that it is fused with.
    #[default]
    Keep,
    /// It is quantized where servers do not fuse it with others. vLLM loads that; transformers' own
    /// dequantizer does not (rows that divide evenly into fewer blocks come out wrong without an error).
    QuantizeUnfused,
}

/// Quantizes a model to FP8.
#[derive(Debug, Clone, Default)]
pub struct Fp8 {
    /// The format.
    pub scheme: Scheme,
    /// Modules to leave in 16 bit.
    pub ignore: Vec<Pattern>,
    /// Modules that no scale fits.
    pub nonfinite: NonFinite,
    /// Linears that do not fill their blocks.
    pub tails: Tails,
    /// Who finds the scales of inputs.
    pub activations: Activations,
    /// Who computes codes.
    pub coder: Coder,
    /// Who runs the model where there is something to calibrate.
    pub walker: Cpu,
    /// How keys and values are cached while serving.
    pub cache: KvCache,
    /// Which tokens an expert is calibrated on.
    pub experts: Experts,
    /// What to calibrate on, where there is something to calibrate.
    pub samples: Samples,
}

impl Rewrite for Fp8 {
    fn plan(&self, input: &ModelView, reader: &dyn TensorReader) -> Result<Stage> {
        refuse_quantized(input)?;
        let arch = Architecture::of(&input.config, &input.tensors)?;
        self.check(&arch)?;
        let wanted = self.wanted();
        let broken = self.nonfinite.find(&arch, reader)?;
        if wanted.any() {
            broken.refuse_calibration(&arch)?;
        }
        let obstacle = |unit: &Unit, m: &Module| broken.obstacle(m).or_else(|| self.obstacle(unit, m));
        let selection = select(&arch, &self.ignore, &obstacle)?;
        let mut pieces = layout::pieces(self.scheme, input, &arch, &selection)?;
        let shared = match self.scheme.grid() {
            Grid::Tensor => layout::share_scales(&arch, &mut pieces),
            Grid::Block | Grid::Channel => Vec::new(),
        };
        if wanted.inputs {
            pieces.iter_mut().for_each(Piece::add_input_scale);
        }
        if wanted.cache {
            layout::add_cache_scales(&arch, &mut pieces);
        }
        let (built, made) = self.build(input, pieces)?;
        let mut output = input.clone();
        output.tensors = built.tensors;
        let skipped = config::skipped(&arch, &selection);
        let quantization = config::quantization(self.scheme, self.activations, self.cache, &skipped);
        output.config.set(None, "quantization_config", &quantization)?;
        let mut decisions = selection.decisions(&arch, self.scheme.describe());
        decisions.extend(ranges::decisions(wanted, &arch));
        let mut warnings = warnings(&arch, &selection);
        warnings.extend(broken.warnings(&arch));
        warnings.extend(self.samples.report.warnings.iter().cloned());
        if self.scheme.grid() == Grid::Block {
            if !selection.fates.contains(&Fate::Quantize) {
                warnings.push("--scheme channel has no blocks to fill".into());
            }
            let sizes = parallel::sizes(&arch, &selection, &input.config)?;
            advise_on_parallelism(&sizes, &mut decisions, &mut warnings);
        }
        let calibration = wanted.any().then(|| self.calibration(arch, input, selection)).transpose()?;
        Ok(Stage {
            name: "quantize",
            options: self.options(),
            inputs: Vec::new(),
            output,
            units: built.units,
            dropped: built.dropped,
            decisions,
            warnings,
            work: Box::new(QuantizeWork {
                made,
                shared,
                scheme: self.scheme,
                coder: self.coder.clone(),
                calibration,
            }),
        })
    }
}

impl Fp8 {
    /// True where samples are needed.
    pub fn calibrates(&self) -> bool {
        self.wanted().any()
    }

    fn wanted(&self) -> Wanted {
        Wanted { inputs: self.activations == Activations::Static, cache: self.cache == KvCache::Fp8 }
    }

    fn check(&self, arch: &Architecture) -> Result<()> {
        let experts = arch.units().iter().any(|u| u.kind == UnitKind::Experts);
        let expected = match (self.activations, self.scheme) {
            (Activations::Dynamic, _) | (_, Scheme::Tensor) => return Ok(()),
            (Activations::Static, Scheme::Channel) if !experts => return Ok(()),
            (Activations::Static, _) if experts => "--scheme tensor",
            (Activations::Static, _) => "--scheme tensor or channel",
        };
        Err(Error::usage("servers take no stored scales of inputs beside these weights")
            .found(format!("--static-activations and {}", self.scheme.describe()))
            .expected(expected)
            .hint("without --static-activations servers scale inputs as they go, which is also more exact"))
    }

    fn calibration(
        &self,
        arch: Architecture,
        input: &ModelView,
        selection: Selection,
    ) -> Result<Calibration> {
        Ok(Calibration {
            needs: calibration::needs(&arch, input, &self.samples)?,
            arch,
            config: input.config.clone(),
            fates: selection.fates,
            wanted: self.wanted(),
            experts: self.experts,
            walker: self.walker.clone(),
            samples: self.samples.clone(),
            records: OnceLock::new(),
        })
    }

    /// Units of the pieces, in the source's shards where they fit, and by number how they are made.
    fn build(&self, input: &ModelView, pieces: Vec<Piece>) -> Result<(Built, Vec<Option<Made>>)> {
        let sizes: Vec<_> = pieces.iter().map(Piece::place).collect();
        let shards = shards::assign(input.tensors.shards(), &sizes, shards::LIMIT)?;
        let mut builder = StageBuilder::new(input);
        let mut numbers = Vec::new();
        for (piece, &shard) in pieces.into_iter().zip(&shards.of) {
            match piece.how {
                How::Copy(kind) => {
                    piece.outputs.into_iter().for_each(|spec| builder.copy_as(spec, shard, kind.clone()));
                }
                How::Quantize(job) => {
                    let multiple = self.scheme.grid().row_multiple();
                    let size = (job.rows, rows_per_chunk(job.cols * job.float.bytes(), multiple));
                    let unit = builder.compute(shard, piece.outputs, size, &[&job.tensor]);
                    numbers.push((unit, Made::Quantized(job)));
                }
            }
            for spec in piece.found {
                let name = spec.name.clone();
                numbers.push((builder.compute(shard, vec![spec], (1, 1), &[]), Made::Found(name)));
            }
        }
        let built = builder.finish(shards.names)?;
        let mut made: Vec<Option<Made>> = (0..built.units.len()).map(|_| None).collect();
        numbers.into_iter().for_each(|(number, how)| made[built.renumber[number]] = Some(how));
        Ok((built, made))
    }

    fn obstacle(&self, unit: &Unit, m: &Module) -> Option<String> {
        if m.rows == 0 || m.cols == 0 {
            return Some("it has no elements".into());
        }
        if self.activations == Activations::Static && matches!(m.layer, Some(Layer::Mtp(_))) {
            return Some("draft layers are not run, so there is nothing to calibrate on".into());
        }
        let ragged = !m.rows.is_multiple_of(BLOCK) || !m.cols.is_multiple_of(BLOCK);
        let forced = self.tails == Tails::QuantizeUnfused && !unit.is_merged();
        (self.scheme.grid() == Grid::Block && ragged && !forced)
            .then(|| format!("{} x {} is not made of whole blocks of 128 x 128", m.rows, m.cols))
    }

    fn options(&self) -> serde_json::Value {
        let ignore: Vec<_> = self.ignore.iter().map(Pattern::text).collect();
        let tails = match self.tails {
            Tails::Keep => "keep",
            Tails::QuantizeUnfused => "quantize-unfused",
        };
        let mut options = json!({"format": self.scheme.describe(), "ignore": ignore, "tails": tails});
        if self.nonfinite == NonFinite::Keep {
            options["allow_nonfinite"] = true.into();
        }
        let wanted = self.wanted();
        if wanted.inputs {
            options["activations"] = "static".into();
            options["experts"] = self.experts.name().into();
        }
        if wanted.cache {
            options["kv_cache"] = self.cache.name().into();
        }
        if wanted.any() {
            options["calibration"] = self.samples.digest.as_str().into();
            options["samples"] = self.samples.sequences.len().into();
        }
        options
    }
}

/// Tells the tensor-parallel sizes, and warns where hardly any is left.
fn advise_on_parallelism(sizes: &Sizes, decisions: &mut Vec<Decision>, warnings: &mut Vec<String>) {
    let Some(limit) = &sizes.limit else { return };
    let list = sizes.fit.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    decisions.push(Decision {
        what: "tensor-parallel sizes with whole blocks".into(),
        choice: list.clone(),
        reason: limit.clone(),
    });
    if sizes.fit.len() <= 2 {
        warnings.push(format!(
            "blocks of 128 allow only tensor-parallel size {} ({limit}): \
             serve with that size, with expert parallelism, or choose --scheme channel",
            list.replace(", ", " or ")
        ));
    }
}

/// What the user should know of modules that stay in 16 bit.
pub(crate) fn warnings(arch: &Architecture, selection: &Selection) -> Vec<String> {
    let unused = selection.unused.iter();
    let mut warnings: Vec<String> =
        unused.map(|p| format!("--ignore {} matches no module", Shown(p))).collect();
    let told = |reason: &str| reason.starts_with("--ignore") || reason.starts_with(NOT_FINITE);
    let left_out = selection.left_out.iter().filter(|(_, reason)| !told(reason));
    // The same unit of every layer is told once, by its first.
    let mut kinds: Vec<(String, usize, String)> = Vec::new();
    for (unit, reason) in left_out {
        let name = &arch.units()[*unit].name;
        match kinds.iter_mut().find(|(kind, ..)| *kind == without_numbers(name)) {
            Some((_, n, _)) => *n += 1,
            None => kinds.push((without_numbers(name), 1, format!("`{name}` ({reason})"))),
        }
    }
    let told: Vec<String> = kinds
        .into_iter()
        .map(|(kind, n, first)| if n == 1 { first } else { format!("{n} x `{kind}`, such as {first}") })
        .collect();
    if !told.is_empty() {
        warnings.push(format!("left in 16 bit: {}", list_some(&told)));
    }
    if !selection.fates.contains(&Fate::Quantize) {
        warnings.push("nothing was quantized: every linear stays in 16 bit; see the decisions".into());
    }
    warnings
}

pub(crate) fn refuse_quantized(input: &ModelView) -> Result<()> {
    let Some(q) = input.config.quantization() else { return Ok(()) };
    let method = q.get("quant_method").and_then(|m| m.as_str()).unwrap_or("unknown");
    Err(Error::input(format!("{} is quantized already", Shown::path(input.config.path())))
        .found(format!("quant_method `{}`", Shown(method)))
        .expected("a model in F32, F16 or BF16")
        .hint("start from the 16-bit model, or add --from-quantized for an FP8 one"))
}

//! FP8: codes of 8 bits with scales over blocks, rows or whole matrices. Needs no calibration data.

mod config;
mod loss;
mod work;

use std::collections::HashMap;

use serde_json::json;
use verify::architecture::{Architecture, Module, Unit};
use verify::checkpoint::{TensorMeta, TensorReader, TensorSpec};
use verify::codec::Float;
use verify::codec::fp8::{BLOCK, Grid};
use verify::dtype::Dtype;
use verify::error::{Error, Result};
use verify::names::Shown;
use verify::rewrite::{ModelView, Rewrite, Stage, StageBuilder, UnitKind, rows_per_chunk};

use self::work::{Job, QuantizeWork};
use crate::pattern::Pattern;
use crate::select::{Fate, Selection, select};
use crate::shards;

/// How weights and scales are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scheme {
    /// The `fp8` format of transformers and vLLM: a scale for each block of 128 x 128.
    #[default]
    Block,
}

impl Scheme {
    /// The grid of its scales.
    pub fn grid(self) -> Grid {
        match self {
            Scheme::Block => Grid::Block,
        }
    }

    fn describe(self) -> &'static str {
        match self {
            Scheme::Block => "FP8 in blocks of 128 x 128",
        }
    }

    fn scale_leaf(self) -> &'static str {
        match self {
            Scheme::Block => "weight_scale_inv",
        }
    }

    fn scale_shape(self, rows: usize, cols: usize) -> Vec<usize> {
        let (down, across) = self.grid().scales(rows, cols);
        vec![down, across]
    }
}

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
    /// Linears that do not fill their blocks.
    pub tails: Tails,
}

impl Rewrite for Fp8 {
    fn plan(&self, input: &ModelView, _: &dyn TensorReader) -> Result<Stage> {
        refuse_quantized(input)?;
        let arch = Architecture::of(&input.config, &input.tensors)?;
        let obstacle = |unit: &Unit, m: &Module| self.obstacle(unit, m);
        let selection = select(&arch, &self.ignore, &obstacle)?;
        let pieces = pieces(self.scheme, input, &arch, &selection)?;
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
                    let step =
                        rows_per_chunk(job.cols * job.float.bytes(), self.scheme.grid().row_multiple());
                    let size = (job.rows, step);
                    let number = builder.compute(shard, piece.outputs, size, &[&job.tensor]);
                    numbers.push((number, job));
                }
            }
        }
        let built = builder.finish(shards.names)?;
        let mut jobs: Vec<Option<Job>> = (0..built.units.len()).map(|_| None).collect();
        numbers.into_iter().for_each(|(number, job)| jobs[built.renumber[number]] = Some(job));
        let mut output = input.clone();
        output.tensors = built.tensors;
        let skipped = config::skipped(&arch, &selection);
        output.config.set(None, "quantization_config", &config::quantization(self.scheme, &skipped))?;
        Ok(Stage {
            name: "quantize",
            options: self.options(),
            inputs: Vec::new(),
            output,
            units: built.units,
            dropped: built.dropped,
            decisions: selection.decisions(&arch, self.scheme.describe()),
            warnings: self.warnings(&selection),
            work: Box::new(QuantizeWork { jobs, grid: self.scheme.grid() }),
        })
    }
}

impl Fp8 {
    fn obstacle(&self, unit: &Unit, m: &Module) -> Option<String> {
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
        json!({"format": self.scheme.describe(), "ignore": ignore, "tails": tails})
    }

    fn warnings(&self, selection: &Selection) -> Vec<String> {
        let unused = selection.unused.iter();
        let mut warnings: Vec<String> =
            unused.map(|p| format!("--ignore {} matches no module", Shown(p))).collect();
        if !selection.fates.contains(&Fate::Quantize) {
            warnings.push("nothing was quantized: every linear stays in 16 bit; see the decisions".into());
        }
        warnings
    }
}

fn refuse_quantized(input: &ModelView) -> Result<()> {
    let Some(q) = input.config.quantization() else { return Ok(()) };
    let method = q.get("quant_method").and_then(|m| m.as_str()).unwrap_or("unknown");
    Err(Error::input(format!("{} is quantized already", Shown::path(input.config.path())))
        .found(format!("quant_method `{}`", Shown(method)))
        .expected("a model in F32, F16 or BF16")
        .hint("start from the 16-bit model, or add --from-quantized for an FP8 one"))
}

/// Outputs that go to one shard together.
struct Piece {
    outputs: Vec<TensorSpec>,
    shard: usize,
    how: How,
}

enum How {
    Copy(UnitKind),
    Quantize(Job),
}

impl Piece {
    fn place(&self) -> (usize, u64) {
        (self.shard, self.outputs.iter().map(TensorSpec::byte_len).sum())
    }
}

/// What comes out of each tensor, in file order. Experts of a stack come out one by one, also those that
/// stay in 16 bit.
fn pieces(
    scheme: Scheme,
    input: &ModelView,
    arch: &Architecture,
    selection: &Selection,
) -> Result<Vec<Piece>> {
    let mut held: HashMap<&str, Vec<usize>> = HashMap::new();
    for (at, m) in arch.modules().iter().enumerate() {
        held.entry(&m.source.tensor).or_default().push(at);
    }
    let mut out = Vec::new();
    for t in input.tensors.tensors() {
        let modules = held.get(t.spec.name.as_str()).map_or(&[][..], Vec::as_slice);
        if modules.is_empty() {
            let kind = UnitKind::Copy { from: t.spec.name.clone(), first_row: 0 };
            out.push(Piece { outputs: vec![t.spec.clone()], shard: t.shard, how: How::Copy(kind) });
        }
        for &m in modules {
            let (module, fate) = (&arch.modules()[m], &selection.fates[m]);
            out.push(match fate {
                Fate::Quantize => quantized(scheme, t, module)?,
                Fate::Keep(_) => kept(t, module),
            });
        }
    }
    Ok(out)
}

fn quantized(scheme: Scheme, t: &TensorMeta, m: &Module) -> Result<Piece> {
    let float = Float::of(t.spec.dtype).ok_or_else(|| {
        Error::input(format!("tensor `{}` cannot be quantized", Shown(&t.spec.name)))
            .found(format!("dtype {}", t.spec.dtype))
            .expected("F32, F16 or BF16")
            .hint("start from the 16-bit model")
    })?;
    let weight = format!("{}.weight", m.name);
    let scale = format!("{}.{}", m.name, scheme.scale_leaf());
    let outputs = vec![
        TensorSpec::new(weight.clone(), Dtype::F8_E4M3, [m.rows, m.cols]),
        TensorSpec::new(scale, Dtype::F32, scheme.scale_shape(m.rows, m.cols)),
    ];
    let job = Job {
        output: weight,
        tensor: t.spec.name.clone(),
        shape: t.spec.shape.clone(),
        first_row: m.source.first_row,
        rows: m.rows,
        cols: m.cols,
        float,
    };
    Ok(Piece { outputs, shard: t.shard, how: How::Quantize(job) })
}

fn kept(t: &TensorMeta, m: &Module) -> Piece {
    let kind = UnitKind::Copy { from: t.spec.name.clone(), first_row: m.source.first_row };
    let spec = match t.spec.shape.len() {
        2 => t.spec.clone(),
        _ => TensorSpec::new(format!("{}.weight", m.name), t.spec.dtype, [m.rows, m.cols]),
    };
    Piece { outputs: vec![spec], shard: t.shard, how: How::Copy(kind) }
}

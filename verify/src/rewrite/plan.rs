//! Every shard's layout before the first byte is read, and the digest that tells two plans apart.

use std::collections::HashMap;

use serde::Serialize;
use serde_json::{Value, json};
use unicode_normalization::UnicodeNormalization;

use super::Code;
use super::chain::{Makers, Notes, StageReader, makers};
use super::stage::{Rewrite, Stage};
use super::view::ModelView;
use crate::checkpoint::folder::{REPORT, SUMS};
use crate::checkpoint::{Checkpoint, TensorReader, TensorSpec, header, index_json};
use crate::checksum::{self, Digests};
use crate::error::{Error, Result};
use crate::names::{Digest, FileName};

/// A chain of planned stages over a checkpoint, ready to run.
pub struct OutputPlan {
    pub(crate) base: Checkpoint,
    pub(crate) stages: Vec<(Stage, Makers)>,
    pub(crate) output: ModelView,
    pub(crate) shards: Vec<ShardPlan>,
    pub(crate) identity: Value,
    /// What the source's own `SHA256SUMS` says, where it has one.
    pub(crate) source_sums: Digests,
    /// Digests of the side files that will come out.
    pub(crate) files: Digests,
    /// What the user should know of the folder's files, beside the warnings of the stages.
    pub(crate) warnings: Vec<String>,
}

/// One output file: its units in order, and where each of their outputs stands.
#[derive(Debug, Clone)]
pub struct ShardPlan {
    /// File name.
    pub name: FileName,
    /// Numbers of the last stage's units.
    pub units: std::ops::Range<usize>,
    /// (unit, output of the unit) in the order of the file's bytes.
    pub layout: Vec<(usize, usize)>,
    /// The header, its 8-byte length included.
    pub header: Vec<u8>,
    /// Length of the whole file.
    pub bytes: u64,
}

/// What a plan says about a tensor, for `--dry-run`.
#[derive(Debug, Clone, Serialize)]
pub struct PlannedTensor {
    /// Its name, dtype and shape.
    #[serde(flatten)]
    pub spec: TensorSpec,
    /// Its file.
    pub shard: FileName,
}

impl OutputPlan {
    /// Plans `rewrites` one after the other over `base`. Without any, the plan is a plain copy.
    ///
    /// # Errors
    /// What the stages refuse; names that only differ by case; a result that is not a model.
    pub fn new(base: Checkpoint, rewrites: &[&dyn Rewrite]) -> Result<Self> {
        Self::with_code(base, rewrites, Code::LeaveOut)
    }

    /// As [`Self::new`], with a choice of what becomes of the model's code.
    ///
    /// # Errors
    /// As [`Self::new`]; code that cannot be read.
    pub fn with_code(base: Checkpoint, rewrites: &[&dyn Rewrite], code: Code) -> Result<Self> {
        let source_sums = source_sums(&base)?;
        let mut view = ModelView::of(&base);
        let mut stages: Vec<(Stage, Makers)> = Vec::new();
        let copy = Unchanged;
        let rewrites = if rewrites.is_empty() { &[&copy as &dyn Rewrite][..] } else { rewrites };
        for rewrite in rewrites {
            let notes = Notes::default();
            let stage = match stages.len() {
                0 => rewrite.plan(&view, &base)?,
                n => rewrite
                    .plan(&view, &StageReader { stages: &stages, at: n - 1, base: &base, notes: &notes })?,
            };
            view = stage.output.clone();
            let makers = makers(&stage);
            stages.push((stage, makers));
        }
        let warnings = code.settle(&mut view, &base)?;
        check_case(&view)?;
        let last = stages.last().map(|(s, _)| s).ok_or_else(|| Error::usage("nothing to do"))?;
        let shards = lay_out(last)?;
        let files: Digests =
            view.files.iter().map(|f| Ok((f.name.clone(), f.content.digest()?))).collect::<Result<_>>()?;
        if code == Code::Keep {
            // The other files of the source were held to its sums above.
            let mut code = files.iter().filter(|(name, _)| name.as_str().ends_with(".py"));
            code.try_for_each(|(name, digest)| check_sum(&source_sums, name, *digest))?;
        }
        let identity = identity(&base, &stages, &shards, (&view, &files));
        Ok(OutputPlan { base, stages, output: view, shards, identity, source_sums, files, warnings })
    }

    /// The folder that will come out.
    pub fn output(&self) -> &ModelView {
        &self.output
    }

    /// The folder that is read.
    pub fn base(&self) -> &Checkpoint {
        &self.base
    }

    /// The planned stages, in order.
    pub fn stages(&self) -> impl Iterator<Item = &Stage> {
        self.stages.iter().map(|(s, _)| s)
    }

    /// What the user should know of the folder's files, beside the warnings of the stages.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Output files, in order.
    pub fn shards(&self) -> &[ShardPlan] {
        &self.shards
    }

    /// Output tensors, in file order.
    pub fn tensors(&self) -> impl Iterator<Item = PlannedTensor> + '_ {
        let index = &self.output.tensors;
        index
            .tensors()
            .iter()
            .map(|t| PlannedTensor { spec: t.spec.clone(), shard: index.shards()[t.shard].clone() })
    }

    /// Bytes of all output shards.
    pub fn bytes(&self) -> u64 {
        self.shards.iter().map(|s| s.bytes).sum()
    }

    /// Bytes of all input shards.
    pub fn base_bytes(&self) -> u64 {
        self.base.shard_files().iter().map(|s| s.stamp.len).sum()
    }

    /// Bytes that stages keep on disk beside the output until it is complete.
    pub fn work_bytes(&self) -> u64 {
        self.stages().map(|s| s.work.needs().disk).sum()
    }

    /// Upper bound of the bytes held with `threads` workers: in chunks, or while a stage prepares.
    pub fn peak_bytes(&self, threads: usize) -> u64 {
        let chunk = |s: &Stage| {
            let unit = |u: &super::stage::Unit| {
                let whole: u64 = u.outputs.iter().map(TensorSpec::byte_len).sum();
                // Inputs are at most four times as wide as what comes out (f32 from FP8).
                whole * u.step.min(u.rows) as u64 / u.rows.max(1) as u64 * 5
            };
            s.units.iter().map(unit).max().unwrap_or(0)
        };
        let chunks = self.stages().map(chunk).max().unwrap_or(0) * (threads as u64 * 3 + 1);
        let prepared = self.stages().map(|s| s.work.needs().memory).max().unwrap_or(0);
        chunks.max(prepared) + (64 << 20)
    }

    /// Digest of everything that decides the output's bytes: tool version, options, inputs, layout.
    pub fn digest(&self) -> Digest {
        Digest::of(self.identity.to_string().as_bytes())
    }
}

/// Files that a case-blind disk would merge into one.
fn check_case(view: &ModelView) -> Result<()> {
    let mut seen: HashMap<String, &str> = HashMap::new();
    let shards = view.tensors.shards().iter().map(FileName::as_str);
    let own = ["config.json", index_json::INDEX, SUMS, REPORT];
    for name in own.into_iter().chain(shards).chain(view.files.iter().map(|f| f.name.as_str())) {
        if let Some(other) = seen.insert(name.nfc().collect::<String>().to_lowercase(), name) {
            return Err(Error::input(format!(
                "files `{other}` and `{name}` differ only by case or Unicode form"
            ))
            .expected("names that also differ on a disk that is blind to both")
            .hint("rename one of them in the source folder"));
        }
    }
    Ok(())
}

/// Lays each shard's outputs out in unit order, but those whose length is no multiple of 8 behind the
/// others, the widest dtype first: so every tensor starts where its dtype can be viewed in place.
fn lay_out(stage: &Stage) -> Result<Vec<ShardPlan>> {
    let mut shards = Vec::new();
    let mut first = 0;
    for (at, name) in stage.output.tensors.shards().iter().enumerate() {
        let count = stage.units[first..].iter().take_while(|u| u.shard == at).count();
        let units = first..first + count;
        first += count;
        let layout = layout_of(stage, units.clone());
        let specs = || layout.iter().map(|&(u, o)| &stage.units[u].outputs[o]);
        let header = header::encode(specs());
        if header.len() as u64 > header::MAX_HEADER {
            return Err(Error::input(format!("the header of {name} would be too large"))
                .found(format!("{} bytes", header.len())));
        }
        let bytes = header.len() as u64 + specs().map(TensorSpec::byte_len).sum::<u64>();
        shards.push(ShardPlan { name: name.clone(), units, layout, header, bytes });
    }
    Ok(shards)
}

fn layout_of(stage: &Stage, units: std::ops::Range<usize>) -> Vec<(usize, usize)> {
    let spec = |(u, o): (usize, usize)| &stage.units[u].outputs[o];
    let outputs = units.flat_map(|u| (0..stage.units[u].outputs.len()).map(move |o| (u, o)));
    let mut layout: Vec<_> = outputs.collect();
    layout.sort_by_key(|&place| {
        let t = spec(place);
        let ragged = !t.byte_len().is_multiple_of(8);
        (ragged, if ragged { usize::MAX - t.dtype.align() } else { 0 })
    });
    layout
}

fn identity(
    base: &Checkpoint,
    stages: &[(Stage, Makers)],
    shards: &[ShardPlan],
    (view, files): (&ModelView, &Digests),
) -> Value {
    let shard_input = |s: &crate::checkpoint::ShardFile| json!({"name": s.name, "len": s.stamp.len, "mtime_ns": s.stamp.mtime_ns.to_string(), "header": s.header_digest});
    let stage = |(s, _): &(Stage, Makers)| json!({"name": s.name, "options": s.options, "inputs": s.inputs});
    let shard = |s: &ShardPlan| json!({"name": s.name, "bytes": s.bytes, "header": Digest::of(&s.header)});
    json!({
        "prep": env!("CARGO_PKG_VERSION"),
        "base": base.shard_files().iter().map(shard_input).collect::<Vec<_>>(),
        "stages": stages.iter().map(stage).collect::<Vec<_>>(),
        "config": Digest::of(view.config.text().as_bytes()),
        "files": files,
        "shards": shards.iter().map(shard).collect::<Vec<_>>(),
    })
}

/// Reads what the source says about itself, and holds its side files to it; shards are hashed as they are read.
fn source_sums(base: &Checkpoint) -> Result<Digests> {
    if !base.dir().join(SUMS).exists() {
        return Ok(Digests::new());
    }
    let sums = checksum::read_source(base.dir())?;
    for f in base.files() {
        check_sum(&sums, &f.name, checksum::of_file(&f.path)?)?;
    }
    Ok(sums)
}

/// Refuses a source file that is not what the source's `SHA256SUMS` says.
pub(crate) fn check_sum(sums: &Digests, name: &FileName, found: Digest) -> Result<()> {
    match sums.get(name).filter(|want| **want != found) {
        None => Ok(()),
        Some(want) => Err(Error::input(format!("{name} of the source is damaged"))
            .found(format!("sha256 {found}"))
            .expected(format!("{want}, as {SUMS} of the source says"))
            .hint("fetch the source again")),
    }
}

/// The stage that changes nothing.
struct Unchanged;

impl Rewrite for Unchanged {
    fn plan(&self, input: &ModelView, _: &dyn TensorReader) -> Result<Stage> {
        Stage::unchanged("copy", input.clone(), input)
    }
}

impl Stage {
    /// A stage that carries all tensors of `input` over and gives the folder `output`.
    ///
    /// # Errors
    /// Never for a sound view.
    pub fn unchanged(name: &'static str, mut output: ModelView, input: &ModelView) -> Result<Stage> {
        let mut builder = super::stage::StageBuilder::new(input);
        input.tensors.tensors().iter().for_each(|t| builder.copy(t));
        let built = builder.finish(input.tensors.shards().to_vec())?;
        output.tensors = built.tensors;
        Ok(Stage {
            name,
            options: Value::Null,
            inputs: Vec::new(),
            output,
            units: built.units,
            dropped: built.dropped,
            decisions: Vec::new(),
            warnings: Vec::new(),
            work: Box::new(Nothing),
        })
    }
}

struct Nothing;

impl super::stage::Work for Nothing {
    fn apply(&self, _: usize, _: std::ops::Range<usize>, _: &dyn TensorReader) -> Result<super::Applied> {
        Ok(super::Applied::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Dtype;
    use crate::rewrite::stage::{Unit, UnitKind};

    fn stage_of(specs: Vec<TensorSpec>) -> Vec<Unit> {
        let unit =
            |s: TensorSpec| Unit { kind: UnitKind::Computed, rows: 1, step: 1, shard: 0, outputs: vec![s] };
        specs.into_iter().map(unit).collect()
    }

    #[test]
    fn outputs_start_where_their_dtype_can_be_read() {
        let specs = vec![
            TensorSpec::new("even", Dtype::BF16, [4]),
            TensorSpec::new("odd", Dtype::F8_E4M3, [3]),
            TensorSpec::new("scale", Dtype::F32, [1]),
            TensorSpec::new("w", Dtype::BF16, [5]),
            TensorSpec::new("shape", Dtype::I64, [2]),
        ];
        let units = stage_of(specs);
        let view = ModelView {
            config: crate::checkpoint::Config::parse(
                r#"{"model_type":"x"}"#.into(),
                std::path::Path::new("c"),
            )
            .unwrap(),
            tensors: Default::default(),
            files: vec![],
            templates: vec![],
            left_out: vec![],
        };
        let mut stage = Stage::unchanged("t", view.clone(), &view).unwrap();
        stage.units = units;
        let layout = layout_of(&stage, 0..5);
        let mut at = 0;
        for &(u, o) in &layout {
            let t = &stage.units[u].outputs[o];
            assert_eq!(at % t.dtype.align() as u64, 0, "{}", t.name);
            at += t.byte_len();
        }
        let names: Vec<_> = layout.iter().map(|&(u, o)| stage.units[u].outputs[o].name.as_str()).collect();
        assert_eq!(names, ["even", "shape", "scale", "w", "odd"]);
    }
}

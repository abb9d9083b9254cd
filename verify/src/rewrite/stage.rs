//! One stage of a rewrite: which tensors come out, from which they are computed, and the computing itself.

use std::collections::HashSet;
use std::ops::Range;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::view::ModelView;
use crate::checkpoint::{TensorIndex, TensorMeta, TensorReader, TensorSpec, list_some};
use crate::error::{Error, Result};
use crate::names::{Digest, FileName, Shown};
use crate::progress::Progress;

/// Turns one model into another, tensor by tensor.
pub trait Rewrite: Sync {
    /// Plans the stage from metadata; `reader` gives weights to the few rules that must look at values.
    ///
    /// # Errors
    /// Exit 3 for inputs that cannot be rewritten.
    fn plan(&self, input: &ModelView, reader: &dyn TensorReader) -> Result<Stage>;
}

/// Computes the units of a planned stage. Called from many threads, in any order.
pub trait Work: Send + Sync {
    /// Called once before the first unit, for work that must see the whole model first, such as calibration.
    ///
    /// # Errors
    /// Where that cannot be done; what it left in its folder is there when the run is repeated.
    fn prepare(&self, with: &Preparation<'_>) -> Result<()> {
        let _ = with;
        Ok(())
    }

    /// What [`Self::prepare`] needs beside what the engine needs.
    fn needs(&self) -> Needs {
        Needs::default()
    }

    /// The bytes that rows `rows` of unit number `unit` append to each of its outputs.
    ///
    /// The engine calls this with ranges that start at multiples of the unit's `step`, ascending. A later
    /// stage may call it with any range where the unit has one output.
    ///
    /// # Errors
    /// When an input is not finite, or the result does not fit its dtype.
    fn apply(&self, unit: usize, rows: Range<usize>, input: &dyn TensorReader) -> Result<Applied>;

    /// Called once after the last shard with the sums of all notes of this stage, by tensor; gives the
    /// stage's section of the report. A list of texts under `warnings` in it is moved to the report's warnings.
    ///
    /// # Errors
    /// Exit 1 where the whole result is refused, such as a merge that changed nothing.
    fn conclude(&self, notes: &[Note]) -> Result<Value> {
        let _ = notes;
        Ok(Value::Null)
    }
}

/// What work takes while it prepares, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Needs {
    /// On disk, in its folder, until the run is complete.
    pub disk: u64,
    /// In memory, at most about.
    pub memory: u64,
}

/// What [`Work::prepare`] gets.
pub struct Preparation<'a> {
    /// The model that the stage rewrites.
    pub input: &'a dyn TensorReader,
    /// A folder of the stage's own. It lasts until the run is complete, also through a kill, and belongs to one plan.
    pub folder: &'a Path,
    /// Worker threads; results must not depend on it.
    pub threads: usize,
    /// Whom to tell.
    pub progress: &'a dyn Progress,
}

/// What [`Work::apply`] gives.
#[derive(Debug, Default)]
pub struct Applied {
    /// Bytes for each output of the unit, in order.
    pub outputs: Vec<Vec<u8>>,
    /// Figures about these rows, if the stage keeps any.
    pub note: Option<Note>,
}

/// Figures about a range of rows; the engine adds them up per tensor, in row order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Note {
    /// The tensor that they are about.
    pub tensor: String,
    /// First row of the range; 0 in a sum.
    pub row: usize,
    /// Figures that are added.
    pub sums: Vec<f64>,
    /// Figures of which the largest counts.
    pub maxima: Vec<f64>,
}

/// How a unit gets its bytes.
#[derive(Debug, Clone, PartialEq)]
pub enum UnitKind {
    /// The rows of an input tensor from `first_row` on, as they are.
    Copy {
        /// Input tensor.
        from: String,
        /// Its first row that is taken.
        first_row: usize,
    },
    /// By [`Work::apply`].
    Computed,
}

/// Outputs that are made together, chunk by chunk.
#[derive(Debug, Clone)]
pub struct Unit {
    /// How.
    pub kind: UnitKind,
    /// The tensors that come out, in file order. The first is streamed, the others are held until it is whole.
    pub outputs: Vec<TensorSpec>,
    /// The shard that they go to, an index into the stage's shard names.
    pub shard: usize,
    /// Length of the axis along which the unit is cut into chunks.
    pub rows: usize,
    /// Rows of one chunk.
    pub step: usize,
}

/// An input tensor that is in no output.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Dropped {
    /// Its name.
    pub tensor: String,
    /// Why it may go.
    pub reason: String,
}

/// A choice that was made for a tensor or module, with its reason.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Decision {
    /// Tensor or module.
    pub what: String,
    /// What was chosen.
    pub choice: String,
    /// Why.
    pub reason: String,
}

/// A file that a stage reads beside the model it rewrites.
#[derive(Debug, Clone, Serialize)]
pub struct InputFile {
    /// Role and name, such as `adapter/adapter_model.safetensors`.
    pub name: String,
    /// Its sha256.
    pub sha256: Digest,
    /// Its length in bytes.
    pub len: u64,
}

/// A planned stage.
pub struct Stage {
    /// Name for the report, such as `merge-lora`.
    pub name: &'static str,
    /// What was asked for; part of the plan's digest.
    pub options: Value,
    /// Files read beside the model.
    pub inputs: Vec<InputFile>,
    /// The model that comes out.
    pub output: ModelView,
    /// Every output tensor, in exactly one unit, in file order.
    pub units: Vec<Unit>,
    /// Input tensors that are in no output.
    pub dropped: Vec<Dropped>,
    /// Choices for the report.
    pub decisions: Vec<Decision>,
    /// Things that the user should act on.
    pub warnings: Vec<String>,
    /// The computing.
    pub work: Box<dyn Work>,
}

/// Collects the units of a stage and proves that every input tensor is accounted for.
#[derive(Debug)]
pub struct StageBuilder<'a> {
    input: &'a ModelView,
    units: Vec<Unit>,
    used: HashSet<String>,
    dropped: Vec<Dropped>,
}

impl<'a> StageBuilder<'a> {
    /// Starts a stage over `input`.
    pub fn new(input: &'a ModelView) -> Self {
        StageBuilder { input, units: Vec::new(), used: HashSet::new(), dropped: Vec::new() }
    }

    /// Carries a tensor over byte for byte.
    pub fn copy(&mut self, tensor: &TensorMeta) {
        let kind = UnitKind::Copy { from: tensor.spec.name.clone(), first_row: 0 };
        self.copy_as(tensor.spec.clone(), tensor.shard, kind);
    }

    /// Carries rows of a tensor over as the tensor `output`.
    pub fn copy_as(&mut self, output: TensorSpec, shard: usize, kind: UnitKind) {
        if let UnitKind::Copy { from, .. } = &kind {
            self.used.insert(from.clone());
        }
        let (rows, step) = (output.rows(), rows_per_chunk(output.row_bytes(), 1));
        self.units.push(Unit { kind, outputs: vec![output], shard, rows, step });
    }

    /// Adds a computed unit that reads the tensors `reads`; returns its number.
    pub fn compute(
        &mut self,
        shard: usize,
        outputs: Vec<TensorSpec>,
        (rows, step): (usize, usize),
        reads: &[&str],
    ) -> usize {
        self.used.extend(reads.iter().map(ToString::to_string));
        self.units.push(Unit { kind: UnitKind::Computed, outputs, shard, rows, step: step.max(1) });
        self.units.len() - 1
    }

    /// Leaves an input tensor out, with the reason.
    pub fn drop(&mut self, tensor: &str, reason: impl Into<String>) {
        self.used.insert(tensor.to_string());
        self.dropped.push(Dropped { tensor: tensor.to_string(), reason: reason.into() });
    }

    /// Builds the index of the outputs over `shards`; units are brought into shard order (stable), so
    /// the returned units' numbers are those that [`Work::apply`] gets: pass `renumber` to map yours.
    ///
    /// # Errors
    /// Exit 3 where an input tensor is neither read nor dropped, or two outputs share a name.
    pub fn finish(self, shards: Vec<FileName>) -> Result<Built> {
        let names = self.input.tensors.tensors().iter().map(|t| &t.spec.name);
        let missing: Vec<_> =
            names.filter(|n| !self.used.contains(*n)).map(|n| Shown(n).to_string()).collect();
        if !missing.is_empty() {
            return Err(Error::input("tensors of the source have no place in the result")
                .found(list_some(&missing))
                .hint("this is a fault of prep: please report it with the model's name"));
        }
        let mut order: Vec<usize> = (0..self.units.len()).collect();
        order.sort_by_key(|&u| self.units[u].shard);
        let mut renumber = vec![0; order.len()];
        order.iter().enumerate().for_each(|(new, &old)| renumber[old] = new);
        let mut slots: Vec<Option<Unit>> = self.units.into_iter().map(Some).collect();
        let units: Vec<Unit> = order.iter().filter_map(|&u| slots[u].take()).collect();
        let metas = units
            .iter()
            .flat_map(|u| u.outputs.iter().map(|spec| TensorMeta { spec: spec.clone(), shard: u.shard }));
        let tensors = TensorIndex::new(shards, metas.collect())?;
        Ok(Built { units, tensors, dropped: self.dropped, renumber })
    }
}

/// What [`StageBuilder::finish`] gives.
#[derive(Debug)]
pub struct Built {
    /// Units in file order.
    pub units: Vec<Unit>,
    /// Index of the outputs.
    pub tensors: TensorIndex,
    /// Inputs left out.
    pub dropped: Vec<Dropped>,
    /// `renumber[n]` is the final number of the unit that was added as number `n`.
    pub renumber: Vec<usize>,
}

/// Rows of one chunk: about 1 MiB, so that what a worker read is still in its cache when it is written, a multiple of `multiple`, at least one multiple.
pub fn rows_per_chunk(row_bytes: usize, multiple: usize) -> usize {
    const CHUNK: usize = 1 << 20;
    let rows = CHUNK / row_bytes.max(1);
    (rows / multiple).max(1) * multiple
}

impl std::fmt::Debug for Stage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stage").field("name", &self.name).field("units", &self.units.len()).finish()
    }
}

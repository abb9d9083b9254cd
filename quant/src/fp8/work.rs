//! Rows of weights to codes and scales.

use std::ops::Range;

use serde_json::Value;
use verify::checkpoint::TensorReader;
use verify::codec::Float;
use verify::codec::fp8::{Grid, Rows, quantize};
use verify::error::{Error, Result};
use verify::names::Shown;
use verify::rewrite::{Applied, Note, Work};

use super::loss;

/// One module to quantize.
#[derive(Debug)]
pub struct Job {
    /// Name of the weight that comes out.
    pub output: String,
    /// The tensor that holds it.
    pub tensor: String,
    /// That tensor's shape.
    pub shape: Vec<usize>,
    /// First row there.
    pub first_row: usize,
    /// Output features.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
    /// Element type of the source.
    pub float: Float,
}

/// The jobs by unit; units without one are copied by the engine.
pub struct QuantizeWork {
    /// By number of the unit.
    pub jobs: Vec<Option<Job>>,
    /// Which weights share a scale.
    pub grid: Grid,
}

impl Work for QuantizeWork {
    fn apply(&self, unit: usize, rows: Range<usize>, input: &dyn TensorReader) -> Result<Applied> {
        let job = self.jobs.get(unit).and_then(Option::as_ref).ok_or_else(|| {
            Error::input(format!("unit {unit} has nothing to quantize"))
                .hint("this is a fault of prep: please report it")
        })?;
        let first = job.first_row + rows.start;
        let bytes = input.read_rows(&job.tensor, first..job.first_row + rows.end)?;
        let source = Rows { bytes: &bytes, float: job.float, cols: job.cols };
        let made = quantize(source, self.grid).map_err(|_| not_finite(job, first, source))?;
        let note = loss::note(&job.output, rows.start, &made.loss);
        Ok(Applied { outputs: vec![made.codes, Float::F32.to_bytes(&made.scales)], note: Some(note) })
    }

    fn conclude(&self, notes: &[Note]) -> Result<Value> {
        Ok(loss::summary(notes))
    }
}

fn not_finite(job: &Job, first_row: usize, rows: Rows<'_>) -> Error {
    let (row, col) = rows.first_not_finite().unwrap_or_default();
    let row = first_row + row;
    let index = match job.shape[..] {
        [_, rows, _] => format!("[{}, {}, {col}]", row / rows, row % rows),
        _ => format!("[{row}, {col}]"),
    };
    Error::input(format!("tensor `{}` cannot be quantized", Shown(&job.tensor)))
        .found(format!("NaN or infinity, first at {index}"))
        .expected("finite weights")
        .hint("the training diverged or the file is damaged: check its sha256, or take an earlier checkpoint")
}

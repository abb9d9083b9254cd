//! Rows of weights to codes and scales.

use std::ops::Range;
use std::sync::OnceLock;

use runner::cuda::fp8::Fault;
use serde_json::Value;
use verify::checkpoint::TensorReader;
use verify::codec::Float;
use verify::codec::fp8::{Rows, ScaleValues, scale_of};
use verify::error::{Error, Result};
use verify::names::Shown;
use verify::rewrite::{Applied, Needs, Note, Preparation, Work, rows_per_chunk};

use super::{Coder, Scheme, loss};
use crate::ranges::Calibration;

/// One module to quantize.
#[derive(Debug, Clone)]
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
    /// Number of the scale that it shares, where one scale serves whole matrices.
    pub shared: Option<usize>,
}

/// One scale for several whole matrices, found when it is first needed.
#[derive(Debug, Default)]
pub struct Shared {
    /// The matrices.
    pub jobs: Vec<Job>,
    scale: OnceLock<Result<f32>>,
}

/// How a unit is made that is no copy.
pub enum Made {
    /// A weight and its scales.
    Quantized(Job),
    /// A scale of this name that calibration finds.
    Found(String),
}

/// How units are made; those of which nothing is told are copied by the engine.
pub struct QuantizeWork {
    /// By number of the unit.
    pub made: Vec<Option<Made>>,
    /// Scales that matrices share.
    pub shared: Vec<Shared>,
    /// The format.
    pub scheme: Scheme,
    /// Who computes.
    pub coder: Coder,
    /// For scales of inputs and of the cache.
    pub calibration: Option<Calibration>,
}

impl Work for QuantizeWork {
    fn needs(&self) -> Needs {
        self.calibration.as_ref().map_or_else(Needs::default, |c| c.needs)
    }

    fn prepare(&self, with: &Preparation<'_>) -> Result<()> {
        self.calibration.as_ref().map_or(Ok(()), |c| c.prepare(with))
    }

    fn apply(&self, unit: usize, rows: Range<usize>, input: &dyn TensorReader) -> Result<Applied> {
        match (self.made.get(unit).and_then(Option::as_ref), &self.calibration) {
            (Some(Made::Quantized(job)), _) => self.quantize(job, rows, input),
            (Some(Made::Found(name)), Some(calibration)) => {
                Ok(Applied { outputs: vec![calibration.read(name, rows)?], note: None })
            }
            _ => Err(Error::input(format!("unit {unit} has nothing to quantize"))
                .hint("this is a fault of prep: please report it")),
        }
    }

    fn conclude(&self, notes: &[Note]) -> Result<Value> {
        let mut summary = loss::summary(notes);
        if let Some(calibration) = &self.calibration {
            calibration.report_in(&mut summary);
        }
        Ok(summary)
    }
}

impl QuantizeWork {
    fn quantize(&self, job: &Job, rows: Range<usize>, input: &dyn TensorReader) -> Result<Applied> {
        let values = self.scheme.scale_values();
        let bytes = job.read(rows.clone(), input)?;
        let source = Rows { bytes: &bytes, float: job.float, cols: job.cols };
        let made = match job.shared {
            None => self.coder.quantize(source, self.scheme.grid(), values),
            Some(shared) => {
                self.coder.quantize_with(source, self.shared[shared].scale(values, input, &self.coder)?)
            }
        };
        let mut made = made.map_err(|fault| job.error(fault, rows.start, source))?;
        if job.shared.is_some() && rows.start > 0 {
            made.scales.clear();
        }
        let note = loss::note(&job.output, rows.start, &made.loss);
        Ok(Applied { outputs: vec![made.codes, Float::F32.to_bytes(&made.scales)], note: Some(note) })
    }
}

impl Shared {
    fn scale(&self, values: ScaleValues, input: &dyn TensorReader, coder: &Coder) -> Result<f32> {
        self.scale.get_or_init(|| self.find(values, input, coder)).clone()
    }

    fn find(&self, values: ScaleValues, input: &dyn TensorReader, coder: &Coder) -> Result<f32> {
        let mut amax = 0.0f32;
        for job in &self.jobs {
            let step = rows_per_chunk(job.cols * job.float.bytes(), 1);
            for top in (0..job.rows).step_by(step) {
                let bytes = job.read(top..(top + step).min(job.rows), input)?;
                let source = Rows { bytes: &bytes, float: job.float, cols: job.cols };
                amax = amax.max(coder.amax(source).map_err(|fault| job.error(fault, top, source))?);
            }
        }
        Ok(scale_of(amax, values))
    }
}

impl Job {
    fn read(&self, rows: Range<usize>, input: &dyn TensorReader) -> Result<Vec<u8>> {
        input.read_rows(&self.tensor, self.first_row + rows.start..self.first_row + rows.end)
    }

    fn error(&self, fault: Fault, top: usize, rows: Rows<'_>) -> Error {
        match fault {
            Fault::NotFinite => self.not_finite(top, rows),
            Fault::Gpu(e) => e,
        }
    }

    /// The error for `rows`, which start at row `top` of the module.
    fn not_finite(&self, top: usize, rows: Rows<'_>) -> Error {
        let (row, col) = rows.first_not_finite().unwrap_or_default();
        let row = self.first_row + top + row;
        let index = match self.shape[..] {
            [_, rows, _] => format!("[{}, {}, {col}]", row / rows, row % rows),
            _ => format!("[{row}, {col}]"),
        };
        Error::input(format!("tensor `{}` cannot be quantized", Shown(&self.tensor)))
            .found(format!("NaN or infinity, first at {index}"))
            .expected("finite weights")
            .hint(
                "the training diverged or the file is damaged: check its sha256, or take an earlier checkpoint; \
                 --allow-nonfinite copies such modules as they are",
            )
    }
}

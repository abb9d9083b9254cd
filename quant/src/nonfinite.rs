//! Weights that hold NaN or infinity: no scale fits them, so their modules are refused, or carried over as they are.

use std::collections::BTreeMap;

use rayon::prelude::*;
use verify::architecture::{Architecture, Layer, Module, Unit, UnitKind};
use verify::checkpoint::{TensorReader, list_some};
use verify::codec::Float;
use verify::codec::fp8::Rows;
use verify::error::{Error, Result};
use verify::names::Shown;
use verify::rewrite::rows_per_chunk;

/// What becomes of modules whose weights are not all finite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NonFinite {
    /// The run ends where the first is met.
    #[default]
    Refuse,
    /// They stay as they are, with all that servers fuse them with. All weights are read once more for the plan.
    Keep,
}

/// Modules that are not all finite.
#[derive(Debug, Default)]
pub struct Found {
    /// By name of the module, the place of its first such element: `[row, column]`.
    places: BTreeMap<String, String>,
}

impl NonFinite {
    /// Reads the weights of all units where the plan must know them; else finds nothing.
    ///
    /// # Errors
    /// When weights cannot be read.
    pub fn find(self, arch: &Architecture, reader: &dyn TensorReader) -> Result<Found> {
        if self == NonFinite::Refuse {
            return Ok(Found::default());
        }
        let units = arch.units().iter().filter(|u| u.kind != UnitKind::InBa);
        let members: Vec<&Module> = units.flat_map(|u| &u.members).map(|&m| &arch.modules()[m]).collect();
        let places = members
            .into_par_iter()
            .filter_map(|m| place(m, reader).map(|at| at.map(|at| (m.name.clone(), at))).transpose());
        Ok(Found { places: places.collect::<Result<_>>()? })
    }
}

impl Found {
    /// Why `module` cannot be quantized, where it cannot.
    pub fn obstacle(&self, module: &Module) -> Option<String> {
        self.places.get(&module.name).map(|at| format!("{NOT_FINITE} at {at}"))
    }

    /// A sentence for each unit that stays as it is, naming every module that is to blame.
    pub fn warnings(&self, arch: &Architecture) -> Vec<String> {
        let blamed = |unit: &Unit| -> Vec<String> {
            unit.members.iter().filter_map(|&m| self.named(&arch.modules()[m])).collect()
        };
        let units = arch.units().iter().map(|u| (u, blamed(u))).filter(|(_, blamed)| !blamed.is_empty());
        units
            .map(|(u, blamed)| {
                format!("`{}` is copied as it is: NaN or infinity in {}", Shown(&u.name), blamed.join(", "))
            })
            .collect()
    }

    /// Refuses to calibrate: what flows through such a layer is NaN from there on.
    ///
    /// # Errors
    /// Exit 3 where a layer that is run holds such weights.
    pub fn refuse_calibration(&self, arch: &Architecture) -> Result<()> {
        let run = arch.modules().iter().filter(|m| !matches!(m.layer, Some(Layer::Mtp(_))));
        let bad: Vec<_> = run.filter_map(|m| self.named(m)).collect();
        match bad.is_empty() {
            true => Ok(()),
            false => Err(Error::input("a model whose weights are not finite cannot be calibrated")
                .found(format!("NaN or infinity in {}", list_some(&bad)))
                .expected("finite weights in every layer that is run: all behind such a layer would be NaN")
                .hint("FP8 without --static-activations and --kv-cache calibrates nothing; or take a sound checkpoint")),
        }
    }

    fn named(&self, module: &Module) -> Option<String> {
        self.places.get(&module.name).map(|at| format!("`{}` at {at}", Shown(&module.name)))
    }
}

/// How the reasons for such modules begin.
pub const NOT_FINITE: &str = "it holds NaN or infinity";

/// Row and column of the first element that is not finite; none where all are, or where there are no floats.
fn place(module: &Module, reader: &dyn TensorReader) -> Result<Option<String>> {
    let spec = reader.index().get(&module.source.tensor).map(|t| &t.spec);
    let Some(float) = spec.and_then(|s| Float::of(s.dtype)) else { return Ok(None) };
    let step = rows_per_chunk(module.cols * float.bytes(), 1);
    for top in (0..module.rows).step_by(step) {
        let first = module.source.first_row + top;
        let rows = first..first + step.min(module.rows - top);
        let bytes = reader.read_rows(&module.source.tensor, rows)?;
        let rows = Rows { bytes: &bytes, float, cols: module.cols };
        if let Some((row, col)) = rows.first_not_finite() {
            return Ok(Some(format!("[{}, {col}]", top + row)));
        }
    }
    Ok(None)
}

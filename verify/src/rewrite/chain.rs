//! Reading through planned stages: what a stage gives, computed when it is asked for.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Mutex;

use super::stage::{Note, Stage, UnitKind};
use crate::checkpoint::{TensorIndex, TensorReader, no_tensor};
use crate::error::Result;

/// Which unit of a stage makes a tensor: output name → (unit, output of the unit).
pub(crate) type Makers = HashMap<String, (usize, usize)>;

pub(crate) fn makers(stage: &Stage) -> Makers {
    let mut map = HashMap::new();
    for (u, unit) in stage.units.iter().enumerate() {
        for (o, spec) in unit.outputs.iter().enumerate() {
            map.insert(spec.name.clone(), (u, o));
        }
    }
    map
}

/// The notes of all stages on the way of one chunk: (stage, note).
pub(crate) type Notes = Mutex<Vec<(usize, Note)>>;

/// Reads the output of stage number `at` of `stages`.
pub(crate) struct StageReader<'a> {
    pub stages: &'a [(Stage, Makers)],
    pub at: usize,
    pub base: &'a dyn TensorReader,
    pub notes: &'a Notes,
}

impl StageReader<'_> {
    /// Runs unit `unit` of this stage on `rows`; notes go to the collector.
    pub fn apply(&self, unit: usize, rows: Range<usize>) -> Result<Vec<Vec<u8>>> {
        let stage = &self.stages[self.at].0;
        let before;
        let input: &dyn TensorReader = match self.at {
            0 => self.base,
            n => {
                before = StageReader { at: n - 1, ..*self };
                &before
            }
        };
        match &stage.units[unit].kind {
            UnitKind::Copy { from, first_row } => {
                Ok(vec![input.read_rows(from, first_row + rows.start..first_row + rows.end)?])
            }
            UnitKind::Computed => {
                let applied = stage.work.apply(unit, rows, input)?;
                if let Some(note) = applied.note {
                    self.notes.lock().unwrap_or_else(|p| p.into_inner()).push((self.at, note));
                }
                Ok(applied.outputs)
            }
        }
    }
}

impl TensorReader for StageReader<'_> {
    fn index(&self) -> &TensorIndex {
        &self.stages[self.at].0.output.tensors
    }

    fn read_rows(&self, name: &str, rows: Range<usize>) -> Result<Vec<u8>> {
        let (stage, makers) = &self.stages[self.at];
        let &(u, o) = makers.get(name).ok_or_else(|| no_tensor(name))?;
        let unit = &stage.units[u];
        let spec = &unit.outputs[o];
        if unit.outputs.len() == 1 && unit.rows == spec.rows() {
            return Ok(self.apply(u, rows)?.swap_remove(0));
        }
        let row = spec.row_bytes();
        let whole = self.apply(u, 0..unit.rows)?.swap_remove(o);
        Ok(whole[rows.start * row..rows.end * row].to_vec())
    }
}

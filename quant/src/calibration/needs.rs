//! What a calibration needs, known before it begins.

use std::collections::HashMap;

use verify::architecture::{Architecture, Layer};
use verify::error::Result;
use verify::rewrite::{ModelView, Needs};

use super::data::Samples;
use super::experts::SEEN;
use super::hidden::MEMORY_LIMIT;

/// Tokens that go through a layer at once, and arrays of them in between, each as wide as the widest matrix.
const AT_ONCE: u64 = 2048;
const ARRAYS: u64 = 4;
/// Numbers of the matrices that are made, their moments, and what the allocator keeps.
const WORK: u64 = 128 << 20;

/// Two decoder layers and the hidden states: in memory, or on disk where they are too many. The half of a layer that
/// experts read is there twice (as it is, and normalised).
///
/// # Errors
/// Exit 3 for a hidden size that is none.
pub fn needs(arch: &Architecture, input: &ModelView, samples: &Samples) -> Result<Needs> {
    let mut layers: HashMap<usize, u64> = HashMap::new();
    for m in arch.modules() {
        if let (Some(Layer::Body(n)), Some(t)) = (m.layer, input.tensors.get(&m.source.tensor)) {
            let bytes = m.rows as u64 * m.cols as u64 * t.spec.dtype.bits() as u64 / 8;
            *layers.entry(n).or_default() += bytes;
        }
    }
    let layer = layers.into_values().max().unwrap_or_default();
    let widest =
        arch.modules().iter().filter(|m| matches!(m.layer, Some(Layer::Body(_)))).map(|m| m.rows.max(m.cols));
    let widest = widest.max().unwrap_or_default() as u64 * 4;
    let width = input.config.count("hidden_size")?.unwrap_or_default() as u64 * 4;
    let tokens = samples.sequences.iter().map(Vec::len).sum::<usize>() as u64;
    let (kept, seen) = (tokens * width, tokens.min(SEEN as u64) * width);
    let spilled = kept > MEMORY_LIMIT as u64;
    Ok(Needs {
        memory: 2 * layer
            + seen
            + tokens.min(AT_ONCE) * widest * ARRAYS
            + WORK
            + if spilled { 0 } else { kept },
        disk: if spilled { kept } else { 0 },
    })
}

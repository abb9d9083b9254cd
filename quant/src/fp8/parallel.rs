//! How many GPUs can share a model whose scales stand over blocks of 128: each must get whole blocks.

use verify::architecture::{Architecture, Module, Part, Role};
use verify::checkpoint::Config;
use verify::codec::fp8::BLOCK;
use verify::error::Result;

use crate::select::{Fate, Selection};

/// Tensor-parallel sizes that keep blocks whole, among powers of two up to [`LARGEST`].
#[derive(Debug, PartialEq, Eq)]
pub struct Sizes {
    /// The sizes, ascending; 1 is always among them.
    pub fit: Vec<usize>,
    /// What forbids the first size that does not fit: module and reason.
    pub limit: Option<String>,
}

/// The largest size that is looked at.
pub const LARGEST: usize = 16;

/// Finds the sizes for the quantized modules. Query heads and what follows are split by rows, their
/// consumers by columns; key and value heads are repeated where there are fewer of them than GPUs.
///
/// # Errors
/// Exit 3 for head counts that are no counts.
pub fn sizes(arch: &Architecture, selection: &Selection, config: &Config) -> Result<Sizes> {
    let key_heads = match config.count("num_key_value_heads")? {
        Some(n) => n,
        None => config.count("num_attention_heads")?.unwrap_or(1),
    };
    let quantized = || arch.modules().iter().zip(&selection.fates).filter(|(_, f)| **f == Fate::Quantize);
    let mut sizes = Sizes { fit: Vec::new(), limit: None };
    let mut size = 1;
    while size <= LARGEST {
        match quantized().find_map(|(m, _)| obstacle(m, size, key_heads.max(1), config)) {
            None => sizes.fit.push(size),
            Some(reason) if sizes.limit.is_none() => sizes.limit = Some(reason),
            Some(_) => {}
        }
        size *= 2;
    }
    Ok(sizes)
}

/// Why `size` GPUs cannot share a module in whole blocks.
fn obstacle(m: &Module, size: usize, key_heads: usize, config: &Config) -> Option<String> {
    let whole = |side: usize, ways: usize| side.is_multiple_of(ways * BLOCK);
    let (side, ways) = match m.role {
        Role::Attention(Part::K | Part::V) => (m.rows, size.min(key_heads)),
        Role::DeltaNet(Part::InQkv) => return in_qkv(m, size, config),
        Role::Attention(Part::Q) | Role::DeltaNet(Part::InZ | Part::InQkvz) => (m.rows, size),
        Role::Mlp(Part::Gate | Part::Up)
        | Role::SharedExpert(Part::Gate | Part::Up)
        | Role::Expert(_, Part::Gate | Part::Up) => (m.rows, size),
        _ => (m.cols, size),
    };
    // One GPU splits nothing: a tail that was forced is no obstacle there.
    (size > 1 && !whole(side, ways))
        .then(|| format!("`{}`: {side} / {ways} is no multiple of {BLOCK}", m.name))
}

/// Query, key and value of a DeltaNet layer are split one by one.
fn in_qkv(m: &Module, size: usize, config: &Config) -> Option<String> {
    let count = |key| config.count(key).ok().flatten();
    let keys = count("linear_num_key_heads")? * count("linear_key_head_dim")?;
    let values = m.rows.checked_sub(2 * keys)?;
    let whole = |side: usize| side.is_multiple_of(size * BLOCK);
    (size > 1 && !(whole(keys) && whole(values)))
        .then(|| format!("`{}`: {keys} or {values} / {size} is no multiple of {BLOCK}", m.name))
}

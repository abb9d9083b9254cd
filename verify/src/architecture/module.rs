//! The matrices of a model, one entry per expert whichever way experts are stored.

use super::name::{Layer, Leaf, Names, Part, Role};
use crate::checkpoint::{TensorIndex, TensorMeta};
use crate::error::{Error, Result};
use crate::names::Shown;

/// A matrix `[out, in]` that multiplies activations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    /// Path without `.weight`. For an expert of a stack it is the path that it has when stored alone.
    pub name: String,
    /// What it is.
    pub role: Role,
    /// Its layer.
    pub layer: Option<Layer>,
    /// Rows: output features.
    pub rows: usize,
    /// Columns: input features.
    pub cols: usize,
    /// Where its numbers (or codes) lie.
    pub source: Source,
}

/// The tensor that holds a module, and its first row there (see `TensorSpec::rows`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Name of the tensor.
    pub tensor: String,
    /// First row; not 0 only inside a stack of experts.
    pub first_row: usize,
}

/// All modules, in file order; the modules of a stack in the order of its rows. Packed words hold `per_word` codes.
pub(super) fn modules(names: &Names, per_word: usize, index: &TensorIndex) -> Result<Vec<Module>> {
    let mut out = Vec::new();
    for t in index.tensors() {
        let Some(place) = names.read(&t.spec.name) else { continue };
        match (place.role, place.leaf) {
            (Role::ExpertsGateUp, Leaf::Bare) => stack(t, place.layer, &[Part::Gate, Part::Up], &mut out)?,
            (Role::ExpertsDown, Leaf::Bare) => stack(t, place.layer, &[Part::Down], &mut out)?,
            (role, leaf) => {
                let Some((rows, cols)) = matrix(t, role, (leaf, per_word), place.module)? else { continue };
                out.push(Module {
                    name: place.module.to_string(),
                    role,
                    layer: place.layer,
                    rows,
                    cols,
                    source: Source { tensor: t.spec.name.clone(), first_row: 0 },
                });
            }
        }
    }
    Ok(out)
}

/// Rows and columns of the matrix that `t` holds, if it holds one.
fn matrix(
    t: &TensorMeta,
    role: Role,
    (leaf, per_word): (Leaf, usize),
    module: &str,
) -> Result<Option<(usize, usize)>> {
    let is_linear = match role {
        Role::Norm | Role::Convolution | Role::Decay | Role::Buffer | Role::Embedding | Role::KvCache => {
            false
        }
        // Patch embeddings are convolutions of more axes; position embeddings are looked up, not multiplied.
        Role::Vision => t.spec.shape.len() == 2 && !module.ends_with("embed"),
        _ => true,
    };
    if !is_linear || !matches!(leaf, Leaf::Weight | Leaf::Quantized("weight_packed" | "qweight")) {
        return Ok(None);
    }
    let [down, across] = t.spec.shape[..] else {
        return Err(bad_shape(t, "two axes: [output, input]"));
    };
    // AutoAWQ stores [input, output].
    Ok(Some(match leaf {
        Leaf::Quantized("qweight") => (across * per_word, down),
        Leaf::Quantized(_) => (down, across * per_word),
        _ => (down, across),
    }))
}

/// The experts of a stack, `parts` after one another in the rows of each.
fn stack(t: &TensorMeta, layer: Option<Layer>, parts: &[Part], out: &mut Vec<Module>) -> Result<()> {
    let [experts, rows, cols] = t.spec.shape[..] else {
        return Err(bad_shape(t, "three axes: [experts, output, input]"));
    };
    if !rows.is_multiple_of(parts.len()) {
        return Err(bad_shape(t, "an even number of rows: gate and up after one another"));
    }
    let rows = rows / parts.len();
    let path = t.spec.name.rsplit_once('.').map_or("", |(path, _)| path);
    for expert in 0..experts {
        for (i, &part) in parts.iter().enumerate() {
            out.push(Module {
                name: format!("{path}.{expert}.{}", leaf_of(path, part)),
                role: Role::Expert(expert, part),
                layer,
                rows,
                cols,
                source: Source { tensor: t.spec.name.clone(), first_row: (expert * parts.len() + i) * rows },
            });
        }
    }
    Ok(())
}

fn leaf_of(path: &str, part: Part) -> &'static str {
    match (part, path.ends_with("block_sparse_moe.experts")) {
        (Part::Gate, false) => "gate_proj",
        (Part::Up, false) => "up_proj",
        (_, false) => "down_proj",
        (Part::Gate, true) => "w1",
        (Part::Up, true) => "w3",
        (_, true) => "w2",
    }
}

fn bad_shape(t: &TensorMeta, expected: &str) -> Error {
    Error::input(format!("tensor `{}` has an unexpected shape", Shown(&t.spec.name)))
        .found(format!("{:?}", t.spec.shape))
        .expected(expected)
}

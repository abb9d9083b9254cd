//! Into how many GPUs the shapes of a model can be cut, and why not into others.
//!
//! Source: vLLM 0.33 (`verify_with_parallel_config`, the attention of qwen3, fp8 and compressed-tensors block
//! checks, Marlin's partition rules).

use serde::Serialize;

use super::format::WeightFormat;
use crate::inspect::Dimensions;

/// A tensor-parallel size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ParallelSize {
    /// GPUs.
    pub gpus: u64,
    /// Why the shapes do not allow it; `None` where they do.
    pub obstacle: Option<String>,
}

/// The sizes 1, 2, 4, 8 and 16, and `asked` where it is another one.
pub fn sizes(d: &Dimensions, format: WeightFormat, asked: Option<u64>) -> Vec<ParallelSize> {
    let mut list = vec![1, 2, 4, 8, 16];
    list.extend(asked.filter(|n| *n > 0 && !list.contains(n)));
    list.sort_unstable();
    list.into_iter().map(|gpus| ParallelSize { gpus, obstacle: obstacle(d, format, gpus as usize) }).collect()
}

fn obstacle(d: &Dimensions, format: WeightFormat, gpus: usize) -> Option<String> {
    heads(d, gpus).or_else(|| widths(d, gpus)).or_else(|| match format {
        WeightFormat::Fp8 { block: true } => {
            let name = "blocks of 128";
            pieces(d, gpus, WeightFormat::BLOCK, name).or_else(|| output_pieces(d, gpus, name))
        }
        // Groups lie along the inputs: matrices that are cut between rows do not part them.
        WeightFormat::Int4 { group } | WeightFormat::Int8 { group } => {
            pieces(d, gpus, group, &format!("groups of {group}"))
        }
        _ => None,
    })
}

fn heads(d: &Dimensions, gpus: usize) -> Option<String> {
    if !d.heads.is_multiple_of(gpus) {
        return Some(format!("{} query heads cannot be shared out among {gpus}", d.heads));
    }
    if !d.kv_heads.is_multiple_of(gpus) && !gpus.is_multiple_of(d.kv_heads) {
        return Some(format!("{} KV heads can neither be shared out nor repeated evenly", d.kv_heads));
    }
    let linear = d.linear?;
    let uneven = [("key", linear.key_heads), ("value", linear.value_heads)];
    let (what, n) = uneven.into_iter().find(|(_, n)| !n.is_multiple_of(gpus))?;
    Some(format!("{n} {what} heads of the linear attention cannot be shared out among {gpus}"))
}

fn widths(d: &Dimensions, gpus: usize) -> Option<String> {
    let width = |what: &str, n: usize| {
        (!n.is_multiple_of(gpus)).then(|| format!("{what} {n} wide cannot be cut into {gpus}"))
    };
    let experts = d
        .experts
        .and_then(|e| width("experts", e.intermediate).or_else(|| width("the shared expert", e.shared)));
    experts.or_else(|| width("MLPs", d.intermediate))
}

/// Matrices that are cut between rows or columns must be cut between whole blocks (or groups).
fn pieces(d: &Dimensions, gpus: usize, piece: usize, name: &str) -> Option<String> {
    // What is no multiple as a whole stays in 16 bit and may be cut anywhere.
    let uneven = |n: usize| n > 0 && n.is_multiple_of(piece) && !(n / gpus).is_multiple_of(piece);
    if let Some(e) = d.experts.filter(|e| uneven(e.intermediate)) {
        let part = e.intermediate / gpus;
        return Some(format!(
            "experts {} wide give {part} on each of {gpus}, not whole {name}: use expert parallelism",
            e.intermediate
        ));
    }
    let shared = d.experts.map_or(0, |e| e.shared);
    let attention = d.heads * d.head_dim;
    let linear = d.linear.map_or(0, |l| l.value_heads * l.value_dim);
    let list = [
        ("MLPs", d.intermediate),
        ("the shared expert", shared),
        ("attention outputs", attention),
        ("linear attention outputs", linear),
    ];
    let (what, n) = list.into_iter().find(|(_, n)| uneven(*n))?;
    Some(format!("{what} {n} wide give {} on each of {gpus}, not whole {name}", n / gpus))
}

/// The same for matrices that are only cut between rows.
fn output_pieces(d: &Dimensions, gpus: usize, name: &str) -> Option<String> {
    let block = WeightFormat::BLOCK;
    let kv = (d.kv_heads * d.head_dim, (d.kv_heads / gpus).max(1) * d.head_dim);
    let keys = d.linear.map_or((0, 0), |l| {
        let n = l.key_heads * l.key_dim;
        (n, n / gpus)
    });
    let list = [("keys and values", kv), ("linear attention keys", keys)];
    let uneven = |whole: usize, part: usize| whole.is_multiple_of(block) && !part.is_multiple_of(block);
    let (what, (whole, part)) = list.into_iter().find(|(_, (whole, part))| uneven(*whole, *part))?;
    Some(format!("{what} {whole} wide give {part} on each of {gpus}, not whole {name}"))
}

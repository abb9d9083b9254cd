//! What comes out of each tensor, in file order: modules with their scales, or tensors as they are.

use std::collections::HashMap;

use verify::Dtype;
use verify::architecture::{Architecture, Layer, Module, Part, Role, UnitKind as Fused};
use verify::checkpoint::{TensorMeta, TensorSpec};
use verify::codec::Float;
use verify::error::{Error, Result};
use verify::names::Shown;
use verify::rewrite::{ModelView, UnitKind};

use super::Scheme;
use super::work::{Job, Shared};
use crate::ranges::{cache_specs, groups, input_spec};
use crate::select::{Fate, Selection, modules_by_tensor};

/// Outputs that go to one shard together.
pub struct Piece {
    /// The tensors.
    pub outputs: Vec<TensorSpec>,
    /// Scales beside them that calibration finds.
    pub found: Vec<TensorSpec>,
    /// The shard of their source.
    pub shard: usize,
    /// How they are made.
    pub how: How,
}

/// How outputs are made.
pub enum How {
    /// Carried over.
    Copy(UnitKind),
    /// Quantized.
    Quantize(Job),
}

impl Piece {
    /// The shard of the source, and the bytes that stay together.
    pub fn place(&self) -> (usize, u64) {
        (self.shard, self.outputs.iter().chain(&self.found).map(TensorSpec::byte_len).sum())
    }

    fn new(outputs: Vec<TensorSpec>, shard: usize, how: How) -> Self {
        Piece { outputs, found: Vec::new(), shard, how }
    }

    /// Gives a quantized module a scale for its inputs.
    pub fn add_input_scale(&mut self) {
        if let How::Quantize(job) = &self.how {
            self.found.push(input_spec(module_of(&job.output)));
        }
    }
}

/// All pieces. Experts of a stack come out one by one, also those that stay in 16 bit: every quantized
/// checkpoint that servers know stores them so.
///
/// # Errors
/// Exit 3 where a module to quantize is not stored in a plain float type.
pub fn pieces(
    scheme: Scheme,
    input: &ModelView,
    arch: &Architecture,
    selection: &Selection,
) -> Result<Vec<Piece>> {
    let held = modules_by_tensor(arch);
    let mut out = Vec::new();
    for t in input.tensors.tensors() {
        let modules = held.get(t.spec.name.as_str()).map_or(&[][..], Vec::as_slice);
        if modules.is_empty() {
            let kind = UnitKind::Copy { from: t.spec.name.clone(), first_row: 0 };
            out.push(Piece::new(vec![t.spec.clone()], t.shard, How::Copy(kind)));
        }
        for &m in modules {
            let (module, fate) = (&arch.modules()[m], &selection.fates[m]);
            out.push(match fate {
                Fate::Quantize => quantized(scheme, t, module)?,
                Fate::Keep(_) => kept(t, module),
            });
        }
    }
    Ok(out)
}

fn quantized(scheme: Scheme, t: &TensorMeta, m: &Module) -> Result<Piece> {
    let float = Float::of(t.spec.dtype).ok_or_else(|| {
        Error::input(format!("tensor `{}` cannot be quantized", Shown(&t.spec.name)))
            .found(format!("dtype {}", t.spec.dtype))
            .expected("F32, F16 or BF16")
            .hint("start from the 16-bit model")
    })?;
    let weight = format!("{}.weight", m.name);
    let scale = format!("{}.{}", m.name, scheme.scale_leaf());
    let outputs = vec![
        TensorSpec::new(weight.clone(), Dtype::F8_E4M3, [m.rows, m.cols]),
        TensorSpec::new(scale, Dtype::F32, scheme.scale_shape(m.rows, m.cols)),
    ];
    let job = Job {
        output: weight,
        tensor: t.spec.name.clone(),
        shape: t.spec.shape.clone(),
        first_row: m.source.first_row,
        rows: m.rows,
        cols: m.cols,
        float,
        shared: None,
    };
    Ok(Piece::new(outputs, t.shard, How::Quantize(job)))
}

fn kept(t: &TensorMeta, m: &Module) -> Piece {
    let kind = UnitKind::Copy { from: t.spec.name.clone(), first_row: m.source.first_row };
    let spec = match t.spec.shape.len() {
        2 => t.spec.clone(),
        _ => TensorSpec::new(format!("{}.weight", m.name), t.spec.dtype, [m.rows, m.cols]),
    };
    Piece::new(vec![spec], t.shard, How::Copy(kind))
}

fn module_of(weight: &str) -> &str {
    weight.strip_suffix(".weight").unwrap_or(weight)
}

/// Puts the scales of cached keys and values beside the `k_proj` of their attention.
pub fn add_cache_scales(arch: &Architecture, pieces: &mut [Piece]) {
    let weight = |at: usize| format!("{}.weight", arch.modules()[at].name);
    let paths: HashMap<String, String> =
        groups::attentions(arch).into_iter().map(|(_, k, path)| (weight(k), path)).collect();
    for piece in pieces {
        let path = piece.outputs.first().and_then(|o| paths.get(&o.name));
        piece.found.extend(path.into_iter().flat_map(|path| cache_specs(path)));
    }
}

/// Gives every job one scale for its whole matrix, shared by the matrices that servers merge: parts of a
/// fused unit, and gate and up of each expert.
pub fn share_scales(arch: &Architecture, pieces: &mut [Piece]) -> Vec<Shared> {
    let mut key_of: HashMap<String, (Option<Layer>, String)> = HashMap::new();
    for unit in arch.units() {
        for m in unit.members.iter().map(|&m| &arch.modules()[m]) {
            let part = match (unit.kind, m.role) {
                (Fused::Experts, Role::Expert(e, Part::Gate | Part::Up)) => format!("{}.{e}.w13", unit.name),
                (Fused::Experts, _) => m.name.clone(),
                _ => unit.name.clone(),
            };
            key_of.insert(format!("{}.weight", m.name), (m.layer, part));
        }
    }
    let mut numbers = HashMap::new();
    let mut shared: Vec<Shared> = Vec::new();
    for piece in pieces {
        let How::Quantize(job) = &mut piece.how else { continue };
        let number = *numbers.entry(key_of.get(&job.output)).or_insert(shared.len());
        if number == shared.len() {
            shared.push(Shared::default());
        }
        job.shared = Some(number);
        shared[number].jobs.push(job.clone());
    }
    shared
}

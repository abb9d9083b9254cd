//! Module by module: that its codes have all their parts, with the types and shapes that loaders allocate.

use std::collections::HashMap;

use crate::architecture::{Leaf, Names, Part, Role};
use crate::checkpoint::{TensorIndex, TensorMeta};
use crate::codec::float::Float;
use crate::codec::int4::{Int4Config, Layout, Matrix};
use crate::dtype::Dtype;
use crate::loadable::Fault;
use crate::loadable::stored::never_quantized;

/// What was found tensor by tensor.
pub(super) struct Stored {
    pub faults: Vec<Fault>,
    /// False where codes are missing or misplaced, so that the model as a whole cannot be told.
    pub whole: bool,
}

/// One module and its tensors.
struct Parts<'a> {
    module: &'a str,
    role: Role,
    tensors: Vec<(Leaf, &'a TensorMeta)>,
}

impl<'a> Parts<'a> {
    fn get(&self, leaf: &str) -> Option<&'a TensorMeta> {
        self.tensors.iter().find(|(l, _)| matches!(l, Leaf::Quantized(q) if *q == leaf)).map(|(_, t)| *t)
    }
}

/// The leaves of a format.
struct Leaves {
    codes: &'static str,
    zeros: &'static str,
    order: &'static str,
    scales: &'static str,
    title: &'static str,
}

fn leaves(layout: Layout) -> Leaves {
    match layout {
        Layout::PackQuantized => Leaves {
            codes: "weight_packed",
            zeros: "weight_zero_point",
            order: "weight_g_idx",
            scales: "weight_scale",
            title: "compressed-tensors' packed weights",
        },
        Layout::AwqGemm => Leaves {
            codes: "qweight",
            zeros: "qzeros",
            order: "g_idx",
            scales: "scales",
            title: "AutoAWQ's weights",
        },
    }
}

pub(super) fn read(names: &Names, format: &Int4Config, index: &TensorIndex) -> Stored {
    let mut out = Stored { faults: Vec::new(), whole: true };
    let modules = gather(names, index, &mut out);
    let leaves = leaves(format.layout);
    let packed: Vec<&Parts<'_>> = modules.iter().filter(|m| out.is_packed(m, &leaves)).collect();
    let zeros = zeros_expected(format, &leaves, &packed, &mut out.faults);
    let mut narrow = false;
    for m in packed {
        parts(m, format, &leaves, zeros, &mut out);
        if let (Role::Expert(_, Part::Gate), false, Layout::PackQuantized) = (m.role, narrow, format.layout) {
            let rows = m.get(leaves.codes).and_then(|t| t.spec.shape.first().copied()).unwrap_or_default();
            narrow = !rows.is_multiple_of(128);
            if narrow {
                let sentence = format!("of each expert is {rows}: vLLM needs a multiple of 128 on every GPU");
                out.faults.push(Fault::new("moe_intermediate_size", sentence));
            }
        }
    }
    out
}

/// Tensors by module, in the order of their first; those that are of no module are told.
fn gather<'a>(names: &Names, index: &'a TensorIndex, out: &mut Stored) -> Vec<Parts<'a>> {
    let mut modules: Vec<Parts<'a>> = Vec::new();
    let mut at: HashMap<&str, usize> = HashMap::new();
    for t in index.tensors() {
        let Some(place) = names.read(&t.spec.name) else {
            let family = names.family().name();
            let sentence = format!("is no tensor of a {family} model: loaders do not know where to put it");
            out.fault(&t.spec.name, sentence, false);
            continue;
        };
        if matches!(place.role, Role::ExpertsGateUp | Role::ExpertsDown) {
            let sentence =
                "holds all experts in one tensor: loaders of packed integers expect one matrix per expert";
            out.fault(&t.spec.name, sentence.into(), false);
            continue;
        }
        if place.role == Role::KvCache {
            continue;
        }
        let number = *at.entry(place.module).or_insert_with(|| {
            modules.push(Parts { module: place.module, role: place.role, tensors: Vec::new() });
            modules.len() - 1
        });
        modules[number].tensors.push((place.leaf, t));
    }
    modules
}

impl Stored {
    fn fault(&mut self, subject: &str, sentence: String, whole: bool) {
        self.faults.push(Fault::new(subject, sentence));
        self.whole &= whole;
    }

    /// Whether a module has codes of the format; tells parts that are out of place.
    fn is_packed(&mut self, m: &Parts<'_>, leaves: &Leaves) -> bool {
        let mut foreign = false;
        let mut quantized = None;
        for (leaf, t) in &m.tensors {
            match leaf {
                Leaf::Quantized(leaf) if *leaf == "weight_shape" && leaves.codes == "weight_packed" => {
                    quantized = Some(*leaf)
                }
                Leaf::Quantized(leaf)
                    if [leaves.codes, leaves.zeros, leaves.order, leaves.scales].contains(leaf) =>
                {
                    quantized = Some(*leaf);
                }
                Leaf::Quantized(_) => {
                    let sentence = format!("is no part of {}: loaders find no place for it", leaves.title);
                    self.fault(&t.spec.name, sentence, false);
                    foreign = true;
                }
                _ if Float::of(t.spec.dtype).is_none() => {
                    let sentence = format!("has dtype {}: loaders expect a plain float here", t.spec.dtype);
                    self.fault(&t.spec.name, sentence, true);
                }
                _ => {}
            }
        }
        let (Some(part), false) = (quantized, foreign) else { return false };
        if let Some(why) = never_quantized(m.role) {
            self.fault(m.module, format!("is packed, but {why}"), false);
            return false;
        }
        let plain = m.tensors.iter().any(|(leaf, _)| *leaf == Leaf::Weight);
        match (m.get(leaves.codes), plain) {
            (Some(_), false) => true,
            (Some(_), true) => {
                let sentence = format!(
                    "has its weight twice, as `weight` and as `{}`: loaders expect one",
                    leaves.codes
                );
                self.fault(m.module, sentence, false);
                false
            }
            (None, _) => {
                self.fault(
                    m.module,
                    format!("has `{part}`, but no codes: `{}` is missing", leaves.codes),
                    false,
                );
                false
            }
        }
    }
}

/// Whether every packed module must have zeros. Where the config and the tensors disagree, it is told once; tensors that
/// all agree are believed.
fn zeros_expected(
    format: &Int4Config,
    leaves: &Leaves,
    packed: &[&Parts<'_>],
    faults: &mut Vec<Fault>,
) -> bool {
    let with: Vec<_> = packed.iter().filter(|m| m.get(leaves.zeros).is_some()).collect();
    let key = if format.layout == Layout::AwqGemm { "zero_point" } else { "symmetric" };
    let said = |zeros: bool| (format.layout == Layout::AwqGemm) == zeros;
    match (format.zeros, with.first()) {
        (false, Some(first)) => {
            faults.push(Fault::new(
                key,
                format!("is {} in config.json, but {} modules store zeros, first `{}`: loaders would leave them out", said(false), with.len(), first.module),
            ));
            with.len() == packed.len()
        }
        (true, None) if !packed.is_empty() => {
            let sentence =
                format!("is {} in config.json, but no module stores zeros (`{}`)", said(true), leaves.zeros);
            faults.push(Fault::new(key, sentence));
            false
        }
        (zeros, _) => zeros,
    }
}

fn parts(m: &Parts<'_>, format: &Int4Config, leaves: &Leaves, zeros: bool, out: &mut Stored) {
    let Some(codes) = m.get(leaves.codes) else { return };
    let [down, across] = codes.spec.shape[..] else {
        let sentence = format!("has shape {:?}: loaders expect two axes", codes.spec.shape);
        return out.fault(&codes.spec.name, sentence, false);
    };
    let n = format.bits.per_word();
    let (rows, cols) = match format.layout {
        Layout::PackQuantized => (down, across * n),
        Layout::AwqGemm => (across * n, down),
    };
    order(m, format, leaves, cols, out);
    let group = format.group_of(cols);
    if cols == 0 || !cols.is_multiple_of(group) {
        let sentence = format!(
            "has {cols} inputs, no multiple of the group size {group}: libraries and kernels refuse it"
        );
        return out.fault(m.module, sentence, true);
    }
    if zeros && !rows.is_multiple_of(n) {
        let sentence = format!(
            "has {rows} outputs, no multiple of {n}: its zeros cannot be cut where loaders fuse or share it"
        );
        out.fault(m.module, sentence, true);
    }
    let scales = m.get(leaves.scales).and_then(|t| Float::of(t.spec.dtype)).unwrap_or(Float::BF16);
    let matrix = Matrix { rows, cols, group, bits: format.bits, scales, zeros };
    for part in format.layout.parts(matrix) {
        if part.leaf == leaves.zeros && !zeros {
            continue;
        }
        let Some(t) = m.get(part.leaf) else {
            out.fault(m.module, format!("is incomplete: `{}.{}` is missing", m.module, part.leaf), true);
            continue;
        };
        let dtype_fits = match part.leaf == leaves.scales {
            true => Float::of(t.spec.dtype).is_some(),
            false => t.spec.dtype == part.dtype,
        };
        if !dtype_fits {
            let sentence = format!("has dtype {}: loaders expect {}", t.spec.dtype, part.dtype);
            out.fault(&t.spec.name, sentence, true);
        }
        if t.spec.shape != part.shape {
            let sentence = format!(
                "has shape {:?}: the weight is {rows} x {cols} in groups of {group}, so loaders expect {:?}",
                t.spec.shape, part.shape
            );
            out.fault(&t.spec.name, sentence, true);
        }
    }
}

/// The order of columns, which only GPTQ with activation order has.
fn order(m: &Parts<'_>, format: &Int4Config, leaves: &Leaves, cols: usize, out: &mut Stored) {
    match (m.get(leaves.order), format.reordered) {
        (Some(t), false) => {
            let sentence =
                "tells another order of columns, but the config has no `actorder`: loaders would ignore it";
            out.fault(&t.spec.name, sentence.into(), true);
        }
        (None, true) => {
            let sentence =
                format!("is incomplete: the config has an `actorder`, and `{}` is missing", leaves.order);
            out.fault(m.module, sentence, true);
        }
        (Some(t), true) if t.spec.shape != [cols] || t.spec.dtype != Dtype::I32 => {
            let sentence = format!("is {} {:?}: loaders expect I32 [{cols}]", t.spec.dtype, t.spec.shape);
            out.fault(&t.spec.name, sentence, true);
        }
        _ => {}
    }
}

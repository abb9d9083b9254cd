//! How large the weights of a model are in each format, and which part of them GPUs share.

use serde::Serialize;

use super::format::WeightFormat;
use crate::architecture::{Architecture, Role, UnitKind};
use crate::checkpoint::TensorIndex;

/// Bytes of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Weights {
    /// The format of the linears.
    pub format: WeightFormat,
    /// All weights, in the files and in memory alike.
    pub bytes: u64,
    /// Of these, what every GPU holds whole: norms, routers, vision.
    pub replicated: u64,
}

impl Weights {
    /// The folder as it is.
    pub fn as_found(format: WeightFormat, index: &TensorIndex, arch: Option<&Architecture>) -> Self {
        let replicated = arch.map_or(0, |arch| replicated(index, arch));
        Weights { format, bytes: index.total_bytes(), replicated }
    }

    /// The same model with its linears in `format`, chosen as `prep quantize` chooses them: those of
    /// attention, DeltaNet, MLP and experts, a fused unit all or not at all, and only where the format can hold
    /// the shape. All else in 16 bit, or as it is stored where that is no code of a quantized format.
    pub fn in_format(format: WeightFormat, index: &TensorIndex, arch: &Architecture) -> Self {
        let modules = arch.modules();
        let mut linears = 0;
        for unit in arch.units() {
            let members = || unit.members.iter().map(|&m| &modules[m]);
            let quantized = unit.kind != UnitKind::InBa;
            let sizes: Option<Vec<u64>> =
                members().map(|m| format.bytes(m.rows, m.cols)).collect::<Option<_>>().filter(|_| quantized);
            linears += match sizes {
                Some(sizes) => sizes.into_iter().sum(),
                None => members().map(|m| 2 * m.rows as u64 * m.cols as u64).sum::<u64>(),
            };
        }
        let names = arch.names();
        let in_units = |role: Role| {
            matches!(
                role,
                Role::Attention(_)
                    | Role::DeltaNet(_)
                    | Role::Mlp(_)
                    | Role::SharedExpert(_)
                    | Role::Expert(..)
                    | Role::ExpertsGateUp
                    | Role::ExpertsDown
            )
        };
        let rest = index.tensors().iter().filter(|t| {
            let place = names.read(&t.spec.name);
            // Biases stay beside the linears that they belong to.
            !place.is_some_and(|p| in_units(p.role) && p.leaf != crate::architecture::Leaf::Bias)
        });
        let rest: u64 = rest.map(|t| t.spec.byte_len()).sum();
        Weights { format, bytes: linears + rest, replicated: replicated(index, arch) }
    }

    /// What one of `gpus` holds.
    pub fn per_gpu(&self, gpus: u64) -> u64 {
        let shared = self.bytes - self.replicated.min(self.bytes);
        self.replicated + shared.div_ceil(gpus.max(1))
    }
}

/// Tensors that no server cuts: norms, routers, the gate of the shared expert, vision.
fn replicated(index: &TensorIndex, arch: &Architecture) -> u64 {
    let whole = |role: Role| {
        matches!(role, Role::Norm | Role::Router | Role::SharedExpertGate | Role::Vision | Role::MtpFusion)
    };
    let tensors = index.tensors().iter().filter(|t| arch.role(&t.spec.name).is_some_and(whole));
    tensors.map(|t| t.spec.byte_len()).sum()
}

//! Packed integers: compressed-tensors `pack-quantized` and AutoAWQ `gemm`, in 4 and 8 bit.

mod settings;
mod stored;
mod substrings;
mod values;

use super::cache_scales::Reader;
use super::skip_list::SkipList;
use super::{Fault, cache_scales, fused, missing_mtp, skip_list, unfit};
use crate::architecture::{Architecture, Names};
use crate::checkpoint::{Checkpoint, TensorReader};
use crate::codec::fp8_config::Method;
use crate::codec::int4::{Bits, Int4Config, Layout};
use crate::error::Result;
use crate::progress::Progress;

pub(super) fn faults(
    names: &Names,
    format: &Int4Config,
    checkpoint: &Checkpoint,
    progress: &dyn Progress,
) -> Result<Vec<Fault>> {
    let (config, index) = (checkpoint.config(), checkpoint.index());
    let mut faults = settings::faults(format, config);
    let stored = stored::read(names, format, index);
    faults.extend(stored.faults);
    // Where codes are missing or misplaced, the whole can only repeat what was told tensor by tensor.
    if stored.whole {
        match Architecture::of(config, index) {
            Ok(arch) => {
                let is_quantized = |m: &crate::architecture::Module| is_codes(&m.source.tensor);
                let what = match format.bits {
                    Bits::Four => "in 4 bit",
                    Bits::Eight => "in 8 bit",
                };
                faults.extend(fused::half_quantized(&arch, what, is_quantized));
                let entries = &format.skipped;
                let reader = match format.layout {
                    Layout::AwqGemm => Reader::Nobody,
                    Layout::PackQuantized => Reader::CompressedTensors,
                };
                faults.extend(cache_scales::faults(&arch, reader, checkpoint)?);
                faults.extend(match format.layout {
                    Layout::AwqGemm => substrings::faults(&arch, entries, index),
                    Layout::PackQuantized => {
                        let method = Method::CompressedTensors;
                        let list = SkipList { method, entries, what, is_quantized: &is_quantized };
                        skip_list::faults(&arch, &list, index)?
                    }
                });
            }
            Err(e) => faults.push(unfit(&e)),
        }
    }
    faults.extend(missing_mtp(checkpoint)?);
    faults.extend(values::faults(format, checkpoint, progress)?);
    Ok(faults)
}

/// True for the name of a tensor of packed codes.
pub(super) fn is_codes(name: &str) -> bool {
    name.ends_with(".weight_packed") || name.ends_with(".qweight")
}

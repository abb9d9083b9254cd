//! Whether servers can load a quantized folder, whoever made it: what their loaders look for, checked without
//! one. Every fault is found, each told in one sentence.
//!
//! ```text
//!   quantization_config ─┐
//!   names, shapes ───────┼▶ stored (per tensor) · units (fused) · skip list ─▶ faults
//!   codes, scales ───────┘  values (every byte of FP8; the scales of packed integers)
//!                           scales of inputs, of the key and value cache
//! ```
//!
//! FP8 is here, packed integers are in `int4`.

mod cache_scales;
mod fused;
mod input_scales;
mod int4;
mod skip_list;
mod stored;
mod values;

use std::fmt;

use serde::Serialize;

use cache_scales::Reader;
use skip_list::SkipList;

use crate::architecture::{Architecture, Family, Names};
use crate::checkpoint::{Checkpoint, TensorMeta, TensorReader};
use crate::codec::Fp8Config;
use crate::codec::fp8_config::Method;
use crate::codec::int4::Int4Config;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::names::Shown;
use crate::progress::Progress;

/// Something that a loader would refuse, or load wrongly.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// The tensor, module or config key.
    pub subject: String,
    /// What is wrong with it and what comes of it.
    pub sentence: String,
}

impl Fault {
    pub(crate) fn new(subject: &str, sentence: impl Into<String>) -> Self {
        Fault { subject: Shown(subject).to_string(), sentence: sentence.into() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` {}", self.subject, self.sentence)
    }
}

/// Checks a folder in FP8 or in packed integers, values included (every FP8 byte is read once). A folder that is not
/// quantized has no faults of this kind.
///
/// # Errors
/// Exit 3 for a family or a quantization format that is not known; read errors; exit 130 when stopped.
pub fn check(checkpoint: &Checkpoint, progress: &dyn Progress) -> Result<Vec<Fault>> {
    let (config, index) = (checkpoint.config(), checkpoint.index());
    let family = Family::of(config)?;
    let names = Names::detect(family, index);
    if let Some(format) = Int4Config::of(config)? {
        return int4::faults(&names, &format, checkpoint, progress);
    }
    let Some(format) = Fp8Config::of(config)? else {
        return Ok(unannounced(checkpoint));
    };
    let mut faults = stored::faults(&names, &format, index);
    match Architecture::of(config, index) {
        Ok(arch) => {
            faults.extend(fused::faults(&arch, &format, index));
            let list = SkipList {
                method: format.method,
                entries: &format.skipped,
                what: "FP8",
                is_quantized: &|m| fused::is_fp8(m, index),
            };
            faults.extend(skip_list::faults(&arch, &list, index)?);
            faults.extend(input_scales::faults(&arch, &format, checkpoint)?);
            let reader = match format.method {
                Method::Fp8 => Reader::Fp8,
                Method::CompressedTensors => Reader::CompressedTensors,
            };
            faults.extend(cache_scales::faults(&arch, reader, checkpoint)?);
        }
        // What is unknown or missing; told by tensor above where it is a single one.
        Err(e) => faults.push(unfit(&e)),
    }
    faults.extend(missing_mtp(checkpoint)?);
    faults.extend(values::faults(&format, checkpoint, progress)?);
    Ok(faults)
}

/// Codes that the config does not speak of.
fn unannounced(checkpoint: &Checkpoint) -> Vec<Fault> {
    let fault = |t: &TensorMeta| {
        let packed = int4::is_codes(&t.spec.name);
        let what = match (t.spec.dtype == Dtype::F8_E4M3, packed) {
            (true, _) => "is FP8",
            (_, true) => "holds packed codes",
            _ => return None,
        };
        let sentence = format!(
            "{what}, but config.json has no `quantization_config`: servers would read its codes as numbers"
        );
        Some(Fault::new(&t.spec.name, sentence))
    };
    checkpoint.index().tensors().iter().filter_map(fault).collect()
}

/// Tensors that do not make a model of the family.
fn unfit(e: &Error) -> Fault {
    Fault::new("config.json", format!("does not fit the tensors: {}", one_line(e)))
}

/// The multi-token-prediction block that the config counts. Converters built on transformers lose it.
fn missing_mtp(checkpoint: &Checkpoint) -> Result<Option<Fault>> {
    const KEY: &str = "mtp_num_hidden_layers";
    let layers = checkpoint.config().count(KEY)?.unwrap_or(0);
    let has = checkpoint.index().tensors().iter().any(|t| t.spec.name.starts_with("mtp."));
    Ok((layers > 0 && !has).then(|| {
        Fault::new("mtp", format!("is missing: config.json counts {layers} layer(s) in `{KEY}` and no tensor of it is there; speculative decoding cannot load"))
    }))
}

fn one_line(e: &Error) -> String {
    e.to_string().lines().map(str::trim).collect::<Vec<_>>().join("; ")
}

//! Whether servers can load an FP8 folder, whoever made it: what their loaders look for, checked without
//! one. Every fault is found, each told in one sentence.
//!
//! ```text
//!   quantization_config ─┐
//!   names, shapes ───────┼▶ stored (per tensor) · units (fused) · skip list ─▶ faults
//!   codes, scales ───────┘  values (every byte of FP8)
//! ```

mod fused;
mod skip_list;
mod stored;
mod values;

use std::fmt;

use serde::Serialize;

use crate::architecture::{Architecture, Family, Names};
use crate::checkpoint::{Checkpoint, TensorReader};
use crate::codec::Fp8Config;
use crate::dtype::Dtype;
use crate::error::Result;
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

/// Checks an FP8 folder, values included (every FP8 byte is read once). A folder that is not quantized has
/// no faults of this kind.
///
/// # Errors
/// Exit 3 for a family or a quantization format that is not known; read errors; exit 130 when stopped.
pub fn check(checkpoint: &Checkpoint, progress: &dyn Progress) -> Result<Vec<Fault>> {
    let (config, index) = (checkpoint.config(), checkpoint.index());
    let family = Family::of(config)?;
    let Some(format) = Fp8Config::of(config)? else {
        return Ok(unannounced(checkpoint));
    };
    let names = Names::detect(family, index);
    let mut faults = stored::faults(&names, &format, index);
    match Architecture::of(config, index) {
        Ok(arch) => {
            faults.extend(fused::faults(&arch, &format, index));
            faults.extend(skip_list::faults(&arch, &format, index)?);
        }
        // What is unknown or missing; told by tensor above where it is a single one.
        Err(e) => {
            faults.push(Fault::new("config.json", format!("does not fit the tensors: {}", one_line(&e))))
        }
    }
    faults.extend(missing_mtp(checkpoint)?);
    faults.extend(values::faults(&format, checkpoint, progress)?);
    Ok(faults)
}

/// FP8 weights that the config does not speak of.
fn unannounced(checkpoint: &Checkpoint) -> Vec<Fault> {
    let codes = checkpoint.index().tensors().iter().filter(|t| t.spec.dtype == Dtype::F8_E4M3);
    codes
        .map(|t| Fault::new(&t.spec.name, "is FP8, but config.json has no `quantization_config`: servers would read its codes as numbers"))
        .collect()
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

fn one_line(e: &crate::error::Error) -> String {
    e.to_string().lines().map(str::trim).collect::<Vec<_>>().join("; ")
}

//! Checkpoints quantized while they are rewritten.
//!
//! ```text
//!   ModelView ──▶ Architecture ──▶ Selection (which modules, why) ──▶ Stage (units, config) ──▶ engine
//!                                  ▲ --ignore, fused units,           codes and scales side by side,
//!                                  │ dimensions of the scheme         in the source's shards
//! ```

pub mod awq;
pub mod calibration;
pub mod fp8;
mod nonfinite;
mod pattern;
mod ranges;
pub mod report;
mod select;
mod shards;

pub use awq::Awq;
pub use calibration::Experts;
pub use fp8::{Coder, Fp8, Scheme, Tails};
pub use nonfinite::NonFinite;
pub use pattern::Pattern;
pub use ranges::{Activations, KvCache};

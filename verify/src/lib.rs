//! The ground floor of `prep`: what a sound model folder *is*.
//!
//! ```text
//!   folder ──▶ Checkpoint ──▶ ModelView ──▶ Rewrite ─▶ Rewrite ──▶ OutputPlan ──▶ engine ──▶ folder
//!              (every check     (names,      (merge)    (quantize)   (layout,      (reads,     (hashed,
//!               passed)          no bytes)                            digest)       writes)     report last)
//!
//!   folder ──▶ structure ──▶ template ◀──▶ parser ──▶ suite (through `Generate`) ──▶ Report
//! ```
//!
//! Nothing here runs a model, talks to a GPU or prints.

pub mod architecture;
pub mod checkpoint;
pub mod checksum;
pub mod codec;
pub mod compare;
pub mod diagnose;
pub mod dtype;
pub mod error;
pub mod generate;
pub mod inspect;
pub mod json_edit;
pub mod loadable;
pub mod names;
pub mod parsers;
pub mod private;
pub mod progress;
pub mod report;
pub mod rewrite;
pub mod serving;
pub mod suite;
pub mod template;
pub mod write;

pub use checkpoint::{Checkpoint, MappedCheckpoint, TensorIndex, TensorMeta};
pub use dtype::Dtype;
pub use error::{Class, Error, Result};
pub use names::{Digest, FileName, Shown};

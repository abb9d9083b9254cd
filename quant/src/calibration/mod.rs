//! Calibration: samples go through the model layer by layer, one layer's weights in memory at a time.
//!
//! ```text
//!   samples ─▶ embed ─▶ Hidden (all samples, in memory or in a file)
//!                          │  ┌──────── for each layer ─────────┐
//!                          └─▶│ Visit: weights, inputs, search   │─▶ Record (kept on disk: a killed run goes on there)
//!                             │ hidden states move on            │
//!                             └──────────────────────────────────┘
//! ```
//!
//! What is looked for is the [`Visitor`]'s: AWQ's scales, ranges of activations, ranges of keys and values.

pub mod data;
mod experts;
mod hidden;
mod needs;
mod record;
mod walk;

pub use experts::{Experts, SEEN};
pub use hidden::Hidden;
pub use needs::needs;
pub use record::{Record, Records, Tensors};
pub use walk::{Task, Visit, Visitor, walk};

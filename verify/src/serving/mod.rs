//! What a model needs to be served, and how a server is started for it. Nothing here talks to a GPU: all
//! figures come from config and tensor headers.
//!
//! ```text
//!   Dimensions, tensors ─▶ Memory (weights, cache, state) ─┐
//!   Card, GPUs ────────────────────────────────────────────┴▶ Fit ─▶ Launch ─▶ line, systemd, compose, k8s
//!   shapes ─▶ tensor-parallel sizes ────────────────────────┘
//! ```

mod card;
mod compose;
mod engine;
mod fit;
mod format;
mod kubernetes;
mod launch;
mod memory;
mod parallel;
pub(crate) mod quote;
mod requirements;
mod shell;
mod systemd;
mod warm_up;
mod weights;

pub use card::{CARDS, Card, Vram};
pub use compose::compose;
pub use engine::{Engine, Takes};
pub use fit::{Deployment, Fit, Verdict};
pub use format::{CacheFormat, WeightFormat};
pub use kubernetes::kubernetes;
pub use launch::{Flag, Launch, Wish};
pub use memory::{Activations, CONCURRENCY, Load, Memory};
pub use parallel::{ParallelSize, sizes};
pub use requirements::{Parallel, Question, Requirements, Row};
pub use shell::line;
pub use systemd::unit;
pub use weights::Weights;

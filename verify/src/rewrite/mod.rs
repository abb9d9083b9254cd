//! Rewriting a checkpoint tensor by tensor: merge, quantize and dequantize are the same act.
//!
//! ```text
//!   Checkpoint ── ModelView ──▶ Rewrite::plan ── ModelView ──▶ Rewrite::plan ── ... ──▶ OutputPlan
//!   (bytes)                      Stage                           Stage                   (layout, digest)
//!      ▲                           │ apply(rows)                   │ apply(rows)
//!      └───────── reads ◀──────────┘◀─────────── reads ◀───────────┘◀──── engine asks, hashes, writes
//! ```
//!
//! A stage is planned from metadata alone. The engine then *pulls*: it asks the last stage for the next
//! rows of an output, that stage reads the rows that it needs from the stage before, and so on down to
//! the files. So a chain of stages reads the base once, writes once, holds a few row ranges in memory,
//! and gives the same bytes as running the stages one after the other through folders.

mod chain;
mod code;
mod engine;
mod finish;
mod journal;
mod lock;
mod pipeline;
pub mod plan;
mod stage;
mod target;
mod view;

pub use code::Code;
pub use engine::{COMMAND, Finished, Options, Part, Which, run};
pub use journal::Sums;
pub use lock::{Lock, Locking};
pub use plan::{OutputPlan, ShardPlan};
pub use stage::{
    Applied, Built, Decision, Dropped, InputFile, Needs, Note, Preparation, Rewrite, Stage, StageBuilder,
    Unit, UnitKind, Work, rows_per_chunk,
};
pub use target::{Existing, Target};
pub use view::{Content, ModelView, ViewFile};

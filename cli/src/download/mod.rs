//! Models from a hub: nothing enters that is not what the hub says it is.
//!
//! ```text
//!   revision ──▶ one commit ──▶ listing (names checked, sha256 or git sha1, size) ──▶ selection ──▶ Plan
//!                (hf-hub)       (Source)                                                            │
//!        NAME.part ◀── ranges, several at a time, each resumed where it stopped ◀── fetch ◀─────────┘
//!           │ hashed behind the writing, from the disk
//!           ▼
//!        NAME (synced, renamed) ──▶ SHA256SUMS, prep-report.json last      or: blob and link of the hub cache
//! ```

mod cache;
mod check;
mod digest;
mod environment;
mod existing;
mod failure;
mod fetch;
mod folder;
mod headers;
mod http;
mod hub;
mod limits;
mod modelscope;
mod names;
mod part;
mod place;
mod plan;
mod queue;
mod select;
mod source;

pub use cache::{into_cache, nothing_offline, snapshot_in_cache};
pub use environment::{Environment, offline};
pub use folder::{Done, Options, into_folder, recorded};
pub use headers::remote;
pub use names::RepoId;
pub use plan::{Plan, Request, plan};

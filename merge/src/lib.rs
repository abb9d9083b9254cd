//! PEFT adapters merged into a checkpoint while it is rewritten.
//!
//! ```text
//!   adapter folder ──▶ Adapter ──▶ Resolver ──▶ Target per tensor ──▶ Job ──▶ rows of the result
//!   (config, keys,     (pairs,     (prefixes,   (products, scale,     (kernel,
//!    factors)           ranks)      experts,     whole, rows)          one rounding)
//!                                   embeddings)
//! ```
//!
//! The rule of truth: the merged model equals base + adapter run unmerged. Every tensor of the adapter has a
//! target, or it is an error.

mod account;
mod adapter;
mod compute;
mod files;
mod fit;
mod fp8;
mod layout;
mod resolve;
mod rewrite;
mod tokens;

pub use rewrite::{MergeLora, Options, Unused};

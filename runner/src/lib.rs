//! Runs a model folder: tokenizer, forward pass, generation.
//!
//! ```text
//!   folder ─▶ families (what pieces?) ─▶ Decoder over a Backend (Cpu) ─▶ Model ─▶ Engine (batching, sampling)
//!                 ▲                                                                ▲            │
//!   weights: mapped bytes, read where they lie                             Tokenizer ──────────▶ answers
//! ```
//!
//! A forward pass is written once, in [`blocks`] and [`decoder`], over the [`Backend`] trait.

pub mod backend;
mod batch;
pub mod blocks;
pub mod compare;
pub mod cpu;
pub mod cuda;
pub mod decoder;
pub mod dump;
pub mod engine;
pub mod families;
pub mod machine;
pub mod model;
pub mod sampling;
mod shared;
pub mod stop;
pub mod tokenizer;
pub mod weights;

pub use backend::Backend;
pub use cpu::Cpu;
pub use engine::Engine;
pub use machine::{Machine, Place, Wish};
pub use model::{Model, Options};
pub use sampling::Sampling;
pub use tokenizer::Tokenizer;

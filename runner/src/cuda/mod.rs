//! The GPU's side of the runner: kernel sources and the launches that call them.
//!
//! ```text
//!   kernels/*.cu ── sources ──▶ PTX, fibers
//!   what to compute ── launches ──▶ Launch (kernel, grid, block, shared bytes, arguments) ──▶ an executor
//! ```
//!
//! A launch is made in one place for every executor: the CUDA driver, or the fibers of the tests (kernels/host), which
//! run the same kernels on a processor.

pub mod awq;
mod backend;
pub mod device;
pub mod driver;
pub mod fp8;
mod lanes;
pub mod launch;
pub mod launches;
pub mod measure;
mod pool;
mod ptx;
pub mod sources;
pub mod stack;
mod staging;

pub use backend::{Cuda, Tiles};
pub use driver::{Gpu, gpus};
pub use launch::{Arg, Launch};
pub use stack::Stack;

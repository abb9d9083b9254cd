//! The stand-in driver (kernels/host/driver): a right sequence of calls gives the right numbers and a clean report,
//! and whatever a GPU would punish is found and named. Needs a C++ compiler; where there is none the tests say that
//! they were skipped.

#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod child;
mod cuda;
mod devices;
mod graphs;
mod launches;
mod library;
mod memory;
mod right;
mod shipped;
mod streams;

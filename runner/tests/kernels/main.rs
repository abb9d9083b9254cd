//! Every kernel, run on this processor (kernels/host), against the CPU's function: several shapes, several orders of
//! the threads. Needs a C++ compiler; where there is none the tests say that they were skipped.

#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod attention;
mod awq;
mod build;
mod compile;
mod delta;
mod elementwise;
mod experts;
mod int4;
mod machine;
mod matrices;
mod mutations;
mod nvidia;
mod product;
mod quantize;
mod sample;

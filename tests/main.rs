//! End-to-end tests: the built binary, real folders, exit codes and bytes.

#![allow(clippy::unwrap_used)]

mod support;

mod awq;
mod checksum;
mod generate;
mod help;
mod hostile;
mod hybrid;
mod interrupted;
mod main_job;
mod parse;
mod steps;
mod template;

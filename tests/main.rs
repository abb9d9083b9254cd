//! End-to-end tests: the built binary, real folders, exit codes and bytes.

#![allow(clippy::unwrap_used)]

mod support;

#[path = "support/stand_in.rs"]
mod stand_in;
#[allow(clippy::print_stderr)]
#[path = "../runner/tests/standin/library.rs"]
mod stand_in_driver;

mod awq;
mod baseline;
mod checksum;
mod cuda;
mod diagnosis;
mod download;
mod endpoint;
mod examples;
mod generate;
mod help;
mod hostile;
mod hybrid;
mod inspect;
mod interrupted;
mod main_job;
mod packaging;
mod parse;
mod private;
mod recipes;
mod scales;
mod schemas;
mod steps;
mod suite_format;
mod template;

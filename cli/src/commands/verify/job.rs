//! What is verified, and how.

use std::path::{Path, PathBuf};

use verify::Result;
use verify::parsers::{self, Parser, ReasoningParser};
use verify::suite::Suite;

use super::baseline::Baseline;
use crate::args::Verify;

/// What is verified, and how.
pub struct Job<'a> {
    pub model: &'a Path,
    pub parser: &'static Parser,
    pub suite: Suite,
    pub min_score: Option<u32>,
    pub max_new: usize,
    pub reasoning: Option<&'static ReasoningParser>,
    pub reports: Vec<PathBuf>,
    pub baseline: Option<Baseline>,
}

impl<'a> Job<'a> {
    /// The job that the command line asks for.
    ///
    /// # Errors
    /// Exit 2 for an unknown parser, exit 3 for a suite that cannot be read.
    pub fn of(args: &'a Verify) -> Result<Self> {
        Ok(Job {
            model: &args.model,
            parser: parsers::find(&args.parser)?,
            suite: suite_of(args.suite.as_deref())?,
            min_score: args.min_score,
            max_new: args.max_new,
            reasoning: args.reasoning_parser.as_deref().map(parsers::find_reasoning).transpose()?,
            reports: args.report.clone(),
            baseline: Baseline::of(&args.baseline)?,
        })
    }

    /// Name of the model, without any path of the machine.
    pub fn name(&self) -> &str {
        self.model.file_name().and_then(|n| n.to_str()).unwrap_or("model")
    }
}

/// The suite of a file, or the built-in one.
pub fn suite_of(file: Option<&Path>) -> Result<Suite> {
    file.map_or_else(Suite::default_suite, Suite::read)
}

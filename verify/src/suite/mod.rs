//! Scored tool-calling cases: run once, read by any parser, judged.
//!
//! ```text
//!   Suite ──▶ run (Renderer, Generate) ──▶ transcripts ──▶ evaluate (one parser), matrix (all) ──▶ judge
//! ```

pub mod format;
mod run;
mod score;
mod verdict;

pub use format::{Case, Suite};
pub use run::{
    CaseScore, ClassScore, Evaluation, FoundCall, MAX_NEW, MatrixRow, Reading, Speed, Transcript, evaluate,
    matrix, run, special_texts,
};
pub use score::{Score, score};
pub use verdict::{Verdict, judge};

//! Scored tool-calling cases: run once, read by any parser, judged.
//!
//! ```text
//!   Suite ──▶ run (Renderer, Generate) ──▶ transcripts ──▶ evaluate (one parser), matrix (all) ──▶ judge
//! ```

mod evaluate;
pub mod format;
mod html;
mod junit;
mod matches;
mod reading;
mod report;
mod run;
mod score;
mod verdict;

pub use evaluate::{
    CaseScore, ClassScore, Evaluation, FoundCall, MatrixRow, Speed, Stability, evaluate, matrix, stability,
};
pub use format::{Case, SCHEMA, Step, Suite};
pub use html::document;
pub use reading::{Read, Reading, special_texts};
pub use report::{Form, Report, escape};
pub use run::{MAX_NEW, Running, Transcript, run};
pub use score::{Score, score};
pub use verdict::{Verdict, judge};

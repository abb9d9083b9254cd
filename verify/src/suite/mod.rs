//! Scored tool-calling cases: run once, read by any parser, judged.
//!
//! ```text
//!   Suite ──▶ run (Renderer, Generate) ──▶ transcripts ──▶ evaluate (one parser), matrix (all) ──▶ judge
//!   Suite ──▶ run_served (Server) ───────▶ transcripts ──▶ evaluate (the server's own calls) ──▶ judge_served
//! ```

pub mod compare;
mod comparison;
mod evaluate;
mod exchange;
pub mod format;
#[cfg(test)]
mod hostile;
mod html;
mod junit;
mod matches;
mod reading;
mod report;
mod run;
mod score;
mod serve;
mod served_verdict;
mod server;
mod settings;
mod verdict;

pub use comparison::{Comparison, NotRun, comparison_rows};
pub use evaluate::{
    CaseScore, ClassScore, Evaluation, FoundCall, MatrixRow, Speed, Stability, evaluate, matrix, stability,
};
pub use exchange::{Check, Exchange};
pub use format::{Case, SCHEMA, Step, Suite};
pub use html::document;
pub use reading::{Read, Reading, special_texts};
pub use report::{Form, REPORT_SCHEMA, Report, escape};
pub use run::{MAX_NEW, Running, Transcript, run};
pub use score::{Score, score};
pub use serve::{Asking, run_served, served_matrix};
pub use served_verdict::judge_served;
pub use server::{Ask, Lost, LostTo, Message, Raw, RawSource, Server};
pub use settings::{Asked, Sampling, Settings};
pub use verdict::{Verdict, judge};

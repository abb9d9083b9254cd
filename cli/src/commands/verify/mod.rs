//! `prep verify`: is this folder what it should be, and does the model behind this parser call tools?

mod baseline;
mod folder;
mod job;
mod json;
mod print;
mod reports;
mod run_suite;

use serde_json::{Value, json};
use verify::suite::Form;
use verify::{Error, Result, Shown};

pub use self::job::{Job, suite_of};
pub use self::reports::{check as check_reports, outside};
use super::template::say_findings;
use crate::args::{Global, Verify};
use crate::console::Console;
use crate::output::Output;

/// The outcome of a verification, for people and programs alike.
pub struct Verified {
    pub pass: bool,
    pub json: Value,
}

pub fn run(args: &Verify, global: &Global, output: &Output) -> Result<u8> {
    let job = Job::of(args)?;
    // A report that cannot be written must not cost the run.
    check_reports(&job.reports, job.model)?;
    let verified = verify(&job, global, output)?;
    let code = u8::from(!verified.pass);
    output.result(code, verified.json);
    Ok(code)
}

/// Checks the folder; where nothing speaks against it, runs the suite. Prints as it goes.
pub fn verify(job: &Job<'_>, global: &Global, output: &Output) -> Result<Verified> {
    let console = Console::new(global.quiet, global.verbose);
    if !job.model.is_dir() {
        return Err(
            Error::input(format!("{} is not a folder", Shown::path(job.model))).hint("check the path")
        );
    }
    let most = job.suite.max_points();
    if let Some(min) = job.min_score.filter(|min| *min > most) {
        return Err(Error::usage(format!("no model can reach a score of {min}"))
            .expected(format!("at most {most}, what this suite gives")));
    }
    let looked = folder::look(job, global, &console, output)?;
    let Some((renderer, taught)) = looked.template.as_ref().filter(|_| !looked.stops(job)) else {
        output.text("");
        say_findings(&looked.findings, output);
        output.text("\nFAILED: the suite was not run");
        let taught = looked.template.as_ref().map(|(_, taught)| taught);
        let json =
            json!({"pass": false, "parser": job.parser.name, "findings": looked.findings, "teaches": taught});
        return Ok(Verified { pass: false, json });
    };
    let outcome = run_suite::run(job, (renderer, taught), &looked.findings, (global, &console))?;
    print::outcome(&outcome, output);
    let report = outcome.report(job, taught);
    for path in &job.reports {
        reports::write(path, &report.write(Form::of(path)?)?)?;
        output.text(&format!("report: {}", Shown::path(path)));
    }
    Ok(Verified { pass: outcome.verdict.pass, json: json::of(&outcome, taught) })
}

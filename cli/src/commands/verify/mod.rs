//! `prep verify`: is this folder what it should be, and does the model behind this parser call tools? The same
//! questions to running servers, and several models in one table.

mod baseline;
mod compare;
mod folder;
mod job;
mod json;
mod outcome;
mod print;
mod reports;
mod run_server;
mod run_suite;

use serde_json::{Value, json};
use verify::checkpoint::Config;
use verify::suite::Reading;
use verify::template::Finding;
use verify::{Result, diagnose};

pub use self::baseline::Baseline;
pub use self::job::{Job, Reasoning, Running, drawn, suite_of};
use self::job::{Row, ServerJob};
use self::outcome::Outcome;
pub use self::reports::{Reports, check as check_reports, outside, write as write_report};
use super::folder_of;
use super::template::say_findings;
use crate::args::{Global, Verify};
use crate::console::Console;
use crate::output::Output;

/// The outcome of a verification, for people and programs alike.
pub struct Verified {
    pub pass: bool,
    pub json: Value,
}

/// What became of a model: it was run, or the folder itself spoke against that.
enum Looked {
    Run(Box<Outcome>),
    Stopped { findings: Vec<Finding>, json: Value },
}

pub fn run(args: &Verify, global: &Global, output: &Output) -> Result<u8> {
    let rows = Row::all(args)?;
    // A report that cannot be written must not cost the run.
    for folder in args.model.iter().chain(&args.server.folder) {
        check_reports(&args.report, folder)?;
    }
    check_reports(&args.report, std::path::Path::new(""))?;
    let folders = args.model.iter().chain(&args.server.folder).chain(&args.baseline.baseline);
    let paths = crate::args::paths(args.private_paths);
    let hiding = paths.hiding(folders.map(std::path::PathBuf::as_path));
    let reports = Reports { files: args.report.clone(), hiding };
    let [row] = rows.as_slice() else { return compare::run(&rows, &reports, global, output) };
    let looked = look(row, global, output)?;
    let code = match &looked {
        Looked::Run(outcome) => outcome.code(),
        Looked::Stopped { .. } => 1,
    };
    let verified = finish(looked, &reports, output)?;
    output.result(code, verified.json);
    Ok(code)
}

/// Checks the folder; where nothing speaks against it, runs the suite. Prints as it goes.
pub fn verify(job: &Job<'_>, global: &Global, output: &Output) -> Result<Verified> {
    let looked = look_at_folder(job, global, output).map_err(|e| e.about(job.model))?;
    finish(looked, &job.reports, output)
}

fn look(row: &Row<'_>, global: &Global, output: &Output) -> Result<Looked> {
    match row {
        Row::Folder(job) => look_at_folder(job, global, output).map_err(|e| e.about(job.model)),
        Row::Server(job) => look_at_server(job, global, output),
    }
}

fn look_at_folder(job: &Job<'_>, global: &Global, output: &Output) -> Result<Looked> {
    let console = Console::new(global.quiet, global.verbose);
    folder_of(job.model)?;
    job.run.check()?;
    let looked = folder::look(job, global, &console, output)?;
    let Some((renderer, taught)) = looked.template.as_ref().filter(|_| !looked.stops(job)) else {
        let findings: Vec<_> = looked.findings.into_iter().map(|f| f.about(job.model)).collect();
        output.text("");
        say_findings(&findings, output);
        output.text("\nFAILED: the suite was not run");
        let taught = looked.template.as_ref().map(|(_, taught)| taught);
        let parser = job.run.parser.name;
        let json = json!({"pass": false, "parser": parser, "findings": findings, "teaches": taught});
        return Ok(Looked::Stopped { findings, json });
    };
    let config = Config::read(&job.model.join("config.json"))?;
    let reasoning = job.run.reasoning.resolve((renderer, taught), config.model_type());
    let reading = Reading { reasoning, ..Reading::of_folder(job.model, job.run.parser)? };
    run_server::say_reasoning(job.run.reasoning, &reading, output);
    let template: (_, &diagnose::Taught) = (renderer, taught);
    let outcome = run_suite::run(job, template, (&looked.findings, reading), (global, &console))?;
    print::outcome(&outcome, output);
    Ok(Looked::Run(Box::new(outcome)))
}

fn look_at_server(job: &ServerJob<'_>, global: &Global, output: &Output) -> Result<Looked> {
    let console = Console::new(global.quiet, global.verbose);
    job.run.check()?;
    let outcome = run_server::run(job, &console, output)?;
    print::outcome(&outcome, output);
    Ok(Looked::Run(Box::new(outcome)))
}

/// Writes the reports of one model that was run.
fn finish(looked: Looked, reports: &Reports, output: &Output) -> Result<Verified> {
    let outcome = match looked {
        Looked::Run(outcome) => outcome,
        Looked::Stopped { json, .. } => return Ok(Verified { pass: false, json }),
    };
    let report = outcome.report();
    reports.write(|form| report.write(form), output)?;
    Ok(Verified { pass: outcome.verdict.pass, json: json::of(&outcome) })
}

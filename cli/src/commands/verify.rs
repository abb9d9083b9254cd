//! `prep verify`: is this folder what it should be, and does the model behind this parser call tools?

use std::path::{Path, PathBuf};

use runner::{Engine, Options};
use serde_json::{Value, json};
use verify::checkpoint::folder::SUMS;
use verify::checkpoint::{Checkpoint, TensorReader};
use verify::parsers::{self, Parser, ReasoningParser};
use verify::suite::{self, Evaluation, Form, MatrixRow, Reading, Running, Suite, Transcript, Verdict};
use verify::template::{Finding, Level, Places, Renderer, embed};
use verify::write::write_file;
use verify::{Error, FileName, Result, Shown, checksum, diagnose};

use super::template::say_findings;
use crate::args::{Global, Verify};
use crate::console::{Console, size};
use crate::output::{Output, table};

/// What is verified, and how.
pub struct Job<'a> {
    pub model: &'a Path,
    pub parser: &'static Parser,
    pub suite: Suite,
    pub min_score: Option<u32>,
    pub max_new: usize,
    pub reasoning: Option<&'static ReasoningParser>,
    pub reports: Vec<PathBuf>,
}

/// The outcome of a verification, for people and programs alike.
pub struct Verified {
    pub pass: bool,
    pub json: Value,
}

pub fn run(args: &Verify, global: &Global, output: &Output) -> Result<u8> {
    let job = Job {
        model: &args.model,
        parser: parsers::find(&args.parser)?,
        suite: suite_of(args.suite.as_deref())?,
        min_score: args.min_score,
        max_new: args.max_new,
        reasoning: args.reasoning_parser.as_deref().map(parsers::find_reasoning).transpose()?,
        reports: args.report.clone(),
    };
    // A report that cannot be written must not cost the run.
    check_reports(&job.reports, job.model)?;
    let verified = verify(&job, global, output)?;
    let code = u8::from(!verified.pass);
    output.result(code, verified.json);
    Ok(code)
}

/// Refuses reports that cannot be written, or that would be files of the model.
pub fn check_reports(reports: &[PathBuf], model: &Path) -> Result<()> {
    reports.iter().try_for_each(|path| Form::of(path).and_then(|_| outside(path, model)))
}

/// Refuses to write `path` into the model folder: its checksums do not know the file, or it would be lost.
pub fn outside(path: &Path, model: &Path) -> Result<()> {
    let folder = folder_of(path);
    let real = |p: &Path| p.canonicalize().or_else(|_| std::path::absolute(p));
    match (real(folder), real(model)) {
        (Ok(a), Ok(b)) if a == b => {
            Err(Error::usage(format!("{} lies in the model folder", Shown::path(path)))
                .expected("a place outside: the folder's checksums cover all its files")
                .hint("choose another folder"))
        }
        _ => Ok(()),
    }
}

/// The suite of a file, or the built-in one.
pub fn suite_of(file: Option<&Path>) -> Result<Suite> {
    file.map_or_else(Suite::default_suite, Suite::read)
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
    let mut findings = checksums(job.model, global, &console, output)?;
    let damaged = !findings.iter().all(|f| f.level < Level::Error);
    let looked = folder(job, &console, output);
    let template = match looked {
        Ok((more, template)) => {
            findings.extend(more);
            template
        }
        // What a damaged file leads to is told beside the damage, and is no error of its own.
        Err(e) if damaged => {
            findings.push(Finding::new(
                Level::Error,
                e.what(),
                e.advice().unwrap_or("fetch or make the folder again"),
            ));
            None
        }
        Err(e) => return Err(e),
    };
    let taught = template.as_ref().map(|(_, taught)| taught);
    let stops = |f: &Finding| f.level == Level::Error && !taught.is_some_and(|t| is_misread(f, job, t));
    let Some((renderer, taught)) = template.as_ref().filter(|_| !findings.iter().any(stops)) else {
        output.text("");
        say_findings(&findings, output);
        output.text("\nFAILED: the suite was not run");
        let json = json!({"pass": false, "parser": job.parser.name, "findings": findings, "teaches": taught});
        return Ok(Verified { pass: false, json });
    };
    let mut engine = Engine::open(job.model, &Options { threads: Some(global.threads()) })?;
    let reading = Reading { reasoning: job.reasoning, ..Reading::of_folder(job.model, job.parser)? };
    let running = Running { max_new: job.max_new, reading: reading.clone() };
    let transcripts = suite::run(&mut engine, renderer, &job.suite, &running, &console)?;
    console.clear();
    let evaluation = suite::evaluate(&job.suite, &transcripts, &reading);
    let matrix = suite::matrix(&job.suite, &transcripts, &reading);
    let mut verdict = suite::judge(&evaluation, &matrix, &transcripts, (taught, job.parser), job.min_score);
    // The verdict says itself whether template and parser fit.
    verdict.reasons.extend(findings.into_iter().filter(|f| !is_misread(f, job, taught)));
    verdict.pass = verdict.reasons.iter().all(|f| f.level < Level::Error);
    print(&evaluation, &matrix, &verdict, output);
    let report = suite::Report {
        model: &job.model.file_name().map_or("model".into(), |n| n.to_string_lossy()),
        suite: &job.suite,
        verdict: &verdict,
        evaluation: &evaluation,
        matrix: &matrix,
        taught,
        stability: None,
        transcripts: &transcripts,
    };
    for path in &job.reports {
        let text = report.write(Form::of(path)?)?;
        write_report(path, &text)?;
        output.text(&format!("report: {}", Shown::path(path)));
    }
    Ok(Verified { pass: verdict.pass, json: as_json(&evaluation, &matrix, &verdict, &transcripts, taught) })
}

/// The folder that `path` lies in.
fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn write_report(path: &Path, text: &str) -> Result<()> {
    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    let folder = folder_of(path);
    write_file(folder, &FileName::parse(name)?, text.as_bytes())
}

/// A template ready to render, and what it teaches.
type Rendered = (Renderer, diagnose::Taught);

/// Structure and template: what can be said without running the model.
fn folder(job: &Job<'_>, console: &Console, output: &Output) -> Result<(Vec<Finding>, Option<Rendered>)> {
    let checkpoint = Checkpoint::open(job.model)?;
    let mut findings = structure(&checkpoint, console, output)?;
    let (more, template) = template(job, output)?;
    findings.extend(more);
    Ok((findings, template))
}

/// A parser that does not fit the template is best shown by running the suite: the table then says what each
/// parser would have given.
fn is_misread(finding: &Finding, job: &Job<'_>, taught: &diagnose::Taught) -> bool {
    taught.shows_tools && diagnose::before(taught, job.parser).contains(finding)
}

fn checksums(model: &Path, global: &Global, console: &Console, output: &Output) -> Result<Vec<Finding>> {
    if !model.join(SUMS).exists() {
        output.text(&format!("checksums   none ({SUMS} is missing)"));
        let what = format!("the folder has no {SUMS}: a damaged file would not be noticed");
        return Ok(vec![Finding::new(
            Level::Note,
            what,
            "make it with `prep checksum` while the folder is known to be good",
        )]);
    }
    let faults = checksum::check(model, global.threads(), console)?;
    console.clear();
    let findings = faults.iter().map(|f| {
        let what = format!("{} {}", f.file, f.what);
        Finding::new(Level::Error, what, "fetch or make the folder again")
    });
    let findings: Vec<_> = findings.collect();
    output.text(&match findings.len() {
        0 => format!("checksums   {} files are as {SUMS} says", checksum::read(model)?.len()),
        n => format!("checksums   {n} of the files not as {SUMS} says"),
    });
    Ok(findings)
}

fn structure(checkpoint: &Checkpoint, console: &Console, output: &Output) -> Result<Vec<Finding>> {
    let index = checkpoint.index();
    output.text(&format!(
        "structure   {} tensors, {} in {} file(s), {}",
        index.tensors().len(),
        size(index.total_bytes()),
        index.shards().len(),
        checkpoint.config().model_type()
    ));
    let faults = verify::loadable::check(checkpoint, console)?;
    console.clear();
    let finding = |f: verify::loadable::Fault| {
        let what = format!("{}: {}", f.subject, f.sentence);
        Finding::new(
            Level::Error,
            what,
            "servers would refuse or misread this folder: make it again from its source",
        )
    };
    Ok(faults.into_iter().map(finding).collect())
}

fn template(job: &Job<'_>, output: &Output) -> Result<(Vec<Finding>, Option<Rendered>)> {
    let places = Places::read(job.model)?;
    let mut findings = embed::check(&places, None);
    if places.chosen().is_none() {
        output.text("template    none");
        return Ok((findings, None));
    }
    let renderer = Renderer::open(job.model)?;
    let taught = diagnose::taught(&renderer);
    output.text(&format!("template    {}: {}", renderer.template().source, taught.sentence()));
    findings.extend(diagnose::before(&taught, job.parser));
    Ok((findings, Some((renderer, taught))))
}

fn print(evaluation: &Evaluation, matrix: &[MatrixRow], verdict: &Verdict, output: &Output) {
    let cells = |c: [String; 3]| c.to_vec();
    let mut rows = vec![cells(["class".into(), "score".into(), "perfect".into()])];
    for c in &evaluation.classes {
        rows.push(cells([
            c.class.clone(),
            format!("{}/{}", c.points, c.max),
            format!("{}/{}", c.perfect, c.cases),
        ]));
    }
    let cases: usize = evaluation.classes.iter().map(|c| c.cases).sum();
    rows.push(cells([
        "all".into(),
        format!("{}/{}", evaluation.points, evaluation.max),
        format!("{}/{cases}", evaluation.perfect),
    ]));
    output.text(&format!("\n{}", table(&rows)));
    let s = &evaluation.speed;
    output.text(&format!(
        "\n  latency {:.2} s on average, {:.2} s at p95; {:.0} tokens/s",
        s.mean_secs, s.p95_secs, s.tokens_per_sec
    ));
    output.text("\n  the same answers under each parser:");
    let mut best: Vec<&MatrixRow> = matrix.iter().collect();
    best.sort_by_key(|r| std::cmp::Reverse(r.points));
    let shown = |r: &&&MatrixRow| r.points > 0 || r.parser == evaluation.parser;
    let mut rows: Vec<Vec<String>> = Vec::new();
    for r in best.iter().filter(shown) {
        let mark = if r.parser == evaluation.parser { "<- --parser" } else { "" };
        rows.push(vec![r.parser.into(), format!("{}/{}", r.points, evaluation.max), mark.into()]);
    }
    output.text(&table(&rows));
    let others = best.len() - rows.len();
    if others > 0 {
        output.text(&format!("  0/{} under the {others} others", evaluation.max));
    }
    output.text("");
    say_findings(&verdict.reasons, output);
    let word = if verdict.pass { "PASSED" } else { "FAILED" };
    output.text(&format!(
        "{word}: {}/{} with --parser {}",
        evaluation.points, evaluation.max, evaluation.parser
    ));
}

fn as_json(
    evaluation: &Evaluation,
    matrix: &[MatrixRow],
    verdict: &Verdict,
    transcripts: &[Transcript],
    taught: &diagnose::Taught,
) -> Value {
    json!({
        "pass": verdict.pass,
        "parser": evaluation.parser,
        "score": evaluation.points,
        "max": evaluation.max,
        "perfect": evaluation.perfect,
        "classes": evaluation.classes,
        "speed": evaluation.speed,
        "matrix": matrix,
        "findings": verdict.reasons,
        "written": verdict.written,
        "teaches": taught,
        "cases": evaluation.cases,
        "transcripts": transcripts,
    })
}

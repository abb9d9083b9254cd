//! Structure, checksums and template: what can be said without running the model.

use std::path::Path;

use verify::checkpoint::folder::SUMS;
use verify::checkpoint::{Checkpoint, TensorReader};
use verify::template::{Finding, Level, Places, Renderer, embed, lint};
use verify::{Result, checksum, diagnose};

use super::job::Job;
use crate::args::Global;
use crate::console::{Console, size};
use crate::output::Output;

/// What the folder itself says.
pub struct Looked {
    pub findings: Vec<Finding>,
    /// None without a template, and where damage kept it from being read.
    pub template: Option<Rendered>,
}

impl Looked {
    /// Whether a finding speaks against running the suite at all.
    pub fn stops(&self, job: &Job<'_>) -> bool {
        let taught = self.template.as_ref().map(|(_, taught)| taught);
        self.findings
            .iter()
            .any(|f| f.level == Level::Error && !taught.is_some_and(|t| is_misread(f, job, t)))
    }
}

/// A template ready to render, and what it teaches.
pub type Rendered = (Renderer, diagnose::Taught);

/// Checks checksums, structure and template, printing as it goes.
pub fn look(job: &Job<'_>, global: &Global, console: &Console, output: &Output) -> Result<Looked> {
    let mut findings = checksums(job.model, global, console, output)?;
    let damaged = !findings.iter().all(|f| f.level < Level::Error);
    let template = match folder(job, console, output) {
        Ok((more, template)) => {
            findings.extend(more);
            template
        }
        // What a damaged file leads to is told beside the damage, and is no error of its own.
        Err(e) if damaged => {
            let advice = e.advice().unwrap_or("fetch or make the folder again");
            findings.push(Finding::new(Level::Error, e.what(), advice));
            None
        }
        Err(e) => return Err(e),
    };
    Ok(Looked { findings, template })
}

fn folder(job: &Job<'_>, console: &Console, output: &Output) -> Result<(Vec<Finding>, Option<Rendered>)> {
    let checkpoint = Checkpoint::open(job.model)?;
    let mut findings = structure(&checkpoint, console, output)?;
    let (more, template) = template(job, output)?;
    findings.extend(more);
    Ok((findings, template))
}

/// A parser that does not fit the template is best shown by running the suite: the table then says what each
/// parser would have given.
pub fn is_misread(finding: &Finding, job: &Job<'_>, taught: &diagnose::Taught) -> bool {
    taught.shows_tools && diagnose::before(taught, job.run.parser).contains(finding)
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
    match diagnose::rival(&places, (&renderer, &taught), job.run.parser)? {
        Some(rival) => {
            // It says more than that two texts differ, and why the tools are missing.
            findings.retain(|f| f.level < Level::Error);
            findings.push(rival);
        }
        None => findings.extend(diagnose::before(&taught, job.run.parser)),
    }
    if taught.shows_tools {
        findings.extend(lint::summary(&lint::try_all(&renderer)));
    }
    Ok((findings, Some((renderer, taught))))
}

//! What merge, quantize and run share: planning a rewrite, printing the plan, running it.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use verify::checkpoint::Checkpoint;
use verify::rewrite::{Finished, OutputPlan, Part, Rewrite, run};
use verify::{Result, Shown};

use super::assemble;
use crate::args::{Global, Parts, Rewriting};
use crate::console::{Console, seconds, size};
use crate::output::{Output, table};

/// What to rewrite, and into which folder.
pub struct Job<'a> {
    /// Folder that is read.
    pub base: &'a Path,
    /// The stages, in order.
    pub stages: Vec<&'a dyn Rewrite>,
    /// Other folders that are read.
    pub inputs: Vec<PathBuf>,
    /// Folder of the result.
    pub out: &'a Path,
    /// Which shards are written.
    pub parts: Parts,
    /// What becomes of a folder that is there.
    pub rewriting: Rewriting,
}

impl Job<'_> {
    /// Plans the job from metadata.
    pub fn plan(&self) -> Result<OutputPlan> {
        OutputPlan::with_code(Checkpoint::open(self.base)?, &self.stages, self.rewriting.code())
    }

    /// Runs a plan of this job.
    pub fn run(&self, plan: &OutputPlan, global: &Global) -> Result<Finished> {
        let console = Console::new(global.quiet, global.verbose);
        let mut options = self.rewriting.options(self.parts.which(), self.inputs.clone(), global);
        options.remember = self.parts.part.and_then(|_| assemble::remembered());
        let done = run(plan, self.out, &options, &console);
        console.clear();
        done
    }
}

/// Runs a job as a whole command: prints the plan and stops, or does it and says what was made.
pub fn whole(job: &Job<'_>, dry_run: bool, next: &str, global: &Global, output: &Output) -> Result<u8> {
    let plan = job.plan()?;
    if dry_run {
        print_plan(&plan, job.out, global, output);
        return Ok(0);
    }
    let done = job.run(&plan, global)?;
    if let Some(part) = job.parts.part.filter(|_| !done.already) {
        return say_part(job, part, &done, output);
    }
    say(&done, output);
    output.remark(&format!("next: {next}"));
    let mut report = json!(done.report);
    report["out"] = json!(job.out);
    output.result(0, report);
    Ok(0)
}

fn say_part(job: &Job<'_>, part: Part, done: &Finished, output: &Output) -> Result<u8> {
    let shards = done.report.outputs.iter().map(|f| f.name.as_str()).collect::<Vec<_>>();
    output.text(&format!("part {}/{}: {} shards written", part.index(), part.count(), shards.len()));
    output.remark(&format!("next: when all parts are done, prep assemble {}", Shown::path(job.out)));
    output.result(0, json!({"part": format!("{}/{}", part.index(), part.count()), "shards": shards}));
    Ok(0)
}

/// Warnings, and one line with what was made.
pub fn say(done: &Finished, output: &Output) {
    done.report.warnings.iter().for_each(|w| output.warning(w));
    if done.already {
        output
            .text(&format!("{} was made by this very command before: nothing to do", Shown::path(&done.out)));
        return;
    }
    let bytes: u64 = done.report.outputs.iter().map(|f| f.len).sum();
    let files = done.report.outputs.len();
    let resumed = match done.resumed {
        0 => String::new(),
        n => format!(" ({n} shards were finished by an earlier run)"),
    };
    output.text(&format!(
        "{}: {files} files, {} in {}{resumed}",
        Shown::path(&done.out),
        size(bytes),
        seconds(done.report.seconds)
    ));
}

/// Prints the plan: stages with their decisions, shards, sizes, memory and disk.
pub fn print_plan(plan: &OutputPlan, out: &Path, global: &Global, output: &Output) {
    let threads = global.threads();
    let free = free_space(out);
    for stage in plan.stages() {
        output.text(&format!("{} {}", stage.name, describe(&stage.options)));
        for (choice, reason, count, first) in grouped(stage) {
            let example = if count == 1 { first } else { format!("{count} x, such as {first}") };
            output.text(&format!("  {choice}: {reason} ({example})"));
        }
        stage.warnings.iter().for_each(|w| output.warning(w));
    }
    plan.warnings().iter().for_each(|w| output.warning(w));
    let head = ["shard", "tensors", "size"].map(String::from).to_vec();
    let row =
        |s: &verify::rewrite::ShardPlan| vec![s.name.to_string(), s.layout.len().to_string(), size(s.bytes)];
    let rows: Vec<_> = std::iter::once(head).chain(plan.shards().iter().map(row)).collect();
    output.text(&table(&rows));
    let tensors = plan.tensors().count();
    output.text(&format!(
        "{tensors} tensors, {} to write, {} to read",
        size(plan.bytes()),
        size(plan.base_bytes())
    ));
    if plan.work_bytes() > 0 {
        output.text(&format!("{} more while it calibrates", size(plan.work_bytes())));
    }
    output.text(&format!("memory at most about {} with {threads} threads", size(plan.peak_bytes(threads))));
    if let Some(free) = free {
        output.text(&format!("{} free where {} goes", size(free), Shown::path(out)));
    }
    output.text("nothing was written (--dry-run)");
    output.result(0, plan_json(plan, threads, free));
}

fn plan_json(plan: &OutputPlan, threads: usize, free: Option<u64>) -> Value {
    let stages: Vec<_> = plan
        .stages()
        .map(|s| {
            json!({"name": s.name, "options": s.options, "decisions": s.decisions, "dropped": s.dropped, "warnings": s.warnings})
        })
        .collect();
    json!({
        "plan_sha256": plan.digest(),
        "stages": stages,
        "warnings": plan.warnings(),
        "tensors": plan.tensors().collect::<Vec<_>>(),
        "bytes_to_read": plan.base_bytes(),
        "bytes_to_write": plan.bytes(),
        "bytes_meanwhile": plan.work_bytes(),
        "memory_bytes": plan.peak_bytes(threads),
        "free_bytes": free,
    })
}

/// Options as `key=value`, nothing for those that are not set.
fn describe(options: &Value) -> String {
    let Some(map) = options.as_object() else { return String::new() };
    let set = map.iter().filter(|(_, v)| !v.is_null() && **v != json!([]));
    set.map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(" ")
}

/// Decisions that say the same of many modules, told once: (choice, reason, how many, the first).
fn grouped(stage: &verify::rewrite::Stage) -> Vec<(String, String, usize, String)> {
    let mut out: Vec<(String, String, usize, String)> = Vec::new();
    for d in &stage.decisions {
        match out.iter_mut().find(|(c, r, ..)| *c == d.choice && *r == d.reason) {
            Some((_, _, n, _)) => *n += 1,
            None => out.push((d.choice.clone(), d.reason.clone(), 1, d.what.clone())),
        }
    }
    out
}

pub fn free_space(out: &Path) -> Option<u64> {
    let absolute = std::path::absolute(out).ok()?;
    let existing = absolute.ancestors().find(|a| a.exists())?;
    verify::write::free_space(existing)
}

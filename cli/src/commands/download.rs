//! `prep download`: a model from a hub, every byte checked.

use std::time::{Duration, Instant};

use serde_json::json;
use verify::{Result, Shown};

use crate::args::{Download, Global};
use crate::console::{Console, seconds, size};
use crate::download::{
    Done, Environment, Options, Plan, Request, into_cache, into_folder, offline, plan, recorded,
};
use crate::output::{Output, table};

pub fn run(args: &Download, global: &Global, output: &Output) -> Result<u8> {
    let mut request = Request::new(args.source, &args.repo, args.revision.as_deref())?;
    request.include = args.include.clone();
    request.exclude = args.exclude.clone();
    request.keep_code = args.keep_code;
    let console = Console::new(global.quiet, global.verbose);
    let environment = Environment::read(args.source)?;
    let environment = (!args.offline && !offline()).then_some(&environment);
    let options = Options {
        environment,
        streams: args.streams.into(),
        threads: global.threads(),
        force: args.force,
        paths: crate::args::paths(args.private_paths),
        lock_wait: Duration::from_secs(args.lock_wait.into()),
        locking: crate::args::locking(args.no_lock),
    };
    if args.dry_run {
        return dry_run(args, &request, &options, &console, output);
    }
    let began = Instant::now();
    let done = match &args.out {
        Some(out) => into_folder(&request, out, &options, &console),
        None => into_cache(&request, &options, &console),
    };
    console.clear();
    let done = done?;
    say(&done, began.elapsed().as_secs_f64(), output);
    output.remark(&format!("next: prep run RECIPE.toml with base = \"{}\"", done.plan.pinned()));
    output.result(0, done.json());
    Ok(0)
}

fn dry_run(
    args: &Download,
    request: &Request,
    options: &Options,
    console: &Console,
    output: &Output,
) -> Result<u8> {
    let known = args.out.as_deref().and_then(recorded).filter(|p| p.answers(request));
    let plan = match (options.environment, known) {
        (Some(environment), _) => plan(request, environment, console)?,
        (None, Some(plan)) => plan,
        (None, None) => return Err(crate::download::nothing_offline(request)),
    };
    print_plan(&plan, output);
    output.text("nothing was fetched (--dry-run)");
    output.result(0, json!({"plan": plan, "bytes": plan.bytes()}));
    Ok(0)
}

/// Every file with its size, every file left out with its reason.
pub fn print_plan(plan: &Plan, output: &Output) {
    output.text(&format!("{} ({})", plan.pinned(), plan.endpoint));
    let head = ["file", "size"].map(String::from).to_vec();
    let rows = plan.files.iter().map(|f| vec![Shown(f.path.as_str()).to_string(), size(f.size)]);
    output.text(&table(&std::iter::once(head).chain(rows).collect::<Vec<_>>()));
    if !plan.left_out.is_empty() {
        let head = ["left out", "why"].map(String::from).to_vec();
        let rows = plan.left_out.iter().map(|l| vec![l.name.clone(), l.reason.to_string()]);
        output.text(&table(&std::iter::once(head).chain(rows).collect::<Vec<_>>()));
    }
    output.text(&format!("{} files, {}", plan.files.len(), size(plan.bytes())));
}

/// What was done, in a few lines.
pub fn say(done: &Done, took: f64, output: &Output) {
    done.warnings.iter().for_each(|w| output.warning(w));
    let plan = &done.plan;
    let code: Vec<_> =
        plan.left_out.iter().filter(|l| l.reason.starts_with("code")).map(|l| l.name.as_str()).collect();
    if !code.is_empty() {
        output.warning(&format!(
            "code is not fetched ({}): a server that needs it would ask for trust_remote_code; --keep-code fetches Python files",
            code.join(", ")
        ));
    }
    let kept: Vec<_> = plan.files.iter().map(|f| f.path.as_str()).filter(|p| p.ends_with(".py")).collect();
    if !kept.is_empty() {
        output.warning(&format!(
            "code is fetched ({}): a server needs --trust-remote-code to use it, and then runs it: read it first",
            kept.join(", ")
        ));
    }
    let there = match done.verified.len() {
        0 => String::new(),
        n => format!(", {n} were there and right"),
    };
    output.text(&format!(
        "{}: {} files, {} of {}; {} fetched{there}, in {}",
        Shown::path(&done.dir),
        plan.files.len(),
        size(plan.bytes()),
        plan.pinned(),
        done.fetched.len(),
        seconds(took)
    ));
}

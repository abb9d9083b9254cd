//! Running the suite against a server and judging what it answered.

use verify::checkpoint::Config;
use verify::suite::{self, Asked, Asking, Reading};
use verify::{Result, Shown, diagnose};

use super::job::{Reasoning, ServerJob};
use super::outcome::{Lowest, Outcome, lowest_of};
use crate::commands::folder_of;
use crate::console::Console;
use crate::endpoint::{Endpoint, ServedFolder, Wanted};
use crate::output::Output;

/// Runs the suite, printing what the server is.
pub fn run(job: &ServerJob<'_>, console: &Console, output: &Output) -> Result<Outcome> {
    let folder = job.folder.map(|dir| ServedFolder::open(folder_of(dir)?)).transpose()?;
    let taught = folder.as_ref().map(|f| diagnose::taught(f.renderer()));
    let reading = reading(job, folder.as_ref().zip(taught.as_ref()))?;
    let mut endpoint = Endpoint::open(Wanted {
        address: job.address.clone(),
        key: job.key.clone(),
        model: job.served.clone(),
        max_new: job.run.max_new,
        sampling: job.run.sampling,
        timeout: job.timeout,
        parser: job.run.parser,
        folder,
    })?;
    output.text(&format!("server      {}, model `{}`", endpoint.address(), Shown(endpoint.model())));
    say_reasoning(job.run.reasoning, &reading, output);
    let asking = Asking { stream: job.stream, concurrency: job.concurrency, reading };
    let suite = &job.run.suite;
    let lowest = lowest_of(&job.run, &asking.reading, |sampling| {
        endpoint.reseed(sampling.seed);
        suite::run_served(&endpoint, suite, &asking, console)
    })?;
    console.clear();
    let Lowest { evaluation, transcripts, stability, .. } = lowest;
    let matrix = suite::served_matrix(suite, &transcripts, &asking.reading);
    let run = (transcripts.as_slice(), &asking.reading);
    let verdict = suite::judge_served(suite, &evaluation, &matrix, run, job.run.min_score);
    let asked = Asked { streamed: job.stream, concurrency: job.concurrency };
    let settings = job.run.settings(&asking.reading, Some(asked));
    Ok(Outcome {
        name: endpoint.model().to_string(),
        endpoint: Some(endpoint.address()),
        suite: suite.clone(),
        settings,
        taught,
        evaluation,
        matrix,
        verdict,
        transcripts,
        stability,
        baseline: None,
    })
}

/// How the server reads its texts: as the served folder says, or with the named parsers alone.
fn reading(job: &ServerJob<'_>, served: Option<(&ServedFolder, &diagnose::Taught)>) -> Result<Reading> {
    let Some((dir, (folder, taught))) = job.folder.zip(served) else {
        let reasoning = match job.run.reasoning {
            Reasoning::Fitting => None,
            Reasoning::Chosen(parser) => parser,
        };
        return Ok(Reading { reasoning, ..Reading::new(job.run.parser) });
    };
    let path = dir.join("config.json");
    let config = if path.exists() { Some(Config::read(&path)?) } else { None };
    let model_type = config.as_ref().map_or("", Config::model_type);
    let reasoning = job.run.reasoning.resolve((folder.renderer(), taught), model_type);
    Ok(Reading { reasoning, ..Reading::of_folder(dir, job.run.parser)? })
}

/// Says which reasoning parser was chosen where none was named.
pub fn say_reasoning(reasoning: Reasoning, reading: &Reading, output: &Output) {
    if let (Reasoning::Fitting, Some(parser)) = (reasoning, reading.reasoning) {
        output.text(&format!(
            "reasoning   the template makes the model think: read with --reasoning-parser {} (`none` switches it off)",
            parser.name
        ));
    }
}

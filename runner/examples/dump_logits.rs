//! `dump_logits MODEL CASE.json OUT.safetensors [MAX_NEW]`: logits of the prompts of a case file.

use std::path::Path;

use runner::dump::dump_to_file;
use runner::engine::Stop;
use runner::{Model, Options};
use verify::checkpoint::json;
use verify::progress::Silent;
use verify::{Error, Result};

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [dir, case, out, rest @ ..] = &args[..] else {
        return Err(Error::usage("dump_logits MODEL CASE.json OUT.safetensors [MAX_NEW]"));
    };
    let case = json::read(Path::new(case))?;
    let prompts: Vec<Vec<u32>> = serde_json::from_value(case["prompts"].clone())
        .map_err(|e| Error::input("the case has no prompts").found(e.to_string()))?;
    let max_new = rest.first().and_then(|n| n.parse().ok()).unwrap_or(16);
    let model = Model::open(Path::new(dir), &Options::default())?;
    dump_to_file(&model, &prompts, (max_new, Stop::Never), Path::new(out), &Silent)?;
    Ok(())
}

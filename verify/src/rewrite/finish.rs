//! What is written after the last shard: index, config, side files, checksums, and the report last.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::json;

use super::engine::{Options, Which, sums};
use super::journal::ShardLine;
use super::plan::{OutputPlan, check_sum};
use super::stage::Note;
use crate::checkpoint::folder::{REPORT, SUMS};
use crate::checkpoint::{ShardFile, index_json};
use crate::checksum::{self, Digests};
use crate::error::{Error, Result};
use crate::names::{Digest, FileName};
use crate::report::{FileLine, Report, StageReport};
use crate::write::write_file;

/// Builds the report: every stage concludes over the notes of all shards.
pub(crate) fn report(
    plan: &OutputPlan,
    done: &BTreeMap<String, ShardLine>,
    inputs: &[(FileName, Digest)],
    options: &Options,
) -> Result<Report> {
    inputs.iter().try_for_each(|(name, digest)| check_sum(&plan.source_sums, name, *digest))?;
    let mut report = Report::new(&options.command);
    report.plan_sha256 = plan.digest().to_string();
    let shard = |s: &ShardFile| FileLine {
        name: s.name.to_string(),
        sha256: inputs.iter().find(|(name, _)| *name == s.name).map(|(_, digest)| *digest),
        header_sha256: Some(s.header_digest),
        len: s.stamp.len,
        origin: "base".to_string(),
    };
    report.inputs = plan.base.shard_files().iter().map(shard).collect();
    for (at, (stage, _)) in plan.stages.iter().enumerate() {
        let mut details = match options.which {
            Which::All | Which::Finish => stage.work.conclude(&notes_of(at, done))?,
            Which::Part(_) => serde_json::Value::Null,
        };
        let inputs = stage.inputs.iter();
        report.inputs.extend(inputs.map(|i| FileLine::new(&i.name, i.sha256, i.len, stage.name)));
        report.warnings.extend(stage.warnings.iter().cloned());
        report.warnings.extend(take_warnings(&mut details));
        report.stages.push(StageReport {
            name: stage.name.to_string(),
            options: stage.options.clone(),
            dropped: stage.dropped.clone(),
            decisions: stage.decisions.clone(),
            details,
        });
    }
    report.warnings.extend(plan.warnings.iter().cloned());
    report.left_out = plan.output.left_out.clone();
    report.outputs = sums(done)?
        .into_iter()
        .map(|(name, (d, len))| FileLine::new(name.as_str(), d, len, "prep"))
        .collect();
    Ok(report)
}

/// What a stage found to warn of once it had seen all values.
fn take_warnings(details: &mut serde_json::Value) -> Vec<String> {
    let warnings = details.as_object_mut().and_then(|d| d.shift_remove("warnings"));
    let texts = warnings.as_ref().and_then(|w| w.as_array()).into_iter().flatten();
    texts.filter_map(|w| w.as_str().map(str::to_string)).collect()
}

/// The sums of stage `at` over all shards, by tensor.
fn notes_of(at: usize, done: &BTreeMap<String, ShardLine>) -> Vec<Note> {
    let mut by_tensor: BTreeMap<&str, Note> = BTreeMap::new();
    for (_, note) in done.values().flat_map(|l| &l.notes).filter(|(stage, _)| *stage == at) {
        match by_tensor.get_mut(note.tensor.as_str()) {
            Some(sum) => sum.absorb(note),
            None => {
                by_tensor.insert(&note.tensor, note.clone());
            }
        }
    }
    by_tensor.into_values().collect()
}

/// Writes everything but the shards, the report last.
pub(crate) fn write_rest(
    plan: &OutputPlan,
    out: &Path,
    done: &BTreeMap<String, ShardLine>,
    report: &mut Report,
) -> Result<()> {
    let mut digests: Digests = sums(done)?.into_iter().map(|(name, (digest, _))| (name, digest)).collect();
    let mut put = |name: &FileName, bytes: &[u8], origin: &str| -> Result<()> {
        write_file(out, name, bytes)?;
        let digest = Digest::of(bytes);
        digests.insert(name.clone(), digest);
        report.outputs.push(FileLine::new(name.as_str(), digest, bytes.len() as u64, origin));
        Ok(())
    };
    let index = &plan.output.tensors;
    if index.shards().len() != 1 || index.shards()[0].as_str() != "model.safetensors" {
        put(&FileName::parse(index_json::INDEX)?, index_json::encode(index).as_bytes(), "prep")?;
    }
    let config_origin = match plan.output.config.text() == plan.base.config().text() {
        true => "base",
        false => "base, edited",
    };
    put(&FileName::parse("config.json")?, plan.output.config.text().as_bytes(), config_origin)?;
    for file in &plan.output.files {
        let bytes = file.content.read()?;
        if plan.files.get(&file.name) != Some(&Digest::of(&bytes)) {
            return Err(Error::input(format!("{} changed while the model was rewritten", file.name))
                .hint("let its writer finish, then run again"));
        }
        put(&file.name, &bytes, &file.origin)?;
    }
    let text = checksum::encode(&digests);
    write_file(out, &FileName::parse(SUMS)?, text.as_bytes())?;
    report.sums_sha256 = Some(Digest::of(text.as_bytes()).to_string());
    let text = format!("{:#}\n", json!(report));
    write_file(out, &FileName::parse(REPORT)?, text.as_bytes())
}

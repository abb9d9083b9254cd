//! Is what was published a sound model? Every byte is the hub's; the hub's may still be wrong.

use std::path::Path;

use verify::checkpoint::ShardFile;
use verify::{Checkpoint, Error, Result};

use super::plan::Plan;

/// What was checked beyond digests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checked {
    /// Config, index and all headers.
    Checkpoint,
    /// The headers of an adapter.
    Adapter,
    /// Nothing: only a part was asked for.
    Nothing,
}

impl Checked {
    /// For the report.
    pub fn name(self) -> &'static str {
        match self {
            Checked::Checkpoint => "checkpoint",
            Checked::Adapter => "adapter",
            Checked::Nothing => "nothing",
        }
    }
}

/// Opens the folder `dir` as what `plan` fetched.
///
/// # Errors
/// Exit 3 where the repository itself is broken.
pub fn open(dir: &Path, plan: &Plan) -> Result<Checked> {
    let has = |name: &str| plan.files.iter().any(|f| f.path.as_str() == name);
    let shards =
        || plan.files.iter().filter_map(|f| f.path.top()).filter(|n| n.as_str().ends_with(".safetensors"));
    let broken = |e: Error| e.at(format!("{} is not sound as it was published", plan.repo));
    if plan.is_partial() {
        return Ok(Checked::Nothing);
    }
    if has("config.json") && shards().next().is_some() {
        return Checkpoint::open(dir).map(|_| Checked::Checkpoint).map_err(broken);
    }
    if has("adapter_config.json") {
        shards().try_for_each(|n| ShardFile::open(dir, &n).map(drop)).map_err(broken)?;
        return Ok(Checked::Adapter);
    }
    Ok(Checked::Nothing)
}

//! `prep-report.json`: what went in, what came out, every decision with its reason. The only file of a
//! result that may hold times.

use std::path::Path;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::checkpoint::LeftOut;
use crate::checkpoint::folder::{REPORT, SUMS};
use crate::checksum;
use crate::error::{Error, Result};
use crate::names::{Digest, FileName};
use crate::private::Hiding;
use crate::rewrite::{Decision, Dropped};
use crate::write::write_file;

/// The report of a rewrite.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    /// Version of `prep`.
    pub prep: String,
    /// The command as it was given, but for paths of the machine.
    pub command: String,
    /// When it was finished, RFC 3339, UTC.
    pub finished: String,
    /// Wall time in seconds.
    pub seconds: f64,
    /// Largest resident set of the process in bytes, where the system tells.
    pub peak_memory: Option<u64>,
    /// Digest of the plan.
    pub plan_sha256: String,
    /// Digest of `SHA256SUMS`.
    pub sums_sha256: Option<String>,
    /// Files that were read.
    pub inputs: Vec<FileLine>,
    /// Files that were written, with where each comes from.
    pub outputs: Vec<FileLine>,
    /// Files of the inputs that were not carried over.
    pub left_out: Vec<LeftOut>,
    /// What each stage did.
    pub stages: Vec<StageReport>,
    /// Things to act on.
    pub warnings: Vec<String>,
    /// What `prep run` found when it verified the folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verification: Option<Value>,
}

/// One file of a report.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FileLine {
    /// Name, without any path of the machine.
    pub name: String,
    /// sha256; of large inputs only where it was asked for or can be compared.
    pub sha256: Option<Digest>,
    /// sha256 of the header of an input shard: names, dtypes, shapes and their places.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header_sha256: Option<Digest>,
    /// Length in bytes.
    pub len: u64,
    /// Where it comes from or what it is for.
    pub origin: String,
}

impl FileLine {
    /// A line.
    pub fn new(name: &str, sha256: Digest, len: u64, origin: &str) -> Self {
        FileLine {
            name: name.to_string(),
            sha256: Some(sha256),
            header_sha256: None,
            len,
            origin: origin.to_string(),
        }
    }
}

/// One stage of a report.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StageReport {
    /// Its name.
    pub name: String,
    /// What was asked for.
    pub options: Value,
    /// Input tensors that are in no output.
    pub dropped: Vec<Dropped>,
    /// Choices with their reasons.
    pub decisions: Vec<Decision>,
    /// The stage's own figures.
    pub details: Value,
}

impl Report {
    /// An empty report of `command`.
    pub fn new(command: &str) -> Self {
        Report {
            prep: env!("CARGO_PKG_VERSION").to_string(),
            command: command.to_string(),
            finished: chrono::DateTime::<chrono::Utc>::from(SystemTime::now())
                .to_rfc3339_opts(chrono::SecondsFormat::Secs, true),
            seconds: 0.0,
            peak_memory: peak_memory(),
            plan_sha256: String::new(),
            sums_sha256: None,
            inputs: Vec::new(),
            outputs: Vec::new(),
            left_out: Vec::new(),
            stages: Vec::new(),
            warnings: Vec::new(),
            verification: None,
        }
    }

    /// Hides the paths of the machine in all that is told; names of files have none.
    pub fn hide(&mut self, hiding: &Hiding) {
        let text = |t: &mut String| *t = hiding.text(t);
        text(&mut self.command);
        self.warnings.iter_mut().for_each(text);
        self.inputs.iter_mut().chain(&mut self.outputs).for_each(|f| text(&mut f.origin));
        for stage in &mut self.stages {
            stage.dropped.iter_mut().for_each(|d| text(&mut d.reason));
            stage.decisions.iter_mut().for_each(|d| text(&mut d.reason));
            hiding.value(&mut stage.options);
            hiding.value(&mut stage.details);
        }
        self.verification.iter_mut().for_each(|v| hiding.value(v));
    }

    /// The report of a finished folder; `None` where there is none that this version wrote.
    pub fn read(dir: &Path) -> Option<Self> {
        let value = crate::checkpoint::json::read(&dir.join(REPORT)).ok()?;
        serde_json::from_value(value).ok()
    }

    /// Writes the report into a finished folder again, after `verification` was added.
    ///
    /// # Errors
    /// Exit 5 when it cannot be written.
    pub fn write(&self, dir: &Path) -> Result<()> {
        let text = format!("{:#}\n", serde_json::json!(self));
        write_file(dir, &FileName::parse(REPORT)?, text.as_bytes())
    }
}

/// Origin of a file that was changed on purpose after the run that made the folder.
pub const CHANGED: &str = "changed after the run";

/// Brings `SHA256SUMS` and the report of a finished folder up to date after the side files `changed` were
/// replaced on purpose.
///
/// # Errors
/// When a file cannot be read or written.
pub fn refresh_sums(dir: &Path, changed: &[FileName]) -> Result<()> {
    if !dir.join(SUMS).exists() {
        return Ok(());
    }
    let mut digests = checksum::read(dir)?;
    for name in changed {
        digests.insert(name.clone(), checksum::of_file(&dir.join(name))?);
    }
    write_sums(dir, &digests, CHANGED)
}

/// Writes `SHA256SUMS`, and brings the report of the folder, where there is one, into line with it.
///
/// # Errors
/// When a file cannot be read or written.
pub fn write_sums(dir: &Path, digests: &checksum::Digests, origin: &str) -> Result<()> {
    let text = checksum::encode(digests);
    write_file(dir, &FileName::parse(SUMS)?, text.as_bytes())?;
    let Some(mut report) = Report::read(dir) else { return Ok(()) };
    report.sums_sha256 = Some(Digest::of(text.as_bytes()).to_string());
    for (name, digest) in digests {
        let path = dir.join(name);
        let len = std::fs::metadata(&path).map_err(|e| Error::io("read", &path, &e))?.len();
        match report.outputs.iter_mut().find(|f| f.name == name.as_str()) {
            Some(line) if line.sha256 == Some(*digest) => {}
            Some(line) => *line = FileLine::new(name.as_str(), *digest, len, origin),
            None => report.outputs.push(FileLine::new(name.as_str(), *digest, len, origin)),
        }
    }
    report.outputs.retain(|f| FileName::parse(&f.name).is_ok_and(|n| digests.contains_key(&n)));
    report.write(dir)
}

/// `VmHWM` of this process in bytes (Linux).
pub fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|l| l.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
}

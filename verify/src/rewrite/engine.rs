//! Runs a plan: reads, computes in parallel, writes in order, hashes on the way, journals every shard.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::chain::{Notes, StageReader};
use super::finish;
use super::journal::{self, Journal, ShardLine, Sums};
use super::lock::{Lock, Locking};
use super::pipeline::ordered;
use super::plan::{OutputPlan, ShardPlan};
use super::stage::{Note, Preparation};
use super::target::{Existing, Target};
use crate::checkpoint::folder::WORK;
use crate::checkpoint::{TensorReader, list_some};
use crate::checksum;
use crate::error::{Class, Error, Result};
use crate::names::{Digest, FileName, Shown};
use crate::private::{Hiding, Paths};
use crate::progress::Progress;
use crate::report::{CHANGED, FileLine, Report};
use crate::write::{ShardWriter, free_space, remove_tree, write_file};

/// A slice of a plan's shards: part `index` of `count`, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    index: usize,
    count: usize,
}

impl Part {
    /// Reads `i/n`.
    ///
    /// # Errors
    /// Exit 2 where it is not `i/n` with 1 <= i <= n.
    pub fn parse(text: &str) -> Result<Self> {
        let numbers = text.split_once('/').and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
        match numbers {
            Some((index, count)) if 1 <= index && index <= count => Ok(Part { index, count }),
            _ => Err(Error::usage(format!("`{}` is no part", Shown(text))).expected("i/n, such as 2/8")),
        }
    }

    /// Which part, from 1.
    pub fn index(self) -> usize {
        self.index
    }

    /// How many parts there are.
    pub fn count(self) -> usize {
        self.count
    }

    fn has(self, shard: usize) -> bool {
        shard % self.count == self.index - 1
    }
}

/// Which shards a run writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Which {
    /// All that are not there yet; then the folder is completed.
    #[default]
    All,
    /// Those of one part; the folder stays unfinished.
    Part(Part),
    /// None: all must be there from the runs of the parts; the folder is completed.
    Finish,
}

impl Which {
    fn part(self) -> Option<Part> {
        match self {
            Which::Part(p) => Some(p),
            Which::All | Which::Finish => None,
        }
    }
}

/// How a plan is run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Worker threads; the result does not depend on it.
    pub threads: usize,
    /// What to do with an output folder that is there already.
    pub existing: Existing,
    /// Which shards are written.
    pub which: Which,
    /// How long to wait for another run on the same folder.
    pub lock_wait: Duration,
    /// Whether runs on the same folder keep one another out.
    pub locking: Locking,
    /// Other input folders, which the output must not touch.
    pub inputs: Vec<PathBuf>,
    /// The command as it was given, for the report.
    pub command: String,
    /// What becomes of the machine's paths in the report.
    pub paths: Paths,
    /// Hash every input shard for the report, however large.
    pub hash_inputs: bool,
    /// What a part leaves in [`COMMAND`], so that the folder can be assembled without repeating options.
    pub remember: Option<Vec<u8>>,
}

/// Where a part leaves [`Options::remember`], in the folder of the journal.
pub const COMMAND: &str = "command.json";

impl Default for Options {
    fn default() -> Self {
        Options {
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            existing: Existing::Continue,
            which: Which::All,
            lock_wait: Duration::ZERO,
            locking: Locking::default(),
            inputs: Vec::new(),
            command: String::new(),
            paths: Paths::default(),
            hash_inputs: false,
            remember: None,
        }
    }
}

/// What a run did.
#[derive(Debug)]
pub struct Finished {
    /// The folder, as it was named.
    pub out: PathBuf,
    /// The report, as it lies in the folder (of a part: as far as it goes, not written).
    pub report: Report,
    /// Shards that an earlier run had finished.
    pub resumed: usize,
    /// True where the folder was complete already and nothing was written.
    pub already: bool,
    /// What is hidden in the report, also in what is added to it later.
    pub hiding: Hiding,
}

/// Runs `plan` into `out`. Runs that were interrupted are continued; but for a [`Which::Part`] the
/// folder is complete when this returns, and `prep-report.json` is the last file written.
///
/// # Errors
/// Exit 2 for an unusable `out`, 3 for broken input, 5 for disk trouble, 75 when locked, 130 when stopped;
/// what is finished by then stays and is continued by the next run.
pub fn run(plan: &OutputPlan, out: &Path, options: &Options, progress: &dyn Progress) -> Result<Finished> {
    let started = Instant::now();
    let part = options.which.part();
    if options.which != Which::All && options.existing == Existing::Replace {
        return Err(Error::usage("parts cannot replace a finished folder")
            .hint("choose a new --out, or leave out --force"));
    }
    let mut inputs = options.inputs.clone();
    inputs.push(plan.base.dir().to_path_buf());
    let hiding = options.paths.hiding(inputs.iter().map(PathBuf::as_path).chain([out]));
    let (target, locks) = loop {
        if options.existing == Existing::Continue
            && let Some(report) = finished_before(plan, out)?
        {
            let resumed = plan.shards.len();
            return Ok(Finished { out: out.to_path_buf(), report, resumed, already: true, hiding });
        }
        let target = Target::prepare(out, &inputs, options.existing)?;
        let wait = options.lock_wait.saturating_sub(started.elapsed());
        match Locks::take(&target, part, (options.locking, wait)) {
            Ok(locks) => break (target, locks),
            // The lock goes with the folder's journal when its holder completes the folder: look again.
            Err(e) if e.class() == Class::Locked && started.elapsed() < options.lock_wait => continue,
            Err(e) => return Err(e),
        }
    };
    let others = other_runs(plan, &target, part)?;
    let mut journal = Journal::open(&target.build, &plan.identity, part)?;
    if part.is_none() {
        journal.done.extend(others);
    }
    if let Some(bytes) = options.remember.as_ref().filter(|_| part.is_some()) {
        write_file(&target.build.join(WORK), &FileName::parse(COMMAND)?, bytes)?;
    }
    let resumed = drop_bad_shards(plan, &target.build, &mut journal.done, progress)?;
    let todo: Vec<usize> = (0..plan.shards.len())
        .filter(|&s| part.is_none_or(|p| p.has(s)))
        .filter(|&s| !journal.done.contains_key(plan.shards[s].name.as_str()))
        .collect();
    if options.which == Which::Finish && !todo.is_empty() {
        return Err(parts_missing(plan, &todo, out));
    }
    check_space(plan, &todo, &target.build)?;
    prepare(plan, &target.build, options.threads, progress)?;
    let total = todo.iter().map(|&s| plan.shards[s].bytes).sum();
    progress.begin("writing", total);
    let failed = AtomicBool::new(false);
    let inputs = std::thread::scope(|scope| {
        // Parts read only a slice: the run that completes the folder hashes the whole input.
        let until = Until { progress, failed: &failed };
        let hashing = (part.is_none() && must_hash(plan, options))
            .then(|| scope.spawn(move || hash_inputs(plan, &until)));
        let written = write_shards(plan, &todo, &target.build, options.threads, &mut journal, progress);
        failed.store(written.is_err(), Ordering::Relaxed);
        written?;
        let early = |_| Err(Error::input("hashing the input ended early"));
        hashing.map_or(Ok(Vec::new()), |h| h.join().unwrap_or_else(early))
    })?;
    plan.base.unchanged()?;
    let mut report = finish::report(plan, &journal.done, &inputs, options)?;
    report.seconds = started.elapsed().as_secs_f64();
    report.warnings.extend(options.locking.warning());
    report.hide(&hiding);
    if part.is_some() {
        return Ok(Finished { out: out.to_path_buf(), report, resumed, already: false, hiding });
    }
    finish::write_rest(plan, &target.build, &journal.done, &mut report)?;
    target.complete()?;
    drop(locks);
    Ok(Finished { out: out.to_path_buf(), report, resumed, already: false, hiding })
}

/// The report of `out` where a run of this very plan completed it (it may have been killed before it could
/// remove its journal). Side files are hashed, shards compared by length.
fn finished_before(plan: &OutputPlan, out: &Path) -> Result<Option<Report>> {
    let shard = |name: &str| plan.shards.iter().any(|s| s.name.as_str() == name);
    let right = |f: &FileLine| {
        let path = out.join(&f.name);
        let length = std::fs::metadata(&path).is_ok_and(|m| m.len() == f.len);
        length && (shard(&f.name) || checksum::of_file(&path).is_ok_and(|d| Some(d) == f.sha256))
    };
    let whole = |r: &Report| {
        let same = r.plan_sha256 == plan.digest().to_string() && r.sums_sha256.is_some();
        same && r.outputs.iter().all(|f| f.origin != CHANGED && right(f))
    };
    let report = Report::read(out).filter(whole);
    if report.is_some() {
        remove_tree(&out.join(WORK))?;
    }
    Ok(report)
}

/// A whole run excludes every other; parts exclude whole runs and themselves.
struct Locks {
    _held: Vec<Option<Lock>>,
}

impl Locks {
    fn take(target: &Target, part: Option<Part>, (how, wait): (Locking, Duration)) -> Result<Self> {
        let work = target.build.join(WORK);
        let whole = work.join("lock");
        let held = match part {
            None => {
                let mut held = vec![how.take(&whole, wait)?];
                // A run without --force may be writing the folder that this one will replace.
                if let Some(work) = target.busy() {
                    held.push(how.take(&work.join("lock"), wait)?);
                }
                held
            }
            Some(p) => {
                let own = work.join(format!("lock-{}-of-{}", p.index, p.count));
                vec![how.share(&whole, wait)?, how.take(&own, wait)?]
            }
        };
        Ok(Locks { _held: held })
    }
}

fn parts_missing(plan: &OutputPlan, todo: &[usize], out: &Path) -> Error {
    let names: Vec<_> = todo.iter().map(|&s| plan.shards[s].name.to_string()).collect();
    Error::check(format!("{} is not complete", Shown::path(out)))
        .found(format!("no {}", list_some(&names)))
        .expected("every shard written by the run of its part")
        .hint("run the parts that are missing, then assemble again")
}

/// What other runs of the plan have finished. A run of another plan is refused, or cleared away by `--force`.
fn other_runs(plan: &OutputPlan, target: &Target, part: Option<Part>) -> Result<BTreeMap<String, ShardLine>> {
    match journal::read_all(&target.build, &plan.identity, part) {
        Err(e) if target.replaces() && e.class() == Class::Usage => {
            target.clear()?;
            Ok(BTreeMap::new())
        }
        other => other,
    }
}

/// Forgets shards whose file is missing or not what the journal says: each is hashed again, which costs less
/// than trusting a disk that may have lost what was written last.
fn drop_bad_shards(
    plan: &OutputPlan,
    out: &Path,
    done: &mut BTreeMap<String, ShardLine>,
    progress: &dyn Progress,
) -> Result<usize> {
    done.retain(|name, _| plan.shards.iter().any(|s| s.name.as_str() == name));
    let total = done.values().map(|l| l.len).sum();
    progress.begin("checking finished shards", total);
    let mut bad = Vec::new();
    for (name, line) in done.iter() {
        let path = out.join(name);
        let right_length = std::fs::metadata(&path).is_ok_and(|m| m.len() == line.len);
        if !right_length || checksum::of_file(&path)?.to_string() != line.sha256 {
            bad.push(name.clone());
        }
        progress.advance(line.len);
        progress.check()?;
    }
    for name in bad {
        progress.note(&format!("{name} is not as it was finished: writing it again"));
        done.remove(&name);
    }
    Ok(done.len())
}

fn check_space(plan: &OutputPlan, todo: &[usize], out: &Path) -> Result<()> {
    let need: u64 = todo.iter().map(|&s| plan.shards[s].bytes).sum();
    // What stages keep meanwhile, but for what an earlier run left of it.
    let kept = plan.work_bytes().saturating_sub(bytes_of_stages(plan, out));
    let need = need + need / 50 + kept;
    let Some(have) = free_space(out) else { return Ok(()) };
    match have >= need {
        true => Ok(()),
        false => Err(Error::new(Class::Disk, format!("not enough space for {}", Shown::path(out)))
            .found(format!("{} free", of_bytes(have)))
            .expected(of_bytes(need))
            .hint("free some space, or choose an --out on another disk")),
    }
}

/// Bytes in the folders of the stages.
fn bytes_of_stages(plan: &OutputPlan, out: &Path) -> u64 {
    let files = (0..plan.stages.len()).filter_map(|at| std::fs::read_dir(stage_folder(out, at)).ok());
    files.flatten().filter_map(|file| Some(file.ok()?.metadata().ok()?.len())).sum()
}

/// The folder of stage number `at`'s own.
fn stage_folder(out: &Path, at: usize) -> PathBuf {
    out.join(WORK).join(format!("stage-{at}"))
}

fn of_bytes(bytes: u64) -> String {
    match bytes {
        0..0x4000_0000 => format!("{:.2} MiB", bytes as f64 / f64::from(1u32 << 20)),
        _ => format!("{:.2} GiB", bytes as f64 / f64::from(1u32 << 30)),
    }
}

/// Inputs up to this size are hashed without being asked.
const SMALL_INPUT: u64 = 512 << 20;

/// Hashing an input costs as much as rewriting it: done where the digest can be compared, where it is asked for,
/// and where it is cheap. Headers, lengths and times of all shards are part of the plan in any case.
fn must_hash(plan: &OutputPlan, options: &Options) -> bool {
    options.hash_inputs || !plan.source_sums.is_empty() || plan.base_bytes() <= SMALL_INPUT
}

/// Stops with the run: a disk that is full must not wait for the rest of the input to be hashed.
struct Until<'a> {
    progress: &'a dyn Progress,
    failed: &'a AtomicBool,
}

impl Progress for Until<'_> {
    fn begin(&self, _: &str, _: u64) {}
    fn advance(&self, _: u64) {}
    fn note(&self, _: &str) {}
    fn stopped(&self) -> bool {
        self.failed.load(Ordering::Relaxed) || self.progress.stopped()
    }
}

/// sha256 of every input shard, in the order in which they are read, so that the disk is read once.
fn hash_inputs(plan: &OutputPlan, progress: &dyn Progress) -> Result<Vec<(FileName, Digest)>> {
    let shards = plan.base.shard_files().iter();
    shards
        .map(|s| {
            progress.check()?;
            Ok((s.name.clone(), checksum::of_file_with(&s.path, progress)?))
        })
        .collect()
}

/// Lets every stage see what it must see before its first unit; a later stage reads through the ones before it.
fn prepare(plan: &OutputPlan, out: &Path, threads: usize, progress: &dyn Progress) -> Result<()> {
    for (at, (stage, _)) in plan.stages.iter().enumerate() {
        let notes = Notes::default();
        let before = at.checked_sub(1).map(|at| StageReader {
            stages: &plan.stages,
            at,
            base: &plan.base,
            notes: &notes,
        });
        let input = before.as_ref().map_or(&plan.base as &dyn TensorReader, |b| b);
        let folder = stage_folder(out, at);
        stage.work.prepare(&Preparation { input, folder: &folder, threads, progress })?;
    }
    Ok(())
}

/// One chunk of one unit.
struct Chunk {
    shard: usize,
    unit: usize,
    rows: Range<usize>,
    last_of_unit: bool,
}

fn chunks(plan: &OutputPlan, todo: &[usize]) -> Vec<Chunk> {
    let Some((stage, _)) = plan.stages.last() else { return Vec::new() };
    let mut out = Vec::new();
    for &shard in todo {
        for unit in plan.shards[shard].units.clone() {
            let u = &stage.units[unit];
            let mut at = 0;
            loop {
                let end = (at + u.step).min(u.rows);
                out.push(Chunk { shard, unit, rows: at..end, last_of_unit: end == u.rows });
                at = end;
                if at == u.rows {
                    break;
                }
            }
        }
    }
    out
}

fn write_shards(
    plan: &OutputPlan,
    todo: &[usize],
    out: &Path,
    threads: usize,
    journal: &mut Journal,
    progress: &dyn Progress,
) -> Result<()> {
    let chunks = chunks(plan, todo);
    let mut open: Option<OpenShard<'_>> = None;
    let mut todo = todo.iter().copied().peekable();
    let make = |i: usize| {
        let notes = Notes::default();
        let reader =
            StageReader { stages: &plan.stages, at: plan.stages.len() - 1, base: &plan.base, notes: &notes };
        let bytes = reader.apply(chunks[i].unit, chunks[i].rows.clone())?;
        Ok((bytes, notes.into_inner().unwrap_or_else(|p| p.into_inner())))
    };
    let take = |i: usize, (bytes, notes): (Vec<Vec<u8>>, Vec<(usize, Note)>)| {
        progress.check()?;
        let chunk = &chunks[i];
        // Shards without any tensor have no chunk: they are written when their turn is passed.
        while let Some(s) = todo.next_if(|&s| s <= chunk.shard && open.is_none()) {
            let shard = OpenShard::create(plan, s, out)?;
            if s == chunk.shard {
                open = Some(shard);
            } else {
                shard.finish(journal, progress)?;
            }
        }
        let shard = open.as_mut().ok_or_else(|| Error::input("chunk of a shard that is not open"))?;
        progress.advance(shard.add(chunk, bytes, notes)?);
        let last = chunks.get(i + 1).is_none_or(|next| next.shard != chunk.shard);
        match open.take() {
            Some(shard) if last => shard.finish(journal, progress),
            shard => {
                open = shard;
                Ok(())
            }
        }
    };
    ordered(threads, chunks.len(), make, take)?;
    todo.try_for_each(|s| OpenShard::create(plan, s, out)?.finish(journal, progress))
}

/// A shard that is being written, with the outputs whose turn in the file has not come yet.
struct OpenShard<'a> {
    plan: &'a ShardPlan,
    units: &'a [super::stage::Unit],
    writer: ShardWriter,
    /// How much of `plan.layout` is whole.
    turn: usize,
    /// Bytes by (unit, output), and whether the unit has ended.
    held: BTreeMap<(usize, usize), Vec<u8>>,
    ended: std::collections::BTreeSet<usize>,
    notes: BTreeMap<(usize, String, usize), Note>,
}

impl<'a> OpenShard<'a> {
    fn create(plan: &'a OutputPlan, shard: usize, out: &Path) -> Result<Self> {
        let units = plan.stages.last().map_or(&[][..], |(s, _)| &s.units);
        let plan = &plan.shards[shard];
        let mut writer = ShardWriter::create(out, &plan.name)?;
        writer.append(plan.header.clone())?;
        let (held, ended, notes) = Default::default();
        Ok(OpenShard { plan, units, writer, turn: 0, held, ended, notes })
    }

    /// Takes a chunk's outputs; returns the bytes that could be written.
    fn add(&mut self, chunk: &Chunk, outputs: Vec<Vec<u8>>, notes: Vec<(usize, Note)>) -> Result<u64> {
        let before = self.writer.written();
        for (o, bytes) in outputs.into_iter().enumerate() {
            if self.plan.layout.get(self.turn) == Some(&(chunk.unit, o))
                && !self.held.contains_key(&(chunk.unit, o))
            {
                self.writer.append(bytes)?;
            } else {
                self.held.entry((chunk.unit, o)).or_default().extend_from_slice(&bytes);
            }
        }
        for (stage, note) in notes {
            self.notes.insert((stage, note.tensor.clone(), note.row), note);
        }
        if chunk.last_of_unit {
            self.ended.insert(chunk.unit);
        }
        while let Some(&(u, o)) = self.plan.layout.get(self.turn) {
            if let Some(bytes) = self.held.remove(&(u, o)) {
                self.writer.append(bytes)?;
            }
            if !self.ended.contains(&u) {
                break;
            }
            self.turn += 1;
        }
        Ok(self.writer.written() - before)
    }

    fn finish(self, journal: &mut Journal, progress: &dyn Progress) -> Result<()> {
        debug_assert!(self.held.is_empty() && self.units.len() >= self.plan.units.end);
        if self.writer.written() != self.plan.bytes {
            return Err(Error::input(format!(
                "{} came out with another length than planned",
                self.plan.name
            ))
            .found(format!("{} bytes", self.writer.written()))
            .expected(format!("{} bytes", self.plan.bytes))
            .hint("this is a fault of prep: please report it with the command"));
        }
        let (digest, len) = self.writer.finish()?;
        progress.note(&format!("{} done, sha256 {digest}", self.plan.name));
        let notes = sum_up(self.notes);
        journal.finished(ShardLine {
            shard: self.plan.name.to_string(),
            sha256: digest.to_string(),
            len,
            notes,
        })
    }
}

/// Adds notes up per stage and tensor, in row order, so that the sums do not depend on the threads.
fn sum_up(notes: BTreeMap<(usize, String, usize), Note>) -> Vec<(usize, Note)> {
    let mut out: Vec<(usize, Note)> = Vec::new();
    for ((stage, tensor, _), note) in notes {
        match out.last_mut() {
            Some((s, sum)) if *s == stage && sum.tensor == tensor => sum.absorb(&note),
            _ => out.push((stage, Note { row: 0, ..note })),
        }
    }
    out
}

impl Note {
    /// Adds `other`'s figures to these.
    pub fn absorb(&mut self, other: &Note) {
        self.sums.iter_mut().zip(&other.sums).for_each(|(a, b)| *a += b);
        self.maxima.iter_mut().zip(&other.maxima).for_each(|(a, b)| *a = a.max(*b));
    }
}

/// Names, digests and lengths of all finished shards.
pub(crate) fn sums(done: &BTreeMap<String, ShardLine>) -> Result<Sums> {
    done.values()
        .map(|l| {
            let digest = Digest::parse(&l.sha256).ok_or_else(|| Error::input("the journal is damaged"))?;
            Ok((FileName::parse(&l.shard)?, (digest, l.len)))
        })
        .collect()
}

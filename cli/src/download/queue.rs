//! Which ranges of which files are to be fetched next; shared by all workers.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use verify::{Class, Digest, Error, Result};

use super::digest::Expected;
use super::names::RepoPath;
use super::part::{Cut, Part};

/// A file to fetch.
#[derive(Debug, Clone)]
pub struct Item {
    /// Its path in the repository.
    pub path: RepoPath,
    /// Its length in bytes.
    pub size: u64,
    /// What its content must be.
    pub digest: Expected,
    /// Where it grows.
    pub part: PathBuf,
    /// Where it goes once it is whole and right.
    pub name: PathBuf,
}

/// A range to fetch.
#[derive(Debug, Clone)]
pub struct Task {
    /// Which of the items.
    pub file: usize,
    /// Which of its ranges.
    pub range: usize,
    /// The file.
    pub part: Arc<Part>,
}

/// Why a file has to be begun again.
#[derive(Debug)]
pub enum Why {
    /// The server sends whole files only.
    RangeIgnored,
    /// The server names another content.
    Changed(String),
    /// The whole file has another digest.
    WrongDigest(Expected),
}

/// The files of one download.
pub struct Queue<'a> {
    items: &'a [Item],
    range: u64,
    state: Mutex<State>,
    wake: Condvar,
    ended: AtomicBool,
}

struct State {
    pending: VecDeque<usize>,
    tasks: VecDeque<Task>,
    files: Vec<FileState>,
    left: usize,
    error: Option<Error>,
}

#[derive(Default, Clone)]
struct FileState {
    part: Option<Arc<Part>>,
    changed: bool,
    wrong: bool,
    found: Option<Digest>,
}

/// What a worker does next.
pub enum Next {
    /// Fetch a range.
    Range(Task),
    /// Follow a file that was just opened.
    Opened(usize, Arc<Part>),
    /// Nothing is left, or another worker failed.
    End,
}

impl<'a> Queue<'a> {
    /// All of `items`, in order; big ones cut into ranges of `range` bytes.
    pub fn new(items: &'a [Item], range: u64) -> Self {
        let state = State {
            pending: (0..items.len()).collect(),
            tasks: VecDeque::new(),
            files: vec![FileState::default(); items.len()],
            left: items.len(),
            error: None,
        };
        let ended = AtomicBool::new(items.is_empty());
        Queue { items, range, state: Mutex::new(state), wake: Condvar::new(), ended }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// The next thing to do; waits while other workers may still leave some.
    ///
    /// # Errors
    /// Exit 5 where a file cannot be opened.
    pub fn next(&self) -> Result<Next> {
        let mut state = self.lock();
        loop {
            if state.left == 0 || state.error.is_some() {
                return Ok(Next::End);
            }
            if let Some(task) = state.tasks.pop_front() {
                return Ok(Next::Range(task));
            }
            if let Some(file) = state.pending.pop_front() {
                let item = &self.items[file];
                let part = Part::open(&item.part, item.size, item.digest, self.range)?;
                let part = Arc::new(part);
                self.add(&mut state, file, &part);
                return Ok(Next::Opened(file, part));
            }
            state = self.wake.wait(state).unwrap_or_else(|p| p.into_inner());
        }
    }

    fn add(&self, state: &mut State, file: usize, part: &Arc<Part>) {
        state.files[file].part = Some(part.clone());
        for range in 0..part.ranges() {
            let span = part.span(range);
            if part.done(range) < span.end - span.start {
                state.tasks.push_back(Task { file, range, part: part.clone() });
            }
        }
        self.wake.notify_all();
    }

    /// Begins a file anew; the part to follow, or `None` where another worker was first.
    ///
    /// # Errors
    /// Exit 4 where this happened before.
    pub fn restart(&self, file: usize, old: &Arc<Part>, why: &Why) -> Result<Option<Arc<Part>>> {
        let mut state = self.lock();
        let known = state.files[file].part.as_ref().is_some_and(|p| Arc::ptr_eq(p, old));
        if !known || state.error.is_some() {
            return Ok(None);
        }
        let item = &self.items[file];
        let entry = &mut state.files[file];
        let (again, cut) = match why {
            Why::RangeIgnored => (old.cut() == Cut::Whole, Cut::Whole),
            Why::Changed(_) => (std::mem::replace(&mut entry.changed, true), old.cut()),
            Why::WrongDigest(_) => (std::mem::replace(&mut entry.wrong, true), old.cut()),
        };
        old.drop_it();
        if again {
            let _ = std::fs::remove_file(&item.part);
            return Err(given_up(item, why));
        }
        state.tasks.retain(|t| t.file != file);
        let part = Arc::new(Part::create(&item.part, item.size, item.digest, cut)?);
        self.add(&mut state, file, &part);
        Ok(Some(part))
    }

    /// True until a header made us begin the file again: some mirrors send an `ETag` of another kind, and the digest
    /// decides in the end.
    pub fn heeds_headers(&self, file: usize) -> bool {
        !self.lock().files[file].changed
    }

    /// Notes a file that has its name.
    pub fn finished(&self, file: usize, sha256: Digest) {
        let mut state = self.lock();
        state.files[file].found = Some(sha256);
        state.files[file].part = None;
        state.left -= 1;
        if state.left == 0 {
            self.ended.store(true, Ordering::Release);
        }
        self.wake.notify_all();
    }

    /// Ends all workers; the first error is kept.
    pub fn fail(&self, error: Error) {
        let mut state = self.lock();
        state.error.get_or_insert(error);
        self.ended.store(true, Ordering::Release);
        self.wake.notify_all();
    }

    /// True once all is done or something failed.
    pub fn ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Bytes that are still to come.
    pub fn bytes_left(&self) -> u64 {
        let state = self.lock();
        let left = |(item, file): (&Item, &FileState)| match (&file.found, &file.part) {
            (Some(_), _) => 0,
            (None, Some(part)) => item.size - part.total(),
            (None, None) => {
                item.size - Part::left_by_earlier_run(&item.part, item.size, item.digest, self.range)
            }
        };
        self.items.iter().zip(&state.files).map(left).sum()
    }

    /// The sha256 of every file, in order.
    ///
    /// # Errors
    /// What ended the workers.
    pub fn result(self) -> Result<Vec<Digest>> {
        let state = self.state.into_inner().unwrap_or_else(|p| p.into_inner());
        match state.error {
            Some(e) => Err(e),
            None => Ok(state.files.into_iter().filter_map(|f| f.found).collect()),
        }
    }
}

fn given_up(item: &Item, why: &Why) -> Error {
    let path = &item.path;
    let network = |what: String| Error::new(Class::Network, what);
    match why {
        Why::RangeIgnored => network(format!("{path} cannot be fetched in ranges nor as a whole")),
        Why::Changed(how) => network(format!("{path} is not the file that the hub listed"))
            .found(how.clone())
            .expected(format!("{} {}, {} bytes", item.digest.kind(), item.digest, item.size))
            .hint("the hub, or a cache in between, mixes versions: try again later, or another mirror"),
        Why::WrongDigest(found) => network(format!("{path} arrives damaged, twice"))
            .found(format!("{} {found}", found.kind()))
            .expected(format!("{} {}", item.digest.kind(), item.digest))
            .hint("the hub, or something in between, sends wrong bytes: try again later, or another mirror"),
    }
}

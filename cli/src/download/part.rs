//! `NAME.part`: a file of which some ranges are there already.
//!
//! ```text
//!   | content, with holes ......................... | trailer: mark, digest, range length, bytes done per range |
//!   0                                             size
//! ```
//!
//! The trailer lies behind the content, so that one file says all: a kill can part neither from the other. It is
//! written after the bytes that it speaks of. It is a hint, never a proof: the file only gets its name once all of
//! it was read back and hashed.

use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use verify::write::sync_dir;
use verify::{Error, Result};

use super::digest::Expected;

const MARK: &[u8; 8] = b"prep-1\0\n";
const HEAD: u64 = 8 + 64 + 8;
/// Bytes of a range after which the trailer is brought up to date: what a kill costs at most.
const RECORD: u64 = 64 << 10;

/// Whether the ranges of a file can be fetched apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Into ranges of so many bytes.
    Ranges(u64),
    /// Not at all: the server sends whole files only.
    Whole,
}

/// A file that is being fetched. All methods may be called from any thread; one range has one writer.
#[derive(Debug)]
pub struct Part {
    file: File,
    path: PathBuf,
    size: u64,
    cut: Cut,
    done: Vec<AtomicU64>,
    recorded: Vec<AtomicU64>,
    dropped: AtomicBool,
    trailer: Mutex<Trailer>,
    grown: Condvar,
}

/// Whether the trailer is still there. Held while it is written: once the file is cut to its content, a late
/// writer must not put it back.
#[derive(Debug, PartialEq, Eq)]
enum Trailer {
    There,
    Gone,
}

impl Part {
    /// Continues what an earlier run left at `path`, or begins.
    ///
    /// # Errors
    /// Exit 5 where the file cannot be made.
    pub fn open(path: &Path, size: u64, expected: Expected, range: u64) -> Result<Self> {
        match Self::resume(path, size, expected, range) {
            Some(part) => Ok(part),
            None => Self::create(path, size, expected, Cut::Ranges(range)),
        }
    }

    /// Begins, over what an earlier run left.
    ///
    /// # Errors
    /// Exit 5 where the file cannot be made.
    pub fn create(path: &Path, size: u64, expected: Expected, cut: Cut) -> Result<Self> {
        let make = || {
            match std::fs::remove_file(path) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
            let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o644).open(path)?;
            let ranges = count(size, cut);
            let mut trailer = Vec::from(MARK);
            trailer.extend(format!("{expected:0<64}").bytes());
            trailer.extend(length(size, cut).to_le_bytes());
            trailer.resize(trailer.len() + 8 * ranges, 0);
            file.write_all_at(&trailer, size)?;
            Ok(file)
        };
        let file = make().map_err(|e| Error::io("write", path, &e))?;
        let zero = vec![0; count(size, cut)];
        Ok(Self::new(file, path, (size, cut), &zero))
    }

    fn new(file: File, path: &Path, (size, cut): (u64, Cut), done: &[u64]) -> Self {
        let atomics = || done.iter().map(|d| AtomicU64::new(*d)).collect();
        Part {
            file,
            path: path.to_path_buf(),
            size,
            cut,
            done: atomics(),
            recorded: atomics(),
            dropped: AtomicBool::new(false),
            trailer: Mutex::new(Trailer::There),
            grown: Condvar::new(),
        }
    }

    /// `None` for anything that is no such file of this content.
    fn resume(path: &Path, size: u64, expected: Expected, range: u64) -> Option<Self> {
        if !std::fs::symlink_metadata(path).ok()?.is_file() {
            return None;
        }
        let file = OpenOptions::new().read(true).write(true).open(path).ok()?;
        let len = file.metadata().ok()?.len();
        if len == size && size > 0 {
            // Killed between the last byte and the rename: only to be hashed.
            let cut = Cut::Ranges(range);
            let all: Vec<u64> =
                (0..count(size, cut)).map(|i| span(size, cut, i)).map(|s| s.end - s.start).collect();
            return Some(Self::new(file, path, (size, cut), &all));
        }
        let mut trailer = vec![0; usize::try_from(len.checked_sub(size)?).ok().filter(|n| *n < 64 << 20)?];
        file.read_exact_at(&mut trailer, size).ok()?;
        let number = |at: usize| Some(u64::from_le_bytes(trailer.get(at..at + 8)?.try_into().ok()?));
        let mark = trailer.get(..8)? == MARK && trailer.get(8..72)? == format!("{expected:0<64}").as_bytes();
        let cut = Cut::Ranges(number(72).filter(|r| *r > 0 && mark)?);
        let ranges = count(size, cut);
        if len != size + HEAD + 8 * ranges as u64 {
            return None;
        }
        let done = (0..ranges).map(|i| {
            let room = span(size, cut, i);
            number(80 + 8 * i).filter(|d| *d <= room.end - room.start)
        });
        Some(Self::new(file, path, (size, cut), &done.collect::<Option<Vec<_>>>()?))
    }

    /// Bytes that an earlier run left at `path`.
    pub fn left_by_earlier_run(path: &Path, size: u64, expected: Expected, range: u64) -> u64 {
        Self::resume(path, size, expected, range).map_or(0, |p| p.total())
    }

    /// Number of ranges.
    pub fn ranges(&self) -> usize {
        self.done.len()
    }

    /// Where range `i` lies.
    pub fn span(&self, i: usize) -> Range<u64> {
        span(self.size, self.cut, i)
    }

    /// Bytes of range `i` that are there.
    pub fn done(&self, i: usize) -> u64 {
        self.done[i].load(Ordering::Acquire)
    }

    /// Bytes that are there.
    pub fn total(&self) -> u64 {
        (0..self.ranges()).map(|i| self.done(i)).sum()
    }

    /// How it is cut.
    pub fn cut(&self) -> Cut {
        self.cut
    }

    /// Appends `bytes` to range `i`; they must fit.
    ///
    /// # Errors
    /// Exit 5 when the disk is full or broken.
    pub fn append(&self, i: usize, bytes: &[u8]) -> Result<()> {
        let done = self.done(i);
        let at = self.span(i).start + done;
        let io = |e| Error::io("write", &self.path, &e);
        self.file.write_all_at(bytes, at).map_err(io)?;
        let done = done + bytes.len() as u64;
        self.done[i].store(done, Ordering::Release);
        if done - self.recorded[i].load(Ordering::Relaxed) >= RECORD {
            self.record(i)?;
        }
        let _held = self.trailer();
        self.grown.notify_all();
        Ok(())
    }

    fn trailer(&self) -> MutexGuard<'_, Trailer> {
        self.trailer.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// Brings the trailer of range `i` up to date.
    ///
    /// # Errors
    /// Exit 5 when the disk is full or broken.
    pub fn record(&self, i: usize) -> Result<()> {
        let trailer = self.trailer();
        let done = self.done(i);
        let gone = *trailer == Trailer::Gone || self.dropped();
        if gone || self.cut == Cut::Whole || self.recorded[i].load(Ordering::Relaxed) == done {
            return Ok(());
        }
        let at = self.size + HEAD + 8 * i as u64;
        self.file.write_all_at(&done.to_le_bytes(), at).map_err(|e| Error::io("write", &self.path, &e))?;
        self.recorded[i].store(done, Ordering::Relaxed);
        Ok(())
    }

    /// Bytes from the start without a hole.
    pub fn prefix(&self) -> u64 {
        for i in 0..self.ranges() {
            let (span, done) = (self.span(i), self.done(i));
            if span.start + done < span.end {
                return span.start + done;
            }
        }
        self.size
    }

    /// Waits until there are more than `have` bytes without a hole, or a moment has passed.
    pub fn wait_beyond(&self, have: u64) -> u64 {
        let held = self.trailer();
        let prefix = self.prefix();
        if prefix > have || self.dropped() {
            return prefix;
        }
        drop(self.grown.wait_timeout(held, Duration::from_millis(50)));
        self.prefix()
    }

    /// Reads bytes that are there.
    ///
    /// # Errors
    /// Exit 5 when the disk is broken.
    pub fn read(&self, at: u64, buf: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(buf, at).map_err(|e| {
            Error::new(verify::Class::Disk, format!("cannot read {}", verify::Shown::path(&self.path)))
                .found(e.to_string())
        })
    }

    /// Tells all writers and the hasher to let go.
    pub fn drop_it(&self) {
        self.dropped.store(true, Ordering::Release);
        let _held = self.trailer();
        self.grown.notify_all();
    }

    /// True once it is worth nothing.
    pub fn dropped(&self) -> bool {
        self.dropped.load(Ordering::Acquire)
    }

    /// Gives the whole file its name, on disk when this returns.
    ///
    /// # Errors
    /// Exit 5 when the disk is full or broken.
    pub fn finish(&self, name: &Path) -> Result<()> {
        let io = |e| Error::io("write", name, &e);
        *self.trailer() = Trailer::Gone;
        self.file.set_len(self.size).and_then(|()| self.file.sync_all()).map_err(io)?;
        std::fs::rename(&self.path, name).map_err(io)?;
        name.parent().map_or(Ok(()), sync_dir)
    }
}

fn length(size: u64, cut: Cut) -> u64 {
    match cut {
        Cut::Ranges(n) => n,
        Cut::Whole => size.max(1),
    }
}

fn count(size: u64, cut: Cut) -> usize {
    usize::try_from(size.div_ceil(length(size, cut))).unwrap_or(usize::MAX)
}

fn span(size: u64, cut: Cut, i: usize) -> Range<u64> {
    let length = length(size, cut);
    let start = length * i as u64;
    start..(start + length).min(size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use verify::Digest;

    fn expected() -> Expected {
        Expected::Sha256(Digest::of(b"0123456789"))
    }

    #[test]
    fn ranges_that_are_there_are_known_to_the_next_run() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.part");
        let part = Part::open(&path, 10, expected(), 4).unwrap();
        assert_eq!((part.ranges(), part.span(2)), (3, 8..10));
        part.append(1, b"45").unwrap();
        part.append(0, b"0123").unwrap();
        (0..3).for_each(|i| part.record(i).unwrap());
        assert_eq!(part.prefix(), 6);
        drop(part);
        // Another run, set to other ranges: those of the file hold.
        let part = Part::open(&path, 10, expected(), 5).unwrap();
        assert_eq!((part.prefix(), part.total(), part.ranges()), (6, 6, 3));
        part.append(2, b"89").unwrap();
        part.append(1, b"67").unwrap();
        part.finish(&dir.path().join("a")).unwrap();
        // A worker that comes late to say how far it got.
        (0..3).for_each(|i| part.record(i).unwrap());
        assert_eq!(std::fs::read(dir.path().join("a")).unwrap(), b"0123456789");
    }

    #[test]
    fn whole_file_that_only_lacks_its_name_is_taken_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.part");
        std::fs::write(&path, "0123456789").unwrap();
        assert_eq!(Part::open(&path, 10, expected(), 4).unwrap().total(), 10);
    }

    #[test]
    fn parts_of_other_content_and_broken_trailers_begin_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.part");
        let part = Part::open(&path, 10, expected(), 4).unwrap();
        part.append(0, b"0123").unwrap();
        part.record(0).unwrap();
        drop(part);
        let good = std::fs::read(&path).unwrap();
        let other = Expected::Sha256(Digest::of(b"x"));
        assert_eq!(Part::open(&path, 10, other, 4).unwrap().total(), 0);
        for at in 10..good.len() {
            let mut bad = good.clone();
            bad[at] = 0xff;
            std::fs::write(&path, &bad).unwrap();
            let total = Part::open(&path, 10, expected(), 4).unwrap().total();
            assert_eq!(total, 0, "byte {at}");
        }
        for len in 11..good.len() {
            std::fs::write(&path, &good[..len]).unwrap();
            assert_eq!(Part::open(&path, 10, expected(), 4).unwrap().total(), 0, "length {len}");
        }
    }

    #[test]
    fn link_at_the_name_of_the_part_is_replaced_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let victim = dir.path().join("victim");
        std::fs::write(&victim, "mine").unwrap();
        std::os::unix::fs::symlink(&victim, dir.path().join("a.part")).unwrap();
        Part::open(&dir.path().join("a.part"), 4, expected(), 4).unwrap().append(0, b"evil").unwrap();
        assert_eq!(std::fs::read(&victim).unwrap(), b"mine");
    }
}

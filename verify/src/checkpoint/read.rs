//! Shards read by position; at most [`MAX_OPEN`] files are open at a time, so that a checkpoint of
//! thousands of shards stays within the usual limit of a process.

use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::folder;
use super::header::{self, Header};
use crate::error::{Error, Result};
use crate::names::{Digest, FileName, Shown};

const MAX_OPEN: usize = 48;

/// Where a tensor's bytes lie in its shard file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Location {
    /// First byte in the file.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
}

/// What tells that a file is still the one that was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Length in bytes.
    pub len: u64,
    /// Modification time, nanoseconds since 1970.
    pub mtime_ns: i128,
    inode: (u64, u64),
}

impl Stamp {
    pub(crate) fn of(m: &Metadata) -> Self {
        Stamp {
            len: m.len(),
            mtime_ns: i128::from(m.mtime()) * 1_000_000_000 + i128::from(m.mtime_nsec()),
            inode: (m.dev(), m.ino()),
        }
    }
}

/// One shard whose header was read and found sound.
#[derive(Debug)]
pub struct ShardFile {
    /// Its name in the folder.
    pub name: FileName,
    /// The file itself, links resolved once.
    pub path: PathBuf,
    /// sha256 of the header's bytes.
    pub header_digest: Digest,
    /// Where the data begins.
    pub data_start: u64,
    /// The file as it was when opened.
    pub stamp: Stamp,
}

impl ShardFile {
    /// Opens `name` in `dir` and reads its header.
    ///
    /// # Errors
    /// Exit 3 where the file is not a regular file of this folder or its header is not sound.
    pub fn open(dir: &Path, name: &FileName) -> Result<(Self, Header)> {
        let path = folder::resolve(dir, name)?;
        let mut file = File::open(&path).map_err(|e| Error::io("read", &path, &e))?;
        let stamp = Stamp::of(&file.metadata().map_err(|e| Error::io("read", &path, &e))?);
        let json = read_header(&mut file, stamp.len, &path)?;
        let data_start = 8 + json.len() as u64;
        let header = Header::parse(&json, stamp.len - data_start, name.as_str())?;
        let shard =
            ShardFile { name: name.clone(), path, header_digest: Digest::of(&json), data_start, stamp };
        Ok((shard, header))
    }

    /// Confirms that the file is the one that was opened.
    ///
    /// # Errors
    /// Exit 3 when its length, time or identity moved.
    pub fn unchanged(&self) -> Result<()> {
        let now = std::fs::metadata(&self.path).map_err(|e| Error::io("read", &self.path, &e))?;
        self.same(Stamp::of(&now))
    }

    fn same(&self, now: Stamp) -> Result<()> {
        match now == self.stamp {
            true => Ok(()),
            false => Err(Error::input(format!("{} changed while it was read", Shown::path(&self.path)))
                .found(format!("{} bytes, modified at {} ns", now.len, now.mtime_ns))
                .expected(format!("{} bytes, modified at {} ns", self.stamp.len, self.stamp.mtime_ns))
                .hint("let the writer finish, then run again")),
        }
    }

    pub(crate) fn reopen(&self) -> Result<File> {
        let file = File::open(&self.path).map_err(|e| Error::io("read", &self.path, &e))?;
        self.same(Stamp::of(&file.metadata().map_err(|e| Error::io("read", &self.path, &e))?))?;
        Ok(file)
    }
}

/// Reads the length and the header, never allocating more than the file can hold.
pub(crate) fn read_header(file: &mut File, file_len: u64, path: &Path) -> Result<Vec<u8>> {
    let mut first = Vec::with_capacity(8);
    file.by_ref().take(8).read_to_end(&mut first).map_err(|e| Error::io("read", path, &e))?;
    let len = header::json_len(&first, file_len, &path.to_string_lossy())?;
    let mut json = vec![0u8; len as usize];
    file.read_exact(&mut json).map_err(|e| Error::io("read", path, &e))?;
    Ok(json)
}

/// Open files, the least recently opened closed first.
#[derive(Debug)]
pub(crate) struct ShardPool {
    files: Vec<ShardFile>,
    open: Mutex<Vec<(usize, Arc<File>)>>,
}

impl ShardPool {
    pub(crate) fn new(files: Vec<ShardFile>) -> Self {
        ShardPool { files, open: Mutex::new(Vec::new()) }
    }

    pub(crate) fn files(&self) -> &[ShardFile] {
        &self.files
    }

    pub(crate) fn read(&self, shard: usize, offset: u64, len: usize) -> Result<Vec<u8>> {
        let file = self.handle(shard)?;
        // Grown by the read itself: a zeroed buffer would be written twice.
        let mut out = Vec::with_capacity(len);
        let mut at = At { file: &file, offset, left: len as u64 };
        at.read_to_end(&mut out).map_err(|e| Error::io("read", &self.files[shard].path, &e))?;
        match out.len() == len {
            true => Ok(out),
            false => Err(Error::input(format!("{} ends early", Shown::path(&self.files[shard].path)))
                .found(format!("{} bytes at offset {offset}", out.len()))
                .expected(format!("{len} bytes"))
                .hint("the file was cut while it was read: let its writer finish, or fetch it again")),
        }
    }

    fn handle(&self, shard: usize) -> Result<Arc<File>> {
        let mut open = self.open.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some((_, file)) = open.iter().find(|(s, _)| *s == shard) {
            return Ok(file.clone());
        }
        let file = Arc::new(self.files[shard].reopen()?);
        if open.len() >= MAX_OPEN {
            open.remove(0);
        }
        open.push((shard, file.clone()));
        Ok(file)
    }
}

/// `Read` over a range of a file that other threads read too.
struct At<'a> {
    file: &'a File,
    offset: u64,
    left: u64,
}

impl Read for At<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let want = buf.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        if want == 0 {
            return Ok(0);
        }
        let n = self.file.read_at(&mut buf[..want], self.offset)?;
        self.offset += n as u64;
        self.left -= n as u64;
        Ok(n)
    }
}

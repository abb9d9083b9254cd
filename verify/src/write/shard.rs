//! One output shard: the bytes go to disk and through sha256 in one pass.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use sha2::Digest as _;

use super::small::{create_part, part_path, sync_dir};
use crate::error::{Error, Result};
use crate::names::{Digest, FileName};

/// Writes `NAME.part`; [`ShardWriter::finish`] makes it `NAME`. Dropped before, it removes the part.
#[derive(Debug)]
pub struct ShardWriter {
    file: File,
    dir: PathBuf,
    part: PathBuf,
    name: FileName,
    written: u64,
    hasher: Option<Hasher>,
    flusher: Option<Flusher>,
}

/// Hashes on a thread of its own, so that hashing hides behind the write.
#[derive(Debug)]
struct Hasher {
    sender: SyncSender<Vec<u8>>,
    thread: JoinHandle<Digest>,
}

impl Hasher {
    fn start() -> Self {
        let (sender, receiver) = sync_channel::<Vec<u8>>(8);
        let thread = std::thread::spawn(move || {
            let mut sha = sha2::Sha256::new();
            receiver.into_iter().for_each(|bytes| sha.update(&bytes));
            Digest(sha.finalize().into())
        });
        Hasher { sender, thread }
    }
}

/// Bytes after which what was written so far is sent to the disk, beside the writing.
const FLUSH_EVERY: u64 = 32 << 20;

/// Syncs the file now and then on a thread of its own, so that the sync at the end finds little to do.
#[derive(Debug)]
struct Flusher {
    sender: SyncSender<()>,
    thread: JoinHandle<()>,
}

impl Flusher {
    fn start(file: &File) -> std::io::Result<Self> {
        let file = file.try_clone()?;
        let (sender, receiver) = sync_channel::<()>(1);
        let thread = std::thread::spawn(move || {
            // An error here comes again at the end, where it is reported.
            receiver.into_iter().for_each(|()| drop(file.sync_data()));
        });
        Ok(Flusher { sender, thread })
    }

    fn end(self) {
        drop(self.sender);
        let _ = self.thread.join();
    }
}

impl ShardWriter {
    /// Begins `dir/name.part`, over what an earlier run left there.
    ///
    /// # Errors
    /// Exit 5 when the file cannot be made.
    pub fn create(dir: &Path, name: &FileName) -> Result<Self> {
        let part = part_path(dir, name);
        let file = create_part(&part).map_err(|e| Error::io("write", &part, &e))?;
        let flusher = Some(Flusher::start(&file).map_err(|e| Error::io("write", &part, &e))?);
        let hasher = Some(Hasher::start());
        Ok(ShardWriter {
            file,
            dir: dir.to_path_buf(),
            part,
            name: name.clone(),
            written: 0,
            hasher,
            flusher,
        })
    }

    /// Appends `bytes`.
    ///
    /// # Errors
    /// Exit 5 when the disk is full or broken.
    pub fn append(&mut self, bytes: Vec<u8>) -> Result<()> {
        self.file.write_all(&bytes).map_err(|e| Error::io("write", &self.part, &e))?;
        let before = self.written / FLUSH_EVERY;
        self.written += bytes.len() as u64;
        if let Some(f) = self.flusher.as_ref().filter(|_| self.written / FLUSH_EVERY > before) {
            // Full where the last flush still runs: the next one takes its bytes along.
            let _ = f.sender.try_send(());
        }
        if let Some(h) = &self.hasher {
            // The receiver only ends when the sender is dropped.
            let _ = h.sender.send(bytes);
        }
        Ok(())
    }

    /// Bytes so far.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Syncs the file, gives it its name, syncs the folder. Returns digest and length.
    ///
    /// # Errors
    /// Exit 5 when the disk is full or broken.
    pub fn finish(mut self) -> Result<(Digest, u64)> {
        if let Some(f) = self.flusher.take() {
            f.end();
        }
        self.file.sync_all().map_err(|e| Error::io("write", &self.part, &e))?;
        let Hasher { sender, thread } =
            self.hasher.take().ok_or_else(|| Error::input("shard finished twice"))?;
        drop(sender);
        let digest = thread.join().map_err(|_| Error::input("hashing ended early"))?;
        let path = self.dir.join(&self.name);
        std::fs::rename(&self.part, &path).map_err(|e| Error::io("write", &path, &e))?;
        sync_dir(&self.dir)?;
        Ok((digest, self.written))
    }
}

impl Drop for ShardWriter {
    fn drop(&mut self) {
        if let Some(f) = self.flusher.take() {
            f.end();
        }
        if let Some(Hasher { sender, thread }) = self.hasher.take() {
            drop(sender);
            let _ = thread.join();
            let _ = std::fs::remove_file(&self.part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finished_shard_has_its_name_and_digest() {
        let dir = tempfile::tempdir().unwrap();
        let name = FileName::parse("a.safetensors").unwrap();
        let mut w = ShardWriter::create(dir.path(), &name).unwrap();
        w.append(b"ab".to_vec()).unwrap();
        w.append(b"c".to_vec()).unwrap();
        assert_eq!(w.finish().unwrap(), (Digest::of(b"abc"), 3));
        assert_eq!(std::fs::read(dir.path().join("a.safetensors")).unwrap(), b"abc");
    }

    #[test]
    fn link_at_the_name_of_the_part_is_replaced_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let victim = dir.path().join("victim");
        std::fs::write(&victim, "mine").unwrap();
        std::os::unix::fs::symlink(&victim, dir.path().join("a.part")).unwrap();
        let name = FileName::parse("a").unwrap();
        ShardWriter::create(dir.path(), &name).unwrap().finish().unwrap();
        assert_eq!(std::fs::read(&victim).unwrap(), b"mine");
        std::os::unix::fs::symlink(&victim, dir.path().join("b.part")).unwrap();
        super::super::write_file(dir.path(), &FileName::parse("b").unwrap(), b"new").unwrap();
        assert_eq!(std::fs::read(&victim).unwrap(), b"mine");
    }

    #[test]
    fn dropped_shard_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let mut w = ShardWriter::create(dir.path(), &FileName::parse("a").unwrap()).unwrap();
        w.append(b"ab".to_vec()).unwrap();
        drop(w);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}

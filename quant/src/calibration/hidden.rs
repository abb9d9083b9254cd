//! The hidden states of all samples between two layers, in memory or, beyond a limit, in a file.

use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use runner::cpu::Array;
use verify::codec::Float;
use verify::{Error, Result};

/// Bytes of hidden states that are kept in memory.
pub const MEMORY_LIMIT: usize = 2 << 30;

/// f32 `[tokens, hidden]`.
pub struct Hidden {
    rows: usize,
    cols: usize,
    store: Store,
}

enum Store {
    Memory(Vec<f32>),
    File { file: File, path: PathBuf },
}

impl Hidden {
    /// Zeros; in a file in `folder` where they take more than `limit` bytes.
    ///
    /// # Errors
    /// Exit 5 where the file cannot be made.
    pub fn new(rows: usize, cols: usize, folder: &Path, limit: usize) -> Result<Self> {
        let store = match rows * cols * 4 <= limit {
            true => Store::Memory(vec![0.0; rows * cols]),
            false => {
                let path = folder.join("hidden.tmp");
                let io = |e| Error::io("write", &path, &e);
                let mut options = OpenOptions::new();
                let file =
                    options.read(true).write(true).create(true).truncate(true).open(&path).map_err(io)?;
                file.set_len((rows * cols * 4) as u64).map_err(io)?;
                Store::File { file, path }
            }
        };
        Ok(Hidden { rows, cols, store })
    }

    /// Tokens.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Width.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Some rows.
    ///
    /// # Errors
    /// Exit 5 where the file cannot be read.
    pub fn read(&self, rows: Range<usize>) -> Result<Array> {
        let (first, count) = (rows.start * self.cols, rows.len() * self.cols);
        let values = match &self.store {
            Store::Memory(all) => all[first..first + count].to_vec(),
            Store::File { file, path } => {
                let mut bytes = vec![0; count * 4];
                file.read_exact_at(&mut bytes, first as u64 * 4).map_err(|e| Error::io("read", path, &e))?;
                Float::F32.to_f32(&bytes)
            }
        };
        Ok(Array::new(rows.len(), self.cols, values))
    }

    /// Replaces the rows from `first` on.
    ///
    /// # Errors
    /// Exit 5 where the file cannot be written.
    pub fn write(&mut self, first: usize, rows: &Array) -> Result<()> {
        let at = first * self.cols;
        match &mut self.store {
            Store::Memory(all) => all[at..at + rows.values().len()].copy_from_slice(rows.values()),
            Store::File { file, path } => {
                let bytes = Float::F32.to_bytes(rows.values());
                file.write_all_at(&bytes, at as u64 * 4).map_err(|e| Error::io("write", path, &e))?;
            }
        }
        Ok(())
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        if let Store::File { path, .. } = &self.store {
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_and_memory_hold_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let part = Array::new(2, 3, (0..6).map(|i| i as f32 / 3.0).collect());
        let read = |limit| {
            let mut h = Hidden::new(5, 3, dir.path(), limit).unwrap();
            assert_eq!(dir.path().join("hidden.tmp").exists(), limit < 60);
            h.write(2, &part).unwrap();
            h.read(1..5).unwrap()
        };
        assert_eq!(read(59), read(60));
        assert_eq!(read(60).row(1), part.row(0));
        assert!(!dir.path().join("hidden.tmp").exists());
    }
}

//! Shards mapped into memory: the runner reads weights where they lie, the kernel pages them in as needed.
//!
//! A mapped file that someone truncates while it is used ends the process with SIGBUS; no program can
//! prevent that. Only inputs are mapped, and only to run a model; conversions use positioned reads.

use memmap2::Mmap;

use super::{Checkpoint, TensorIndex, TensorMeta, TensorReader, no_tensor};
use crate::error::{Error, Result};

/// All shards of a checkpoint, mapped read-only.
#[derive(Debug)]
pub struct MappedCheckpoint {
    maps: Vec<Mmap>,
    index: TensorIndex,
    ranges: Vec<(usize, usize)>,
}

impl MappedCheckpoint {
    pub(crate) fn new(checkpoint: &Checkpoint) -> Result<Self> {
        let mut maps = Vec::new();
        for shard in checkpoint.shard_files() {
            let file = shard.reopen()?;
            // SAFETY: the file is opened read-only and the map is never written; a truncation by another
            // process is the documented risk above.
            let map = unsafe { Mmap::map(&file) }.map_err(|e| Error::io("read", &shard.path, &e))?;
            maps.push(map);
        }
        let index = checkpoint.index().clone();
        let ranges = (0..index.tensors().len())
            .map(|i| {
                let l = checkpoint.location(i);
                (l.offset as usize, (l.offset + l.len) as usize)
            })
            .collect();
        Ok(MappedCheckpoint { maps, index, ranges })
    }

    /// Names, dtypes and shapes.
    pub fn index(&self) -> &TensorIndex {
        &self.index
    }

    /// The bytes of tensor number `position` of [`Self::index`], of no particular alignment.
    pub fn bytes_at(&self, position: usize) -> &[u8] {
        let (begin, end) = self.ranges[position];
        &self.maps[self.index.tensors()[position].shard][begin..end]
    }

    /// The tensor's description and bytes.
    ///
    /// # Errors
    /// Exit 3 where it does not exist.
    pub fn tensor(&self, name: &str) -> Result<(&TensorMeta, &[u8])> {
        let at = self.index.position(name).ok_or_else(|| no_tensor(name))?;
        Ok((&self.index.tensors()[at], self.bytes_at(at)))
    }
}

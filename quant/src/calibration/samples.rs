//! Stand-in until the reader of calibration files is merged: token ids only.

use std::path::Path;

use verify::{Digest, Error, Result};

/// Samples as token ids.
#[derive(Debug, Clone, Default)]
pub struct Samples {
    /// One list of token ids for each sample.
    pub sequences: Vec<Vec<u32>>,
    /// sha256 over them.
    pub digest: String,
}

impl Samples {
    /// Given sequences.
    pub fn of(sequences: Vec<Vec<u32>>) -> Self {
        let bytes: Vec<u8> =
            sequences.iter().flat_map(|s| s.iter().chain([&u32::MAX])).flat_map(|t| t.to_le_bytes()).collect();
        Samples { sequences, digest: Digest::of(&bytes).to_string() }
    }

    /// A JSON list of lists.
    ///
    /// # Errors
    /// Exit 3 where it is none.
    pub fn read_tokens(path: &Path) -> Result<Self> {
        let text = std::fs::read(path).map_err(|e| Error::io("read", path, &e))?;
        Ok(Samples::of(serde_json::from_slice(&text).map_err(|e| Error::input(e.to_string()))?))
    }
}

//! JSON and text files of bounded size and depth.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::names::Shown;

/// Limit for config.json, tokenizer_config.json and the like.
pub const MAX_CONFIG: u64 = 64 << 20;
/// Limit for tokenizer.json.
pub const MAX_TOKENIZER: u64 = 512 << 20;

/// Reads a file of at most `limit` bytes.
///
/// # Errors
/// Exit 3 for a missing, overlong or non-regular file.
pub fn read_bytes(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let meta = std::fs::metadata(path).map_err(|e| Error::io("read", path, &e))?;
    if !meta.is_file() {
        return Err(Error::input(format!("{} is not a regular file", Shown::path(path))));
    }
    if meta.len() > limit {
        return Err(Error::input(format!("{} is too large", Shown::path(path)))
            .found(format!("{} bytes", meta.len()))
            .expected(format!("at most {limit} bytes")));
    }
    let mut bytes = Vec::with_capacity(meta.len() as usize);
    let file = File::open(path).map_err(|e| Error::io("read", path, &e))?;
    file.take(limit).read_to_end(&mut bytes).map_err(|e| Error::io("read", path, &e))?;
    Ok(bytes)
}

/// Reads a UTF-8 file of at most `limit` bytes.
///
/// # Errors
/// As [`read_bytes`]; exit 3 for a file that is no text.
pub fn read_text(path: &Path, limit: u64) -> Result<String> {
    String::from_utf8(read_bytes(path, limit)?)
        .map_err(|_| Error::input(format!("{} is not UTF-8 text", Shown::path(path))))
}

/// Parses JSON text that was read from `path`; nesting beyond 128 levels is refused by the parser.
///
/// # Errors
/// Exit 3 with the place of the fault.
pub fn parse(text: &str, path: &Path) -> Result<Value> {
    // A byte order mark is what Windows editors leave; Python's json refuses it, so we name it.
    serde_json::from_str(text).map_err(|e| {
        Error::input(format!("{} is not valid JSON", Shown::path(path)))
            .found(e.to_string())
            .hint("the file is cut or was edited by hand: fetch it again")
    })
}

/// Reads and parses a JSON file of at most [`MAX_CONFIG`] bytes.
///
/// # Errors
/// As [`read_text`] and [`parse`].
pub fn read(path: &Path) -> Result<Value> {
    parse(&read_text(path, MAX_CONFIG)?, path)
}

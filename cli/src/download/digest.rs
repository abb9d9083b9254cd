//! What a hub says a file's content is: sha256 for big files, git's sha1 for small ones.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha1::Digest as _;
use verify::progress::Progress;
use verify::{Digest, Error, Result};

/// The digest that a file must have.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Expected {
    /// sha256 of the bytes.
    Sha256(Digest),
    /// sha1 of `blob LENGTH\0` and the bytes.
    GitSha1([u8; 20]),
}

impl Expected {
    /// Reads 64 hex digits as sha256, 40 as git's sha1.
    pub fn parse(hex: &str) -> Option<Self> {
        if hex.len() == 64 {
            return Digest::parse(hex).map(Expected::Sha256);
        }
        // Padded to the length that `Digest` reads.
        let padded = Digest::parse(&format!("{hex}{}", "0".repeat(24))).filter(|_| hex.len() == 40)?;
        let mut out = [0; 20];
        out.copy_from_slice(&padded.0[..20]);
        Some(Expected::GitSha1(out))
    }

    /// Which digest it is.
    pub fn kind(&self) -> &'static str {
        match self {
            Expected::Sha256(_) => "sha256",
            Expected::GitSha1(_) => "git sha1",
        }
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Expected::Sha256(d) => d.fmt(f),
            Expected::GitSha1(bytes) => bytes.iter().try_for_each(|b| write!(f, "{b:02x}")),
        }
    }
}

impl fmt::Debug for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Expected {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Expected {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let hex = String::deserialize(d)?;
        Expected::parse(&hex).ok_or_else(|| serde::de::Error::custom("neither sha256 nor git sha1"))
    }
}

/// Takes the digests of one file: always sha256, and git's sha1 where the hub gives that.
pub struct Hasher {
    sha256: sha2::Sha256,
    git: Option<sha1::Sha1>,
}

/// The digests of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// For `SHA256SUMS`.
    pub sha256: Digest,
    /// For comparison with the listing.
    pub as_expected: Expected,
}

impl Hasher {
    /// For a file of `size` bytes of which `expected` is known.
    pub fn new(size: u64, expected: Expected) -> Self {
        let git = match expected {
            Expected::Sha256(_) => None,
            Expected::GitSha1(_) => {
                let mut sha = sha1::Sha1::new();
                sha.update(format!("blob {size}\0"));
                Some(sha)
            }
        };
        Hasher { sha256: sha2::Sha256::new(), git }
    }

    /// The next bytes of the file.
    pub fn update(&mut self, bytes: &[u8]) {
        self.sha256.update(bytes);
        if let Some(sha) = &mut self.git {
            sha.update(bytes);
        }
    }

    /// The digests of all bytes.
    pub fn finish(self) -> Found {
        let sha256 = Digest(self.sha256.finalize().into());
        let as_expected = match self.git {
            Some(sha) => Expected::GitSha1(sha.finalize().into()),
            None => Expected::Sha256(sha256),
        };
        Found { sha256, as_expected }
    }
}

/// Reads a whole file of `size` bytes.
///
/// # Errors
/// When it cannot be read, or the user asked to stop.
pub fn of_file(path: &Path, size: u64, expected: Expected, progress: &dyn Progress) -> Result<Found> {
    let mut file = File::open(path).map_err(|e| Error::io("read", path, &e))?;
    let mut hasher = Hasher::new(size, expected);
    let mut buf = vec![0u8; 1 << 20];
    loop {
        let n = file.read(&mut buf).map_err(|e| Error::io("read", path, &e))?;
        if n == 0 {
            return Ok(hasher.finish());
        }
        hasher.update(&buf[..n]);
        progress.advance(n as u64);
        progress.check()?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn git_sha1_is_that_of_git_hash_object() {
        let hello = Expected::parse("ce013625030ba8dba906f756967f9e9ca394464a").unwrap();
        let mut hasher = Hasher::new(6, hello);
        hasher.update(b"hel");
        hasher.update(b"lo\n");
        let found = hasher.finish();
        assert_eq!((found.as_expected, found.sha256), (hello, Digest::of(b"hello\n")));
    }

    #[test]
    fn other_lengths_are_no_digest() {
        for bad in ["", "ab", "ce013625030ba8dba906f756967f9e9ca394464", &"g".repeat(40), &"0".repeat(63)] {
            assert_eq!(Expected::parse(bad), None, "{bad}");
        }
    }
}

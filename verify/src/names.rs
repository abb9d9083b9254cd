//! Names that come from outside, made safe to use and to print; digests.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::Digest as _;

use crate::error::{Error, Result};
use crate::serving::quote::shell;

/// A plain file name: no separators, no `..`, no control characters, at most 255 bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct FileName(String);

impl FileName {
    /// Checks `name`.
    ///
    /// # Errors
    /// Refuses (exit 3) anything that could leave the folder it is joined to.
    pub fn parse(name: &str) -> Result<Self> {
        let reason = if name.is_empty() {
            "an empty name"
        } else if name.len() > 255 {
            "a name over 255 bytes"
        } else if name == "." || name == ".." || name.contains(['/', '\\', ':']) {
            "a path, not a plain file name"
        } else if name.chars().any(char::is_control) {
            "control characters"
        } else {
            return Ok(FileName(name.to_string()));
        };
        Err(Error::input(format!("file name `{}` is refused", Shown(name)))
            .found(reason)
            .expected("a plain name inside the model folder")
            .hint("the folder or its index was tampered with or is broken: fetch it again"))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl AsRef<Path> for FileName {
    fn as_ref(&self) -> &Path {
        Path::new(&self.0)
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Text from outside with control characters escaped, so that it cannot steer a terminal.
pub struct Shown<'a>(pub &'a str);

impl Shown<'_> {
    /// A path, escaped.
    pub fn path(path: &Path) -> String {
        format!("{}", Shown(&path.to_string_lossy()))
    }
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let short: Cow<'_, str> = match self.0.char_indices().nth(200) {
            Some((cut, _)) => format!("{}…", &self.0[..cut]).into(),
            None => self.0.into(),
        };
        for c in short.chars() {
            // Bidirectional overrides reorder what a terminal shows just as escape codes do.
            if c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}') {
                write!(f, "{}", c.escape_unicode())?;
            } else {
                write!(f, "{c}")?;
            }
        }
        Ok(())
    }
}

/// Advice with the path of the folder where it says `MODEL` for want of it, as a shell takes it.
pub fn naming_folder(advice: &str, dir: &Path) -> String {
    let path = shell(&Shown::path(dir));
    let mut parts = advice.split("MODEL");
    let mut text = parts.next().unwrap_or_default().to_string();
    for part in parts {
        let part_of_word = text.ends_with(char::is_alphanumeric) || part.starts_with(char::is_alphanumeric);
        text += if part_of_word { "MODEL" } else { &path };
        text += part;
    }
    text
}

/// What the model in `dir` is called: the folder's own name, however the path to it is written.
pub fn folder_name(dir: &Path) -> String {
    let real = dir.canonicalize().unwrap_or_else(|_| dir.to_path_buf());
    real.file_name().map_or("model".into(), |name| name.to_string_lossy().into_owned())
}

/// A sha256 digest; prints as 64 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// The digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Digest(sha2::Sha256::digest(bytes).into())
    }

    /// Reads 64 hex digits.
    pub fn parse(hex: &str) -> Option<Self> {
        let bytes = hex.as_bytes();
        if bytes.len() != 64 {
            return None;
        }
        let mut out = [0u8; 32];
        for (o, pair) in out.iter_mut().zip(bytes.chunks_exact(2)) {
            let hi = (pair[0] as char).to_digit(16)?;
            let lo = (pair[1] as char).to_digit(16)?;
            *o = (hi * 16 + lo) as u8;
        }
        Some(Digest(out))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let hex = String::deserialize(d)?;
        Digest::parse(&hex).ok_or_else(|| serde::de::Error::custom("not 64 hex digits"))
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_not_file_names() {
        for bad in ["", ".", "..", "../x", "/abs", "a\\b", "C:x", "a\u{1b}[31m", "a\nb", &"x".repeat(256)] {
            assert!(FileName::parse(bad).is_err(), "{bad:?}");
        }
        assert!(FileName::parse("model-00001-of-00002.safetensors").is_ok());
    }

    #[test]
    fn advice_names_the_folder_that_it_is_about() {
        let named = |text| naming_folder(text, Path::new("out/a b"));
        assert_eq!(
            named("`prep template embed MODEL --from MODEL/x`, MODEL"),
            "`prep template embed 'out/a b' --from 'out/a b'/x`, 'out/a b'"
        );
        assert_eq!(named("MODELSCOPE_DOMAIN, no path"), "MODELSCOPE_DOMAIN, no path");
    }

    #[test]
    fn a_folder_has_one_name_however_its_path_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let model = dir.path().join("MODEL");
        std::fs::create_dir(&model).unwrap();
        for path in [model.clone(), model.join("."), model.join("../MODEL")] {
            assert_eq!(folder_name(&path), "MODEL");
        }
        assert_eq!(folder_name(Path::new("/")), "model");
        assert_eq!(folder_name(Path::new("not/there")), "there");
    }

    #[test]
    fn escape_codes_are_printed_escaped() {
        assert_eq!(Shown("\u{1b}[31mred\u{202e}").to_string(), "\\u{1b}[31mred\\u{202e}");
    }

    #[test]
    fn digest_round_trips_through_hex() {
        let d = Digest::of(b"abc");
        assert_eq!(d.to_string(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(Digest::parse(&d.to_string()), Some(d));
        assert_eq!(Digest::parse("zz"), None);
    }
}

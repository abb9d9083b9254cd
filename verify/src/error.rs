//! The one error of all crates: every message says what, found, expected and what to do.

use std::fmt;
use std::path::Path;

use crate::names::{Shown, naming_folder};

/// Result with [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, as the exit code tells it to a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// A check ran and failed.
    Check,
    /// Wrong command line or recipe.
    Usage,
    /// The input is broken or refused.
    Input,
    /// The network or the hub.
    Network,
    /// Disk or other I/O.
    Disk,
    /// A GPU that is missing, too small or broken.
    Gpu,
    /// A GPU whose memory does not hold what is asked of it.
    GpuMemory,
    /// Another run holds the lock.
    Locked,
    /// Ended by the user.
    Interrupted,
}

impl Class {
    /// The exit code of `prep` for this class.
    pub fn exit_code(self) -> u8 {
        match self {
            Class::Check => 1,
            Class::Usage => 2,
            Class::Input => 3,
            Class::Network => 4,
            Class::Disk => 5,
            Class::Gpu | Class::GpuMemory => 6,
            Class::Locked => 75,
            Class::Interrupted => 130,
        }
    }
}

/// A failure told in four parts. `Display` prints them on one line each.
#[derive(Debug, Clone)]
pub struct Error(Box<Parts>);

#[derive(Debug, Clone)]
struct Parts {
    class: Class,
    what: String,
    found: Option<String>,
    expected: Option<String>,
    hint: Option<String>,
}

impl Error {
    /// An error of `class`; `what` names the file or the tensor.
    pub fn new(class: Class, what: impl Into<String>) -> Self {
        let parts = Parts { class, what: what.into(), found: None, expected: None, hint: None };
        Error(Box::new(parts))
    }

    /// Broken or refused input.
    pub fn input(what: impl Into<String>) -> Self {
        Self::new(Class::Input, what)
    }

    /// Wrong command line or recipe.
    pub fn usage(what: impl Into<String>) -> Self {
        Self::new(Class::Usage, what)
    }

    /// A failed check.
    pub fn check(what: impl Into<String>) -> Self {
        Self::new(Class::Check, what)
    }

    /// An I/O error on `path`; a missing input file counts as broken input, all else as disk.
    pub fn io(doing: &str, path: &Path, error: &std::io::Error) -> Self {
        let class = match error.kind() {
            std::io::ErrorKind::NotFound if doing.starts_with("read") => Class::Input,
            _ => Class::Disk,
        };
        let hint = match error.kind() {
            std::io::ErrorKind::StorageFull
            | std::io::ErrorKind::FileTooLarge
            | std::io::ErrorKind::QuotaExceeded => {
                "free some space and run the same command again: it continues where it stopped"
            }
            std::io::ErrorKind::PermissionDenied => "check the permissions of the file and its folder",
            std::io::ErrorKind::NotFound => "check the spelling of the path",
            _ => "check the disk and the path, then run again",
        };
        Self::new(class, format!("cannot {doing} {}", Shown::path(path))).found(error.to_string()).hint(hint)
    }

    /// What was there.
    pub fn found(mut self, found: impl Into<String>) -> Self {
        self.0.found = Some(found.into());
        self
    }

    /// What should have been there.
    pub fn expected(mut self, expected: impl Into<String>) -> Self {
        self.0.expected = Some(expected.into());
        self
    }

    /// One thing to do about it.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// The same error, about the folder `dir`: its hint names it.
    pub fn about(mut self, dir: &Path) -> Self {
        self.0.hint = self.0.hint.map(|hint| naming_folder(&hint, dir));
        self
    }

    /// The class, hence the exit code.
    pub fn class(&self) -> Class {
        self.0.class
    }

    /// The first line: what went wrong and where.
    pub fn what(&self) -> &str {
        &self.0.what
    }

    /// The same error with a place before its first line, such as a file and a line number.
    pub fn at(mut self, place: impl std::fmt::Display) -> Self {
        self.0.what = format!("{place}: {}", self.0.what);
        self
    }

    /// What to do, if anything is known.
    pub fn advice(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Parts { what, found, expected, hint, .. } = &*self.0;
        f.write_str(what)?;
        for (label, text) in [("\n  found    ", found), ("\n  expected ", expected), ("\nhint: ", hint)] {
            if let Some(text) = text {
                write!(f, "{label}{text}")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_has_four_parts() {
        let e =
            Error::input("tensor `a` is short").found("3 bytes").expected("4 bytes").hint("fetch it again");
        assert_eq!(
            e.to_string(),
            "tensor `a` is short\n  found    3 bytes\n  expected 4 bytes\nhint: fetch it again"
        );
        assert_eq!(e.class().exit_code(), 3);
    }
}

//! How long work tells what it is doing and is told to stop. The terminal itself is `cli`'s.

use crate::error::{Class, Error, Result};

/// Receives the progress of long work; all methods may be called from any thread.
pub trait Progress: Sync {
    /// A new phase begins, with `total` bytes to go.
    fn begin(&self, what: &str, total: u64);
    /// A new phase begins, with `total` of what `what` names to go, such as prompts.
    fn begin_steps(&self, what: &str, total: u64) {
        self.begin(what, total);
    }
    /// `n` more bytes (or steps) are done.
    fn advance(&self, n: u64);
    /// One line worth telling, such as a finished shard.
    fn note(&self, line: &str);
    /// One line that the user should see, such as a way round something missing.
    fn warn(&self, line: &str) {
        self.note(line);
    }
    /// True once the user asked to stop.
    fn stopped(&self) -> bool;

    /// An [`Class::Interrupted`] error once the user asked to stop.
    ///
    /// # Errors
    /// When stopped.
    fn check(&self) -> Result<()> {
        match self.stopped() {
            true => Err(Error::new(Class::Interrupted, "interrupted")
                .hint("run the same command again: it continues where it stopped")),
            false => Ok(()),
        }
    }
}

/// Says nothing and never stops.
pub struct Silent;

impl Progress for Silent {
    fn begin(&self, _: &str, _: u64) {}
    fn advance(&self, _: u64) {}
    fn note(&self, _: &str) {}
    fn stopped(&self) -> bool {
        false
    }
}

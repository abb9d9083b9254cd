//! What a router says, kept for whoever compares models.

use std::sync::{Mutex, MutexGuard};

use verify::Result;

use crate::backend::Backend;

/// Logits of one router, `[tokens, experts]`; nothing is kept until it is opened.
#[derive(Default)]
pub struct RouterLog(Mutex<Option<Vec<f32>>>);

impl RouterLog {
    /// Keeps from now on what comes.
    pub fn open(&self) {
        self.kept().get_or_insert_default();
    }

    /// True while what comes is kept.
    pub fn is_open(&self) -> bool {
        self.kept().is_some()
    }

    /// What came since the last call, in the order of the tokens; nothing where it was never opened.
    pub fn take(&self) -> Vec<f32> {
        self.kept().as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Keeps `logits` if it is open.
    ///
    /// # Errors
    /// The machine's.
    pub fn add<B: Backend>(&self, backend: &B, logits: &B::Tensor) -> Result<()> {
        if let Some(kept) = self.kept().as_mut() {
            kept.extend(backend.to_host(logits)?);
        }
        Ok(())
    }

    fn kept(&self) -> MutexGuard<'_, Option<Vec<f32>>> {
        // What a panic left behind is still a list of whole rows.
        self.0.lock().unwrap_or_else(|p| p.into_inner())
    }
}

//! Memory that is used again and again: taking it from the driver at every step would be slower than the step.
//!
//! Pieces are kept by their exact size. All work happens in the order of the calls, so a piece may be handed on while
//! what was launched on it is still to come.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use verify::{Class, Result};

use super::driver::{Context, Memory};

/// Pieces of memory that are free.
#[derive(Debug)]
pub struct Pool {
    context: Arc<Context>,
    free: Mutex<Free>,
}

#[derive(Debug, Default)]
struct Free {
    /// By size.
    pieces: HashMap<usize, Vec<Memory>>,
    bytes: usize,
}

/// A piece in use; it goes back where it came from.
#[derive(Debug)]
pub struct Buffer {
    // None only while it is dropped.
    memory: Option<Memory>,
    home: Arc<Pool>,
}

impl Pool {
    /// Without any.
    pub fn new(context: &Arc<Context>) -> Arc<Self> {
        Arc::new(Pool { context: Arc::clone(context), free: Mutex::default() })
    }

    /// `bytes` bytes; what stands in them is anything.
    ///
    /// # Errors
    /// When the memory is used up even after giving back what is free.
    pub fn take(self: &Arc<Self>, bytes: usize) -> Result<Buffer> {
        // The driver gives no memory of no bytes.
        let bytes = bytes.max(4);
        // The lock is given back first: whoever empties the pool takes it.
        let kept = self.lock().pop(bytes);
        let memory = match kept {
            Some(memory) => memory,
            None => match Memory::new(&self.context, bytes) {
                Err(e) if e.class() == Class::GpuMemory => {
                    self.empty();
                    Memory::new(&self.context, bytes)?
                }
                taken => taken?,
            },
        };
        Ok(Buffer { memory: Some(memory), home: Arc::clone(self) })
    }

    /// Bytes that are free.
    pub fn bytes(&self) -> usize {
        self.lock().bytes
    }

    /// Gives what is free back to the driver.
    pub fn empty(&self) {
        let free = std::mem::take(&mut *self.lock());
        drop(free);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Free {
    fn pop(&mut self, bytes: usize) -> Option<Memory> {
        let memory = self.pieces.get_mut(&bytes)?.pop()?;
        self.bytes -= bytes;
        Some(memory)
    }

    fn push(&mut self, memory: Memory) {
        self.bytes += memory.bytes();
        self.pieces.entry(memory.bytes()).or_default().push(memory);
    }
}

impl Deref for Buffer {
    type Target = Memory;

    fn deref(&self) -> &Memory {
        match &self.memory {
            Some(memory) => memory,
            None => unreachable!("a buffer has its memory until it is dropped"),
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.home.lock().push(memory);
        }
    }
}

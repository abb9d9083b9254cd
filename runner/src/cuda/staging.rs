//! Weights on their way to the GPU: copied aside into pinned memory, from where the GPU fetches one half while the other
//! is filled.

use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;
use verify::Result;

use super::device::Device;
use super::driver::{Event, Memory, Pinned};

/// Bytes of a half.
const HALF: usize = 16 << 20;
/// Bytes that one thread copies at a time.
const PIECE: usize = 1 << 20;
/// Below this the driver's own copy is as fast.
const SMALL: usize = 64 << 10;

/// Two halves.
#[derive(Debug, Default)]
pub struct Staging(Mutex<Halves>);

#[derive(Debug, Default)]
struct Halves {
    halves: Vec<(Pinned, Event)>,
    next: usize,
}

impl Staging {
    /// Writes `bytes` to `memory` from `offset` on.
    ///
    /// # Errors
    /// The driver's.
    pub fn write(&self, device: &Device, memory: &Memory, offset: usize, bytes: &[u8]) -> Result<()> {
        if bytes.len() <= SMALL {
            return memory.write(offset, bytes);
        }
        let mut guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Halves { halves, next } = &mut *guard;
        for (number, part) in bytes.chunks(HALF).enumerate() {
            if halves.len() < 2 {
                halves.push((Pinned::new(device.context(), HALF)?, device.event()?));
            }
            *next = (*next + 1) % halves.len();
            let (pinned, free) = &mut halves[*next];
            free.wait()?;
            let to = &mut pinned.as_mut_slice()[..part.len()];
            to.par_chunks_mut(PIECE)
                .zip(part.par_chunks(PIECE))
                .for_each(|(to, from)| to.copy_from_slice(from));
            memory.write_pinned(offset + number * HALF, pinned, part.len())?;
            free.record()?;
        }
        Ok(())
    }
}

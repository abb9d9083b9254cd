//! A GPU for many threads: each that asks gets a stream with memory of its own, so that one thread's bytes travel while
//! another's are computed on.

use std::ops::Deref;
use std::sync::{Mutex, MutexGuard, PoisonError};

use verify::{Class, Result};

use super::device::Device;
use super::driver::Pinned;
use super::pool::Buffer;

/// The lanes of a GPU. One more is opened whenever all are in use.
#[derive(Debug)]
pub struct Lanes {
    ordinal: usize,
    idle: Mutex<Vec<Held>>,
}

/// A lane in use; it goes back where it came from.
#[derive(Debug)]
pub struct Lane<'a> {
    // None only while it is dropped.
    held: Option<Held>,
    home: &'a Lanes,
}

#[derive(Debug)]
struct Held {
    // Before the device whose memory it is.
    come: Option<Pinned>,
    device: Device,
}

impl Lanes {
    /// Of GPU number `ordinal`.
    ///
    /// # Errors
    /// Exit 6 where there is none that can be used. (So for all that follow: the driver's errors.)
    pub fn open(ordinal: usize) -> Result<Self> {
        Ok(Lanes { ordinal, idle: Mutex::new(vec![Held::open(ordinal)?]) })
    }

    /// A lane that nobody else has.
    pub fn lane(&self) -> Result<Lane<'_>> {
        let idle = self.idle().pop();
        let held = match idle {
            Some(held) => held,
            None => Held::open(self.ordinal)?,
        };
        Ok(Lane { held: Some(held), home: self })
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Held>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    fn open(ordinal: usize) -> Result<Self> {
        Ok(Held { come: None, device: Device::open(ordinal)? })
    }
}

impl Lane<'_> {
    /// Memory for a job; what other lanes keep for their next one is given back where there is no other.
    pub fn take(&self, bytes: usize) -> Result<Buffer> {
        match Device::take(self, bytes) {
            Err(e) if e.class() == Class::GpuMemory => {
                self.home.idle().iter().for_each(|held| held.device.trim());
                Device::take(self, bytes)
            }
            taken => taken,
        }
    }

    /// `bytes` on the device.
    pub fn bring(&self, bytes: &[u8]) -> Result<Buffer> {
        let buffer = self.take(bytes.len())?;
        buffer.write(0, bytes)?;
        Ok(buffer)
    }

    /// The same by way of pinned memory, for many bytes at a time.
    pub fn bring_pinned(&mut self, bytes: &[u8]) -> Result<Buffer> {
        let buffer = self.take(bytes.len())?;
        // What was copied from the pinned memory before may still be on its way where its job failed.
        self.context().wait()?;
        let Held { come, device } = self.held_mut();
        let pinned = match come.take() {
            Some(pinned) if pinned.as_slice().len() >= bytes.len() => pinned,
            _ => Pinned::new(device.context(), bytes.len().max(1).next_power_of_two())?,
        };
        let pinned = come.insert(pinned);
        pinned.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
        buffer.write_pinned(0, pinned, bytes.len())?;
        Ok(buffer)
    }

    fn held_mut(&mut self) -> &mut Held {
        match &mut self.held {
            Some(held) => held,
            None => unreachable!("a lane has its device until it is dropped"),
        }
    }
}

impl Deref for Lane<'_> {
    type Target = Device;

    fn deref(&self) -> &Device {
        match &self.held {
            Some(held) => &held.device,
            None => unreachable!("a lane has its device until it is dropped"),
        }
    }
}

impl Drop for Lane<'_> {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            self.home.idle().push(held);
        }
    }
}

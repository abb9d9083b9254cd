//! What the GPU can do at best, in the same run as what is measured.

use std::time::Instant;

use verify::Result;

use super::device::Device;
use super::driver::Pinned;

/// Copies of each measurement.
const TIMES: usize = 8;

/// Bytes that the device reads and writes in a second when it copies its own memory.
///
/// # Errors
/// The driver's.
pub fn copy_rate(device: &Device) -> Result<f64> {
    let bytes = size(device)?;
    let (from, to) = (device.keep(bytes)?, device.keep(bytes)?);
    from.clear()?;
    to.copy(&from, bytes)?;
    let before = device.event()?;
    for _ in 0..TIMES {
        to.copy(&from, bytes)?;
    }
    let after = device.event()?;
    Ok((2 * TIMES * bytes) as f64 / after.seconds_after(&before)?.max(1e-9))
}

/// Bytes that come from pinned memory to the device in a second.
///
/// # Errors
/// The driver's.
pub fn upload_rate(device: &Device) -> Result<f64> {
    let bytes = size(device)?.min(256 << 20);
    let (pinned, to) = (Pinned::new(device.context(), bytes)?, device.keep(bytes)?);
    to.write_pinned(0, &pinned, bytes)?;
    device.context().wait()?;
    let began = Instant::now();
    for _ in 0..TIMES {
        to.write_pinned(0, &pinned, bytes)?;
    }
    device.context().wait()?;
    Ok((TIMES * bytes) as f64 / began.elapsed().as_secs_f64().max(1e-9))
}

/// Far more than any cache holds, where there is room.
fn size(device: &Device) -> Result<usize> {
    let (free, _) = device.context().memory()?;
    Ok(usize::try_from(free / 16).unwrap_or(usize::MAX).clamp(1 << 20, 1 << 30))
}

//! FP8 codes, scales and losses by the GPU, bit for bit those of [`verify::codec::fp8`].
//!
//! Every thread that asks gets a lane: a stream, pinned memory for what comes and goes, and memory on the device. So one
//! lane's rows travel while another's are copied aside: disk and PCIe are the limit, not the kernel.

use std::sync::{Mutex, PoisonError};

use verify::codec::fp8::{Grid, LANES, Loss, NotFinite, Quantized, Rows, ScaleValues, Sums, scale_of};
use verify::{Error, Result};

use super::device::Device;
use super::driver::Pinned;
use super::launches::{Fp8Amax, Fp8Quantize};
use super::pool::Buffer;

/// Weights of a stretch of `fp8_amax`.
const STRETCH: usize = 65536;
/// Bits of infinity: a largest magnitude not below it is of weights that are not all finite.
const INFINITY: u32 = 0x7f80_0000;

/// Quantizes rows on a GPU. Threads may share it.
#[derive(Debug)]
pub struct Fp8Coder {
    ordinal: usize,
    idle: Mutex<Vec<Lane>>,
}

#[derive(Debug)]
struct Lane {
    // Before the device whose memory they are.
    come: Option<Pinned>,
    device: Device,
}

/// What went wrong with rows.
#[derive(Debug)]
pub enum Fault {
    /// A weight is NaN or infinite.
    NotFinite,
    /// The GPU failed.
    Gpu(Error),
}

impl From<Error> for Fault {
    fn from(e: Error) -> Self {
        Fault::Gpu(e)
    }
}

impl From<NotFinite> for Fault {
    fn from(_: NotFinite) -> Self {
        Fault::NotFinite
    }
}

impl Fp8Coder {
    /// On GPU number `ordinal`.
    ///
    /// # Errors
    /// Exit 6 where there is none that can be used.
    pub fn open(ordinal: usize) -> Result<Self> {
        let first = Lane { come: None, device: Device::open(ordinal)? };
        Ok(Fp8Coder { ordinal, idle: Mutex::new(vec![first]) })
    }

    /// As [`verify::codec::fp8::quantize`].
    ///
    /// # Errors
    /// [`Fault`].
    pub fn quantize(&self, rows: Rows<'_>, grid: Grid, values: ScaleValues) -> Result<Quantized, Fault> {
        if grid == Grid::Tensor {
            let scale = scale_of(self.amax(rows)?, values);
            return self.quantize_with(rows, scale);
        }
        self.on_lane(|lane| lane.quantize(rows, grid, values, None))
    }

    /// As [`verify::codec::fp8::quantize_with`].
    ///
    /// # Errors
    /// [`Fault`].
    pub fn quantize_with(&self, rows: Rows<'_>, scale: f32) -> Result<Quantized, Fault> {
        self.on_lane(|lane| lane.quantize(rows, Grid::Tensor, ScaleValues::F32, Some(scale)))
    }

    /// As [`verify::codec::fp8::amax`].
    ///
    /// # Errors
    /// [`Fault`].
    pub fn amax(&self, rows: Rows<'_>) -> Result<f32, Fault> {
        self.on_lane(|lane| lane.amax(rows))
    }

    fn on_lane<T>(&self, work: impl FnOnce(&mut Lane) -> Result<T, Fault>) -> Result<T, Fault> {
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let lane = idle().pop();
        let mut lane = match lane {
            Some(lane) => lane,
            None => Lane { come: None, device: Device::open(self.ordinal)? },
        };
        let done = work(&mut lane);
        idle().push(lane);
        done
    }
}

impl Lane {
    /// The rows on the device.
    fn bring(&mut self, rows: Rows<'_>) -> Result<Buffer> {
        let bytes = rows.bytes;
        let buffer = self.device.take(bytes.len())?;
        let come = match self.come.take() {
            Some(pinned) if pinned.as_slice().len() >= bytes.len() => pinned,
            _ => Pinned::new(self.device.context(), bytes.len().max(1).next_power_of_two())?,
        };
        // What was copied from it before is over: every job ends by reading its results.
        let come = self.come.insert(come);
        come.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
        buffer.write_pinned(0, come, bytes.len())?;
        Ok(buffer)
    }

    fn amax(&mut self, rows: Rows<'_>) -> Result<f32, Fault> {
        let n = rows.bytes.len() / rows.float.bytes();
        let (w, amaxes) = (self.bring(rows)?, self.device.take(n.div_ceil(STRETCH) * 4)?);
        let launch = Fp8Amax { float: rows.float, w: w.at(0), n: n as u64, amaxes: amaxes.at(0) };
        self.device.run(&launch.launch())?;
        let top = words(&amaxes, n.div_ceil(STRETCH))?.into_iter().max().unwrap_or(0);
        if top >= INFINITY {
            return Err(Fault::NotFinite);
        }
        Ok(f32::from_bits(top))
    }

    fn quantize(
        &mut self,
        rows: Rows<'_>,
        grid: Grid,
        values: ScaleValues,
        scale: Option<f32>,
    ) -> Result<Quantized, Fault> {
        let (count, cols) = (rows.count(), rows.cols);
        if count * cols == 0 {
            return Ok(Quantized::default());
        }
        let block = match grid {
            Grid::Block => [128, 128],
            Grid::Channel => [1, cols as u32],
            Grid::Tensor => [count as u32, cols as u32],
        };
        let (high, across) = grid.scales(count, cols);
        let n = high * across;
        let w = self.bring(rows)?;
        let (codes, scales) = (self.device.take(count * cols)?, self.device.take(n * 4)?);
        let (amaxes, loss) = (self.device.take(n * 4)?, self.device.take(n * 3 * LANES * 4)?);
        let given = match scale {
            None => None,
            Some(scale) => {
                let given = self.device.take(4)?;
                given.write(0, &scale.to_le_bytes())?;
                Some(given)
            }
        };
        let launch = Fp8Quantize {
            float: rows.float,
            w: w.at(0),
            rows: count as u32,
            cols: cols as u32,
            block,
            values,
            given: given.as_ref().map(|g| g.at(0)),
            codes: codes.at(0),
            scales: scales.at(0),
            amaxes: amaxes.at(0),
            loss: loss.at(0),
        };
        self.device.run(&launch.launch())?;
        let amaxes = words(&amaxes, n)?;
        if amaxes.iter().any(|a| *a >= INFINITY) {
            return Err(Fault::NotFinite);
        }
        let floats = |buffer: &Buffer, n: usize| -> Result<Vec<f32>> {
            Ok(words(buffer, n)?.into_iter().map(f32::from_bits).collect())
        };
        let scales = floats(&scales, n)?;
        let loss = loss_of(&floats(&loss, n * 3 * LANES)?, &scales, &amaxes);
        let mut made = vec![0; count * cols];
        codes.read(0, &mut made)?;
        Ok(Quantized { codes: made, scales, loss })
    }
}

fn words(buffer: &Buffer, n: usize) -> Result<Vec<u32>> {
    let mut bytes = vec![0; n * 4];
    buffer.read(0, &mut bytes)?;
    Ok(bytes.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect())
}

/// The CPU's sums of each block's lanes.
fn loss_of(lanes: &[f32], scales: &[f32], amaxes: &[u32]) -> Loss {
    let mut loss = Loss::default();
    let (lanes, _) = lanes.as_chunks::<LANES>();
    let (blocks, _) = lanes.as_chunks::<3>();
    for (([squared_error, squared_weight, largest], scale), amax) in blocks.iter().zip(scales).zip(amaxes) {
        let sums = Sums { squared_error: *squared_error, squared_weight: *squared_weight, largest: *largest };
        loss.add(&sums, *scale, f32::from_bits(*amax));
    }
    loss
}

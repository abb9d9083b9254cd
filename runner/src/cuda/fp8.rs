//! FP8 codes, scales and losses by the GPU, bit for bit those of [`verify::codec::fp8`].
//!
//! Every thread has a lane of its own: one's rows travel while another's are copied aside, so that disk and PCIe are the
//! limit, not the kernel.

use verify::codec::fp8::{Grid, LANES, Loss, NotFinite, Quantized, Rows, ScaleValues, Sums, scale_of};
use verify::{Error, Result};

use super::lanes::{Lane, Lanes};
use super::launches::{Fp8Amax, Fp8Quantize};
use super::pool::Buffer;

/// Weights of a stretch of `fp8_amax`.
const STRETCH: usize = 65536;
/// Bits of infinity: a largest magnitude not below it is of weights that are not all finite.
const INFINITY: u32 = 0x7f80_0000;

/// Quantizes rows on a GPU. Threads may share it.
#[derive(Debug)]
pub struct Fp8Coder(Lanes);

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
        Lanes::open(ordinal).map(Fp8Coder)
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
        quantize(&mut self.0.lane()?, rows, (grid, values), None)
    }

    /// As [`verify::codec::fp8::quantize_with`].
    ///
    /// # Errors
    /// [`Fault`].
    pub fn quantize_with(&self, rows: Rows<'_>, scale: f32) -> Result<Quantized, Fault> {
        quantize(&mut self.0.lane()?, rows, (Grid::Tensor, ScaleValues::F32), Some(scale))
    }

    /// As [`verify::codec::fp8::amax`].
    ///
    /// # Errors
    /// [`Fault`].
    pub fn amax(&self, rows: Rows<'_>) -> Result<f32, Fault> {
        amax(&mut self.0.lane()?, rows)
    }
}

fn amax(lane: &mut Lane<'_>, rows: Rows<'_>) -> Result<f32, Fault> {
    let n = rows.bytes.len() / rows.float.bytes();
    let (w, amaxes) = (lane.bring_pinned(rows.bytes)?, lane.take(n.div_ceil(STRETCH) * 4)?);
    let launch = Fp8Amax { float: rows.float, w: w.at(0), n: n as u64, amaxes: amaxes.at(0) };
    lane.run(&launch.launch())?;
    let top = words(&amaxes, n.div_ceil(STRETCH))?.into_iter().max().unwrap_or(0);
    if top >= INFINITY {
        return Err(Fault::NotFinite);
    }
    Ok(f32::from_bits(top))
}

fn quantize(
    lane: &mut Lane<'_>,
    rows: Rows<'_>,
    (grid, values): (Grid, ScaleValues),
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
    let w = lane.bring_pinned(rows.bytes)?;
    let (codes, scales) = (lane.take(count * cols)?, lane.take(n * 4)?);
    let (amaxes, loss) = (lane.take(n * 4)?, lane.take(n * 3 * LANES * 4)?);
    let given = match scale {
        None => None,
        Some(scale) => Some(lane.bring(&scale.to_le_bytes())?),
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
    lane.run(&launch.launch())?;
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

fn words(buffer: &Buffer, n: usize) -> Result<Vec<u32>> {
    Ok(buffer.read_numbers(n)?.into_iter().map(u32::from_le_bytes).collect())
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

//! Linear layers: row by row in steps of single tokens, in tiles of 64 rows in others.

use verify::Result;

use super::{Cuda, Stored, Tensor};
use crate::backend::Linear;
use crate::cuda::driver::At;
use crate::cuda::launches::{Gemv, Grouped, Tile};

/// Blocks that a launch may have in its second dimension.
const MOST: usize = 65535;

/// Every layer of the same input.
pub fn all<const N: usize>(cuda: &Cuda, x: &Tensor, layers: [&Linear<Cuda>; N]) -> Result<[Tensor; N]> {
    // As the last layer took it: those of one input have one scale, in a sound checkpoint.
    let mut rounded: Option<(f32, Tensor)> = None;
    let mut made = Vec::with_capacity(N);
    for layer in layers {
        let x = match layer.weight.inputs() {
            None => x,
            Some(scale) => match &mut rounded {
                Some((of, taken)) if *of == scale => taken,
                other => &other.insert((scale, cuda.kept_in_fp8(x, scale)?)).1,
            },
        };
        made.push(linear(cuda, x, layer)?);
    }
    match made.try_into() {
        Ok(all) => Ok(all),
        Err(_) => unreachable!("one output for each layer"),
    }
}

fn linear(cuda: &Cuda, x: &Tensor, layer: &Linear<Cuda>) -> Result<Tensor> {
    let y = cuda.room(x.rows, layer.weight.rows())?;
    let bias = layer.bias.as_ref().map(Tensor::at);
    let w = layer.weight.weights();
    if !cuda.single() && w.fit_tiles() {
        tiled(cuda, &layer.weight, x.at(), None, (1, x.rows), bias, &y)?;
        return Ok(y);
    }
    for first in (0..x.rows).step_by(MOST) {
        let visits = (x.rows - first).min(MOST) as u32;
        let launch = Gemv {
            w,
            x: x.buffer.at(first * x.cols * 4),
            ids: None,
            per: 1,
            bias,
            y: y.buffer.at(first * y.cols * 4),
            visits,
        };
        cuda.device.run(&launch.launch())?;
    }
    Ok(y)
}

/// `count` rows of `y`, each of row number / `per` of `x`.
pub fn tiled(
    cuda: &Cuda,
    weight: &Stored,
    x: At<'_>,
    grouped: Option<Grouped<At<'_>>>,
    (per, count): (usize, usize),
    bias: Option<At<'_>>,
    y: &Tensor,
) -> Result<()> {
    let (per, count) = (per as u32, count as u32);
    let tile =
        Tile { w: weight.weights(), x, grouped, per, count, bias, y: y.at(), parts: cuda.tiles.parts() };
    cuda.device.run(&tile.launch())
}

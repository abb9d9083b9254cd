//! The next tokens, chosen on the GPU: a few bytes come back instead of all logits.

use verify::Result;

use super::{Cuda, Tensor};
use crate::cuda::launches::{Argmax, Sample};
use crate::sampling::Sampling;

/// The token after each row of `logits`; `states` are where its random numbers stand, before and after.
pub fn choose(cuda: &Cuda, logits: &Tensor, how: Sampling, states: &mut [u64]) -> Result<Vec<u32>> {
    let (vocab, sequences) = (logits.cols as u32, logits.rows as u32);
    let ids = cuda.device.take(logits.rows * 4)?;
    if how.temperature == 0.0 {
        let launch = Argmax { logits: logits.at(), vocab, sequences, ids: ids.at(0) };
        cuda.device.run(&launch.launch())?;
    } else {
        let at = cuda.longs(states.iter().copied())?;
        let [ranks, weights] = [4, 8].map(|size| cuda.device.take(logits.len() * size));
        let (ranks, weights) = (ranks?, weights?);
        let launch = Sample {
            logits: logits.at(),
            seen: None,
            vocab,
            sequences,
            how,
            states: at.at(0),
            ranks: ranks.at(0),
            weights: weights.at(0),
            ids: ids.at(0),
        };
        cuda.device.run(&launch.launch())?;
        let moved = at.read_numbers(states.len())?.into_iter().map(u64::from_le_bytes);
        states.iter_mut().zip(moved).for_each(|(state, moved)| *state = moved);
    }
    Ok(ids.read_numbers(logits.rows)?.into_iter().map(u32::from_le_bytes).collect())
}

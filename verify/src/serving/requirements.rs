//! The memory table: what a model needs in each format, and where it fits.

use serde::Serialize;

use super::card::{CARDS, Card, Vram};
use super::fit::{Deployment, Fit, Verdict};
use super::format::{CacheFormat, WeightFormat};
use super::memory::{Load, Memory};
use super::parallel::{self, ParallelSize};
use super::weights::Weights;
use crate::checkpoint::TensorIndex;
use crate::inspect::{Dimensions, Inspection};

/// What is asked.
#[derive(Debug, Clone, Copy)]
pub struct Question {
    /// The cards; `None` asks for the smallest that do.
    pub vram: Option<Vram>,
    /// How many of them.
    pub gpus: u64,
    /// What is to be served.
    pub load: Load,
}

/// The answer.
#[derive(Debug, Clone, Serialize)]
pub struct Requirements {
    /// What is to be served.
    pub load: Load,
    /// GPUs.
    pub gpus: u64,
    /// The named card.
    pub card: Option<Card>,
    /// Cache and state.
    pub memory: Memory,
    /// One row for each format of weights and of the cache.
    pub rows: Vec<Row>,
    /// Tensor-parallel sizes of each format of weights.
    pub parallel: Vec<Parallel>,
}

/// One format.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// True for the weights as they are in the folder.
    pub as_found: bool,
    /// The weights of all GPUs together.
    pub whole: Weights,
    /// How it fits the cards that were asked for, or else the smallest ones that it fits.
    #[serde(flatten)]
    pub fit: Fit,
    /// The smallest named card that holds the whole load, where no card was asked for.
    pub smallest_card: Option<&'static str>,
}

/// Tensor-parallel sizes.
#[derive(Debug, Clone, Serialize)]
pub struct Parallel {
    /// Format of the weights.
    pub format: WeightFormat,
    /// Sizes, allowed and not.
    pub sizes: Vec<ParallelSize>,
}

impl Requirements {
    /// The table of a model; `None` where its sizes are not known (see its findings).
    pub fn of(found: &Inspection, index: &TensorIndex, question: &Question) -> Option<Self> {
        let d = found.dimensions.as_ref()?;
        let arch = found.architecture.as_ref()?;
        let own = found.weight_format();
        let mut formats = vec![(own, Weights::as_found(own, index, Some(arch)))];
        let usual =
            [WeightFormat::Bits16, WeightFormat::Fp8 { block: true }, WeightFormat::Int4 { group: 128 }];
        for format in usual.into_iter().filter(|f| f.name() != own.name()) {
            formats.push((format, Weights::in_format(format, index, arch)));
        }
        let mut rows = Vec::new();
        for (at, (_, weights)) in formats.iter().enumerate() {
            for cache in [CacheFormat::Bf16, CacheFormat::Fp8] {
                rows.push(Row::of(d, weights, cache, question, at == 0));
            }
        }
        let asked = Some(question.gpus);
        let parallel = formats
            .iter()
            .map(|(format, _)| Parallel { format: *format, sizes: parallel::sizes(d, *format, asked) });
        Some(Requirements {
            load: question.load,
            gpus: question.gpus,
            card: question.vram.and_then(|v| v.card()),
            memory: Memory::of(d),
            parallel: parallel.collect(),
            rows,
        })
    }
}

impl Row {
    fn of(d: &Dimensions, weights: &Weights, cache: CacheFormat, question: &Question, as_found: bool) -> Row {
        let fit = |vram: Vram| {
            let deployment = Deployment { vram, gpus: question.gpus, load: question.load };
            Fit::of(d, weights, cache, &deployment)
        };
        let whole = *weights;
        if let Some(vram) = question.vram {
            return Row { as_found, whole, fit: fit(vram), smallest_card: None };
        }
        let mut by_size: Vec<&Card> = CARDS.iter().filter(|c| c.runs(whole.format)).collect();
        by_size.sort_by_key(|c| c.mib);
        let mut last = fit(Vram::Bytes(1 << 30));
        for card in by_size {
            last = fit(Vram::Card(*card));
            if last.verdict == Verdict::Fits {
                return Row { as_found, whole, fit: last, smallest_card: Some(card.name) };
            }
        }
        Row { as_found, whole, fit: last, smallest_card: None }
    }
}

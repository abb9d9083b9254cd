//! A mixture of experts: all experts of a layer in one launch.

use verify::{Class, Error, Result};

use super::linear::tiled;
use super::weights::store;
use super::{Cuda, Stored, Tensor};
use crate::backend::{Backend, Routing};
use crate::cuda::driver::At;
use crate::cuda::launches::{Combine, Down, GateUp, Gemv, Grouped, Router, SortVisits};
use crate::cuda::pool::Buffer;
use crate::weights::Matrix;

/// The routed experts of a layer.
pub struct Experts {
    gate: Stored,
    up: Stored,
    down: Stored,
    count: usize,
}

/// Experts of a token that one block puts together.
const MOST_TOGETHER: usize = 15;
/// What the router's kernel holds.
const MOST_CHOSEN: usize = 32;
const MOST_EXPERTS: usize = 8192;

impl Experts {
    /// Brings them to the GPU: gate, up and down of each.
    pub fn new(cuda: &Cuda, experts: Vec<[Matrix; 3]>) -> Result<Self> {
        let count = experts.len();
        let part = |n: usize| -> Vec<Matrix> { experts.iter().map(|e| e[n].clone()).collect() };
        let [gate, up, down] = [part(0), part(1), part(2)].map(|all| store(cuda, &all));
        Ok(Experts { gate: gate?, up: up?, down: down?, count })
    }
}

/// Which experts each token goes to.
struct Choice {
    /// u32 `[tokens, chosen]`.
    ids: Buffer,
    /// f32 `[tokens, chosen]`.
    weights: Buffer,
    tokens: usize,
    chosen: usize,
}

/// The weighted sum of the chosen experts.
pub fn mix(cuda: &Cuda, x: &Tensor, router: &Tensor, routing: Routing, experts: &Experts) -> Result<Tensor> {
    let chosen = routing.chosen;
    if chosen > MOST_CHOSEN || experts.count > MOST_EXPERTS {
        return Err(Error::new(Class::Gpu, "the GPU's router does not take so many experts")
            .found(format!("{chosen} of {}", experts.count))
            .expected(format!("at most {MOST_CHOSEN} of {MOST_EXPERTS}"))
            .hint("run with `--device cpu`"));
    }
    let (ids, weights) = (cuda.device.take(x.rows * chosen * 4)?, cuda.device.take(x.rows * chosen * 4)?);
    let launch = Router {
        logits: router.at(),
        experts: experts.count as u32,
        chosen: chosen as u32,
        divide: routing.divide,
        ids: ids.at(0),
        weights: weights.at(0),
        tokens: x.rows as u32,
    };
    cuda.device.run(&launch.launch())?;
    let choice = Choice { ids, weights, tokens: x.rows, chosen };
    // Gate and up read the same; a sound checkpoint has one scale for both.
    if experts.gate.inputs() != experts.up.inputs() {
        return Err(Error::new(Class::Gpu, "gate and up of experts have different scales of inputs")
            .hint("run with `--device cpu`"));
    }
    let rounded = cuda.taken_by(&experts.gate, x)?;
    let x = rounded.as_ref().unwrap_or(x);
    let fit = |w: &Stored| w.weights().fit_tiles();
    let tiles = [&experts.gate, &experts.up, &experts.down].into_iter().all(fit);
    match !cuda.single() && tiles {
        true => sorted(cuda, x, experts, &choice),
        false => one_by_one(cuda, x, experts, &choice),
    }
}

/// A warp for each row of each visited expert.
fn one_by_one(cuda: &Cuda, x: &Tensor, experts: &Experts, choice: &Choice) -> Result<Tensor> {
    let chosen = choice.chosen;
    let out = cuda.room(x.rows, experts.down.rows())?;
    // What a launch can have in its second dimension.
    let tokens_each = (65535 / chosen).max(1);
    for first in (0..x.rows).step_by(tokens_each) {
        let tokens = (x.rows - first).min(tokens_each);
        let visits = tokens * chosen;
        let inner = cuda.room(visits, experts.gate.rows())?;
        let (ids, weights) = (choice.ids.at(first * chosen * 4), choice.weights.at(first * chosen * 4));
        let launch = GateUp {
            gate: experts.gate.weights(),
            up: experts.up.weights(),
            x: x.buffer.at(first * x.cols * 4),
            ids: Some(ids),
            per: chosen as u32,
            out: inner.at(),
            visits: visits as u32,
        };
        cuda.device.run(&launch.launch())?;
        let inner = cuda.taken_by(&experts.down, &inner)?.unwrap_or(inner);
        let to = out.buffer.at(first * out.cols * 4);
        let (w, chosen_u32, tokens_u32) = (experts.down.weights(), chosen as u32, tokens as u32);
        if chosen <= MOST_TOGETHER {
            let launch = Down {
                w,
                inner: inner.at(),
                ids,
                weights,
                chosen: chosen_u32,
                shared: None,
                out: to,
                tokens: tokens_u32,
            };
            cuda.device.run(&launch.launch())?;
            continue;
        }
        let y = cuda.room(visits, out.cols)?;
        let (ids, visits) = (Some(ids), visits as u32);
        let launch = Gemv { w, x: inner.at(), ids, per: 1, bias: None, y: y.at(), visits };
        cuda.device.run(&launch.launch())?;
        let places = cuda.words(crate::cuda::device::Input::Constant, 0..visits)?;
        combine(cuda, &y, places.at(0), weights, (tokens, chosen), to)?;
    }
    Ok(out)
}

/// Visits sorted by expert, in tiles.
fn sorted(cuda: &Cuda, x: &Tensor, experts: &Experts, choice: &Choice) -> Result<Tensor> {
    let visits = choice.tokens * choice.chosen;
    let words = |n: usize| cuda.device.take(n * 4);
    let [offsets, order, positions] = [words(experts.count + 1)?, words(visits)?, words(visits)?];
    let sort = SortVisits {
        ids: choice.ids.at(0),
        visits: visits as u32,
        experts: experts.count as u32,
        offsets: offsets.at(0),
        order: order.at(0),
        positions: positions.at(0),
    };
    cuda.device.run(&sort.launch())?;
    let group = |order| Some(Grouped { offsets: offsets.at(0), order, experts: experts.count as u32 });
    let inner = |w: &Stored| {
        let y = cuda.room(visits, w.rows())?;
        tiled(cuda, w, x.at(), group(Some(order.at(0))), (choice.chosen, visits), None, &y)?;
        Ok::<_, Error>(y)
    };
    let (gate, up) = (inner(&experts.gate)?, inner(&experts.up)?);
    let inner = cuda.swiglu(gate, &up)?;
    let inner = cuda.taken_by(&experts.down, &inner)?.unwrap_or(inner);
    let y = cuda.room(visits, experts.down.rows())?;
    tiled(cuda, &experts.down, inner.at(), group(None), (1, visits), None, &y)?;
    let out = cuda.room(x.rows, y.cols)?;
    let shape = (choice.tokens, choice.chosen);
    combine(cuda, &y, positions.at(0), choice.weights.at(0), shape, out.at())?;
    Ok(out)
}

fn combine(
    cuda: &Cuda,
    y: &Tensor,
    positions: At<'_>,
    weights: At<'_>,
    (tokens, chosen): (usize, usize),
    out: At<'_>,
) -> Result<()> {
    let (chosen, width, tokens) = (chosen as u32, y.cols as u32, tokens as u32);
    cuda.device
        .run(&Combine { y: y.at(), positions, weights, chosen, shared: None, width, tokens, out }.launch())
}

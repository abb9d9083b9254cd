//! A mixture of experts: tokens sorted by expert, every expert's weights read once.

use rayon::prelude::*;
use verify::Result;

use super::isa::{Isa, Kernel, Lanes};
use super::product::Job;
use super::{Array, Cpu, elementwise};
use crate::backend::{Divide, Routing, SwiGlu};

/// Rows, one for each expert of each token, that are computed together: memory is theirs, not the prompt's.
const ROWS: usize = 2048;
/// Tokens that a thread routes, and whose experts' outputs it adds up, at a time.
const TOKENS: usize = 8;

/// An expert with the tokens that the router sends to it.
#[derive(Clone, Copy)]
pub struct Visited<'a> {
    /// The expert.
    pub expert: &'a SwiGlu<Cpu>,
    /// Rows of the tokens, and the expert's weight for each.
    pub visits: &'a [(usize, f32)],
}

impl<'a> Visited<'a> {
    /// Those of `experts` that are visited at all, in their order.
    pub fn of(experts: &'a [SwiGlu<Cpu>], visits: &'a [Vec<(usize, f32)>]) -> Vec<Self> {
        let pairs = experts.iter().zip(visits).map(|(expert, visits)| Visited { expert, visits });
        pairs.filter(|v| !v.visits.is_empty()).collect()
    }
}

/// For each token the sum over its experts, in the order of the experts, of weight times output.
pub fn mix(cpu: &Cpu, x: &Array, router: &Array, routing: Routing, experts: &[SwiGlu<Cpu>]) -> Result<Array> {
    let visits = visits(cpu.isa, router, routing);
    let busy = Visited::of(experts, &visits);
    let mut out = Array::zeros(x.rows(), x.cols());
    let mut rest = &busy[..];
    while !rest.is_empty() {
        let mut rows = 0;
        let fit = rest.iter().take_while(|v| (rows += v.visits.len(), rows <= ROWS).1).count();
        let (some, others) = rest.split_at(fit.max(1));
        add(cpu, x, some, &mut out)?;
        rest = others;
    }
    Ok(out)
}

/// Adds to `out` what these experts make of the tokens that visit them.
pub fn add(cpu: &Cpu, x: &Array, busy: &[Visited], out: &mut Array) -> Result<()> {
    let inputs: Vec<Array> = busy.par_iter().map(|v| gathered(x, v.visits)).collect();
    let jobs: Vec<Job> = busy
        .iter()
        .zip(&inputs)
        .flat_map(|(v, x)| [Job { x, w: &v.expert.gate.weight }, Job { x, w: &v.expert.up.weight }])
        .collect();
    let mut results = cpu.products(&jobs)?.into_iter();
    drop(inputs);
    let mut inner = Vec::with_capacity(busy.len());
    while let (Some(mut gate), Some(up)) = (results.next(), results.next()) {
        elementwise::swiglu(cpu.isa, gate.values_mut(), up.values());
        inner.push(gate);
    }
    let jobs: Vec<Job> = busy.iter().zip(&inner).map(|(v, x)| Job { x, w: &v.expert.down.weight }).collect();
    let outputs = cpu.products(&jobs)?;
    let mut parts: Vec<Vec<(f32, &[f32])>> = vec![Vec::new(); x.rows()];
    for (v, y) in busy.iter().zip(&outputs) {
        for ((token, weight), y) in v.visits.iter().zip(y.each_row()) {
            parts[*token].push((*weight, y));
        }
    }
    let tokens = out.values_mut().par_chunks_exact_mut(x.cols()).with_min_len(TOKENS);
    tokens.zip(parts).for_each(|(to, parts)| {
        for (weight, y) in parts {
            to.iter_mut().zip(y).for_each(|(to, y)| *to += weight * y);
        }
    });
    Ok(())
}

/// For each expert the tokens (rows of the logits `router`) that choose it, and its weight for each.
pub fn visits(isa: Isa, router: &Array, routing: Routing) -> Vec<Vec<(usize, f32)>> {
    let mut visits: Vec<Vec<(usize, f32)>> = vec![Vec::new(); router.cols()];
    let rows = router.values().par_chunks_exact(router.cols().max(1)).with_min_len(TOKENS);
    let chosen: Vec<Vec<(usize, f32)>> = rows.map(|logits| choose(isa, logits, routing)).collect();
    for (token, chosen) in chosen.into_iter().enumerate() {
        for (expert, weight) in chosen {
            visits[expert].push((token, weight));
        }
    }
    visits
}

fn gathered(x: &Array, visits: &[(usize, f32)]) -> Array {
    let mut values = Vec::with_capacity(visits.len() * x.cols());
    visits.iter().for_each(|(token, _)| values.extend_from_slice(x.row(*token)));
    Array::new(visits.len(), x.cols(), values)
}

/// The chosen experts and their weights. Of equal logits the lower number is taken first.
fn choose(isa: Isa, logits: &[f32], routing: Routing) -> Vec<(usize, f32)> {
    let mut weights = logits.to_vec();
    isa.run(Softmax(&mut weights));
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by(|a, b| weights[*b].total_cmp(&weights[*a]));
    order.truncate(routing.chosen);
    let sum: f32 = order.iter().map(|e| weights[*e]).sum();
    let divisor = match routing.divide {
        Divide::Never => 1.0,
        Divide::BySum => sum,
    };
    order.into_iter().map(|e| (e, weights[e] / divisor)).collect()
}

struct Softmax<'a>(&'a mut [f32]);

impl Kernel for Softmax<'_> {
    type Out = ();
    #[inline(always)]
    fn run<L: Lanes>(self) {
        elementwise::softmax::<L>(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weights(divide: Divide) -> Vec<(usize, f32)> {
        choose(Isa::best(), &[0.0, 2.0, 1.0, 2.0], Routing { chosen: 2, divide })
    }

    #[test]
    fn softmax_runs_over_all_experts_before_the_choice() {
        let e = |x: f32| x.exp();
        let all = e(0.0) + e(2.0) + e(1.0) + e(2.0);
        let got = weights(Divide::Never);
        assert_eq!((got[0].0, got[1].0), (1, 3));
        assert!((got[0].1 - e(2.0) / all).abs() < 1e-6, "{got:?}");
    }

    #[test]
    fn divided_weights_sum_to_one() {
        let got = weights(Divide::BySum);
        assert!((got[0].1 + got[1].1 - 1.0).abs() < 1e-6, "{got:?}");
    }
}

//! What an MLP gives with other weights, a few experts at a time: the changed weights of all of them are never in memory
//! together.

use rayon::prelude::*;
use runner::Cpu;
use runner::backend::{Backend, Linear, SwiGlu};
use runner::blocks::Mlp;
use runner::cpu::{Array, Visited};
use verify::Result;

/// Experts whose weights are changed at a time.
const TOGETHER: usize = 8;

/// The output `[tokens, hidden]` of `mlp` on `x`, normalised, with what `change` makes of its linears: those of experts,
/// not the router.
///
/// # Errors
/// The machine's.
pub fn output(
    cpu: &Cpu,
    mlp: &Mlp<Cpu>,
    x: &Array,
    change: &(dyn Fn(&Linear<Cpu>) -> Linear<Cpu> + Sync),
) -> Result<Array> {
    let changed =
        |mlp: &SwiGlu<Cpu>| SwiGlu { gate: change(&mlp.gate), up: change(&mlp.up), down: change(&mlp.down) };
    let moe = match mlp {
        Mlp::Dense(mlp) => return changed(mlp).forward(cpu, x),
        Mlp::Moe(moe) => moe,
    };
    let [logits] = cpu.linear(x, [&moe.router])?;
    let visits = cpu.visits(&logits, moe.routing);
    let mut y = Array::zeros(x.rows(), x.cols());
    for some in Visited::of(&moe.experts, &visits).chunks(TOGETHER) {
        let trial: Vec<SwiGlu<Cpu>> = some.par_iter().map(|v| changed(v.expert)).collect();
        let visited: Vec<Visited> =
            trial.iter().zip(some).map(|(expert, v)| Visited { expert, visits: v.visits }).collect();
        cpu.add_experts(x, &visited, &mut y)?;
    }
    if let Some((shared, gate)) = &moe.shared {
        changed(shared).add_gated(cpu, x, gate, &mut y)?;
    }
    Ok(y)
}

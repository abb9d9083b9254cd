//! The MLP of a layer: dense SwiGLU, or a mixture of experts with an optional shared one.

use verify::Result;

use super::router_log::RouterLog;
use crate::backend::{Backend, Divide, Linear, Routing, SwiGlu};
use crate::cpu::Cpu;
use crate::families::{Builder, Keys};
use crate::weights::Matrix;

/// Shape of a mixture of experts.
#[derive(Debug, Clone)]
pub struct MoeConfig {
    /// Input and output width.
    pub hidden: usize,
    /// Width inside an expert.
    pub inter: usize,
    /// Number of routed experts.
    pub experts: usize,
    /// How they are chosen.
    pub routing: Routing,
    /// Width inside the shared expert, where there is one.
    pub shared: Option<usize>,
    /// Names of the tensors.
    pub names: ExpertNames,
}

/// How a family names its experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpertNames {
    /// `mlp.experts.E.{gate,up,down}_proj`, or fused `mlp.experts.{gate_up,down}_proj`.
    Projections,
    /// `block_sparse_moe.experts.E.{w1,w3,w2}`.
    Mixtral,
}

impl MoeConfig {
    /// The keys that the families share; `inter` names the key of the experts' width.
    ///
    /// # Errors
    /// Exit 3 for missing keys and numbers that make no sense.
    pub fn parse(keys: &Keys, inter: &str, divide: Divide) -> Result<Self> {
        // Older and newer files spell it differently, for the same model_type.
        let spellings = ["num_experts", "num_local_experts"];
        let experts =
            keys.count(spellings.into_iter().find(|k| keys.get(k).is_some()).unwrap_or("num_experts"))?;
        let chosen = keys.count("num_experts_per_tok")?;
        if chosen > experts {
            return Err(keys
                .wrong("experts")
                .found(format!("{chosen} of {experts} chosen"))
                .expected("at most all of them"));
        }
        Ok(MoeConfig {
            hidden: keys.count("hidden_size")?,
            inter: keys.count(inter)?,
            experts,
            routing: Routing { chosen, divide },
            shared: None,
            names: ExpertNames::Projections,
        })
    }
}

/// The MLP of a layer.
pub enum Mlp<B: Backend> {
    /// One SwiGLU for every token.
    Dense(SwiGlu<B>),
    /// Experts.
    Moe(Moe<B>),
}

/// A mixture of experts.
pub struct Moe<B: Backend> {
    /// `[experts, hidden]`.
    pub router: Linear<B>,
    /// How it chooses.
    pub routing: Routing,
    /// All routed experts.
    pub experts: B::Experts,
    /// How many they are.
    pub count: usize,
    /// The shared expert and its gate `[1, hidden]`.
    pub shared: Option<(SwiGlu<B>, Linear<B>)>,
    /// What the router said, while someone wants to know.
    pub log: RouterLog,
}

impl<B: Backend> Mlp<B> {
    /// Reads a dense `mlp.*`.
    ///
    /// # Errors
    /// Exit 3 naming a missing or misshapen tensor.
    pub fn dense(layer: &Builder<B>, hidden: usize, inter: usize) -> Result<Self> {
        Ok(Mlp::Dense(swiglu(&layer.within("mlp"), PROJECTIONS, hidden, inter)?))
    }

    /// Reads a dense `mlp.*` whose projections have biases.
    ///
    /// # Errors
    /// As [`Self::dense`].
    pub fn dense_with_bias(layer: &Builder<B>, hidden: usize, inter: usize) -> Result<Self> {
        let at = layer.within("mlp");
        Ok(Mlp::Dense(SwiGlu {
            gate: at.linear_with_bias("gate_proj", [inter, hidden])?,
            up: at.linear_with_bias("up_proj", [inter, hidden])?,
            down: at.linear_with_bias("down_proj", [hidden, inter])?,
        }))
    }

    /// Reads a mixture of experts, in either layout.
    ///
    /// # Errors
    /// As [`Self::dense`].
    pub fn moe(layer: &Builder<B>, c: &MoeConfig) -> Result<Self> {
        let (at, names) = match c.names {
            ExpertNames::Projections => (layer.within("mlp"), PROJECTIONS),
            ExpertNames::Mixtral => (layer.within("block_sparse_moe"), ["w1", "w3", "w2"]),
        };
        let experts = match at.has("experts.gate_up_proj") {
            true => fused_experts(&at, c)?,
            false => {
                let [gate, up, down] = names;
                let one = |e| {
                    let at = at.within(format!("experts.{e}"));
                    let inner = [c.inter, c.hidden];
                    Ok([
                        at.matrix(gate, inner)?,
                        at.matrix(up, inner)?,
                        at.matrix(down, [c.hidden, c.inter])?,
                    ])
                };
                (0..c.experts).map(one).collect::<Result<_>>()?
            }
        };
        let experts = layer.backend().experts_of(experts)?;
        let shared = match c.shared {
            None => None,
            Some(inter) => Some((
                swiglu(&at.within("shared_expert"), PROJECTIONS, c.hidden, inter)?,
                at.linear("shared_expert_gate", [1, c.hidden])?,
            )),
        };
        let router = at.linear("gate", [c.experts, c.hidden])?;
        let (routing, count) = (c.routing, c.experts);
        Ok(Mlp::Moe(Moe { router, routing, experts, count, shared, log: RouterLog::default() }))
    }

    /// `x` `[tokens, hidden]` to the same shape.
    ///
    /// # Errors
    /// The machine's.
    pub fn forward(&self, b: &B, x: &B::Tensor) -> Result<B::Tensor> {
        match self {
            Mlp::Dense(mlp) => mlp.forward(b, x),
            Mlp::Moe(moe) => {
                let [router] = b.linear(x, [&moe.router])?;
                moe.log.add(b, &router)?;
                let mut y = b.experts(x, &router, moe.routing, &moe.experts)?;
                if let Some((shared, gate)) = &moe.shared {
                    shared.add_gated(b, x, gate, &mut y)?;
                }
                Ok(y)
            }
        }
    }
}

impl Mlp<Cpu> {
    /// Every linear layer of it.
    pub fn linears_mut(&mut self) -> Vec<&mut Linear<Cpu>> {
        match self {
            Mlp::Dense(mlp) => mlp.linears_mut().into(),
            Mlp::Moe(moe) => {
                let mut all = vec![&mut moe.router];
                all.extend(moe.experts.iter_mut().flat_map(SwiGlu::linears_mut));
                if let Some((shared, gate)) = &mut moe.shared {
                    all.extend(shared.linears_mut());
                    all.push(gate);
                }
                all
            }
        }
    }
}

impl<B: Backend> SwiGlu<B> {
    fn linears_mut(&mut self) -> [&mut Linear<B>; 3] {
        [&mut self.gate, &mut self.up, &mut self.down]
    }

    /// `down(silu(gate(x)) * up(x))`.
    ///
    /// # Errors
    /// The machine's.
    pub fn forward(&self, b: &B, x: &B::Tensor) -> Result<B::Tensor> {
        let [y] = b.linear(&self.inner(b, x)?, [&self.down])?;
        Ok(y)
    }

    /// Adds its output to `y`, times the sigmoid of `gate(x)`: a shared expert.
    ///
    /// # Errors
    /// The machine's.
    pub fn add_gated(&self, b: &B, x: &B::Tensor, gate: &Linear<B>, y: &mut B::Tensor) -> Result<()> {
        let mut z = self.forward(b, x)?;
        let [gate] = b.linear(x, [gate])?;
        b.gate(&mut z, &gate)?;
        b.add(y, &z)
    }

    /// What goes into `down`: `silu(gate(x)) * up(x)`, `[tokens, inter]`.
    ///
    /// # Errors
    /// The machine's.
    pub fn inner(&self, b: &B, x: &B::Tensor) -> Result<B::Tensor> {
        let [gate, up] = b.linear(x, [&self.gate, &self.up])?;
        b.swiglu(gate, &up)
    }
}

const PROJECTIONS: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];

fn swiglu<B: Backend>(
    at: &Builder<B>,
    [gate, up, down]: [&str; 3],
    hidden: usize,
    inter: usize,
) -> Result<SwiGlu<B>> {
    Ok(SwiGlu {
        gate: at.linear(gate, [inter, hidden])?,
        up: at.linear(up, [inter, hidden])?,
        down: at.linear(down, [hidden, inter])?,
    })
}

/// `[experts, 2 * inter, hidden]`, gate rows first, and `[experts, hidden, inter]`: read as three matrices each.
fn fused_experts<B: Backend>(at: &Builder<B>, c: &MoeConfig) -> Result<Vec<[Matrix; 3]>> {
    let both = [c.experts, 2 * c.inter, c.hidden];
    let down = [c.experts, c.hidden, c.inter];
    let gate = at.stacked("experts.gate_up_proj", both, ("gate_proj", 0..c.inter))?;
    let up = at.stacked("experts.gate_up_proj", both, ("up_proj", c.inter..2 * c.inter))?;
    let down = at.stacked("experts.down_proj", down, ("down_proj", 0..c.hidden))?;
    Ok(gate.into_iter().zip(up).zip(down).map(|((gate, up), down)| [gate, up, down]).collect())
}

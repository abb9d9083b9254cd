//! The pieces that families are put together from: their shape, their tensors' names, their forward pass.

mod attention;
mod delta_net;
mod mlp;
mod rope;
mod router_log;

pub use attention::{Attention, AttentionConfig, QkNorm};
pub use delta_net::{DeltaConfig, DeltaNet, Projections};
pub use mlp::{ExpertNames, Mlp, MoeConfig};
pub use rope::{Rope, RopeConfig};
pub use router_log::RouterLog;

//! Mixtures of experts, and linear layers of many tokens.

use super::{Weights, read, write};
use crate::backend::Divide;
use crate::cuda::{Arg, Launch};

/// Chooses experts.
#[derive(Debug, Clone, Copy)]
pub struct Router<P> {
    /// `[tokens, experts]`.
    pub logits: P,
    /// At most 8192.
    pub experts: u32,
    /// For each token, at most 32.
    pub chosen: u32,
    /// Of the weights.
    pub divide: Divide,
    /// u32 `[tokens, chosen]`, rising.
    pub ids: P,
    /// `[tokens, chosen]`.
    pub weights: P,
    /// Tokens.
    pub tokens: u32,
}

impl<P: Copy> Router<P> {
    /// The launch.
    pub fn launch(&self) -> Launch<P> {
        let args = vec![
            read(self.logits),
            Arg::U32(self.experts),
            Arg::U32(self.chosen),
            Arg::U32(u32::from(self.divide == Divide::BySum)),
            write(self.ids),
            write(self.weights),
        ];
        Launch::new("router", [self.tokens, 1, 1], [32, 1, 1], args).shared(self.experts * 4)
    }
}

/// `silu(gate x) * (up x)` for few tokens.
#[derive(Debug, Clone, Copy)]
pub struct GateUp<P> {
    /// `[inter, hidden]` each.
    pub gate: Weights<P>,
    /// Of the same format and shape.
    pub up: Weights<P>,
    /// `[visits / per, hidden]`.
    pub x: P,
    /// u32 `[visits]`: which expert; the first where there are none.
    pub ids: Option<P>,
    /// Visits that share an input.
    pub per: u32,
    /// `[visits, inter]`.
    pub out: P,
    /// At most 65535.
    pub visits: u32,
}

impl<P: Copy> GateUp<P> {
    /// The launch.
    pub fn launch(&self) -> Launch<P> {
        let args = vec![
            self.gate.arg(),
            self.up.arg(),
            read(self.x),
            Arg::Read(self.ids),
            Arg::U32(self.per),
            write(self.out),
        ];
        let grid = [self.gate.rows.div_ceil(8), self.visits, 1];
        Launch::new(self.gate.kernel("gate_up"), grid, [32, 8, 1], args)
    }
}

/// A shared expert's part in [`Down`].
#[derive(Debug, Clone, Copy)]
pub struct Shared<P> {
    /// `[hidden, shared_inter]`, of the experts' format.
    pub w: Weights<P>,
    /// `[tokens, shared_inter]`.
    pub inner: P,
    /// `[tokens]`, before the sigmoid.
    pub gate: P,
}

/// The weighted sum of the chosen experts' outputs for few tokens.
#[derive(Debug, Clone, Copy)]
pub struct Down<P> {
    /// `[hidden, inter]`.
    pub w: Weights<P>,
    /// `[tokens * chosen, inter]`.
    pub inner: P,
    /// u32 `[tokens, chosen]`, rising.
    pub ids: P,
    /// `[tokens, chosen]`.
    pub weights: P,
    /// At most 15.
    pub chosen: u32,
    /// Where there is a shared expert.
    pub shared: Option<Shared<P>>,
    /// `[tokens, hidden]`.
    pub out: P,
    /// At most 65535.
    pub tokens: u32,
}

impl<P: Copy> Down<P> {
    /// The launch.
    pub fn launch(&self) -> Launch<P> {
        let warps = self.chosen + u32::from(self.shared.is_some());
        let args = vec![
            self.w.arg(),
            read(self.inner),
            read(self.ids),
            read(self.weights),
            Arg::U32(self.chosen),
            self.shared.map_or(self.w, |s| s.w).arg(),
            Arg::Read(self.shared.map(|s| s.inner)),
            Arg::Read(self.shared.map(|s| s.gate)),
            write(self.out),
        ];
        // 512 columns and four sums for each warp.
        let shared = warps * (512 + 4) * 4;
        Launch::new(self.w.kernel("down"), [self.w.rows.div_ceil(4), self.tokens, 1], [32, warps, 1], args)
            .shared(shared)
    }
}

/// Sorts visits by expert.
#[derive(Debug, Clone, Copy)]
pub struct SortVisits<P> {
    /// u32 `[visits]`, below `experts`.
    pub ids: P,
    /// Visits.
    pub visits: u32,
    /// Experts.
    pub experts: u32,
    /// u32 `[experts + 1]`.
    pub offsets: P,
    /// u32 `[visits]`.
    pub order: P,
    /// u32 `[visits]`.
    pub positions: P,
}

impl<P: Copy> SortVisits<P> {
    /// The launch.
    pub fn launch(&self) -> Launch<P> {
        let args = vec![
            read(self.ids),
            Arg::U32(self.visits),
            Arg::U32(self.experts),
            write(self.offsets),
            write(self.order),
            write(self.positions),
        ];
        Launch::new("sort_visits", [self.experts.div_ceil(8), 1, 1], [32, 8, 1], args)
    }
}

/// Which rows of a [`Tile`] belong to which matrix.
#[derive(Debug, Clone, Copy)]
pub struct Grouped<P> {
    /// u32 `[experts + 1]`.
    pub offsets: P,
    /// u32 `[count]`: the visit of each row; where there is none, the row itself.
    pub order: Option<P>,
    /// Experts.
    pub experts: u32,
}

/// `y = x W^T + bias` on the matrix unit, for many tokens.
#[derive(Debug, Clone, Copy)]
pub struct Tile<P> {
    /// The layer, or one for each expert; see [`Weights::fit_tiles`].
    pub w: Weights<P>,
    /// `[count / per, cols]`.
    pub x: P,
    /// One matrix where it is not grouped.
    pub grouped: Option<Grouped<P>>,
    /// Visits that share an input.
    pub per: u32,
    /// Rows of `y`.
    pub count: u32,
    /// `[rows]`.
    pub bias: Option<P>,
    /// `[count, rows]`.
    pub y: P,
    /// bf16 parts of an activation, 1 (as servers do) or 3 (as exact as f32).
    pub parts: u32,
}

impl<P: Copy> Tile<P> {
    /// The launch.
    pub fn launch(&self) -> Launch<P> {
        let args = vec![
            self.w.arg(),
            read(self.x),
            Arg::Read(self.grouped.and_then(|g| g.order)),
            Arg::Read(self.grouped.map(|g| g.offsets)),
            Arg::U32(self.grouped.map_or(1, |g| g.experts)),
            Arg::U32(self.per),
            Arg::U32(self.count),
            Arg::Read(self.bias),
            write(self.y),
        ];
        // Of grouped rows each expert may have one tile that is not full.
        let tiles = self.count.div_ceil(64) + self.grouped.map_or(0, |g| g.experts.min(self.count));
        let kernel = format!("{}_{}", self.w.kernel("tile"), self.parts);
        Launch::new(kernel, [self.w.rows.div_ceil(64), tiles, 1], [128, 1, 1], args)
    }
}

/// The weighted sum of the experts' outputs of many tokens.
#[derive(Debug, Clone, Copy)]
pub struct Combine<P> {
    /// `[tokens * chosen, width]` in sorted order.
    pub y: P,
    /// u32 `[tokens * chosen]`.
    pub positions: P,
    /// `[tokens, chosen]`.
    pub weights: P,
    /// Experts of a token.
    pub chosen: u32,
    /// Output `[tokens, width]` of a shared expert and its gate `[tokens]` before the sigmoid.
    pub shared: Option<[P; 2]>,
    /// Numbers of an output.
    pub width: u32,
    /// Tokens.
    pub tokens: u32,
    /// `[tokens, width]`.
    pub out: P,
}

impl<P: Copy> Combine<P> {
    /// The launch.
    pub fn launch(&self) -> Launch<P> {
        let n = u64::from(self.tokens) * u64::from(self.width);
        let args = vec![
            read(self.y),
            read(self.positions),
            read(self.weights),
            Arg::U32(self.chosen),
            Arg::Read(self.shared.map(|s| s[0])),
            Arg::Read(self.shared.map(|s| s[1])),
            Arg::U32(self.width),
            Arg::U64(n),
            write(self.out),
        ];
        Launch::new("combine", [n.div_ceil(256) as u32, 1, 1], [256, 1, 1], args)
    }
}

//! The FP8 formats: which weights share a scale, what the scales are called, and what servers are told.

use verify::codec::fp8::{Grid, ScaleValues};

/// How weights and scales are stored. Activations are quantized by the server, as it goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scheme {
    /// The `fp8` format of transformers and vLLM: a scale for each block of 128 x 128.
    #[default]
    Block,
    /// compressed-tensors FP8_BLOCK: the same numbers under other names.
    CompressedBlock,
    /// compressed-tensors FP8_DYNAMIC: a scale for each output channel, and for each token.
    Channel,
    /// compressed-tensors, a scale for each matrix; fused matrices share theirs, so that a server that
    /// merges them need not round again.
    Tensor,
}

impl Scheme {
    /// The grid of its scales.
    pub fn grid(self) -> Grid {
        match self {
            Scheme::Block | Scheme::CompressedBlock => Grid::Block,
            Scheme::Channel => Grid::Channel,
            Scheme::Tensor => Grid::Tensor,
        }
    }

    /// Which numbers its scales may be; they are stored in F32 all the same, which is what vLLM allocates.
    pub fn scale_values(self) -> ScaleValues {
        match self {
            Scheme::Block => ScaleValues::F32,
            // compressed-tensors loads scales in the model's dtype.
            Scheme::CompressedBlock | Scheme::Channel | Scheme::Tensor => ScaleValues::Bf16,
        }
    }

    /// What follows the module's path in the name of its scales.
    pub fn scale_leaf(self) -> &'static str {
        match self {
            Scheme::Block => "weight_scale_inv",
            Scheme::CompressedBlock | Scheme::Channel | Scheme::Tensor => "weight_scale",
        }
    }

    /// Shape of the scales of a `rows` x `cols` matrix.
    pub fn scale_shape(self, rows: usize, cols: usize) -> Vec<usize> {
        match self.grid().scales(rows, cols) {
            _ if self == Scheme::Tensor => vec![1],
            (down, across) => vec![down, across],
        }
    }

    /// For the report.
    pub fn describe(self) -> &'static str {
        match self {
            Scheme::Block => "FP8 in blocks of 128 x 128 (fp8)",
            Scheme::CompressedBlock => "FP8 in blocks of 128 x 128 (compressed-tensors)",
            Scheme::Channel => "FP8 per output channel (compressed-tensors)",
            Scheme::Tensor => "FP8 per tensor (compressed-tensors)",
        }
    }
}

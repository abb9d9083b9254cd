//! Turns named tensors into parts of a model on a backend.

use std::ops::Range;

use verify::Result;

use super::Keys;
use crate::backend::{Backend, Linear, Norm};
use crate::blocks::{Rope, RopeConfig};
use crate::decoder::{Decoder, Layer};
use crate::weights::{Matrix, Source};

/// How a norm's weight stands on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormKind {
    /// About 1.
    Plain,
    /// About 0: the factor is `1 + weight`.
    ZeroCentred,
}

/// A checkpoint, or the part of it below a prefix, being put together on a backend.
pub struct Builder<'a, B: Backend> {
    source: Source<'a>,
    keys: Keys<'a>,
    backend: &'a B,
}

/// What is the same in all families besides the layers.
pub struct Frame<'a> {
    /// The config, with the family's defaults.
    pub keys: Keys<'a>,
    /// What the names of the language model begin with: `model`, or `model.language_model`.
    pub prefix: &'static str,
    /// Kind of the norm before the head.
    pub norm: NormKind,
    /// Its eps.
    pub eps: f32,
    /// Rotary embedding of the attention layers.
    pub rope: RopeConfig,
    /// True where the head is the embedding.
    pub tied: bool,
}

impl<'a, B: Backend> Builder<'a, B> {
    /// Everything.
    pub fn new(source: Source<'a>, keys: Keys<'a>, backend: &'a B) -> Self {
        Builder { source, keys, backend }
    }

    /// The config.
    pub fn keys(&self) -> Keys<'a> {
        self.keys
    }

    /// The part below `part`.
    pub fn within(&self, part: impl AsRef<str>) -> Builder<'a, B> {
        Builder { source: self.source.within(part), keys: self.keys, backend: self.backend }
    }

    /// True where the tensor is there.
    pub fn has(&self, name: &str) -> bool {
        self.source.has(name)
    }

    /// The linear layer `<name>.weight` `[out, in]`.
    ///
    /// # Errors
    /// Exit 3 naming a missing or misshapen tensor. (So for all that follow.)
    pub fn linear(&self, name: &str, shape: [usize; 2]) -> Result<Linear<B>> {
        self.plain(self.source.matrix(name, shape)?)
    }

    /// A linear layer with `<name>.bias`.
    pub fn linear_with_bias(&self, name: &str, shape: [usize; 2]) -> Result<Linear<B>> {
        let bias = self.vector(&format!("{name}.bias"), shape[0])?;
        Ok(Linear { bias: Some(self.tensor([1, shape[0]], bias)?), ..self.linear(name, shape)? })
    }

    /// The matrix of [`Self::linear`], not yet on the backend.
    pub fn matrix(&self, name: &str, shape: [usize; 2]) -> Result<Matrix> {
        self.source.matrix(name, shape)
    }

    /// The backend.
    pub fn backend(&self) -> &'a B {
        self.backend
    }

    fn plain(&self, matrix: Matrix) -> Result<Linear<B>> {
        Ok(Linear { weight: self.backend.matrix(matrix)?, bias: None })
    }

    /// Matrices out of a fused tensor, see [`Source::stacked`].
    pub fn stacked(&self, name: &str, shape: [usize; 3], part: (&str, Range<usize>)) -> Result<Vec<Matrix>> {
        self.source.stacked(name, shape, part)
    }

    /// A small tensor.
    pub fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>> {
        self.source.vector(name, len)
    }

    /// Scales of this attention's key and value cache, see [`Source::cache_scales`].
    pub fn cache_scales(&self, heads: usize) -> Result<Option<[Vec<f32>; 2]>> {
        self.source.cache_scales(heads)
    }

    /// Numbers on the backend.
    pub fn tensor(&self, shape: [usize; 2], values: Vec<f32>) -> Result<B::Tensor> {
        self.backend.tensor(shape, values)
    }

    /// The norm `<name>.weight`.
    pub fn norm(&self, name: &str, width: usize, kind: NormKind, eps: f32) -> Result<Norm<B>> {
        let mut weight = self.vector(&format!("{name}.weight"), width)?;
        if kind == NormKind::ZeroCentred {
            weight.iter_mut().for_each(|w| *w += 1.0);
        }
        Ok(Norm { weight: self.tensor([1, width], weight)?, eps })
    }

    /// The model of `frame`; `layer` is given `<prefix>.layers.N` and N.
    ///
    /// # Errors
    /// Exit 3 for settings that are not implemented.
    pub fn blueprint(&self, frame: Frame<'a>, layer: LayerPlan<'a, B>) -> Result<Blueprint<'a, B>> {
        let keys = frame.keys;
        keys.check_activation()?;
        let layers = keys.count("num_hidden_layers")?;
        keys.check_no_window(layers)?;
        let model = Builder { source: self.source.clone(), keys: self.keys, backend: self.backend };
        Ok(Blueprint { model, frame, layers, layer })
    }
}

/// How a family puts a layer together.
pub type LayerPlan<'a, B> = Box<dyn Fn(&Builder<'a, B>, usize) -> Result<Layer<B>> + Send + Sync + 'a>;

/// A model that is put together when it is asked for, as a whole or layer by layer.
pub struct Blueprint<'a, B: Backend> {
    model: Builder<'a, B>,
    frame: Frame<'a>,
    layers: usize,
    layer: LayerPlan<'a, B>,
}

impl<'a, B: Backend> Blueprint<'a, B> {
    /// Number of layers.
    pub fn layers(&self) -> usize {
        self.layers
    }

    /// Rotary embedding of all attention layers.
    pub fn rope(&self) -> Rope {
        self.frame.rope.table()
    }

    /// Layer `n`.
    ///
    /// # Errors
    /// Exit 3 naming a missing or misshapen tensor. (So for all that follow.)
    pub fn layer(&self, n: usize) -> Result<Layer<B>> {
        (self.layer)(&self.body().within(format!("layers.{n}")), n)
    }

    /// The embedding `[vocab, hidden]`.
    pub fn embedding(&self) -> Result<B::Matrix> {
        self.model.backend.matrix(self.table()?)
    }

    /// All of it.
    pub fn decoder(self) -> Result<Decoder<B>> {
        let keys = self.frame.keys;
        let (vocab, hidden) = (keys.count("vocab_size")?, keys.count("hidden_size")?);
        let embedding = self.embedding()?;
        let head = match self.frame.tied {
            true => Linear { weight: embedding.clone(), bias: None },
            false => self.model.linear("lm_head", [vocab, hidden])?,
        };
        Ok(Decoder {
            embedding,
            layers: (0..self.layers).map(|n| self.layer(n)).collect::<Result<_>>()?,
            norm: self.body().norm("norm", hidden, self.frame.norm, self.frame.eps)?,
            head,
            rope: self.frame.rope.table(),
            vocab,
            context: keys.count_or("max_position_embeddings", usize::MAX)?,
        })
    }

    fn body(&self) -> Builder<'a, B> {
        self.model.within(self.frame.prefix)
    }

    fn table(&self) -> Result<Matrix> {
        let keys = self.frame.keys;
        self.body().source.weight("embed_tokens", [keys.count("vocab_size")?, keys.count("hidden_size")?])
    }
}

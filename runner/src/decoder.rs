//! A decoder of any family: the residual stream round its layers.
//!
//! ```text
//!   tokens ─▶ embed ─▶ h ─┬─▶ norm ─▶ mixer ─▶ + ─┬─▶ norm ─▶ mlp ─▶ + ─▶ … ─▶ norm ─▶ head ─▶ logits
//!                         └───────────────────▶ ┘ └────────────────▶ ┘
//! ```

use verify::{Error, Result};

use crate::backend::{Backend, CHUNK, Linear, Norm, Span};
use crate::blocks::{Attention, DeltaNet, Mlp, Rope};
use crate::cpu::Cpu;

/// The whole model.
pub struct Decoder<B: Backend> {
    /// `[vocab, hidden]`.
    pub embedding: B::Matrix,
    /// The layers.
    pub layers: Vec<Layer<B>>,
    /// Norm before the head.
    pub norm: Norm<B>,
    /// `[vocab, hidden]`; for tied embeddings the same weights once more.
    pub head: Linear<B>,
    /// Rotary embedding of all attention layers.
    pub rope: Rope,
    /// Token ids.
    pub vocab: usize,
    /// Positions the model was made for.
    pub context: usize,
}

/// One layer: `h += mixer(norm_in(h)); h += mlp(norm_post(h))`.
pub struct Layer<B: Backend> {
    /// `input_layernorm`.
    pub norm_in: Norm<B>,
    /// What mixes positions.
    pub mixer: Mixer<B>,
    /// `post_attention_layernorm`.
    pub norm_post: Norm<B>,
    /// What works on each position alone.
    pub mlp: Mlp<B>,
}

/// What mixes positions.
pub enum Mixer<B: Backend> {
    /// Causal attention.
    Attention(Attention<B>),
    /// Gated DeltaNet.
    Delta(DeltaNet<B>),
}

/// What a sequence remembers in one layer.
pub enum Memory<B: Backend> {
    /// Of an attention layer.
    Kv(B::Kv),
    /// Of a DeltaNet layer.
    Delta(B::Delta),
}

/// One sequence: where it stands and what each layer remembers of it.
pub struct Sequence<B: Backend> {
    len: usize,
    layers: Vec<Memory<B>>,
}

impl<B: Backend> Sequence<B> {
    /// Tokens fed so far.
    pub fn len(&self) -> usize {
        self.len
    }

    /// What each layer remembers.
    pub(crate) fn memories_mut(&mut self) -> &mut [Memory<B>] {
        &mut self.layers
    }

    /// `tokens` more were fed.
    pub(crate) fn advance(&mut self, tokens: usize) {
        self.len += tokens;
    }

    /// True before the first token.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Tokens to feed to one sequence in a step, at least one.
pub struct Part<'a, B: Backend> {
    /// The sequence.
    pub sequence: &'a mut Sequence<B>,
    /// Its next tokens.
    pub tokens: &'a [u32],
    /// Which of them need logits.
    pub want: Want,
}

/// Positions of a [`Part`] whose logits are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// None: a prompt's middle.
    Nothing,
    /// The last: what comes next.
    Last,
    /// Every one.
    All,
}

/// What all layers of a step share.
pub struct Step<'a, B: Backend> {
    /// The machine.
    pub backend: &'a B,
    /// The parts, in order of their rows.
    pub spans: &'a [Span],
    /// Rotary angles of every row, see [`Backend::rotate`].
    pub angles: B::Tensor,
}

impl<'a, B: Backend> Step<'a, B> {
    /// What layers of this rotary embedding need to know of a step of these spans.
    ///
    /// # Errors
    /// The machine's.
    pub fn new(rope: &Rope, backend: &'a B, spans: &'a [Span]) -> Result<Self> {
        backend.begin(spans)?;
        let (shape, angles) = rope.angles(spans);
        Ok(Step { backend, spans, angles: backend.tensor(shape, angles)? })
    }
}

impl<B: Backend> Decoder<B> {
    /// A sequence without tokens.
    ///
    /// # Errors
    /// When the machine has no room for it.
    pub fn sequence(&self, backend: &B) -> Result<Sequence<B>> {
        Ok(Sequence { len: 0, layers: self.layers.iter().map(|l| l.memory(backend)).collect::<Result<_>>()? })
    }

    /// Prompts may be cut at multiples of this without a change of any bit. (Attention layers do not mind where; smaller
    /// pieces than sixteen tokens would read the weights more often than it pays.)
    pub fn grain(&self) -> usize {
        let recurrent = |l: &Layer<B>| matches!(l.mixer, Mixer::Delta(_));
        if self.layers.iter().any(recurrent) { CHUNK } else { 16 }
    }

    /// A second sequence that begins as `sequence` does so far, and goes on by itself.
    ///
    /// # Errors
    /// When the machine has no room for it.
    pub fn branch(&self, backend: &B, sequence: &Sequence<B>) -> Result<Sequence<B>> {
        let copy = |memory: &Memory<B>| match memory {
            Memory::Kv(kv) => backend.copy_kv(kv).map(Memory::Kv),
            Memory::Delta(state) => backend.copy_delta(state).map(Memory::Delta),
        };
        let layers = sequence.layers.iter().map(copy).collect::<Result<_>>()?;
        Ok(Sequence { len: sequence.len, layers })
    }

    /// What the layers need to know of a step of these spans.
    ///
    /// # Errors
    /// The machine's.
    pub fn step<'a>(&self, backend: &'a B, spans: &'a [Span]) -> Result<Step<'a, B>> {
        Step::new(&self.rope, backend, spans)
    }

    /// Feeds the parts and returns the wanted logits `[wanted rows, vocab]`, part by part.
    ///
    /// # Errors
    /// Exit 3 for a token that is not in the vocabulary; and the machine's errors.
    pub fn forward(&self, backend: &B, parts: &mut [Part<B>]) -> Result<B::Tensor> {
        let h = self.hidden(backend, parts, &mut |_, _| Ok(()))?;
        let mut wanted = Vec::new();
        let mut row = 0;
        for part in parts.iter() {
            let end = row + part.tokens.len();
            match part.want {
                Want::Nothing => {}
                Want::Last => wanted.push(end - 1),
                Want::All => wanted.extend(row..end),
            }
            row = end;
        }
        let h = backend.norm(&backend.rows(&h, &wanted)?, &self.norm)?;
        let [logits] = backend.linear(&h, [&self.head])?;
        Ok(logits)
    }

    /// Feeds the parts and returns the residual stream `[tokens, hidden]` before the last norm. `see` is shown it
    /// on the way into each layer, by the layer's number.
    ///
    /// # Errors
    /// As [`Self::forward`], and those of `see`.
    pub fn hidden(
        &self,
        backend: &B,
        parts: &mut [Part<B>],
        see: &mut dyn FnMut(usize, &B::Tensor) -> Result<()>,
    ) -> Result<B::Tensor> {
        let tokens: Vec<u32> = parts.iter().flat_map(|p| p.tokens).copied().collect();
        if let Some(bad) = tokens.iter().find(|t| **t as usize >= self.vocab) {
            return Err(Error::input("a token id is not in the vocabulary")
                .found(bad.to_string())
                .expected(format!("ids below {}", self.vocab))
                .hint("the tokenizer belongs to another model"));
        }
        let spans: Vec<Span> =
            parts.iter().map(|p| Span { start: p.sequence.len, len: p.tokens.len() }).collect();
        let step = self.step(backend, &spans)?;
        let mut h = backend.embed(&self.embedding, &tokens)?;
        for (n, layer) in self.layers.iter().enumerate() {
            see(n, &h)?;
            let memories = parts.iter_mut().map(|p| &mut p.sequence.layers[n]).collect();
            layer.forward(&step, &mut h, memories)?;
        }
        parts.iter_mut().for_each(|p| p.sequence.len += p.tokens.len());
        Ok(h)
    }
}

impl<B: Backend> Layer<B> {
    /// What a sequence without tokens remembers.
    ///
    /// # Errors
    /// When the machine has no room for it.
    pub fn memory(&self, backend: &B) -> Result<Memory<B>> {
        match &self.mixer {
            Mixer::Attention(a) => backend.new_kv(a.heads).map(Memory::Kv),
            Mixer::Delta(d) => backend.new_delta(&d.rule).map(Memory::Delta),
        }
    }

    /// Adds the layer's two halves to the residual stream `h` `[tokens, hidden]`.
    ///
    /// # Errors
    /// The machine's. (So for all that follow.)
    pub fn forward(&self, step: &Step<B>, h: &mut B::Tensor, memories: Vec<&mut Memory<B>>) -> Result<()> {
        let x = step.backend.norm(h, &self.norm_in)?;
        step.backend.add(h, &self.mixer.forward(step, &x, memories)?)?;
        let x = step.backend.norm(h, &self.norm_post)?;
        step.backend.add(h, &self.mlp.forward(step.backend, &x)?)
    }
}

impl Layer<Cpu> {
    /// Every linear layer of it, for replacing weights.
    pub fn linears_mut(&mut self) -> Vec<&mut Linear<Cpu>> {
        let mut all = match &mut self.mixer {
            Mixer::Attention(a) => vec![&mut a.q, &mut a.k, &mut a.v, &mut a.o],
            Mixer::Delta(d) => d.linears_mut(),
        };
        all.extend(self.mlp.linears_mut());
        all
    }
}

impl<B: Backend> Mixer<B> {
    /// `x` `[tokens, hidden]`, normalised, to the same shape.
    ///
    /// # Errors
    /// The machine's.
    pub fn forward(&self, step: &Step<B>, x: &B::Tensor, memories: Vec<&mut Memory<B>>) -> Result<B::Tensor> {
        match self {
            Mixer::Attention(attention) => attention.forward(step, x, memories),
            Mixer::Delta(delta) => delta.forward(step, x, memories),
        }
    }
}

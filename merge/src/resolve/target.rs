//! A tensor of the base that adapters change, while the changes are collected.

use std::sync::Arc;

use verify::checkpoint::TensorSpec;
use verify::{Error, Result, Shown};

use crate::adapter::stored::Stored;
use crate::compute::dora::Dora;
use crate::compute::job::Job;
use crate::compute::piece::Piece;

/// The changes of one output tensor.
#[derive(Debug)]
pub struct Target {
    /// What is computed.
    pub job: Job,
    /// Adapters that add products, in order.
    pub adapters: Vec<usize>,
    /// The adapter whose tensor replaces the base's.
    pub whole_of: Option<usize>,
    /// The adapter that scales by DoRA.
    pub dora_of: Option<usize>,
}

impl Target {
    /// An unchanged tensor `name` made from `base`.
    ///
    /// # Errors
    /// Exit 3 where the base's dtype is no plain float.
    pub fn new(name: &str, base: &TensorSpec) -> Result<Self> {
        if !base.dtype.is_plain_float() {
            return Err(Error::input(format!("tensor `{}` of the base cannot be merged into", Shown(name)))
                .found(format!("dtype {}", base.dtype))
                .expected("F32, F16 or BF16")
                .hint("quantized base: merge into the 16-bit checkpoint, then quantize"));
        }
        let output = TensorSpec::new(name, base.dtype, base.shape.clone());
        let job =
            Job { output, base: base.clone(), whole: None, pieces: vec![], dora: None, token_rows: vec![] };
        Ok(Target { job, adapters: Vec::new(), whole_of: None, dora_of: None })
    }

    /// Puts `tensor` of adapter number `adapter` in the base's place.
    ///
    /// # Errors
    /// Exit 3 where another tensor is there already.
    pub fn replace(&mut self, adapter: usize, tensor: &Arc<Stored>) -> Result<()> {
        if let (Some(other), Some(before)) = (self.whole_of, &self.job.whole) {
            if other == adapter && before.same_values(tensor)? {
                return Ok(());
            }
            return Err(self.twice("is replaced twice", &before.spec.name, &tensor.spec.name));
        }
        self.whole_of = Some(adapter);
        self.job.output.shape.clone_from(&tensor.spec.shape);
        self.job.whole = Some(tensor.clone());
        Ok(())
    }

    /// Adds a product.
    ///
    /// # Errors
    /// Exit 3 where the same adapter changes an element twice, or DoRA stands beside another adapter.
    pub fn add(&mut self, piece: Piece) -> Result<()> {
        let mut own = self.job.pieces.iter().filter(|p| p.adapter == piece.adapter);
        if let Some(other) = own.find(|p| p.meets(&piece)) {
            return Err(self.twice("is changed twice by one adapter", other.left.key(), piece.left.key()));
        }
        if !self.adapters.contains(&piece.adapter) {
            self.adapters.push(piece.adapter);
        }
        self.job.pieces.push(piece);
        self.check_dora()
    }

    /// Scales by DoRA.
    ///
    /// # Errors
    /// As [`Self::add`].
    pub fn scale(&mut self, adapter: usize, dora: Dora) -> Result<()> {
        self.dora_of = Some(adapter);
        self.job.dora = Some(Arc::new(dora));
        self.check_dora()
    }

    fn check_dora(&self) -> Result<()> {
        match self.dora_of.is_some() && self.adapters.len() > 1 {
            false => Ok(()),
            true => Err(Error::input(format!(
                "tensor `{}` is changed by DoRA and by another adapter",
                Shown(self.name())
            ))
            .expected("DoRA alone: its scale belongs to its own sum")
            .hint("merge one adapter, then the other into the result")),
        }
    }

    /// Replaces row `row` by row `from` of `tensor`, after all else.
    ///
    /// # Errors
    /// Exit 3 where that row is replaced already.
    pub fn put_row(&mut self, row: usize, tensor: &Arc<Stored>, from: usize) -> Result<()> {
        match self.job.token_rows.binary_search_by_key(&row, |t| t.0) {
            Ok(at) => {
                let what = format!("has row {row} replaced twice");
                Err(self.twice(&what, &self.job.token_rows[at].1.spec.name, &tensor.spec.name))
            }
            Err(at) => {
                self.job.token_rows.insert(at, (row, tensor.clone(), from));
                Ok(())
            }
        }
    }

    /// The output's name.
    pub fn name(&self) -> &str {
        &self.job.output.name
    }

    fn twice(&self, what: &str, first: &str, second: &str) -> Error {
        Error::input(format!("tensor `{}` {what}", Shown(self.name())))
            .found(format!("`{}` and `{}`", Shown(first), Shown(second)))
            .expected("one of them")
            .hint("the file mixes two adapters or two forms of one: save the one to merge by itself")
    }
}

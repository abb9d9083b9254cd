//! Which tokens an expert is calibrated on.

use runner::backend::Backend;
use runner::blocks::Mlp;
use runner::cpu::Array;
use verify::Result;

use super::Visit;

/// Which tokens an expert's statistics are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Experts {
    /// All, whatever the router says: no expert goes without.
    #[default]
    All,
    /// Those that the router sends to it.
    Routed,
}

impl Experts {
    /// For the report.
    pub fn name(self) -> &'static str {
        match self {
            Experts::All => "all",
            Experts::Routed => "routed",
        }
    }
}

/// Tokens, spread over all samples, that every expert sees.
pub const SEEN: usize = 8192;

impl Visit<'_> {
    /// Tokens spread evenly over all samples, at most `most`: rows of the hidden states.
    ///
    /// # Errors
    /// Exit 5 where hidden states cannot be read.
    pub fn spread(&self, most: usize) -> Result<Array> {
        let every = self.hidden.rows().div_ceil(most).max(1);
        let mut values = Vec::with_capacity(self.hidden.rows().div_ceil(every) * self.hidden.cols());
        for batch in self.batches() {
            let rows = self.rows(&batch);
            let h = self.hidden.read(rows.clone())?;
            for (row, values_of) in rows.zip(h.each_row()) {
                if row % every == 0 {
                    values.extend_from_slice(values_of);
                }
            }
        }
        Ok(Array::new(values.len() / self.hidden.cols(), self.hidden.cols(), values))
    }

    /// For each expert the rows of `x`, normalised, that the router sends to it; no expert for a dense MLP.
    ///
    /// # Errors
    /// The machine's.
    pub fn chosen(&self, x: &Array) -> Result<Vec<Vec<usize>>> {
        let Mlp::Moe(moe) = &self.layer.mlp else { return Ok(Vec::new()) };
        let [logits] = self.cpu.linear(x, [&moe.router])?;
        let visits = self.cpu.visits(&logits, moe.routing).into_iter();
        Ok(visits.map(|v| v.into_iter().map(|(row, _)| row).collect()).collect())
    }
}

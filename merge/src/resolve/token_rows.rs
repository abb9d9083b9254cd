//! New rows of embeddings (`trainable_token_indices`).

use verify::{Error, Result, Shown};

use super::{Found, Resolver, is_tail};
use crate::adapter::Adapter;
use crate::adapter::stored::shown;

impl Resolver<'_> {
    /// Resolves the new rows of `adapter`.
    pub(super) fn token_rows(&mut self, adapter: &Adapter, number: usize) -> Result<()> {
        for (module, tensor) in &adapter.token_rows {
            let Some(found) = self.find_tensor(&format!("{module}.weight")) else {
                self.no_target(adapter, vec![tensor.spec.name.clone()]);
                continue;
            };
            let indices = self.indices_of(adapter, module, &found)?;
            let target = self.target(&found)?;
            let (rows, cols) = (target.job.output.rows(), target.job.output.cols());
            if tensor.spec.shape != [indices.len(), cols] {
                return Err(Error::input(format!("the new rows {} do not fit", shown(tensor)))
                    .expected(format!(
                        "[{}, {cols}]: a row for each of `trainable_token_indices`",
                        indices.len()
                    ))
                    .hint("config and weights are of two adapters: fetch both again"));
            }
            if let Some(beyond) = indices.iter().find(|i| **i >= rows) {
                return Err(Error::input(format!("`trainable_token_indices` names row {beyond}"))
                    .found(format!("{rows} rows in `{}`", Shown(&found.name)))
                    .expected("rows of the embedding")
                    .hint("the adapter was trained on another base, or on one with a larger vocabulary"));
            }
            for (from, row) in indices.into_iter().enumerate() {
                target.put_row(row, tensor, from)?;
            }
            self.count_rewrite(number, found.rule, 1);
            self.note_use(adapter, vec![tensor.spec.name.clone()], "token rows", vec![found.name]);
        }
        Ok(())
    }

    fn indices_of(&self, adapter: &Adapter, module: &str, found: &Found) -> Result<Vec<usize>> {
        let rows = &adapter.config.token_rows;
        let named = rows.iter().find(|(tail, _)| tail.as_ref().is_some_and(|t| is_tail(module, t)));
        // A list means the input embedding; with tied weights its twin on the head may be stored as well.
        let of_input = || match self.embeddings.is_either(&found.name) {
            true => rows.iter().find(|(tail, _)| {
                tail.as_ref().is_none_or(|t| self.embeddings.tied && self.embeddings.is_input_tail(t))
            }),
            false => None,
        };
        let (_, indices) = named.or_else(of_input).ok_or_else(|| {
            Error::input(format!("which rows of `{}` are new is not said", Shown(module)))
                .expected("`trainable_token_indices` in adapter_config.json")
                .hint("config and weights are of two adapters: fetch both again")
        })?;
        Ok(indices.clone())
    }
}

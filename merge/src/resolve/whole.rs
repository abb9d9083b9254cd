//! Whole tensors of an adapter in the place of the base's: only those that the config says were trained.

use verify::{Error, Result, Shown};

use super::{Found, Resolver, check_classifier, is_tail, pieces_of};
use crate::adapter::key::Whole;
use crate::adapter::stored::{Stored, shown};
use crate::adapter::{Adapter, WholeTensor};
use crate::compute::real::{decode, encode};

impl Resolver<'_> {
    pub(super) fn whole(&mut self, (adapter, number): (&Adapter, usize), whole: &WholeTensor) -> Result<()> {
        let key = whole.tensor.spec.name.clone();
        let Some(found) = self.find_tensor(&whole.path) else {
            check_classifier(&whole.path)?;
            self.no_target(adapter, vec![key]);
            return Ok(());
        };
        let resized = self.check_whole_shape(&found, &whole.tensor)?;
        if !resized && self.equals_base(&found, &whole.tensor)? {
            self.note_use(adapter, vec![key], "copy of the base", Vec::new());
            return Ok(());
        }
        let twin = adapter.config.keeps_tying && self.embeddings.is_either(&found.name);
        if !resized && !twin && !declared(adapter, whole) {
            return Err(undeclared(&whole.tensor, &found.name));
        }
        self.target(&found)?.replace(number, &whole.tensor)?;
        if adapter.weight != 1.0 {
            self.warnings.push(format!(
                "`{}` of adapter {} replaces a whole tensor: the weight {} does not act on it",
                Shown(&key),
                adapter.name,
                adapter.weight
            ));
        }
        self.note_use(adapter, vec![key], "whole tensor", vec![found.name.clone()]);
        self.count_rewrite(number, found.rule, 1);
        Ok(())
    }

    /// True where the tensor changes the vocabulary's size, which embedding and head may.
    fn check_whole_shape(&self, found: &Found, whole: &Stored) -> Result<bool> {
        let (new, old) = (&whole.spec.shape, &found.base.shape);
        if new == old {
            return Ok(false);
        }
        let of_vocabulary =
            self.embeddings.is_either(&found.name) || self.embeddings.is_head_bias(&found.name);
        if of_vocabulary && new.len() == old.len() && new[1..] == old[1..] && new[0] > 0 {
            return Ok(true);
        }
        Err(Error::input(format!("adapter tensor {} does not fit its target", shown(whole)))
            .found(format!("{new:?}"))
            .expected(format!("{old:?} as `{}` of the base", Shown(&found.name)))
            .hint("the adapter was trained on another base; see `base_model_name_or_path` in adapter_config.json"))
    }

    /// True where `whole`, rounded to the base's dtype, is the base.
    fn equals_base(&self, found: &Found, whole: &Stored) -> Result<bool> {
        let (spec, dtype) = (&found.base, found.base.dtype);
        for rows in pieces_of(spec.rows(), spec.row_bytes()) {
            let base = self.reader.read_rows(&spec.name, rows.clone())?;
            let mut rounded = Vec::with_capacity(base.len());
            let values = decode(&whole.read_rows(rows)?, whole.spec.dtype);
            values.into_iter().for_each(|v| encode(v, dtype, &mut rounded));
            if base != rounded {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Whether the config says that this whole tensor was trained.
fn declared(adapter: &Adapter, whole: &WholeTensor) -> bool {
    let config = &adapter.config;
    let (module, parameter) = whole.path.rsplit_once('.').unwrap_or((&whole.path, ""));
    let wrapped = adapter.factors.iter().any(|f| f.module == module)
        || adapter.token_rows.iter().any(|(m, _)| m == module);
    let under = |name: &String| {
        let ends = whole.path.match_indices('.').map(|(at, _)| &whole.path[..at]);
        // PEFT wraps every module whose path ends so, whole name or not: `norm` is `input_layernorm` too.
        !name.is_empty() && ends.chain([whole.path.as_str()]).any(|p| p.ends_with(name.as_str()))
    };
    match whole.how {
        Whole::Saved => true,
        Whole::BaseLayer => wrapped || config.modules_to_save.iter().any(under),
        Whole::Plain => {
            config.modules_to_save.iter().any(under)
                || wrapped
                || (parameter == "bias" && config.trains_bias)
                || config.target_modules.iter().any(|t| is_tail(module, t))
        }
    }
}

fn undeclared(tensor: &Stored, target: &str) -> Error {
    Error::input(format!("adapter tensor {} would replace a whole tensor of the base", shown(tensor)))
        .found(format!("other values than `{}`, and no mention in adapter_config.json", Shown(target)))
        .expected("its module in `modules_to_save` (or `bias`, or `trainable_token_indices`)")
        .hint("if it was trained on purpose, add the module to `modules_to_save` in adapter_config.json")
}

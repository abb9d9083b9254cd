//! Signs that base, adapter and tokenizer do not belong together.

use std::collections::HashMap;

use verify::checkpoint::list_some;
use verify::rewrite::ModelView;
use verify::{Error, Result, Shown};

use crate::adapter::{Adapter, folder_name};
use crate::resolve::{Resolver, is_tail};
use crate::tokens;

/// Warnings where the adapter names another base than the one given.
pub fn about_base(adapter: &Adapter, input: &ModelView) -> Vec<String> {
    let Some(named) = adapter.config.base_model.as_deref().filter(|n| !n.is_empty()) else {
        return Vec::new();
    };
    let mut out = Vec::new();
    let last = named.trim_end_matches(['/', '\\']).rsplit(['/', '\\']).next().unwrap_or(named);
    let given = input.config.path().parent().map(folder_name).unwrap_or_default();
    if !last.eq_ignore_ascii_case(&given) {
        out.push(format!(
            "adapter `{}` was trained on `{}`, the base given is `{}`: check that they are the same model",
            adapter.name,
            Shown(named),
            Shown(&given)
        ));
    }
    let lower = last.to_ascii_lowercase();
    if ["-bnb-4bit", "-fp8", "-awq", "-gptq", "-int4", "-4bit"].iter().any(|q| lower.contains(q)) {
        out.push(format!(
            "adapter `{}` was trained on the quantized `{}`: merged into 16-bit weights it may act a little differently",
            adapter.name,
            Shown(named)
        ));
    }
    out
}

/// A warning where some layers have factors for a target module and others do not.
pub fn partial_upload(adapter: &Adapter, input: &ModelView, resolver: &Resolver<'_>) -> Option<String> {
    if adapter.config.limited || adapter.config.target_modules.is_empty() {
        return None;
    }
    let without_numbers = |name: &str| -> String {
        let part = |p: &str| if p.parse::<u32>().is_ok() { "*".to_string() } else { p.to_string() };
        name.split('.').map(part).collect::<Vec<_>>().join(".")
    };
    let mut layers: HashMap<String, (usize, Vec<String>)> = HashMap::new();
    for t in input.tensors.tensors() {
        let Some(module) = t.spec.name.strip_suffix(".weight") else { continue };
        if !adapter.config.target_modules.iter().any(|m| is_tail(module, m)) {
            continue;
        }
        let (adapted, missing) = layers.entry(without_numbers(module)).or_default();
        match resolver.targets.contains_key(&t.spec.name) {
            true => *adapted += 1,
            false => missing.push(Shown(&t.spec.name).to_string()),
        }
    }
    let mut missing: Vec<String> =
        layers.into_values().filter(|(adapted, _)| *adapted > 0).flat_map(|(_, missing)| missing).collect();
    missing.sort();
    (!missing.is_empty()).then(|| {
        format!(
            "adapter {} has no factors for tensors whose siblings in other layers have them (is the upload whole?): {}",
            adapter.name,
            list_some(&missing)
        )
    })
}

/// Every token id needs a row. A base whose own tokenizer goes beyond its rows is only worth a warning.
pub fn check_tokens(
    input: &ModelView,
    output: &ModelView,
    resolver: &Resolver<'_>,
    vocabulary: Option<usize>,
) -> Result<Option<String>> {
    let Some(embedding) = &resolver.embeddings.input else { return Ok(None) };
    let rows = vocabulary.unwrap_or(embedding.shape[0]) as u64;
    let Some(highest) = tokens::highest(output)?.filter(|h| *h >= rows) else { return Ok(None) };
    let known = vocabulary.is_none() && tokens::highest(input)? == Some(highest);
    if known {
        return Ok(Some(format!(
            "the base's tokenizer has token id {highest}, its embedding only {rows} rows: such a token breaks the server"
        )));
    }
    Err(Error::input("the tokenizer has tokens beyond the vocabulary of the merged model")
        .found(format!("token id {highest}, {rows} rows in the embedding"))
        .expected(format!("at least {} rows", highest + 1))
        .hint("the new rows were not saved: add `embed_tokens` and `lm_head` to `modules_to_save` when training"))
}

//! `model.safetensors.index.json`: which shard holds which tensor.

use std::collections::HashMap;
use std::path::Path;

use serde_json::Value;

use super::json;
use super::tensor::{TensorIndex, list_some};
use crate::error::{Error, Result};
use crate::names::{FileName, Shown};

/// The file's name.
pub const INDEX: &str = "model.safetensors.index.json";

/// The parsed index.
#[derive(Debug)]
pub struct IndexJson {
    shards: Vec<FileName>,
    weight_map: HashMap<String, FileName>,
}

impl IndexJson {
    /// Reads the index of a folder.
    ///
    /// # Errors
    /// Exit 3 where it is not an index or names a file outside the folder.
    pub fn read(path: &Path) -> Result<Self> {
        Self::parse(&json::read_text(path, json::MAX_TOKENIZER)?, path)
    }

    /// Parses `text` that stands at `path`.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn parse(text: &str, path: &Path) -> Result<Self> {
        let value = json::parse(text, path)?;
        let map = value.get("weight_map").and_then(Value::as_object).ok_or_else(|| {
            Error::input(format!("{} has no `weight_map`", Shown::path(path))).hint("fetch the file again")
        })?;
        let mut weight_map = HashMap::with_capacity(map.len());
        for (tensor, file) in map {
            let file = file.as_str().ok_or_else(|| {
                Error::input(format!("{}: entry `{}` names no file", Shown::path(path), Shown(tensor)))
            })?;
            weight_map.insert(tensor.clone(), shard_name(path, file)?);
        }
        let mut shards: Vec<FileName> = weight_map.values().cloned().collect();
        shards.sort();
        shards.dedup();
        Ok(IndexJson { shards, weight_map })
    }

    /// The shards that it names, sorted.
    pub fn shards(&self) -> &[FileName] {
        &self.shards
    }

    /// Each tensor with its shard, in no order.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &FileName)> {
        self.weight_map.iter().map(|(name, shard)| (name.as_str(), shard))
    }

    /// Confirms that the shards hold exactly what the index says.
    ///
    /// # Errors
    /// Exit 3 listing up to ten tensors that are missing, extra or in another shard.
    pub fn check_against(&self, index: &TensorIndex) -> Result<()> {
        let (mut elsewhere, mut extra, mut missing) = (Vec::new(), Vec::new(), Vec::new());
        for t in index.tensors() {
            match self.weight_map.get(&t.spec.name) {
                None => extra.push(Shown(&t.spec.name).to_string()),
                Some(f) if *f != index.shards()[t.shard] => elsewhere.push(Shown(&t.spec.name).to_string()),
                Some(_) => {}
            }
        }
        for name in self.weight_map.keys().filter(|n| !index.contains(n)) {
            missing.push(Shown(name).to_string());
        }
        missing.sort();
        for (what, list) in [
            ("names tensors that no shard holds", missing),
            ("does not name tensors that a shard holds", extra),
            ("names another shard for tensors", elsewhere),
        ] {
            if !list.is_empty() {
                return Err(Error::input(format!("{INDEX} {what}")).found(list_some(&list)).hint(
                    "index and shards are of two checkpoints, or a shard is missing: fetch the folder again",
                ));
            }
        }
        Ok(())
    }
}

/// A shard's name must be one: `prep-report.json` or a hidden file as a shard would be lost or go unchecked.
fn shard_name(index: &Path, file: &str) -> Result<FileName> {
    let name = FileName::parse(file)?;
    match file.ends_with(".safetensors") && !file.starts_with(['.', '_']) && !file.starts_with("adapter_") {
        true => Ok(name),
        false => Err(Error::input(format!("{} names a file that is no shard", Shown::path(index)))
            .found(Shown(file).to_string())
            .expected("names that end in .safetensors")
            .hint("fetch the folder again")),
    }
}

/// The text of an index for `index`: names in file order, two-space indent.
pub fn encode(index: &TensorIndex) -> String {
    let weight_map: serde_json::Map<String, Value> = index
        .tensors()
        .iter()
        .map(|t| (t.spec.name.clone(), Value::from(index.shards()[t.shard].as_str())))
        .collect();
    let value =
        serde_json::json!({"metadata": {"total_size": index.total_bytes()}, "weight_map": weight_map});
    format!("{value:#}\n")
}

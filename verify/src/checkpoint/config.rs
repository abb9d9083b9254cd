//! `config.json`: the text as it stands, and typed access to it.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::json;
use crate::error::{Error, Result};
use crate::json_edit;
use crate::names::Shown;

/// More of anything than any model has.
const MOST: u64 = 1 << 31;

/// A model's `config.json`. Edits keep all other text byte for byte.
#[derive(Debug, Clone)]
pub struct Config {
    text: String,
    value: Value,
    path: PathBuf,
}

impl Config {
    /// Reads the file.
    ///
    /// # Errors
    /// Exit 3 where it is missing, is no JSON object, or has no `model_type`.
    pub fn read(path: &Path) -> Result<Self> {
        if !path.exists() {
            return Err(Error::input(format!("{} does not exist", Shown::path(path)))
                .expected("a model folder with config.json")
                .hint("give the folder that holds config.json and the safetensors files"));
        }
        Self::parse(json::read_text(path, json::MAX_CONFIG)?, path)
    }

    /// Parses `text` that stands, or will stand, at `path`.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn parse(text: String, path: &Path) -> Result<Self> {
        let value = json::parse(&text, path)?;
        let config = Config { text, value, path: path.to_path_buf() };
        match config.value.get("model_type").and_then(Value::as_str) {
            Some(_) => Ok(config),
            None => Err(Error::input(format!("{} has no `model_type`", Shown::path(path)))
                .expected("the config.json of a transformers model")
                .hint("give the folder of the model itself, not of an adapter or a tokenizer")),
        }
    }

    /// The text, byte for byte.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The whole object.
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// Where it was read from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `model_type` of the top level.
    pub fn model_type(&self) -> &str {
        self.value["model_type"].as_str().unwrap_or_default()
    }

    /// The object that describes the language model: `text_config` where there is one, else the whole.
    pub fn language(&self) -> &Value {
        match self.value.get("text_config") {
            Some(v) if v.is_object() => v,
            _ => &self.value,
        }
    }

    /// `key` of the language model, else of the top level.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.language().get(key).or_else(|| self.value.get(key)).filter(|v| !v.is_null())
    }

    /// `key` as a count.
    ///
    /// # Errors
    /// Exit 3 where the key is there and is not a count.
    pub fn count(&self, key: &str) -> Result<Option<usize>> {
        match self.get(key) {
            None => Ok(None),
            Some(v) => match v.as_u64().filter(|n| *n <= MOST).and_then(|n| usize::try_from(n).ok()) {
                Some(n) => Ok(Some(n)),
                None => Err(Error::input(format!("{}: `{key}` is not a count", Shown::path(&self.path)))
                    .found(v.to_string())
                    .expected(format!("a whole number from 0 to {MOST}"))
                    .hint("fetch the folder again, or correct the key")),
            },
        }
    }

    /// `quantization_config`, wherever it stands.
    pub fn quantization(&self) -> Option<&Value> {
        self.get("quantization_config").or_else(|| self.value.get("compression_config"))
    }

    /// Sets a key of the top level, or with `section` inside that object, leaving all other text as it is.
    ///
    /// # Errors
    /// When the file's text cannot be edited (it is no object).
    pub fn set(&mut self, section: Option<&str>, key: &str, value: &Value) -> Result<()> {
        let text = json_edit::set(&self.text, section, key, Some(value), &self.path)?;
        *self = Self::parse(text, &self.path)?;
        Ok(())
    }

    /// Removes a key, as [`Self::set`].
    ///
    /// # Errors
    /// As [`Self::set`].
    pub fn remove(&mut self, section: Option<&str>, key: &str) -> Result<()> {
        let text = json_edit::set(&self.text, section, key, None, &self.path)?;
        *self = Self::parse(text, &self.path)?;
        Ok(())
    }
}

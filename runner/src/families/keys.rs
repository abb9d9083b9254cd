//! `config.json` read key by key, with errors that name the key.

use serde_json::Value;
use verify::checkpoint::Config;
use verify::{Error, Result, Shown};

/// The language model's part of a config; keys missing there are looked up at the top level.
#[derive(Debug, Clone, Copy)]
pub struct Keys<'a> {
    config: &'a Config,
    defaults: &'static [(&'static str, usize)],
    default_eps: f64,
}

impl<'a> Keys<'a> {
    /// The keys of `config`.
    pub fn new(config: &'a Config) -> Self {
        Keys { config, defaults: &[], default_eps: 1e-6 }
    }

    /// The same keys with the counts that the family's configuration class fills in.
    pub fn with_defaults(self, defaults: &'static [(&'static str, usize)]) -> Self {
        Keys { defaults, ..self }
    }

    /// The same keys in a family whose norms have another default eps.
    pub fn with_eps(self, default_eps: f64) -> Self {
        Keys { default_eps, ..self }
    }

    /// A key that is there and not null.
    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.config.get(key)
    }

    /// The whole file.
    pub fn config(&self) -> &'a Config {
        self.config
    }

    /// A positive count that must be there or have a default in the family.
    ///
    /// # Errors
    /// Exit 3 naming the key.
    pub fn count(&self, key: &str) -> Result<usize> {
        match self.config.count(key)? {
            None if self.default(key).is_some() => Ok(self.default(key).unwrap_or_default()),
            // Small enough that no product of three overflows before shapes are compared.
            Some(n) if n > 0 && (n < 1 << 21 || key == "max_position_embeddings") => Ok(n),
            Some(n) => Err(self
                .wrong(&format!("`{key}`"))
                .found(n.to_string())
                .expected("a count from 1 to 2097151")),
            None => Err(self.wrong(&format!("`{key}`")).found("nothing").expected("a positive count")),
        }
    }

    /// A positive count, or the family's default, or `default`.
    ///
    /// # Errors
    /// Exit 3 naming the key.
    pub fn count_or(&self, key: &str, default: usize) -> Result<usize> {
        match self.get(key).is_some() || self.default(key).is_some() {
            true => self.count(key),
            false => Ok(default),
        }
    }

    fn default(&self, key: &str) -> Option<usize> {
        self.defaults.iter().find(|(k, _)| *k == key).map(|(_, n)| *n)
    }

    /// A finite number, or `default`.
    ///
    /// # Errors
    /// Exit 3 naming the key.
    pub fn number_or(&self, key: &str, default: f64) -> Result<f64> {
        self.get(key).map_or(Ok(default), |v| self.as_number(v, key))
    }

    /// `value`, found under `key`, as a finite number.
    ///
    /// # Errors
    /// Exit 3 naming the key.
    pub fn as_number(&self, value: &Value, key: &str) -> Result<f64> {
        match value.as_f64() {
            Some(n) if n.is_finite() => Ok(n),
            _ => Err(self.wrong(&format!("`{key}`")).found(value.to_string()).expected("a number")),
        }
    }

    /// True or false, or `default`.
    ///
    /// # Errors
    /// Exit 3 naming the key.
    pub fn flag_or(&self, key: &str, default: bool) -> Result<bool> {
        match self.get(key) {
            None => Ok(default),
            Some(Value::Bool(b)) => Ok(*b),
            Some(v) => Err(self.wrong(&format!("`{key}`")).found(v.to_string()).expected("true or false")),
        }
    }

    /// Text, where there is some.
    ///
    /// # Errors
    /// Exit 3 naming the key.
    pub fn text(&self, key: &str) -> Result<Option<String>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(s)) => Ok(Some(s.clone())),
            Some(v) => Err(self.wrong(&format!("`{key}`")).found(v.to_string()).expected("text")),
        }
    }

    /// A list of counts, empty where there is none.
    ///
    /// # Errors
    /// Exit 3 naming the key.
    pub fn counts(&self, key: &str) -> Result<Vec<u64>> {
        let Some(v) = self.get(key) else { return Ok(Vec::new()) };
        let list = v.as_array().and_then(|a| a.iter().map(Value::as_u64).collect());
        list.ok_or_else(|| self.wrong(&format!("`{key}`")).found(v.to_string()).expected("a list of counts"))
    }

    /// `rms_norm_eps`, or the family's default.
    ///
    /// # Errors
    /// Exit 3 where it is no number.
    pub fn eps(&self) -> Result<f32> {
        let eps = self.number_or("rms_norm_eps", self.default_eps)?;
        match eps >= 0.0 {
            true => Ok(eps as f32),
            false => Err(self.wrong("`rms_norm_eps`").found(eps.to_string()).expected("no negative number")),
        }
    }

    /// What each layer mixes positions with, where `layer_types` says so; one entry a layer.
    ///
    /// # Errors
    /// Exit 3 for a list of another length or with other entries than text.
    pub fn layer_types(&self, layers: usize) -> Result<Option<Vec<String>>> {
        let Some(v) = self.get("layer_types") else { return Ok(None) };
        let list: Option<Vec<String>> =
            v.as_array().and_then(|a| a.iter().map(|t| t.as_str().map(str::to_string)).collect());
        match list {
            Some(list) if list.len() == layers => Ok(Some(list)),
            _ => Err(self.wrong("`layer_types`").found(v.to_string()).expected(format!("{layers} names"))),
        }
    }

    /// Refuses what changes every family's numbers and is not implemented: other activations than silu.
    ///
    /// # Errors
    /// Exit 3 naming the activation.
    pub fn check_activation(&self) -> Result<()> {
        match self.text("hidden_act")?.as_deref() {
            None | Some("silu" | "swish") => Ok(()),
            Some(other) => {
                Err(self.wrong("`hidden_act`").found(format!("`{}`", Shown(other))).expected("`silu`"))
            }
        }
    }

    /// Refuses attention over a sliding window, and layers of other kinds than this model_type has.
    ///
    /// # Errors
    /// Exit 3 naming the window or the kind.
    pub fn check_no_window(&self, layers: usize) -> Result<()> {
        let types = self.layer_types(layers)?;
        let model = self.config.model_type();
        let linear = model.starts_with("qwen3_next") || model.starts_with("qwen3_5");
        let known = |t: &&String| *t == "full_attention" || linear && *t == "linear_attention";
        if let Some(other) = types.iter().flatten().find(|t| !known(t)) {
            return Err(self
                .wrong("`layer_types`")
                .found(format!("`{}`", Shown(other)))
                .expected("full attention in all layers")
                .hint("verify the model through a served endpoint"));
        }
        // Without the switch a window of qwen3 files is not used.
        let switched = self.flag_or("use_sliding_window", model == "mixtral")?;
        match self.get("sliding_window").filter(|_| switched && types.is_none()) {
            None => Ok(()),
            Some(window) => Err(self
                .wrong("sliding-window attention")
                .found(window.to_string())
                .expected("full attention in all layers")
                .hint("this runner has no sliding window: verify the model through a served endpoint")),
        }
    }

    /// An error about `what` of this file.
    pub fn wrong(&self, what: &str) -> Error {
        Error::input(format!("{}: {what} cannot be used", Shown::path(self.config.path())))
    }
}

//! `adapter_config.json`, read strictly: what changes the merged weights is understood or refused by name.
//!
//! Source: PEFT 0.21 `LoraConfig`.

use std::path::Path;

use serde_json::{Map, Value};
use verify::checkpoint::{json, list_some};
use verify::{Error, Result, Shown};

use super::pattern::Patterns;

/// The settings of a LoRA adapter that decide what is merged.
#[derive(Debug)]
pub struct AdapterConfig {
    /// `r`: the rank where no pattern says otherwise.
    pub rank: usize,
    /// `lora_alpha`.
    pub alpha: f64,
    /// `rank_pattern`.
    pub rank_pattern: Patterns,
    /// `alpha_pattern`.
    pub alpha_pattern: Patterns,
    /// How alpha and rank give the scale.
    pub scaling: Scaling,
    /// `use_dora`.
    pub dora: bool,
    /// `lora_bias`.
    pub lora_bias: bool,
    /// True where `bias` is `all` or `lora_only`, so that whole bias tensors may be in the file.
    pub trains_bias: bool,
    /// `target_modules` where it is a list of names.
    pub target_modules: Vec<String>,
    /// True where only some layers or modules were meant to be adapted.
    pub limited: bool,
    /// `target_parameters`.
    pub target_parameters: Vec<String>,
    /// `modules_to_save`.
    pub modules_to_save: Vec<String>,
    /// `trainable_token_indices`: module tail and rows; `None` as tail means the input embedding.
    pub token_rows: Vec<(Option<String>, Vec<usize>)>,
    /// `ensure_weight_tying`.
    pub keeps_tying: bool,
    /// `base_model_name_or_path`.
    pub base_model: Option<String>,
    /// `peft_version`.
    pub peft_version: Option<PeftVersion>,
    /// Things to tell the user.
    pub warnings: Vec<String>,
}

/// Major, minor and patch number.
pub type PeftVersion = (u32, u32, u32);

/// The scale of `B A`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scaling {
    /// alpha / r.
    Rank,
    /// alpha / sqrt(r): rsLoRA.
    RootOfRank,
}

impl Scaling {
    /// The scale for `alpha` and `rank`.
    pub fn scale(self, alpha: f64, rank: usize) -> f64 {
        match self {
            Scaling::Rank => alpha / rank as f64,
            Scaling::RootOfRank => alpha / (rank as f64).sqrt(),
        }
    }
}

/// Keys that are understood, or known not to change the result.
const KNOWN: [&str; 42] = [
    "alora_invocation_tokens",
    "alpha_pattern",
    "arrow_config",
    "auto_mapping",
    "base_model_name_or_path",
    "bias",
    "corda_config",
    "ensure_weight_tying",
    "eva_config",
    "exclude_modules",
    "fan_in_fan_out",
    "inference_mode",
    "init_lora_weights",
    "kasa_config",
    "layer_replication",
    "layers_pattern",
    "layers_to_transform",
    "loftq_config",
    "lora_alpha",
    "lora_bias",
    "lora_dropout",
    "lora_ga_config",
    "megatron_config",
    "megatron_core",
    "modules_to_save",
    "monteclora_config",
    "peft_type",
    "peft_version",
    "qalora_group_size",
    "r",
    "rank_pattern",
    "revision",
    "runtime_config",
    "target_modules",
    "target_parameters",
    "task_type",
    "trainable_token_indices",
    "use_bdlora",
    "use_dora",
    "use_qalora",
    "use_rslora",
    "velora_config",
];

/// Settings under which the trained model is not base + B A.
const OTHER_MATHS: [(&str, &str); 8] = [
    ("alora_invocation_tokens", "it acts only after certain tokens"),
    ("arrow_config", "it routes between adapters"),
    ("kasa_config", "it scales by singular values"),
    ("monteclora_config", "it samples its weights"),
    ("use_bdlora", "its factors are block-diagonal"),
    ("use_qalora", "its inputs are pooled in groups"),
    ("layer_replication", "it repeats layers of the base"),
    ("megatron_config", "its factors are split for Megatron"),
];

impl AdapterConfig {
    /// Reads the file.
    ///
    /// # Errors
    /// Exit 3 where it is missing, is no adapter of method LoRA, or asks for something that cannot be merged.
    pub fn read(path: &Path) -> Result<Self> {
        if !path.exists() {
            return Err(Error::input(format!("{} does not exist", Shown::path(path)))
                .expected("an adapter folder with adapter_config.json and adapter_model.safetensors")
                .hint("give the folder that the trainer saved the adapter to"));
        }
        Self::parse(&json::read(path)?)
    }

    /// Reads a parsed config.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn parse(value: &Value) -> Result<Self> {
        let object = value.as_object().ok_or_else(|| Error::input("adapter_config.json is no object"))?;
        let fields = Fields(object);
        check_method(&fields)?;
        let warnings = check_init(&fields)?.into_iter().chain(unknown_keys(object)).collect();
        let bias = fields.text("bias")?.unwrap_or("none".into());
        if !matches!(bias.as_str(), "none" | "all" | "lora_only") {
            return Err(fields.bad("bias", "none, all or lora_only"));
        }
        let config = AdapterConfig {
            rank: fields.count("r")?.unwrap_or(8),
            alpha: fields.number("lora_alpha")?.unwrap_or(8.0),
            rank_pattern: Patterns::parse("rank_pattern", object.get("rank_pattern"))?,
            alpha_pattern: Patterns::parse("alpha_pattern", object.get("alpha_pattern"))?,
            scaling: if fields.flag("use_rslora")? { Scaling::RootOfRank } else { Scaling::Rank },
            dora: fields.flag("use_dora")?,
            lora_bias: fields.flag("lora_bias")?,
            trains_bias: bias != "none",
            target_modules: match object.get("target_modules") {
                Some(Value::Array(_)) => fields.names("target_modules")?,
                _ => Vec::new(),
            },
            limited: ["layers_to_transform", "exclude_modules"].iter().any(|k| fields.given(k)),
            target_parameters: fields.names("target_parameters")?,
            modules_to_save: fields.names("modules_to_save")?,
            token_rows: token_rows(&fields)?,
            keeps_tying: fields.flag("ensure_weight_tying")?,
            base_model: fields.text("base_model_name_or_path")?,
            peft_version: fields.text("peft_version")?.as_deref().and_then(parse_version),
            warnings,
        };
        if config.rank == 0 {
            return Err(fields.bad("r", "a positive rank"));
        }
        Ok(config)
    }
}

fn check_method(fields: &Fields<'_>) -> Result<()> {
    match fields.text("peft_type")?.as_deref() {
        Some("LORA") => {}
        Some(other) => {
            return Err(Error::input(format!("the adapter's method is {}, not LORA", Shown(other)))
                .found(format!("peft_type {}", Shown(other)))
                .expected("peft_type LORA (LoRA, rsLoRA or DoRA)")
                .hint("merge it with the tool it was trained with, then give the merged folder to prep"));
        }
        None => {
            return Err(Error::input("adapter_config.json has no `peft_type`")
                .expected("peft_type LORA")
                .hint("give the folder of a PEFT adapter"));
        }
    }
    for (key, why) in OTHER_MATHS {
        if fields.given(key) {
            return Err(Error::input(format!("the adapter uses `{key}`: {why}"))
                .expected("a plain LoRA, rsLoRA or DoRA adapter")
                .hint("such an adapter has no exact merge: serve it unmerged"));
        }
    }
    Ok(())
}

/// Ways to begin training that change the base; the adapter's sum with the given base would be wrong.
fn check_init(fields: &Fields<'_>) -> Result<Option<String>> {
    let Some(Value::String(init)) = fields.0.get("init_lora_weights") else { return Ok(None) };
    let lower = init.to_ascii_lowercase();
    if ["pissa", "olora", "corda", "lora_ga"].iter().any(|p| lower.starts_with(p)) {
        return Err(Error::input(format!("the adapter began on a changed base (`init_lora_weights` {})", Shown(init)))
            .found(format!("init_lora_weights {}", Shown(init)))
            .expected("factors that belong to the base as published")
            .hint("save it again in the trainer with `path_initial_model_for_weight_conversion`, which gives a plain LoRA"));
    }
    let quantized = lower == "loftq";
    Ok(quantized.then(|| {
        "`init_lora_weights` is loftq: the adapter was trained on quantized weights and may not fit the 16-bit base"
            .to_string()
    }))
}

fn unknown_keys(object: &Map<String, Value>) -> Option<String> {
    let unknown: Vec<_> =
        object.keys().filter(|k| !KNOWN.contains(&k.as_str())).map(|k| Shown(k).to_string()).collect();
    (!unknown.is_empty())
        .then(|| format!("adapter_config.json has keys that prep does not know: {}", list_some(&unknown)))
}

fn token_rows(fields: &Fields<'_>) -> Result<Vec<(Option<String>, Vec<usize>)>> {
    let bad = || fields.bad("trainable_token_indices", "a list of rows, or an object of such lists");
    let rows = |v: &Value| -> Result<Vec<usize>> {
        let list = v.as_array().ok_or_else(bad)?;
        list.iter().map(|i| i.as_u64().and_then(|i| usize::try_from(i).ok()).ok_or_else(bad)).collect()
    };
    match fields.0.get("trainable_token_indices") {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(list @ Value::Array(_)) => Ok(vec![(None, rows(list)?)]),
        Some(Value::Object(map)) => map.iter().map(|(k, v)| Ok((Some(k.clone()), rows(v)?))).collect(),
        Some(_) => Err(bad()),
    }
}

fn parse_version(text: &str) -> Option<PeftVersion> {
    let mut numbers = text.split(['.', '@', '+']).map(|p| {
        let digits: String = p.chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<u32>().ok()
    });
    Some((numbers.next()??, numbers.next()??, numbers.next().flatten().unwrap_or(0)))
}

/// Typed access to the object; a wrong type is an error that names the key.
struct Fields<'a>(&'a Map<String, Value>);

impl Fields<'_> {
    /// True where the key holds something that is not null, false or empty.
    fn given(&self, key: &str) -> bool {
        match self.0.get(key) {
            None | Some(Value::Null | Value::Bool(false)) => false,
            Some(Value::Array(a)) => !a.is_empty(),
            Some(Value::Object(o)) => !o.is_empty(),
            Some(Value::String(s)) => !s.is_empty(),
            Some(_) => true,
        }
    }

    fn bad(&self, key: &str, expected: &str) -> Error {
        let found = self.0.get(key).map_or("nothing".into(), Value::to_string);
        Error::input(format!("adapter_config.json: `{key}` cannot be used"))
            .found(Shown(&found).to_string())
            .expected(expected)
    }

    fn flag(&self, key: &str) -> Result<bool> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(b)) => Ok(*b),
            Some(_) => Err(self.bad(key, "true or false")),
        }
    }

    fn number(&self, key: &str) -> Result<Option<f64>> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(v) => match v.as_f64().filter(|n| n.is_finite()) {
                Some(n) => Ok(Some(n)),
                None => Err(self.bad(key, "a number")),
            },
        }
    }

    fn count(&self, key: &str) -> Result<Option<usize>> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(v) => match v.as_u64().and_then(|n| usize::try_from(n).ok()) {
                Some(n) => Ok(Some(n)),
                None => Err(self.bad(key, "a count")),
            },
        }
    }

    fn text(&self, key: &str) -> Result<Option<String>> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(s)) => Ok(Some(s.clone())),
            Some(_) => Err(self.bad(key, "a text")),
        }
    }

    fn names(&self, key: &str) -> Result<Vec<String>> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(Value::Array(list)) => list
                .iter()
                .map(|v| v.as_str().map(str::to_string).ok_or_else(|| self.bad(key, "a list of names")))
                .collect(),
            Some(_) => Err(self.bad(key, "a list of names")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refusal(extra: Value) -> String {
        let mut config = json!({"peft_type": "LORA", "r": 4, "lora_alpha": 8});
        config.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        AdapterConfig::parse(&config).unwrap_err().to_string()
    }

    #[test]
    fn other_methods_are_refused_by_name() {
        for method in ["IA3", "LOHA", "LOKR", "OFT", "VERA", "ADALORA", "XLORA", "PROMPT_TUNING", "LN_TUNING"]
        {
            assert!(refusal(json!({"peft_type": method})).contains(method));
        }
    }

    #[test]
    fn variants_with_other_maths_are_refused_by_key() {
        for (key, value) in [
            ("alora_invocation_tokens", json!([1])),
            ("arrow_config", json!({"a": 1})),
            ("kasa_config", json!({"a": 1})),
            ("monteclora_config", json!({"a": 1})),
            ("use_bdlora", json!({"a": 1})),
            ("use_qalora", json!(true)),
            ("layer_replication", json!([[0, 2]])),
            ("megatron_config", json!({"a": 1})),
        ] {
            assert!(refusal(json!({key: value})).contains(key), "{key}");
        }
    }

    #[test]
    fn inits_that_change_the_base_are_refused() {
        for init in ["pissa", "pissa_niter_16", "olora", "corda", "lora_ga"] {
            assert!(refusal(json!({"init_lora_weights": init})).contains(init));
        }
    }

    #[test]
    fn harmless_inits_and_unknown_keys_go_on() {
        for init in [json!(true), json!("gaussian"), json!("eva"), json!("orthogonal"), json!("mica")] {
            let c = json!({"peft_type": "LORA", "r": 4, "lora_alpha": 8, "init_lora_weights": init, "new_key": 1});
            let c = AdapterConfig::parse(&c).unwrap();
            assert_eq!(c.warnings.len(), 1);
            assert!(c.warnings[0].contains("new_key"));
        }
    }

    #[test]
    fn rslora_divides_by_the_root() {
        assert_eq!(Scaling::Rank.scale(8.0, 16), 0.5);
        assert_eq!(Scaling::RootOfRank.scale(8.0, 16), 2.0);
    }

    #[test]
    fn versions_with_tails_are_read() {
        assert_eq!(parse_version("0.19.1.dev0@abc"), Some((0, 19, 1)));
        assert_eq!(parse_version("0.18"), Some((0, 18, 0)));
        assert_eq!(parse_version("?"), None);
    }

    #[test]
    fn wrong_types_are_named() {
        assert!(refusal(json!({"r": "four"})).contains("`r`"));
        assert!(refusal(json!({"target_parameters": "x"})).contains("target_parameters"));
        assert!(refusal(json!({"trainable_token_indices": ["a"]})).contains("trainable_token_indices"));
    }
}

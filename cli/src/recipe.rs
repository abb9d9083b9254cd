//! Recipes: the whole job in one file. Paths are relative to the recipe, so it runs from any folder.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use verify::checkpoint::json;
use verify::{Error, Result, Shown};

use crate::args::{Sampling, divergence};
use crate::download::Request;

/// A parsed recipe.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// The base model.
    #[serde(alias = "source")]
    pub base: Model,
    /// Folder of the result; `--out` wins.
    pub out: Option<PathBuf>,
    /// Carry over the base's Python files, and the `auto_map` that names them.
    #[serde(default)]
    pub keep_code: bool,
    /// Adapters to merge, in order.
    #[serde(default)]
    pub adapter: Vec<Adapter>,
    /// How to quantize, if at all.
    pub quantize: Option<Quantize>,
    /// Which chat template to embed in both places that servers read.
    #[serde(default)]
    pub template: Template,
    /// How to verify the result, if at all.
    pub verify: Option<Verify>,
}

/// Where an input is.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "String")]
pub enum Model {
    /// A folder.
    Folder(PathBuf),
    /// A model of a hub: `hf:OWNER/NAME@REVISION` or `modelscope:OWNER/NAME@REVISION`.
    Hub(Request),
}

impl TryFrom<String> for Model {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let request = Request::of_recipe(&text).map_err(|e| e.what().to_string())?;
        Ok(request.map_or_else(|| Model::Folder(text.into()), Model::Hub))
    }
}

impl Model {
    fn resolve(&mut self, dir: &Path) {
        if let Model::Folder(path) = self {
            *path = dir.join(&*path);
        }
    }
}

/// One adapter.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Adapter {
    /// Where it is.
    pub path: Model,
    /// Its weight in the sum.
    #[serde(default = "one")]
    pub weight: f64,
}

fn one() -> f64 {
    1.0
}

/// How to quantize.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quantize {
    /// `fp8` or `awq`.
    pub format: Format,
    /// FP8: how scales of weights are shared out; else in blocks, or by matrix beside static activations.
    pub scheme: Option<crate::args::Scheme>,
    /// FP8: a calibrated scale for what goes into each matrix.
    #[serde(default)]
    pub static_activations: bool,
    /// Calibrated scales for cached keys and values.
    pub kv_cache: Option<crate::args::KvCache>,
    /// Samples to calibrate on; else the built-in set.
    pub calibration: Option<PathBuf>,
    /// Sequences to calibrate on.
    pub samples: Option<usize>,
    /// Tokens of a sequence at most.
    pub seq_len: Option<usize>,
    /// Which tokens an expert is calibrated on.
    pub experts: Option<crate::args::Experts>,
    /// AWQ: weights under one scale.
    pub group_size: Option<usize>,
    /// AWQ: no stored zeros.
    pub symmetric: Option<bool>,
    /// AWQ: names and packing of the result.
    pub packing: Option<crate::args::Packing>,
    /// Modules that stay in 16 bit.
    #[serde(default)]
    pub ignore: Vec<String>,
    /// Copy modules that hold NaN or infinity as they are.
    #[serde(default)]
    pub allow_nonfinite: bool,
}

impl Quantize {
    /// A key that is given and means nothing beside the others.
    pub fn misplaced(&self) -> Option<&'static str> {
        let awq = matches!(self.format, Format::Awq);
        let inputs = awq || self.static_activations;
        let calibrates = inputs || self.kv_cache.is_some();
        let keys = [
            ("scheme", self.scheme.is_some(), !awq),
            ("static_activations", self.static_activations, !awq),
            ("calibration", self.calibration.is_some(), calibrates),
            ("samples", self.samples.is_some(), calibrates),
            ("seq_len", self.seq_len.is_some(), calibrates),
            ("experts", self.experts.is_some(), inputs),
            ("group_size", self.group_size.is_some(), awq),
            ("symmetric", self.symmetric.is_some(), awq),
            ("packing", self.packing.is_some(), awq),
        ];
        keys.iter().find(|(_, given, means)| *given && !means).map(|(key, ..)| *key)
    }
}

/// Weight formats.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// 8-bit floating point.
    Fp8,
    /// 4-bit integers, calibrated.
    Awq,
}

/// Which template.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Template {
    /// A file, or a folder that has a template; else the adapter's, else the base's.
    pub from: Option<PathBuf>,
}

/// How to verify.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Verify {
    /// The tool-call parser that the server will use.
    pub parser: String,
    /// Cases to run; else the built-in 24.
    pub suite: Option<PathBuf>,
    /// Fail below this score.
    pub min_score: Option<u32>,
    /// The reasoning parser that the server will use.
    pub reasoning_parser: Option<String>,
    /// Longest answer in tokens.
    #[serde(default = "max_new")]
    pub max_new: usize,
    /// Reports to write: `.html`, `.json` or `.xml`.
    #[serde(default)]
    pub report: Vec<PathBuf>,
    /// Template arguments for all cases.
    pub kwargs: Option<serde_json::Map<String, serde_json::Value>>,
    /// The model to compare with.
    pub baseline: Option<Model>,
    /// Plain text to compare the predictions over.
    pub text: Option<PathBuf>,
    /// Fail where the score falls further below the baseline's.
    pub max_score_drop: Option<u32>,
    /// Fail where the mean KL divergence from the baseline is higher, in nats.
    pub max_kl: Option<f64>,
    /// Run the suite so often.
    pub repeat: Option<u32>,
    /// 0 takes the likeliest token.
    pub temperature: Option<f32>,
    /// Draw from so many of the likeliest tokens.
    pub top_k: Option<u32>,
    /// Draw from the likeliest tokens that hold this share.
    pub top_p: Option<f32>,
    /// Same seed, same answers.
    pub seed: Option<u64>,
}

impl Verify {
    /// Refuses what the command line refuses too.
    ///
    /// # Errors
    /// Exit 2 for limits without a baseline, and for a limit that is none.
    pub fn check(&self) -> Result<()> {
        let limits = [
            ("text", self.text.is_some()),
            ("max_score_drop", self.max_score_drop.is_some()),
            ("max_kl", self.max_kl.is_some()),
        ];
        if let Some((key, _)) = limits.iter().find(|(_, given)| *given && self.baseline.is_none()) {
            return Err(Error::usage(format!("`verify.{key}` means nothing without a baseline"))
                .hint("add verify.baseline = \"DIR\", or leave the key out"));
        }
        let limit = self.max_kl.map(|kl| divergence(&kl.to_string())).transpose();
        limit.map(drop).map_err(|expected| Error::usage("`verify.max_kl` is no limit").expected(expected))
    }

    /// How tokens are drawn, as the command line would have it.
    ///
    /// # Errors
    /// Exit 2 for a number of runs that the command line refuses too.
    pub fn sampling(&self) -> Result<Sampling> {
        let default = Sampling::default();
        let repeat = self.repeat.unwrap_or(default.repeat);
        if !(1..=1000).contains(&repeat) {
            return Err(Error::usage("`verify.repeat` is no number of runs")
                .found(repeat.to_string())
                .expected("1 to 1000"));
        }
        Ok(Sampling {
            repeat,
            temperature: self.temperature.unwrap_or(default.temperature),
            top_k: self.top_k.unwrap_or(default.top_k),
            top_p: self.top_p.unwrap_or(default.top_p),
            seed: self.seed.unwrap_or(default.seed),
        })
    }
}

fn max_new() -> usize {
    256
}

impl Recipe {
    /// Reads the recipe at `path`, with `key=value` changes of the command line.
    ///
    /// # Errors
    /// Exit 2 for anything that is no recipe, with the line.
    pub fn read(path: &Path, changes: &[String]) -> Result<Self> {
        let text = json::read_text(path, 1 << 20)?;
        let wrong = |e: String| {
            Error::usage(format!("{} is not a recipe", Shown::path(path)))
                .found(e.trim().to_string())
                .hint("`prep run --help` lists every key")
        };
        let mut table: toml::Table = toml::from_str(&text).map_err(|e| wrong(e.to_string()))?;
        for change in changes {
            set(&mut table, change)?;
        }
        // Parsed from text again where nothing was changed: errors then carry the line.
        let mut recipe: Recipe = match changes.is_empty() {
            true => toml::from_str(&text).map_err(|e| wrong(e.to_string()))?,
            false => table.try_into().map_err(|e: toml::de::Error| wrong(e.to_string()))?,
        };
        recipe.resolve(path.parent().unwrap_or(Path::new("")));
        Ok(recipe)
    }

    fn resolve(&mut self, dir: &Path) {
        let at = |p: &mut PathBuf| *p = dir.join(&*p);
        self.base.resolve(dir);
        self.out.iter_mut().for_each(at);
        self.adapter.iter_mut().for_each(|a| a.path.resolve(dir));
        self.template.from.iter_mut().for_each(at);
        self.quantize.iter_mut().flat_map(|q| &mut q.calibration).for_each(at);
        if let Some(v) = &mut self.verify {
            v.suite.iter_mut().chain(&mut v.report).chain(&mut v.text).for_each(at);
            v.baseline.iter_mut().for_each(|b| b.resolve(dir));
        }
    }
}

/// Sets `a.b=value`; a value that is no TOML is taken as text.
fn set(table: &mut toml::Table, change: &str) -> Result<()> {
    let wrong = || {
        Error::usage(format!("`--set {}` is not understood", Shown(change)))
            .expected("KEY=VALUE, such as verify.parser=hermes")
    };
    let (key, value) = change.split_once('=').ok_or_else(wrong)?;
    let parsed = toml::from_str::<toml::Table>(&format!("v = {value}")).ok().and_then(|mut t| t.remove("v"));
    let value = parsed.unwrap_or_else(|| toml::Value::String(value.to_string()));
    let (sections, key) = match key.rsplit_once('.') {
        Some((s, k)) => (s.split('.').collect(), k),
        None => (Vec::new(), key),
    };
    let mut at = table;
    for section in sections {
        let entry = at.entry(section).or_insert_with(|| toml::Value::Table(toml::Table::new()));
        at = entry.as_table_mut().ok_or_else(wrong)?;
    }
    at.insert(key.to_string(), value);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, changes: &[&str]) -> Result<Recipe> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.toml");
        std::fs::write(&path, text).unwrap();
        Recipe::read(&path, &changes.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    const GOOD: &str = "base = 'b'\n[quantize]\nformat = 'fp8'\n[verify]\nparser = 'hermes'\n";

    #[test]
    fn paths_are_relative_to_the_recipe() {
        let r = read(GOOD, &[]).unwrap();
        assert!(matches!(r.base, Model::Folder(p) if p.is_absolute() && p.ends_with("b")));
    }

    #[test]
    fn inputs_may_lie_on_a_hub() {
        for text in ["base = 'hf:a/b@main'", "source = 'hf:a/b@main'"] {
            let r = read(text, &[]).unwrap();
            assert!(matches!(r.base, Model::Hub(q) if q.repo.as_str() == "a/b" && q.revision == "main"));
        }
        assert!(read("base = 'hf:../b'", &[]).unwrap_err().to_string().contains("no model of a hub"));
    }

    #[test]
    fn keys_can_be_set_from_outside() {
        let r = read(GOOD, &["verify.parser=qwen3_coder", "verify.min_score=7"]).unwrap();
        let v = r.verify.unwrap();
        assert_eq!((v.parser.as_str(), v.min_score), ("qwen3_coder", Some(7)));
    }

    #[test]
    fn misspelt_keys_are_refused() {
        for (text, changes) in [
            ("base = 'b'\nquantise = 1", &[][..]),
            ("bas = 'b'", &[]),
            (GOOD, &["verify.parsr=x"]),
            (GOOD, &["x"]),
        ] {
            assert_eq!(read(text, changes).unwrap_err().class(), verify::Class::Usage, "{text}");
        }
    }
}

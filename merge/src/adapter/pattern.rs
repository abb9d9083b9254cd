//! `rank_pattern` and `alpha_pattern`: values for the modules whose path a pattern covers to its end.
//!
//! Source: PEFT `get_pattern_key`, `^(.*\.)?(P)$` against the module path, first entry in file order.

use fancy_regex::Regex;
use serde_json::Value;
use verify::{Error, Result, Shown};

/// The entries of one pattern table, in file order.
#[derive(Debug, Default)]
pub struct Patterns {
    key: &'static str,
    entries: Vec<(Matcher, f64)>,
}

#[derive(Debug)]
enum Matcher {
    /// Letters, digits, `_`, `-` and `.` (any character): by far the most usual, and tables of thousands exist.
    Tail(Vec<u8>),
    Regex(String, Box<Regex>),
}

impl Patterns {
    /// Reads the object under `key` of a config; null and absent are an empty table.
    ///
    /// # Errors
    /// Exit 3 where it is no object of positive numbers, or a pattern cannot be compiled.
    pub fn parse(key: &'static str, value: Option<&Value>) -> Result<Self> {
        let object = match value {
            None | Some(Value::Null) => return Ok(Patterns { key, entries: Vec::new() }),
            Some(Value::Object(object)) => object,
            Some(other) => {
                return Err(Error::input(format!("adapter_config.json: `{key}` is no object"))
                    .found(Shown(&other.to_string()).to_string()));
            }
        };
        let entry = |(pattern, value): (&String, &Value)| match value.as_f64() {
            Some(v) if v.is_finite() => Ok((Matcher::new(pattern, key)?, v)),
            _ => Err(Error::input(format!(
                "adapter_config.json: `{key}` of `{}` is no number",
                Shown(pattern)
            ))
            .found(value.to_string())),
        };
        Ok(Patterns { key, entries: object.iter().map(entry).collect::<Result<_>>()? })
    }

    /// The values of all entries that cover `path`, in file order.
    ///
    /// # Errors
    /// Exit 3 where a pattern takes too many steps.
    pub fn matching(&self, path: &str) -> Result<Vec<f64>> {
        let mut out = Vec::new();
        for (matcher, value) in &self.entries {
            if matcher.covers(path, self.key)? {
                out.push(*value);
            }
        }
        Ok(out)
    }
}

impl Matcher {
    fn new(pattern: &str, key: &str) -> Result<Self> {
        let literal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
        if pattern.bytes().all(literal) && !pattern.is_empty() {
            return Ok(Matcher::Tail(pattern.as_bytes().to_vec()));
        }
        match Regex::new(&format!(r"^(?:.*\.)?(?:{pattern})$")) {
            Ok(regex) => Ok(Matcher::Regex(pattern.to_string(), Box::new(regex))),
            Err(e) => Err(refuse(pattern, key, &e.to_string())),
        }
    }

    fn covers(&self, path: &str, key: &str) -> Result<bool> {
        match self {
            Matcher::Tail(tail) => Ok(covers_tail(path.as_bytes(), tail)),
            Matcher::Regex(text, regex) => {
                regex.is_match(path).map_err(|e| refuse(text, key, &e.to_string()))
            }
        }
    }
}

fn covers_tail(path: &[u8], tail: &[u8]) -> bool {
    let Some(start) = path.len().checked_sub(tail.len()) else { return false };
    let fits = |(p, t): (&u8, &u8)| t == p || *t == b'.';
    (start == 0 || path[start - 1] == b'.') && path[start..].iter().zip(tail).rev().all(fits)
}

fn refuse(pattern: &str, key: &str, why: &str) -> Error {
    Error::input(format!("adapter_config.json: pattern `{}` of `{key}` cannot be used", Shown(pattern)))
        .found(Shown(why).to_string())
        .hint("write the module names out in its place")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn values(table: Value, path: &str) -> Vec<f64> {
        Patterns::parse("rank_pattern", Some(&table)).unwrap().matching(path).unwrap()
    }

    #[test]
    fn pattern_covers_whole_dotted_tails_only() {
        let path = "model.layers.0.mlp.down_proj";
        for (pattern, hits) in [
            ("down_proj", 1),
            ("layers.0.mlp.down_proj", 1),
            ("model.layers.0.mlp.down_proj", 1),
            ("proj", 0),
            ("mlp", 0),
            (r"layers\.\d+\.mlp\.(gate|down)_proj", 1),
            (r"^model\..*", 1),
            (r"^layers\..*", 0),
            (r"(?!up)\w+_proj", 1),
        ] {
            assert_eq!(values(json!({pattern: 3}), path).len(), hits, "{pattern}");
        }
    }

    #[test]
    fn entries_match_in_file_order() {
        assert_eq!(values(json!({"z_proj": 1, "q_proj": 3, ".*proj": 2}), "a.q_proj"), [3.0, 2.0]);
    }

    #[test]
    fn broken_pattern_is_quoted() {
        let e = Patterns::parse("alpha_pattern", Some(&json!({"(q_proj": 1}))).unwrap_err();
        assert!(e.to_string().contains("(q_proj") && e.to_string().contains("alpha_pattern"));
    }
}

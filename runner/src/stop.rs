//! Which tokens end an answer.

use std::path::Path;

use serde_json::Value;
use verify::checkpoint::{Config, json};
use verify::{Error, Result, Shown};

/// `eos_token_id` of `generation_config.json` and of `config.json`, each a number or a list. Sorted.
///
/// # Errors
/// Exit 3 for a broken file or an entry that is no id.
pub fn stop_tokens(dir: &Path, config: &Config) -> Result<Vec<u32>> {
    let path = dir.join("generation_config.json");
    let mut ids = ids(config.get("eos_token_id"), config.path())?;
    if path.exists() {
        ids.extend(self::ids(json::read(&path)?.get("eos_token_id"), &path)?);
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

fn ids(value: Option<&Value>, path: &Path) -> Result<Vec<u32>> {
    let wrong = |v: &Value| {
        Error::input(format!("{}: `eos_token_id` is no token id", Shown::path(path)))
            .found(v.to_string())
            .expected("a token id or a list of them")
    };
    let one = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok()).ok_or_else(|| wrong(v));
    match value {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(list)) => list.iter().map(one).collect(),
        Some(v) => Ok(vec![one(v)?]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stops(generation: &str, eos: &str) -> Result<Vec<u32>> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("generation_config.json"), generation).unwrap();
        let text = format!("{{\"model_type\":\"x\",\"eos_token_id\":{eos}}}");
        stop_tokens(dir.path(), &Config::parse(text, Path::new("config.json"))?)
    }

    #[test]
    fn both_files_count_and_both_forms_are_read() {
        assert_eq!(stops(r#"{"eos_token_id":[7,3]}"#, "5").unwrap(), [3, 5, 7]);
        assert_eq!(stops(r#"{"eos_token_id":3}"#, "[3,4]").unwrap(), [3, 4]);
        assert!(stops("{}", "null").unwrap().is_empty());
    }

    #[test]
    fn what_is_no_id_is_refused() {
        assert!(stops(r#"{"eos_token_id":"</s>"}"#, "5").is_err());
        assert!(stops("{}", "-1").is_err());
    }
}

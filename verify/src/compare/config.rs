//! Keys of config.json and generation_config.json, also inside objects.

use serde::Serialize;
use serde_json::Value;

use crate::error::Result;
use crate::inspect::side_json;
use crate::rewrite::ModelView;

/// A key that is not the same in both.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KeyDifference {
    /// The file.
    pub file: &'static str,
    /// The key with those above it: `text_config.rope_theta`.
    pub key: String,
    /// Its value in the first; `None` where it is not there.
    pub a: Option<Value>,
    /// Its value in the second.
    pub b: Option<Value>,
}

pub fn differences(a: &ModelView, b: &ModelView) -> Result<Vec<KeyDifference>> {
    let mut found = Vec::new();
    walk("config.json", "", Some(a.config.value()), Some(b.config.value()), &mut found);
    const GENERATION: &str = "generation_config.json";
    let (a, b) = (side_json(a, GENERATION)?, side_json(b, GENERATION)?);
    walk(GENERATION, "", a.as_ref(), b.as_ref(), &mut found);
    Ok(found)
}

fn walk(file: &'static str, key: &str, a: Option<&Value>, b: Option<&Value>, found: &mut Vec<KeyDifference>) {
    match (a, b) {
        _ if a == b => {}
        (Some(Value::Object(x)), Some(Value::Object(y))) => {
            let only_b = y.keys().filter(|k| !x.contains_key(*k));
            for name in x.keys().chain(only_b) {
                let path = if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
                walk(file, &path, x.get(name), y.get(name), found);
            }
        }
        _ => found.push(KeyDifference { file, key: key.to_string(), a: a.cloned(), b: b.cloned() }),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_are_told_with_their_path() {
        let mut found = Vec::new();
        let a = json!({"x": 1, "t": {"y": [1], "z": null}});
        let b = json!({"t": {"y": [2], "z": null}, "w": true});
        walk("config.json", "", Some(&a), Some(&b), &mut found);
        let keys: Vec<_> = found.iter().map(|d| d.key.as_str()).collect();
        assert_eq!(keys, ["x", "t.y", "w"]);
        assert_eq!((found[0].b.clone(), found[2].a.clone()), (None, None));
    }
}

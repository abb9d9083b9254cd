//! The highest token id of a tokenizer, read without building it: it must have a row in the embedding.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use verify::rewrite::{ModelView, ViewFile};
use verify::{Error, Result};

/// The highest token id that the tokenizer files of `view` name; `None` where they name none.
///
/// # Errors
/// Exit 3 where a tokenizer file cannot be read.
pub fn highest(view: &ModelView) -> Result<Option<u64>> {
    let mut highest = None;
    for (name, read) in [
        ("tokenizer.json", of_tokenizer as fn(&[u8]) -> serde_json::Result<Option<u64>>),
        ("vocab.json", of_vocabulary),
        ("added_tokens.json", of_vocabulary),
        ("tokenizer_config.json", of_config),
    ] {
        if let Some(file) = view.file(name) {
            match read(&file.content.read()?) {
                Ok(found) => highest = highest.max(found),
                // A form that we do not know says nothing about ids; cut text would break the server.
                Err(e) if e.is_data() => {}
                Err(e) => return Err(broken(file, &e)),
            }
        }
    }
    Ok(highest)
}

fn broken(file: &ViewFile, error: &serde_json::Error) -> Error {
    Error::input(format!("{} (of {}) is not valid JSON", file.name, file.origin))
        .found(error.to_string())
        .hint("the file is cut or was edited by hand: fetch it again")
}

/// `model.vocab` (a map, or for Unigram a list in id order) and `added_tokens`. The merges, most of the
/// file, are skipped without being kept.
fn of_tokenizer(bytes: &[u8]) -> serde_json::Result<Option<u64>> {
    #[derive(Deserialize)]
    struct Tokenizer {
        #[serde(default)]
        added_tokens: Vec<Added>,
        model: Option<Model>,
    }
    #[derive(Deserialize)]
    struct Added {
        id: u64,
    }
    #[derive(Deserialize)]
    struct Model {
        #[serde(default)]
        vocab: Highest,
    }
    let t: Tokenizer = serde_json::from_slice(bytes)?;
    let added = t.added_tokens.iter().map(|a| a.id).max();
    Ok(added.max(t.model.and_then(|m| m.vocab.0)))
}

fn of_vocabulary(bytes: &[u8]) -> serde_json::Result<Option<u64>> {
    serde_json::from_slice::<Highest>(bytes).map(|h| h.0)
}

fn of_config(bytes: &[u8]) -> serde_json::Result<Option<u64>> {
    let value: Value = serde_json::from_slice(bytes)?;
    let ids = value.get("added_tokens_decoder").and_then(Value::as_object);
    Ok(ids.and_then(|ids| ids.keys().filter_map(|k| k.parse().ok()).max()))
}

/// The highest id of a vocabulary.
#[derive(Default)]
struct Highest(Option<u64>);

impl<'de> Deserialize<'de> for Highest {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(HighestVisitor).map(Highest)
    }
}

struct HighestVisitor;

impl<'de> Visitor<'de> for HighestVisitor {
    type Value = Option<u64>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a vocabulary")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Option<u64>, A::Error> {
        let mut highest = None;
        while let Some((_, id)) = map.next_entry::<IgnoredAny, u64>()? {
            highest = highest.max(Some(id));
        }
        Ok(highest)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Option<u64>, A::Error> {
        let mut count = 0u64;
        while seq.next_element::<IgnoredAny>()?.is_some() {
            count += 1;
        }
        Ok(count.checked_sub(1))
    }

    fn visit_unit<E>(self) -> Result<Option<u64>, E> {
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn highest_id_is_found_in_every_form() {
        let map = br#"{"model":{"vocab":{"a":0,"b":7},"merges":[["a","b"]]},"added_tokens":[{"id":9,"content":"x"}]}"#;
        assert_eq!(of_tokenizer(map).unwrap(), Some(9));
        let unigram = br#"{"model":{"vocab":[["a",-1.0],["b",-2.0]]},"added_tokens":[]}"#;
        assert_eq!(of_tokenizer(unigram).unwrap(), Some(1));
        assert_eq!(of_vocabulary(br#"{"x":12,"y":3}"#).unwrap(), Some(12));
        assert_eq!(of_config(br#"{"added_tokens_decoder":{"151643":{},"5":{}}}"#).unwrap(), Some(151_643));
        assert_eq!(of_config(b"{}").unwrap(), None);
    }
}

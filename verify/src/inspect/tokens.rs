//! Tokenizer, special tokens, and what ends an answer.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::Result;
use crate::names::Shown;
use crate::rewrite::ModelView;
use crate::template::tokens_of;

/// What the tokenizer files say.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Tokens {
    /// Special tokens by their role: `eos_token`, `pad_token` ...
    pub special: BTreeMap<String, Named>,
    /// What ends an answer: `eos_token_id` of generation_config.json and config.json.
    pub stop: Vec<Stop>,
    /// One more than the largest id of tokenizer.json; `None` without that file.
    pub tokenizer_size: Option<usize>,
    /// Longest text that the tokenizer admits to, where it tells one.
    pub model_max_length: Option<u64>,
    /// Texts and ids of the added tokens.
    #[serde(skip)]
    pub added: Vec<(String, u64)>,
    /// Special tokens as templates want them.
    #[serde(skip)]
    pub for_template: Map<String, Value>,
}

/// A special token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Named {
    /// Its text.
    pub text: String,
    /// Its id, where tokenizer.json has one.
    pub id: Option<u64>,
}

/// A token that ends an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Stop {
    /// Its id.
    pub id: u64,
    /// Its text, where it is an added token.
    pub text: Option<String>,
    /// The files that name it.
    pub from: Vec<&'static str>,
}

impl Tokens {
    /// Reads the tokenizer files of a model.
    ///
    /// # Errors
    /// Exit 3 for files that are no JSON.
    pub fn of(view: &ModelView) -> Result<Self> {
        let config = super::side_json(view, "tokenizer_config.json")?.unwrap_or_default();
        let generation = super::side_json(view, "generation_config.json")?.unwrap_or_default();
        let tokenizer = tokenizer(view)?;
        let mut added: Vec<(String, u64)> =
            tokenizer.iter().flat_map(|t| &t.added_tokens).map(|a| (a.content.clone(), a.id)).collect();
        let decoder = config.get("added_tokens_decoder").and_then(Value::as_object);
        for (id, token) in decoder.into_iter().flatten() {
            if let (Ok(id), Some(text)) = (id.parse(), token.get("content").and_then(Value::as_str)) {
                added.push((text.to_string(), id));
            }
        }
        added.sort();
        added.dedup();
        let id_of = |text: &str| added.iter().find(|(t, _)| t == text).map(|(_, id)| *id);
        let for_template = tokens_of(&config);
        let special = for_template.iter().filter_map(|(role, text)| {
            let text = text.as_str()?;
            Some((role.clone(), Named { text: Shown(text).to_string(), id: id_of(text) }))
        });
        Ok(Tokens {
            special: special.collect(),
            stop: stops(view.config.get("eos_token_id"), generation.get("eos_token_id"), &added),
            tokenizer_size: tokenizer.map(|t| t.size()),
            model_max_length: config.get("model_max_length").and_then(Value::as_u64),
            added,
            for_template,
        })
    }

    /// The id of an added token.
    pub fn id_of(&self, text: &str) -> Option<u64> {
        self.added.iter().find(|(t, _)| t == text).map(|(_, id)| *id)
    }
}

fn stops(config: Option<&Value>, generation: Option<&Value>, added: &[(String, u64)]) -> Vec<Stop> {
    let ids = |v: Option<&Value>| -> Vec<u64> {
        match v {
            Some(Value::Array(list)) => list.iter().filter_map(Value::as_u64).collect(),
            Some(v) => v.as_u64().into_iter().collect(),
            None => Vec::new(),
        }
    };
    let mut found: BTreeMap<u64, Vec<&'static str>> = BTreeMap::new();
    for (file, value) in [("generation_config.json", generation), ("config.json", config)] {
        ids(value).into_iter().for_each(|id| found.entry(id).or_default().push(file));
    }
    let text = |id: u64| added.iter().find(|(_, i)| *i == id).map(|(t, _)| Shown(t).to_string());
    found.into_iter().map(|(id, from)| Stop { id, text: text(id), from }).collect()
}

/// The parts of tokenizer.json that are needed here; its merges are passed over, not kept.
#[derive(Deserialize)]
struct TokenizerJson {
    #[serde(default)]
    added_tokens: Vec<Added>,
    #[serde(default)]
    model: Model,
}

#[derive(Deserialize)]
struct Added {
    id: u64,
    content: String,
}

#[derive(Deserialize, Default)]
struct Model {
    #[serde(default)]
    vocab: Vocabulary,
}

/// One more than the largest id: of a map from text to id, or of a list in the order of ids.
#[derive(Default)]
struct Vocabulary(u64);

impl TokenizerJson {
    fn size(&self) -> usize {
        let added = self.added_tokens.iter().map(|a| a.id.saturating_add(1)).max().unwrap_or(0);
        usize::try_from(added.max(self.model.vocab.0)).unwrap_or(usize::MAX)
    }
}

fn tokenizer(view: &ModelView) -> Result<Option<TokenizerJson>> {
    let Some(file) = view.file("tokenizer.json") else { return Ok(None) };
    let bytes = file.content.read()?;
    let parsed = serde_json::from_slice(&bytes).map_err(|e| {
        crate::Error::input("tokenizer.json is no tokenizer of the `tokenizers` library")
            .found(e.to_string())
            .hint("the file is cut or was edited by hand: fetch it again")
    });
    parsed.map(Some)
}

impl<'de> Deserialize<'de> for Vocabulary {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Largest;
        impl<'de> Visitor<'de> for Largest {
            type Value = Vocabulary;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a vocabulary")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vocabulary, A::Error> {
                let mut size = 0;
                while let Some((_, id)) = map.next_entry::<IgnoredAny, u64>()? {
                    size = size.max(id.saturating_add(1));
                }
                Ok(Vocabulary(size))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vocabulary, A::Error> {
                let mut size = 0;
                while seq.next_element::<IgnoredAny>()?.is_some() {
                    size += 1;
                }
                Ok(Vocabulary(size))
            }
        }
        d.deserialize_any(Largest)
    }
}

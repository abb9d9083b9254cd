//! Tokenizer, template and other side files of the result: the adapter's where it has them, else the base's.

use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;
use verify::checkpoint::folder;
use verify::rewrite::{Content, ModelView, ViewFile};
use verify::{FileName, Result};

use crate::adapter::Adapter;

/// Files that training may have changed.
const FROM_ADAPTER: [&str; 9] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    TEMPLATE,
    "chat_template.json",
];
const TEMPLATE: &str = "chat_template.jinja";

/// A file that came from an adapter, for the report.
#[derive(Debug, Clone, Serialize)]
pub struct FileChoice {
    /// Its name.
    pub name: String,
    /// `same as base`, `differs from base`, `not in base`.
    pub compared: &'static str,
    /// The folder it is taken from.
    pub from: String,
}

/// Puts the adapters' files in the place of the base's; returns what was chosen and what to warn of.
///
/// # Errors
/// When a file cannot be read.
pub fn choose(view: &mut ModelView, adapters: &[Adapter]) -> Result<(Vec<FileChoice>, Vec<String>)> {
    let (mut choices, mut warnings) = (Vec::new(), Vec::new());
    for name in FROM_ADAPTER {
        let mut chosen: Option<(&Adapter, Arc<[u8]>)> = None;
        for adapter in adapters {
            let Some(content) = file_of(&adapter.dir, name)? else { continue };
            let bytes = content.read()?;
            if let Some((first, have)) = &chosen {
                if *have != bytes {
                    warnings.push(format!(
                        "{name} of adapter {} differs from that of {}, which is used",
                        adapter.name, first.name
                    ));
                }
                continue;
            }
            let base = view.file(name).map(|f| f.content.read()).transpose()?;
            let compared = match base {
                None => "not in base",
                Some(b) if b == bytes => "same as base",
                Some(_) => "differs from base",
            };
            choices.push(FileChoice {
                name: name.into(),
                compared,
                from: format!("adapter {}", adapter.name),
            });
            let origin = format!("adapter {}", adapter.name);
            view.put_file(ViewFile { name: FileName::parse(name)?, content, origin });
            chosen = Some((adapter, bytes));
        }
    }
    warnings.extend(template_conflict(view)?);
    Ok((choices, warnings))
}

fn file_of(dir: &Path, name: &str) -> Result<Option<Content>> {
    let name = FileName::parse(name)?;
    match std::fs::symlink_metadata(dir.join(&name)).is_ok() {
        true => Ok(Some(Content::File(folder::resolve(dir, &name)?))),
        false => Ok(None),
    }
}

/// The chat template stands in up to three places; servers differ in which they read.
fn template_conflict(view: &ModelView) -> Result<Option<String>> {
    let mut copies: Vec<(String, String, String)> = Vec::new();
    for name in [TEMPLATE, "chat_template.json", "tokenizer_config.json"] {
        let Some(file) = view.file(name) else { continue };
        let bytes = file.content.read()?;
        let text = match name {
            TEMPLATE => Some(String::from_utf8_lossy(&bytes).into_owned()),
            _ => serde_json::from_slice::<Value>(&bytes)
                .ok()
                .and_then(|v| v.get("chat_template").and_then(Value::as_str).map(str::to_string)),
        };
        copies.extend(text.map(|t| (name.to_string(), file.origin.clone(), t)));
    }
    let Some((first, origin, text)) = copies.first() else { return Ok(None) };
    let Some((other, other_origin, _)) = copies.iter().find(|c| c.2 != *text) else { return Ok(None) };
    Ok(Some(format!(
        "two chat templates disagree: {first} (of {origin}) and the one in {other} (of {other_origin}); \
         transformers 5 reads {first}, older servers may read the other: settle it with `prep template embed`"
    )))
}

//! Where the chat template of a folder lies, and which of its places a server reads.
//!
//! Source: transformers 5 (`PreTrainedTokenizerBase._from_pretrained`, `ProcessorMixin`).

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::checkpoint::{SideFile, folder, json};
use crate::error::{Error, Result};
use crate::names::{Digest, FileName, Shown};
use crate::rewrite::ModelView;

/// The file that wins.
pub const JINJA: &str = "chat_template.jinja";
/// The file with the key that older servers read.
pub const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
/// The file of older processors.
pub const PROCESSOR: &str = "chat_template.json";
/// The key that holds a template inside JSON files.
pub const KEY: &str = "chat_template";

/// The template that tool-calling requests are rendered with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatTemplate {
    /// The Jinja text.
    pub text: String,
    /// Where it was found.
    pub source: Source,
}

/// One file (and key) that can hold a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The file.
    pub file: PathBuf,
    /// The place of the text in the file.
    pub place: Place,
    /// Name of the template where a place holds several.
    pub name: Option<String>,
}

/// The kinds of places, in the order in which they win.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// `chat_template.jinja`, or any file that is nothing but the template.
    Jinja,
    /// Key `chat_template` in `tokenizer_config.json`.
    TokenizerConfig,
    /// Key `chat_template` in `chat_template.json`.
    Processor,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.file.file_name().unwrap_or(self.file.as_os_str());
        if self.place != Place::Jinja {
            write!(f, "key `{KEY}` in ")?;
        }
        write!(f, "{}", Shown(&file.to_string_lossy()))?;
        match &self.name {
            Some(name) => write!(f, ", template `{}`", Shown(name)),
            None => Ok(()),
        }
    }
}

impl Serialize for Source {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl ChatTemplate {
    /// The digest of the text.
    pub fn digest(&self) -> Digest {
        Digest::of(self.text.as_bytes())
    }

    /// The template of a folder, or of one file: a `.json` file with the key, or the text itself.
    ///
    /// # Errors
    /// Exit 3 where `path` holds no template or cannot be read.
    pub fn open(path: &Path) -> Result<Self> {
        if path.is_dir() {
            return Places::read(path)?.chosen().ok_or_else(|| no_template(path));
        }
        let text = json::read_text(path, json::MAX_CONFIG)?;
        if path.extension().is_some_and(|e| e.eq_ignore_ascii_case("json")) {
            let place = match path.file_name().is_some_and(|n| n == PROCESSOR) {
                true => Place::Processor,
                false => Place::TokenizerConfig,
            };
            let found = in_json(&json::parse(&text, path)?, path, place)?;
            return Places { found }.chosen().ok_or_else(|| no_template(path));
        }
        let source = Source { file: path.to_path_buf(), place: Place::Jinja, name: None };
        Ok(ChatTemplate { text, source })
    }
}

fn no_template(path: &Path) -> Error {
    Error::input(format!("{} holds no chat template", Shown::path(path)))
        .expected(format!("{JINJA}, or the key `{KEY}` in {TOKENIZER_CONFIG} or {PROCESSOR}"))
        .hint("embed one with `prep template embed MODEL --from FILE|DIR`")
        .about(path)
}

/// All templates of a folder, the ones that win first.
#[derive(Debug, Clone, Default)]
pub struct Places {
    /// In the order of [`Place`], named ones in the order of the file.
    pub found: Vec<ChatTemplate>,
}

impl Places {
    /// Looks into all places of `dir`.
    ///
    /// # Errors
    /// Exit 3 where a file cannot be read, is no JSON, or the key is neither text nor a list of named texts.
    pub fn read(dir: &Path) -> Result<Self> {
        let text = |f: SideFile| Ok((f.name, json::read_text(&f.path, json::MAX_CONFIG)?));
        let named = folder::named_templates(dir)?.into_iter().map(text).collect::<Result<Vec<_>>>()?;
        Self::collect(dir, named, |name| text_of(dir, name))
    }

    /// The same of a folder whose files lie anywhere.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn of(view: &ModelView) -> Result<Self> {
        let named = view.templates.iter().map(|f| Ok((f.name.clone(), f.text()?)));
        Self::collect(view.folder(), named.collect::<Result<Vec<_>>>()?, |name| view.text(name))
    }

    fn collect(
        dir: &Path,
        named: Vec<(FileName, String)>,
        text: impl Fn(&str) -> Result<Option<String>>,
    ) -> Result<Self> {
        let mut found = Vec::new();
        if let Some(text) = text(JINJA)? {
            let source = Source { file: dir.join(JINJA), place: Place::Jinja, name: None };
            found.push(ChatTemplate { text, source });
        }
        found.extend(named.into_iter().map(|(file, text)| {
            let name = Some(file.as_str().trim_end_matches(".jinja").to_string());
            let file = dir.join(folder::TEMPLATES).join(&file);
            ChatTemplate { text, source: Source { file, place: Place::Jinja, name } }
        }));
        for (name, place) in [(TOKENIZER_CONFIG, Place::TokenizerConfig), (PROCESSOR, Place::Processor)] {
            if let Some(text) = text(name)? {
                let path = dir.join(name);
                found.extend(in_json(&json::parse(&text, &path)?, &path, place)?);
            }
        }
        Ok(Places { found })
    }

    /// The template of requests with tools: of the first place that has any, the one named `tool_use`,
    /// else the default.
    pub fn chosen(&self) -> Option<ChatTemplate> {
        let first = self.found.first()?.source.place;
        let here = || self.found.iter().filter(|t| t.source.place == first);
        let named = |name| here().find(|t| t.source.name.as_deref() == Some(name));
        let plain = || here().find(|t| t.source.name.is_none());
        named("tool_use").or_else(plain).or_else(|| named("default")).or_else(|| here().next()).cloned()
    }

    /// The texts of one place.
    pub fn at(&self, place: Place) -> impl Iterator<Item = &ChatTemplate> {
        self.found.iter().filter(move |t| t.source.place == place)
    }

    /// True where all places hold one and the same text.
    pub fn agree(&self) -> bool {
        self.found.windows(2).all(|w| w[0].text == w[1].text)
    }
}

impl Serialize for Places {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Row<'a> {
            source: &'a Source,
            place: Place,
            sha256: Digest,
        }
        s.collect_seq(self.found.iter().map(|t| Row {
            source: &t.source,
            place: t.source.place,
            sha256: t.digest(),
        }))
    }
}

/// A side file's text, links resolved as everywhere; `None` where there is no such file.
fn text_of(dir: &Path, name: &str) -> Result<Option<String>> {
    if dir.join(name).symlink_metadata().is_err() {
        return Ok(None);
    }
    let path = folder::resolve(dir, &FileName::parse(name)?)?;
    json::read_text(&path, json::MAX_CONFIG).map(Some)
}

fn in_json(file: &Value, path: &Path, place: Place) -> Result<Vec<ChatTemplate>> {
    let source =
        |name: Option<&str>| Source { file: path.to_path_buf(), place, name: name.map(str::to_string) };
    let bad = |found: &Value| {
        Error::input(format!("key `{KEY}` in {} is no template", Shown::path(path)))
            .found(Shown(&found.to_string()).to_string())
            .expected("a text, or a list of {\"name\", \"template\"}")
            .hint("fetch the file again, or write the key anew: `prep template embed MODEL --from FILE`")
    };
    match file.get(KEY) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::String(text)) => Ok(vec![ChatTemplate { text: text.clone(), source: source(None) }]),
        Some(Value::Array(list)) => list
            .iter()
            .map(|item| {
                let part = |key| item.get(key).and_then(Value::as_str);
                let (name, text) = part("name").zip(part("template")).ok_or_else(|| bad(item))?;
                Ok(ChatTemplate { text: text.to_string(), source: source(Some(name)) })
            })
            .collect(),
        Some(other) => Err(bad(other)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    #[test]
    fn jinja_file_wins_and_disagreement_is_seen() {
        let dir = folder(&[
            (JINJA, "A"),
            (TOKENIZER_CONFIG, r#"{"chat_template": "B"}"#),
            (PROCESSOR, r#"{"chat_template": "A"}"#),
        ]);
        let places = Places::read(dir.path()).unwrap();
        assert_eq!(places.found.len(), 3);
        assert!(!places.agree());
        assert_eq!(places.chosen().unwrap().text, "A");
    }

    #[test]
    fn tokenizer_config_is_read_before_the_processor_file() {
        let dir = folder(&[
            (TOKENIZER_CONFIG, r#"{"chat_template": "B"}"#),
            (PROCESSOR, r#"{"chat_template": "C"}"#),
        ]);
        let chosen = ChatTemplate::open(dir.path()).unwrap();
        assert_eq!((chosen.text.as_str(), chosen.source.place), ("B", Place::TokenizerConfig));
    }

    #[test]
    fn requests_with_tools_take_the_template_named_tool_use() {
        let list = json!({"chat_template": [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]});
        let dir = folder(&[(TOKENIZER_CONFIG, &list.to_string())]);
        assert_eq!(ChatTemplate::open(dir.path()).unwrap().text, "T");
        let dir = folder(&[(JINJA, "D"), ("additional_chat_templates/tool_use.jinja", "T")]);
        assert_eq!(ChatTemplate::open(dir.path()).unwrap().text, "T");
    }

    #[test]
    fn single_files_are_read_by_their_kind() {
        let dir = folder(&[("t.jinja", "{}"), ("tokenizer_config.json", r#"{"chat_template": "B"}"#)]);
        assert_eq!(ChatTemplate::open(&dir.path().join("t.jinja")).unwrap().text, "{}");
        assert_eq!(ChatTemplate::open(&dir.path().join(TOKENIZER_CONFIG)).unwrap().text, "B");
    }

    #[test]
    fn folder_without_template_says_how_to_get_one() {
        let dir = folder(&[(TOKENIZER_CONFIG, r#"{"chat_template": null}"#)]);
        let e = ChatTemplate::open(dir.path()).unwrap_err().to_string();
        assert!(e.contains("prep template embed"), "{e}");
        let dir = folder(&[(TOKENIZER_CONFIG, r#"{"chat_template": 7}"#)]);
        assert!(Places::read(dir.path()).is_err());
    }
}

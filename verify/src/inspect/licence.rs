//! Under which licence a model stands, as its files tell it.

use serde::Serialize;

use crate::error::Result;
use crate::names::Shown;
use crate::rewrite::ModelView;

/// A licence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Licence {
    /// Its short name where it is known, else the first line of the file.
    pub name: String,
    /// The file that tells it.
    pub file: String,
}

/// Texts that only one licence begins with.
const KNOWN: [(&str, &str); 8] = [
    ("apache license", "Apache-2.0"),
    ("mit license", "MIT"),
    ("llama 3.1 community license", "Llama 3.1 Community License"),
    ("llama 3.2 community license", "Llama 3.2 Community License"),
    ("llama 3.3 community license", "Llama 3.3 Community License"),
    ("meta llama 3 community license", "Llama 3 Community License"),
    ("qwen research license", "Qwen Research License"),
    ("tongyi qianwen license", "Tongyi Qianwen License"),
];

/// The model card.
pub(super) const CARD: &str = "README.md";

/// Whether a file is a licence, by its name.
pub(super) fn is_licence(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["license", "licence", "copying"].iter().any(|start| name.starts_with(start))
}

impl Licence {
    /// Looks for a licence file, then for the model card's `license:`.
    ///
    /// # Errors
    /// Where such a file cannot be read.
    pub fn of(view: &ModelView) -> Result<Option<Self>> {
        if let Some(file) = view.files.iter().find(|f| is_licence(f.name.as_str())) {
            let bytes = file.content.read()?;
            let text = String::from_utf8_lossy(&bytes[..bytes.len().min(2000)]).to_lowercase();
            let known = KNOWN.iter().find(|(words, _)| text.contains(words)).map(|(_, name)| *name);
            let first = text.lines().map(str::trim).find(|l| !l.is_empty()).unwrap_or("an empty file");
            let name = known.map_or_else(|| Shown(first).to_string(), str::to_string);
            return Ok(Some(Licence { name, file: file.name.to_string() }));
        }
        let Some(card) = view.file(CARD) else { return Ok(None) };
        let bytes = card.content.read()?;
        Ok(front_matter(&String::from_utf8_lossy(&bytes))
            .map(|name| Licence { name, file: card.name.to_string() }))
    }
}

/// `license:` of the block between `---` lines at the top of a model card; its own name where it says `other`.
fn front_matter(card: &str) -> Option<String> {
    let block = card.strip_prefix("---")?.split("\n---").next()?;
    let key = |key: &str| {
        let line = block.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(':'))?;
        Some(Shown(line.trim().trim_matches(['"', '\''])).to_string()).filter(|v| !v.is_empty())
    };
    match key("license")?.as_str() {
        "other" => key("license_name").or(Some("other".into())),
        name => Some(name.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_card_tells_the_licence() {
        assert_eq!(
            front_matter("---\nlicense: apache-2.0\ntags: x\n---\n# M").as_deref(),
            Some("apache-2.0")
        );
        let other = "---\nlicense: other\nlicense_name: \"qwen\"\n---\n";
        assert_eq!(front_matter(other).as_deref(), Some("qwen"));
        assert_eq!(front_matter("# license: mit"), None);
    }
}

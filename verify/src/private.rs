//! Paths of the machine in what may be published: user names, project names and disks are nobody's business.

use std::cmp::Reverse;
use std::path::Path;

use serde_json::Value;

/// What becomes of the machine's paths in a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Paths {
    /// Folders of a job keep their own name only, the home folder is `~`, the current one `.`.
    #[default]
    Hidden,
    /// They stay as they are.
    Full,
}

/// What is shown instead of which path; nothing is hidden by default.
#[derive(Debug, Clone, Default)]
pub struct Hiding {
    /// (absolute path, what is shown), the longest path first.
    shown: Vec<(String, String)>,
}

impl Paths {
    /// What is hidden in a job over `folders`: its inputs and its output.
    pub fn hiding<'a>(self, folders: impl IntoIterator<Item = &'a Path>) -> Hiding {
        let mut hiding = Hiding::default();
        if self == Paths::Full {
            return hiding;
        }
        for folder in folders {
            let name = folder.file_name().map(|n| n.to_string_lossy().into_owned());
            hiding.add(folder, name.as_deref().unwrap_or("."));
        }
        if let Ok(here) = std::env::current_dir() {
            hiding.add(&here, ".");
        }
        if let Some(home) = std::env::var_os("HOME") {
            hiding.add(Path::new(&home), "~");
        }
        hiding.shown.sort_by_key(|(path, _)| Reverse(path.len()));
        hiding
    }
}

impl Hiding {
    /// Both as it was named and with links resolved. The root is no name for anything.
    fn add(&mut self, path: &Path, shown: &str) {
        let forms = [std::path::absolute(path), std::fs::canonicalize(path)];
        for form in forms.into_iter().flatten().filter(|p| p.file_name().is_some()) {
            let form = form.to_string_lossy().trim_end_matches('/').to_string();
            if self.shown.iter().all(|(path, _)| *path != form) {
                self.shown.push((form, shown.to_string()));
            }
        }
    }

    /// `text` without the paths.
    pub fn text(&self, text: &str) -> String {
        self.shown.iter().fold(text.to_string(), |text, (path, shown)| replace(&text, path, shown))
    }

    /// Hides the paths in all texts of `value`.
    pub fn value(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.text(text),
            Value::Array(list) => list.iter_mut().for_each(|v| self.value(v)),
            Value::Object(map) => map.values_mut().for_each(|v| self.value(v)),
            _ => {}
        }
    }
}

/// Replaces whole names only: `/home/al` is not part of `/home/alice`.
fn replace(text: &str, path: &str, shown: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(path) {
        let after = &rest[at + path.len()..];
        let longer = after.starts_with(|c: char| c.is_alphanumeric() || c == '_' || c == '-');
        out.push_str(&rest[..at]);
        out.push_str(if longer { path } else { shown });
        rest = after;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_keep_their_name_only() {
        let h = Paths::Hidden.hiding([Path::new("/data/al/models/Q"), Path::new("/data/al/out")]);
        assert_eq!(h.text("prep quantize /data/al/models/Q --out=/data/al/out"), "prep quantize Q --out=out");
        assert_eq!(h.text("/data/al/models/Q/config.json: no"), "Q/config.json: no");
        assert_eq!(h.text("/data/al/outer"), "/data/al/outer");
        let home = std::env::var("HOME").unwrap();
        let mut value = serde_json::json!({"a": [format!("read {home}/x.jsonl"), 1]});
        h.value(&mut value);
        assert!(!value.to_string().contains(&home), "{value}");
    }

    #[test]
    fn full_paths_stay() {
        let text = "/data/al/out";
        assert_eq!(Paths::Full.hiding([Path::new(text)]).text(text), text);
    }
}

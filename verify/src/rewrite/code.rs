//! Code of a model: Python files beside the weights, and the `auto_map` of its JSON files that names them.
//!
//! They come and go together. A folder that names code which is not there fails in every server; one that has both
//! asks for `--trust-remote-code`, so code is carried over only where that was asked for.

use serde_json::Value;

use super::view::{Content, ModelView, ViewFile};
use crate::checkpoint::Checkpoint;
use crate::checkpoint::folder::side_file;
use crate::error::Result;
use crate::json_edit;
use crate::names::FileName;

const AUTO_MAP: &str = "auto_map";

/// What becomes of the code of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Code {
    /// It stays behind, and nothing in the result names it.
    #[default]
    LeaveOut,
    /// Python files are carried over, and `auto_map` stays.
    Keep,
}

impl Code {
    /// Brings the files and configs of `output` into line; gives what the user should know.
    ///
    /// # Errors
    /// When a file cannot be read; exit 3 for a Python file that is a link out of its folder, or a JSON file that
    /// names code and cannot be edited.
    pub(super) fn settle(self, output: &mut ModelView, base: &Checkpoint) -> Result<Vec<String>> {
        match self {
            Code::LeaveOut => leave_out(output),
            Code::Keep => keep(output, base),
        }
    }
}

fn leave_out(output: &mut ModelView) -> Result<Vec<String>> {
    let mut named = Vec::new();
    if output.config.value().get(AUTO_MAP).is_some() {
        output.config.remove(None, AUTO_MAP)?;
        named.push("config.json".to_string());
    }
    for file in naming_code(output)? {
        let path = output.folder().join(&file.name);
        let text = json_edit::set(&file.text()?, None, AUTO_MAP, None, &path)?;
        named.push(file.name.to_string());
        output.put_file(ViewFile {
            content: Content::Bytes(text.into_bytes().into()),
            origin: format!("{}, edited", file.origin),
            ..file
        });
    }
    let files = python_files(output);
    let mut warnings = Vec::new();
    if !files.is_empty() {
        warnings.push(format!(
            "code is not carried over ({}): a server that needs it would ask for trust_remote_code; --keep-code carries it over",
            files.join(", ")
        ));
    }
    if !named.is_empty() {
        warnings.push(format!(
            "`auto_map` is left out of {}: it names code, which is carried over with --keep-code only",
            named.join(", ")
        ));
    }
    Ok(warnings)
}

fn keep(output: &mut ModelView, base: &Checkpoint) -> Result<Vec<String>> {
    let files = python_files(output);
    for name in &files {
        let file = side_file(base.dir(), name)?;
        output.put_file(ViewFile {
            name: file.name,
            content: Content::File(file.path),
            origin: "base".to_string(),
        });
    }
    output.left_out.retain(|l| !files.contains(&l.name));
    let mut warnings = Vec::new();
    if !files.is_empty() {
        warnings.push(format!(
            "code is carried over ({}): a server needs --trust-remote-code to use it, and then runs it: read it first",
            files.join(", ")
        ));
    }
    let lost = lost_code(output)?;
    if !lost.is_empty() {
        warnings.push(format!(
            "`auto_map` names code that is not in the folder ({}): servers fail where they look for it",
            lost.join(", ")
        ));
    }
    Ok(warnings)
}

/// Names of Python files that were not carried over.
fn python_files(view: &ModelView) -> Vec<String> {
    let code = view.left_out.iter().filter(|l| l.reason.starts_with("code"));
    // A name that had to be escaped for printing is none that a server could import.
    code.map(|l| l.name.clone()).filter(|n| FileName::parse(n).is_ok()).collect()
}

/// Side files, such as tokenizer_config.json, that name code.
fn naming_code(view: &ModelView) -> Result<Vec<ViewFile>> {
    let mut found = Vec::new();
    for file in view.files.iter().filter(|f| may_name_code(f.name.as_str())) {
        if auto_map(file)?.is_some() {
            found.push(file.clone());
        }
    }
    Ok(found)
}

/// Configs of tokenizer, processor and generation, but neither vocabularies nor template files.
fn may_name_code(name: &str) -> bool {
    name.ends_with("_config.json") || name == "config.json"
}

/// A side file that is no JSON object names nothing.
fn auto_map(file: &ViewFile) -> Result<Option<Value>> {
    let value: Option<Value> = serde_json::from_slice(&file.content.read()?).ok();
    Ok(value.and_then(|v| v.get(AUTO_MAP).cloned()))
}

/// Modules that an `auto_map` names and that have no file; those of another repository (`REPO--module.Class`) are
/// fetched by the server.
fn lost_code(view: &ModelView) -> Result<Vec<String>> {
    let mut maps: Vec<Value> = view.config.value().get(AUTO_MAP).cloned().into_iter().collect();
    for file in view.files.iter().filter(|f| may_name_code(f.name.as_str())) {
        maps.extend(auto_map(file)?);
    }
    let mut lost: Vec<String> = maps.iter().flat_map(classes).filter_map(module_file).collect();
    lost.retain(|name| view.file(name).is_none());
    lost.sort();
    lost.dedup();
    Ok(lost)
}

/// The texts in a value, however deep.
fn classes(value: &Value) -> Vec<&str> {
    match value {
        Value::String(text) => vec![text],
        Value::Array(list) => list.iter().flat_map(classes).collect(),
        Value::Object(map) => map.values().flat_map(classes).collect(),
        _ => Vec::new(),
    }
}

/// `modeling_x.Model` lies in `modeling_x.py`.
fn module_file(class: &str) -> Option<String> {
    let module = class.rsplit_once('.').filter(|_| !class.contains("--"))?.0;
    Some(format!("{}.py", module.replace('.', "/")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_of_an_auto_map_lie_in_files() {
        let map = serde_json::json!({
            "AutoModel": "modeling_x.Model", "AutoTokenizer": ["tokenization_x.Slow", null],
            "AutoConfig": "owner/other--configuration_x.Config",
        });
        let files: Vec<_> = classes(&map).into_iter().filter_map(module_file).collect();
        assert_eq!(files, ["modeling_x.py", "tokenization_x.py"]);
    }
}

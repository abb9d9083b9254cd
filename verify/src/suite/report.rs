//! A verification as a file: HTML for people, JUnit XML for a build server, JSON for programs.

use std::path::Path;

use serde::Serialize;

use super::compare::Change;
use super::evaluate::{Evaluation, MatrixRow, Stability};
use super::format::Suite;
use super::run::Transcript;
use super::settings::Settings;
use super::verdict::Verdict;
use super::{html, junit};
use crate::diagnose::Taught;
use crate::error::{Error, Result};

/// Everything that a report shows.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Report<'a> {
    /// Name of the model, without any path of the machine.
    pub model: &'a str,
    /// Address of the server; none for a folder that was run here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<&'a str>,
    /// How it was run.
    pub settings: &'a Settings,
    /// The suite.
    #[serde(skip)]
    pub suite: &'a Suite,
    /// Pass or fail, and why.
    pub verdict: &'a Verdict,
    /// The score.
    pub evaluation: &'a Evaluation,
    /// The score under every parser.
    pub matrix: &'a [MatrixRow],
    /// What the template teaches; none where only the server knows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub taught: Option<&'a Taught>,
    /// How far repeated runs agree.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stability: Option<&'a Stability>,
    /// Prompts and raw answers.
    pub transcripts: &'a [Transcript],
    /// What changed from the baseline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline: Option<&'a Change>,
}

/// The JSON schema of a JSON report, of one model or of a comparison.
pub const REPORT_SCHEMA: &str = include_str!("report.schema.json");

/// The forms that a report can take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// One page without any reference to the network.
    Html,
    /// One JSON object.
    Json,
    /// JUnit XML, one test for each turn.
    Junit,
}

impl Form {
    /// The form that the name of a file asks for.
    ///
    /// # Errors
    /// Exit 2 for another ending than `.html`, `.json` and `.xml`.
    pub fn of(path: &Path) -> Result<Self> {
        match path.extension().and_then(|e| e.to_str()) {
            Some("html" | "htm") => Ok(Form::Html),
            Some("json") => Ok(Form::Json),
            Some("xml") => Ok(Form::Junit),
            other => Err(Error::usage("a report has no form for this file name")
                .found(other.map_or("no ending".into(), |e| format!(".{e}")))
                .expected(".html, .json or .xml")),
        }
    }
}

impl Report<'_> {
    /// The text of the report.
    ///
    /// # Errors
    /// Never in practice: every part can be written as JSON.
    pub fn write(&self, form: Form) -> Result<String> {
        match form {
            Form::Html => Ok(html::page(self)),
            Form::Junit => Ok(junit::document(self)),
            Form::Json => pretty(self),
        }
    }
}

/// JSON text with a line break at its end.
pub(super) fn pretty(value: &impl Serialize) -> Result<String> {
    serde_json::to_string_pretty(value)
        .map(|text| text + "\n")
        .map_err(|e| Error::check("the report cannot be written as JSON").found(e.to_string()))
}

/// Text for HTML and XML: markup escaped, and what neither may hold (or what turns text around) made visible.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(c),
            c if c.is_control()
                || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{fffe}' | '\u{ffff}') =>
            {
                out.extend(c.escape_unicode());
            }
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_model_can_become_markup() {
        assert_eq!(
            escape("<script>\"a\" & 'b'\u{1b}\u{202e}"),
            "&lt;script&gt;&quot;a&quot; &amp; &#39;b&#39;\\u{1b}\\u{202e}"
        );
    }

    #[test]
    fn the_name_of_the_file_chooses_the_form() {
        assert_eq!(Form::of(Path::new("a/r.html")).unwrap(), Form::Html);
        assert_eq!(Form::of(Path::new("r.xml")).unwrap(), Form::Junit);
        assert_eq!(Form::of(Path::new("r.json")).unwrap(), Form::Json);
        assert!(Form::of(Path::new("r.pdf")).is_err());
    }
}

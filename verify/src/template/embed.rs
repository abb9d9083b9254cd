//! One template text in every place of a folder that some server reads, and the check that it is so.
//!
//! Pure: texts in, texts out; all other bytes of the JSON files stay as they are.

use std::path::Path;

use serde_json::Value;

use super::find::{ChatTemplate, JINJA, KEY, PROCESSOR, Place, Places, TOKENIZER_CONFIG};
use super::finding::{Finding, Level};
use crate::error::{Error, Result};
use crate::json_edit;

/// The JSON files of a folder that can hold a template, as they are now.
#[derive(Debug, Clone, Default)]
pub struct Files {
    /// Text of `tokenizer_config.json`.
    pub tokenizer_config: Option<String>,
    /// Text of `chat_template.json`, which only some folders have.
    pub processor: Option<String>,
}

/// One file to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// Its name.
    pub name: &'static str,
    /// Its whole new text.
    pub text: String,
}

/// The files that hold `template` after it is embedded: `chat_template.jinja`, the key in
/// `tokenizer_config.json`, and in `chat_template.json` where the folder has that file.
///
/// # Errors
/// Exit 3 where there is no `tokenizer_config.json`, or a file is no JSON object.
pub fn embed(template: &str, files: &Files) -> Result<Vec<Written>> {
    let mut written = vec![Written { name: JINJA, text: template.to_string() }];
    let tokenizer_config = files.tokenizer_config.as_ref().ok_or_else(|| {
        Error::input(format!("there is no {TOKENIZER_CONFIG} to embed the chat template in"))
            .hint("copy the tokenizer files of the base model into the folder first")
    })?;
    for (name, text) in [(TOKENIZER_CONFIG, Some(tokenizer_config)), (PROCESSOR, files.processor.as_ref())] {
        if let Some(text) = text {
            let value = Value::from(template);
            written.push(Written {
                name,
                text: json_edit::set(text, None, KEY, Some(&value), Path::new(name))?,
            });
        }
    }
    Ok(written)
}

/// Compares all places of a folder with the template that it should have (`None`: with its own winner).
pub fn check(places: &Places, wanted: Option<&ChatTemplate>) -> Vec<Finding> {
    let Some(chosen) = places.chosen() else {
        return vec![Finding::new(
            Level::Error,
            "the folder has no chat template: servers refuse chat requests or guess a format",
            "embed one with `prep template embed MODEL --from FILE|DIR`",
        )];
    };
    let mut findings = Vec::new();
    let wanted = wanted.unwrap_or(&chosen);
    if chosen.text != wanted.text {
        findings.push(Finding::new(
            Level::Error,
            format!(
                "the template of the folder ({}, sha256 {:.12}) is not the one of {} (sha256 {:.12})",
                chosen.source,
                chosen.digest().to_string(),
                wanted.source,
                wanted.digest().to_string()
            ),
            "embed the wanted one with `prep template embed MODEL --from FILE|DIR`",
        ));
    }
    for (place, name, readers) in [
        (Place::Jinja, JINJA, "transformers 5 and current servers"),
        (Place::TokenizerConfig, TOKENIZER_CONFIG, "older servers and tools"),
    ] {
        if places.at(place).next().is_none() {
            findings.push(Finding::new(
                Level::Warning,
                format!("{name} holds no template; {readers} read it from there"),
                "run `prep template embed MODEL` to write the template to both places",
            ));
        }
    }
    findings.extend(disagreements(places, &chosen));
    findings
}

fn disagreements(places: &Places, chosen: &ChatTemplate) -> Vec<Finding> {
    let mut findings = Vec::new();
    for other in places.found.iter().filter(|t| t.text != chosen.text) {
        let (level, what) = match (other.source.place == chosen.source.place, &other.source.name) {
            (true, _) => (
                Level::Note,
                format!(
                    "{} differs from {}, which is used for requests with tools",
                    other.source, chosen.source
                ),
            ),
            (false, _) => (
                Level::Error,
                format!("{} differs from {}, which wins in transformers 5", other.source, chosen.source),
            ),
        };
        findings.push(Finding::new(
            level,
            what,
            "decide which one is right and run `prep template embed MODEL --from FILE` with it",
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::find::Source;

    fn template(place: Place, text: &str) -> ChatTemplate {
        let file = match place {
            Place::Jinja => JINJA,
            Place::TokenizerConfig => TOKENIZER_CONFIG,
            Place::Processor => PROCESSOR,
        };
        ChatTemplate { text: text.into(), source: Source { file: file.into(), place, name: None } }
    }

    #[test]
    fn both_places_hold_the_text_and_other_bytes_stay() {
        let config = "{\n \"model_max_length\": 1000000000000000019884624838656,\n \"x\": 1e-06\n}";
        let files = Files { tokenizer_config: Some(config.into()), processor: None };
        let written = embed("a \"b\"\n", &files).unwrap();
        assert_eq!(written[0], Written { name: JINJA, text: "a \"b\"\n".into() });
        let added = config.replace("1e-06", "1e-06,\n \"chat_template\": \"a \\\"b\\\"\\n\"");
        assert_eq!(written[1], Written { name: TOKENIZER_CONFIG, text: added });
        assert_eq!(written.len(), 2);
    }

    #[test]
    fn embedding_twice_changes_nothing_more() {
        let files = Files {
            tokenizer_config: Some("{}".into()),
            processor: Some(r#"{"chat_template":"old"}"#.into()),
        };
        let once = embed("t", &files).unwrap();
        let again =
            Files { tokenizer_config: Some(once[1].text.clone()), processor: Some(once[2].text.clone()) };
        assert_eq!(embed("t", &again).unwrap(), once);
        assert_eq!(once[2].text, r#"{"chat_template":"t"}"#);
    }

    #[test]
    fn folder_without_tokenizer_config_is_refused() {
        assert!(embed("t", &Files::default()).is_err());
    }

    #[test]
    fn a_changed_byte_a_missing_and_a_lost_template_are_found() {
        let good = Places { found: vec![template(Place::Jinja, "A"), template(Place::TokenizerConfig, "A")] };
        assert_eq!(check(&good, None), []);
        assert_eq!(check(&good, Some(&template(Place::Jinja, "B")))[0].level, Level::Error);
        let changed = Places { found: vec![template(Place::Jinja, "A"), template(Place::Processor, "B")] };
        let found = check(&changed, None);
        assert!(found.iter().any(|f| f.level == Level::Error && f.what.contains("chat_template.json")));
        assert!(found.iter().any(|f| f.level == Level::Warning && f.what.contains(TOKENIZER_CONFIG)));
        assert_eq!(check(&Places::default(), None)[0].level, Level::Error);
    }
}

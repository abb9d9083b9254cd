//! A folder whose places hold different templates: what each of them teaches, and which one fits the parser.

use super::agreement;
use super::taught::{Taught, taught};
use crate::error::Result;
use crate::parsers::Parser;
use crate::template::{ChatTemplate, Finding, Level, Places, Renderer};

/// The template of another place that teaches something else than the folder's own, in a sentence; none where all
/// places teach the same.
///
/// # Errors
/// Exit 3 where a template does not compile.
pub fn rival(
    places: &Places,
    (renderer, own): (&Renderer, &Taught),
    parser: &Parser,
) -> Result<Option<Finding>> {
    let chosen = renderer.template();
    let others =
        places.found.iter().filter(|t| t.source.place != chosen.source.place && t.text != chosen.text);
    for other in others {
        let theirs = taught(&Renderer::new(other.clone(), renderer.tokens().clone())?);
        if lesson(own) != lesson(&theirs) {
            return Ok(Some(finding((chosen, own), (other, &theirs), parser)));
        }
    }
    Ok(None)
}

type Lesson<'a> = (&'a ChatTemplate, &'a Taught);

fn finding(own: Lesson<'_>, other: Lesson<'_>, parser: &Parser) -> Finding {
    let fits = |t: &Taught| t.shows_tools && agreement::before(t, parser).is_none();
    let right = match (fits(own.1), fits(other.1)) {
        (true, false) => Some(own.0),
        (false, true) => Some(other.0),
        _ => None,
    };
    let advice = match right.and_then(|t| t.source.file.file_name()) {
        Some(file) => format!(
            "parser `{}` reads what {} teaches: `prep template embed MODEL --from MODEL/{}`",
            parser.name,
            file.to_string_lossy(),
            file.to_string_lossy()
        ),
        None => "decide which one is right and run `prep template embed MODEL --from FILE` with it".into(),
    };
    let what = format!(
        "the folder's templates differ: {}, which wins in transformers 5, teaches {}, and {} teaches {}",
        own.0.source,
        lesson(own.1),
        other.0.source,
        lesson(other.1)
    );
    Finding::new(Level::Error, what, advice)
}

fn lesson(taught: &Taught) -> &'static str {
    match (taught.shows_tools, taught.format) {
        (false, _) => "no tools",
        (true, Some(format)) => format.title,
        (true, None) => "tools without a known format of calls",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parsers;
    use crate::template::find::Source;
    use crate::template::{Place, tokens_of};

    fn fixture(name: &str) -> String {
        let path = format!("{}/../tests/fixtures/templates/{name}.jinja", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(path).unwrap()
    }

    /// The finding for a folder with these texts in `chat_template.jinja` and `tokenizer_config.json`.
    fn said(jinja: &str, config: &str, parser: &str) -> Option<Finding> {
        let place = |text: &str, place, file: &str| ChatTemplate {
            text: text.into(),
            source: Source { file: file.into(), place, name: None },
        };
        let found = vec![
            place(jinja, Place::Jinja, "chat_template.jinja"),
            place(config, Place::TokenizerConfig, "tokenizer_config.json"),
        ];
        let places = Places { found };
        let renderer = Renderer::new(places.chosen().unwrap(), tokens_of(&serde_json::json!({}))).unwrap();
        let own = taught(&renderer);
        rival(&places, (&renderer, &own), parsers::find(parser).unwrap()).unwrap()
    }

    const PLAIN: &str = "{% for m in messages %}{{ m.content }}{% endfor %}";

    #[test]
    fn equal_lessons_are_no_rivals() {
        let tools = fixture("tiny_tools");
        assert_eq!(said(&tools, &tools, "qwen3_coder"), None);
        assert_eq!(said(&tools, &format!("{tools} "), "qwen3_coder"), None);
    }

    #[test]
    fn the_place_that_fits_the_parser_is_named() {
        let found = said(PLAIN, &fixture("tiny_tools"), "qwen3_coder").unwrap();
        assert!(found.what.contains("teaches no tools, and key `chat_template`"), "{found:?}");
        assert!(found.advice.ends_with("--from MODEL/tokenizer_config.json`"), "{found:?}");
        let found = said(&fixture("tiny_tools"), &fixture("qwen3_like"), "qwen3_coder").unwrap();
        assert!(found.advice.ends_with("--from MODEL/chat_template.jinja`"), "{found:?}");
    }

    #[test]
    fn where_none_fits_the_user_decides() {
        let found = said(&fixture("tiny_tools"), &fixture("qwen3_like"), "mistral").unwrap();
        assert!(found.advice.starts_with("decide"), "{found:?}");
    }
}

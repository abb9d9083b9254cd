//! Three speak of calls: the template teaches a format, the model writes one, the parser reads one. Where they do
//! not agree, one sentence says which of them is wrong, and what to change.

use super::{Format, Taught};
use crate::parsers::Parser;
use crate::template::{Finding, Level};

/// What template and parser alone say, before anything is run.
pub(super) fn before(taught: &Taught, parser: &Parser) -> Option<Finding> {
    let format = taught.format?;
    if fits(taught, parser, format) {
        return None;
    }
    let advice = format!("use --parser {}", suggestion(&taught.readers, format));
    let what = match reads(parser, format) {
        true => near_miss(parser, format),
        false => format!("the template teaches {}, but {}", format.title, is_read(parser)),
    };
    Some(Finding::new(Level::Error, what, advice))
}

/// What all three say after a run; `written` is the format of most calls, none where there was no call.
pub(super) fn after(taught: &Taught, parser: &Parser, written: Option<&'static Format>) -> Option<Finding> {
    let embed = "embed the template that the model was trained with: `prep template embed MODEL --from DIR`";
    let (what, advice) = match (taught.format, written) {
        (Some(t), Some(w)) if t == w => {
            if fits(taught, parser, w) {
                return None;
            }
            let what = match reads(parser, w) {
                true => near_miss(parser, w),
                false => format!(
                    "template and model speak {}, but {}: the parser is wrong",
                    w.title,
                    is_read(parser)
                ),
            };
            (what, format!("use --parser {}", suggestion(&taught.readers, w)))
        }
        (Some(t), Some(w)) if reads(parser, w) => (
            format!(
                "the template teaches {}, but the model writes {}, which parser `{}` reads: the template is wrong",
                t.title, w.title, parser.name
            ),
            embed.to_string(),
        ),
        (Some(t), Some(w)) => {
            let who = match fits(taught, parser, t) {
                true => format!("template and parser `{}` speak {}", parser.name, t.title),
                false => format!("the template teaches {} and {}", t.title, is_read(parser)),
            };
            (
                format!("the model writes {}, but {who}: both are wrong for this model", w.title),
                format!("{embed}, and use --parser {}", suggestion(&[], w)),
            )
        }
        (None, Some(w)) if reads(parser, w) => return None,
        (None, Some(w)) => (
            format!("the model writes {}, but {}: the parser is wrong", w.title, is_read(parser)),
            format!("use --parser {}", suggestion(&[], w)),
        ),
        (taught_format, None) => {
            let parser = taught_format.filter(|t| !fits(taught, parser, t));
            let also = parser.map(|t| format!(", and use --parser {}", suggestion(&taught.readers, t)));
            (
                "the model sees the tools, but never writes a call in any known format: its weights do not fit this template"
                    .to_string(),
                format!(
                    "check that the adapter was merged and that this is the template it was trained with{}",
                    also.unwrap_or_default()
                ),
            )
        }
    };
    Some(Finding::new(Level::Error, what, advice))
}

/// Whether the parser reads the calls that the template shows: by trying it where the template shows one.
fn fits(taught: &Taught, parser: &Parser, format: &Format) -> bool {
    match taught.readers.is_empty() {
        true => reads(parser, format),
        false => taught.readers.contains(&parser.name),
    }
}

fn reads(parser: &Parser, format: &Format) -> bool {
    std::iter::once(&parser.name).chain(parser.aliases).any(|name| format.parsers.contains(name))
}

/// A parser of the same family that still does not read the template's own call.
fn near_miss(parser: &Parser, format: &Format) -> String {
    format!(
        "parser `{}` reads {} of another make: it does not read this template's own call",
        parser.name, format.title
    )
}

fn is_read(parser: &Parser) -> String {
    let title = Format::of_parser(parser.name).map_or("another format", |f| f.title);
    format!("parser `{}` reads {title}", parser.name)
}

/// The usual parser of the format, unless only others read the template's own call.
pub fn suggestion(readers: &[&'static str], format: &Format) -> &'static str {
    let usual = format.parsers.iter().find(|p| readers.is_empty() || readers.contains(p));
    usual.or(readers.first()).or(format.parsers.first()).copied().unwrap_or("another one")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnose::{FORMATS, taught};
    use crate::parsers;
    use crate::template::testing::renderer;

    fn template(name: &str) -> Taught {
        let path = format!("{}/../tests/fixtures/templates/{name}.jinja", env!("CARGO_MANIFEST_DIR"));
        taught(&renderer(&std::fs::read_to_string(path).unwrap()))
    }

    fn format(id: &str) -> Option<&'static Format> {
        FORMATS.iter().find(|f| f.id == id)
    }

    /// What is said of template, written format and parser, in this order, with the advice behind it.
    fn said(name: &str, written: &str, parser: &str) -> String {
        let found = after(&template(name), parsers::find(parser).unwrap(), format(written));
        found.map_or_else(|| "nothing".into(), |f| format!("{} => {}", f.what, f.advice))
    }

    #[test]
    fn agreement_says_nothing() {
        for (template, written, parser) in [
            ("tiny_tools", "qwen_xml", "qwen3_coder"),
            ("qwen3_like", "tagged_json", "hermes"),
            ("llama3_like", "bare_json", "llama3_json"),
            ("mistral_like", "mistral", "mistral"),
            // Of another family, but tried and found to read this template's calls.
            ("tiny_tools", "qwen_xml", "seed_oss"),
        ] {
            assert_eq!(said(template, written, parser), "nothing", "{template} {written} {parser}");
        }
    }

    #[test]
    fn the_parser_alone_is_wrong() {
        let s = said("tiny_tools", "qwen_xml", "hermes");
        assert!(
            s.starts_with("template and model speak Qwen XML")
                && s.contains("the parser is wrong => use --parser qwen3_coder"),
            "{s}"
        );
    }

    #[test]
    fn a_parser_of_the_family_that_fails_is_told_apart() {
        let s = said("tiny_tools", "qwen_xml", "mimo");
        assert!(s.contains("of another make") && s.ends_with("use --parser qwen3_coder"), "{s}");
    }

    #[test]
    fn the_template_alone_is_wrong() {
        let s = said("qwen3_like", "qwen_xml", "qwen3_coder");
        assert!(
            s.contains("the template teaches JSON in `<tool_call>`, but the model writes Qwen XML"),
            "{s}"
        );
        assert!(s.contains("the template is wrong => embed") && !s.contains("--parser"), "{s}");
    }

    #[test]
    fn template_and_parser_agree_on_what_the_model_does_not_write() {
        let s = said("qwen3_like", "qwen_xml", "hermes");
        assert!(
            s.contains("template and parser `hermes` speak JSON in `<tool_call>`: both are wrong"),
            "{s}"
        );
        assert!(s.contains("embed") && s.ends_with("use --parser qwen3_coder"), "{s}");
    }

    #[test]
    fn all_three_disagree() {
        let s = said("qwen3_like", "qwen_xml", "mistral");
        assert!(s.contains("teaches JSON in `<tool_call>` and parser `mistral` reads Mistral"), "{s}");
        assert!(s.ends_with("use --parser qwen3_coder"), "{s}");
    }

    #[test]
    fn a_model_that_never_calls_is_told_with_what_else_is_wrong() {
        let s = said("tiny_tools", "", "qwen3_coder");
        assert!(s.contains("never writes a call") && !s.contains("--parser"), "{s}");
        let s = said("tiny_tools", "", "hermes");
        assert!(s.contains("never writes a call") && s.ends_with("use --parser qwen3_coder"), "{s}");
    }

    #[test]
    fn a_template_of_unknown_format_leaves_model_and_parser() {
        let shows = taught(&renderer("{% for m in messages %}{{ m.content }}{% endfor %}{{ tools }}"));
        let of = |parser: &str| after(&shows, parsers::find(parser).unwrap(), format("qwen_xml"));
        assert_eq!(of("qwen3_coder"), None);
        assert!(of("hermes").unwrap().what.ends_with("the parser is wrong"));
    }

    #[test]
    fn before_a_run_template_and_parser_are_compared() {
        let of = |parser: &str| before(&template("tiny_tools"), parsers::find(parser).unwrap());
        assert_eq!(of("qwen3_coder"), None);
        assert_eq!(of("seed_oss"), None);
        assert!(of("hermes").unwrap().what.contains("teaches Qwen XML"));
        assert!(of("mimo").unwrap().what.contains("another make"));
    }
}

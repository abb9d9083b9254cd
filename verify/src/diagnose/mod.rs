//! Template, model output and parser must speak one format. Where they do not: which one is wrong, in a sentence.
//!
//! ```text
//!   template ──▶ Taught ─┐
//!   outputs ───▶ Written ─┼──▶ findings
//!   parser ────▶ Format ─┘
//! ```

mod agreement;
mod format;
mod rivals;
mod taught;
mod thinking;

use serde::Serialize;

pub use format::{FORMATS, Format};
pub use rivals::rival;
pub use taught::{Taught, taught};
pub use thinking::reasoning_parser;

use crate::parsers::Parser;
use crate::template::{Finding, Level};

/// What a model wrote over a whole run.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Written {
    /// Answers looked at.
    pub answers: usize,
    /// Answers that hold calls of some format.
    pub with_calls: usize,
    /// The format of most of them.
    pub format: Option<&'static Format>,
    /// Answers that ended because the limit of new tokens was reached.
    pub cut: usize,
}

impl Written {
    /// Looks at answers, each with whether it was cut.
    pub fn of<'a>(answers: impl IntoIterator<Item = (&'a str, bool)>) -> Self {
        let mut written = Written::default();
        let mut counts = vec![0usize; FORMATS.len()];
        for (text, cut) in answers {
            written.answers += 1;
            written.cut += usize::from(cut);
            if let Some(at) = Format::of_text(text).and_then(|f| FORMATS.iter().position(|g| g == f)) {
                counts[at] += 1;
            }
        }
        written.with_calls = counts.iter().sum();
        let most = counts
            .iter()
            .copied()
            .enumerate()
            .filter(|(_, n)| *n > 0)
            .max_by_key(|(at, n)| (*n, usize::MAX - at));
        written.format = most.map(|(at, _)| &FORMATS[at]);
        written
    }
}

/// What is wrong with a template whatever the parser: it teaches no tools, or only half of what a caller needs.
pub fn teaches_nothing(taught: &Taught) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(failure) = &taught.failure {
        findings.push(Finding::new(
            Level::Error,
            format!("the template cannot render a plain tool call and its result: {failure}"),
            "use the template that the model was trained with",
        ));
    }
    if !taught.shows_tools {
        findings.push(Finding::new(
            Level::Error,
            "this template teaches no tools: the names of the offered tools never reach the prompt",
            "embed the template of the adapter or of the trained model: `prep template embed MODEL --from DIR`",
        ));
        return findings;
    }
    if !taught.shows_parameters {
        findings.push(Finding::new(
            Level::Warning,
            "this template shows the tools without their parameters",
            "use a template that writes the parameters too, or the model has to guess them",
        ));
    }
    if taught.shows_calls && !taught.shows_results && taught.failure.is_none() {
        findings.push(Finding::new(
            Level::Warning,
            "this template never shows the result of a call to the model",
            "use a template that writes the turns of role `tool`",
        ));
    }
    findings
}

/// What is wrong between template and parser alone, before anything is run.
pub fn before(taught: &Taught, parser: &Parser) -> Vec<Finding> {
    let mut findings = teaches_nothing(taught);
    if taught.shows_tools {
        findings.extend(agreement::before(taught, parser));
    }
    findings
}

/// The same after a run, with what the model wrote; `parsed` is the number of calls that the parser found.
pub fn after(taught: &Taught, parser: &Parser, written: &Written, parsed: usize) -> Vec<Finding> {
    let mut findings = teaches_nothing(taught);
    if taught.shows_tools && written.answers > 0 {
        findings.extend(agreement::after(taught, parser, written.format));
    }
    // Calls that no disagreement explains.
    let explained = findings.iter().any(|f| f.level == Level::Error);
    if let Some(format) = written.format.filter(|_| parsed == 0 && !explained) {
        findings.push(Finding::new(
            Level::Error,
            format!(
                "{} of {} answers hold calls in {}, but parser `{}` finds none: the calls are malformed",
                written.with_calls, written.answers, format.title, parser.name
            ),
            "look at what the model wrote (--report verify.html): weights, quantization or template are likely broken",
        ));
    }
    if written.cut * 4 > written.answers {
        findings.push(Finding::new(
            Level::Warning,
            format!("{} of {} answers were cut at the limit of new tokens", written.cut, written.answers),
            "the model may not write its stop token: check `eos_token_id` in generation_config.json",
        ));
    }
    findings
}

/// What a model wrote beside a parser that reads another format.
pub fn wrong_parser(parser: &Parser, written: &Written) -> Option<Finding> {
    agreement::after(&Taught::default(), parser, Some(written.format?))
}

/// The parser that a server should be started with for what a template teaches; `None` where it teaches no
/// format that is known.
pub fn parser_for(taught: &Taught) -> Option<&'static str> {
    taught.format.map(|format| agreement::suggestion(&taught.readers, format))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parsers;
    use crate::template::testing::renderer;

    const PLAIN: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
    const XML: &str = "<tool_call>\n<function=f>\n</function>\n</tool_call>";

    fn tools() -> Taught {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/templates/tiny_tools.jinja");
        taught(&renderer(&std::fs::read_to_string(path).unwrap()))
    }

    fn says(findings: &[Finding], what: &str, advice: &str) {
        assert!(findings.iter().any(|f| f.what.contains(what) && f.advice.contains(advice)), "{findings:?}");
    }

    #[test]
    fn a_lost_template_is_named_with_the_cure() {
        let found = before(&taught(&renderer(PLAIN)), parsers::find("qwen3_coder").unwrap());
        says(&found, "teaches no tools", "prep template embed");
    }

    #[test]
    fn a_wrong_parser_is_named_with_the_right_one() {
        let found = before(&tools(), parsers::find("hermes").unwrap());
        says(&found, "teaches Qwen XML", "--parser qwen3_coder");
        let written = Written::of([(XML, false), ("no", false)]);
        let found = after(&tools(), parsers::find("hermes").unwrap(), &written, 0);
        says(&found, "template and model speak Qwen XML", "--parser qwen3_coder");
        assert_eq!(found.len(), 1, "{found:?}");
    }

    #[test]
    fn another_models_template_is_named() {
        let written =
            Written::of([("<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>", false)]);
        let found = after(&tools(), parsers::find("hermes").unwrap(), &written, 1);
        says(&found, "the template teaches Qwen XML", "embed");
        assert_eq!(found.len(), 1, "{found:?}");
    }

    #[test]
    fn a_model_that_never_calls_is_named() {
        let found =
            after(&tools(), parsers::find("qwen3_coder").unwrap(), &Written::of([("Hello", false)]), 0);
        says(&found, "never writes a call", "merged");
    }

    #[test]
    fn agreement_has_no_findings() {
        let written = Written::of([(XML, false)]);
        assert_eq!(after(&tools(), parsers::find("qwen3_coder").unwrap(), &written, 1), []);
    }
}

//! Names that are no parser here: what the user probably meant.

use super::{Kind, Parser};
use crate::error::Error;

/// Names of vLLM's native front end, read from the symbols of its binary.
const NATIVE: &[&str] = &[
    "deepseek_v3",
    "deepseek_v31",
    "deepseek_v32",
    "deepseek_v4",
    "deepseek_v41",
    "glm45",
    "granite4",
    "hermes",
    "internlm",
    "kimi_k2",
    "kimi_k3",
    "llama3_json",
    "mimo",
    "minimax_m2",
    "minimax_m3",
    "mistral",
    "phi4_mini_json",
    "qwen3_coder",
    "seed_oss",
    "step5",
    "gemma4",
    "muse",
    "hy_v3",
    "hy_v4",
];

/// Parsers of vLLM 0.33 that `prep` knows of but does not read: models, and why. No text on them is at hand that
/// states what the server answers to every output, and a guess would predict calls that never come.
static UNREAD: [(Parser, &str); 9] = [
    (unread_parser("cohere_command3", "Command A, Command R"), "its grammar lives in a closed package"),
    (unread_parser("cohere_command4", "Command A 4"), "its grammar lives in a closed package"),
    (unread_parser("hf", "any"), "it follows a `response_template` in tokenizer_config.json"),
    (unread_parser("beam", "any"), "it follows a `response_template` in tokenizer_config.json"),
    (unread_parser("inkling", "Inkling"), "it is a format of a single vendor"),
    (unread_parser("plamo3", "PLaMo 3"), "it is a format of a single vendor"),
    (unread_parser("k2_horizon", "K2 Horizon"), "it is a format of a single vendor"),
    (unread_parser("hy_v4", "Hunyuan 4"), "its grammar depends on a suffix in the tokenizer"),
    (unread_parser("minicpm5", "MiniCPM5"), "it repairs XML and renames tools by tables of its own"),
];

const fn unread_parser(name: &'static str, models: &'static str) -> Parser {
    Parser { name, aliases: &[], models, native: in_native_front_end(name), kind: Kind::Unread }
}

/// The parser of this name, if it is known but not read.
pub fn unread(name: &str) -> Option<&'static Parser> {
    UNREAD.iter().map(|(parser, _)| parser).find(|parser| parser.name == name)
}

/// Names that are taken for vLLM's, vLLM's own name, and why.
const CONFUSED: &[(&str, &str, &str)] = &[
    ("qwen", "hermes", "`qwen` is SGLang's name"),
    ("qwen25", "hermes", "`qwen25` is SGLang's name"),
    ("qwen2_5", "hermes", "Qwen2.5 writes JSON between tags"),
    ("nanbeige", "qwen3_coder", "`nanbeige` is SGLang's name"),
    ("qwen35", "qwen3_coder", "Qwen3.5 writes the XML of Qwen3-Coder"),
    ("qwen3_5", "qwen3_coder", "Qwen3.5 writes the XML of Qwen3-Coder"),
    ("qwen36", "qwen3_coder", "Qwen3.6 writes the XML of Qwen3-Coder"),
    ("qwen3_6", "qwen3_coder", "Qwen3.6 writes the XML of Qwen3-Coder"),
    ("deepseekv3", "deepseek_v3", "`deepseekv3` is SGLang's name"),
    ("deepseekv31", "deepseek_v31", "`deepseekv31` is SGLang's name"),
    ("deepseekv32", "deepseek_v32", "`deepseekv32` is SGLang's name"),
    ("deepseekv4", "deepseek_v4", "`deepseekv4` is SGLang's name"),
    ("deepseekv41", "deepseek_v41", "`deepseekv41` is SGLang's name"),
    ("glm", "glm45", "`glm` is SGLang's name"),
    ("minimax-m2", "minimax_m2", "`minimax-m2` is SGLang's name"),
    ("minimax-m3", "minimax_m3", "`minimax-m3` is SGLang's name"),
    ("hunyuan", "hunyuan_a13b", "`hunyuan` is SGLang's name"),
    ("apertus2509", "apertus", "`apertus2509` is SGLang's name"),
    ("llama3", "llama3_json", "`llama3` is SGLang's name"),
    ("gpt-oss", "openai", "`gpt-oss` is SGLang's name"),
    ("gpt_oss", "openai", "gpt-oss models write Harmony"),
    ("interns1", "internlm", "`interns1` is SGLang's name"),
    ("response_template", "hf", "`response_template` is SGLang's name"),
    ("minimax", "minimax_m2", "the parser of MiniMax-M1 was removed from vLLM"),
];

/// SGLang parsers that vLLM has no counterpart for.
const ONLY_SGLANG: &[&str] = &["spark25", "trinity", "iquest_q1", "gigachat35"];

/// Whether vLLM's native front end has the parser of this name.
pub const fn in_native_front_end(name: &str) -> bool {
    let mut at = 0;
    while at < NATIVE.len() {
        if equal(NATIVE[at].as_bytes(), name.as_bytes()) {
            return true;
        }
        at += 1;
    }
    false
}

const fn equal(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let mut at = 0;
    while at < a.len() {
        if a[at] != b[at] {
            return false;
        }
        at += 1;
    }
    true
}

/// The error for a name that [`super::find`] does not find, with one sentence on what to use.
pub fn unknown(name: &str) -> Error {
    if let Some((_, why)) = UNREAD.iter().find(|(parser, _)| parser.name == name) {
        return Error::usage(format!("tool-call parser `{name}` is not supported"))
            .found("a parser of vLLM 0.33 that prep does not read")
            .hint(format!("{why}: score such a model at its running server, with --endpoint URL"));
    }
    let error = Error::usage(format!("`{name}` is no tool-call parser of vLLM 0.33"));
    // `Qwen3.5` is meant as `qwen3_5`.
    let plain = name.trim().to_lowercase().replace('.', "_");
    if matches!(plain.as_str(), "qwen3" | "qwen_3") {
        return error.found("the name of a reasoning parser").hint(
            "use `qwen3_coder` for Qwen3.5, Qwen3.6 and Qwen3-Coder, `hermes` (or its alias `qwen3_json`) for other \
             Qwen3 models; `--reasoning-parser qwen3` goes with both for thinking models",
        );
    }
    if ONLY_SGLANG.contains(&plain.as_str()) {
        return error.found("a parser that only SGLang has").hint("serve this model with SGLang");
    }
    if let Some((_, meant, why)) = CONFUSED.iter().find(|(known, ..)| *known == plain) {
        return error.hint(format!("{why}: use `{meant}`"));
    }
    if super::reasoning::find_reasoning(&plain).is_ok() && nearest(&plain).is_none_or(|meant| meant != plain)
    {
        return error.found("the name of a reasoning parser").hint("pass it as `--reasoning-parser`");
    }
    match nearest(&plain) {
        Some(meant) => error.hint(format!("did you mean `{meant}`?")),
        None if !family(&plain).is_empty() => error
            .hint(format!("parsers of that family: `{}` (see `prep parsers`)", family(&plain).join("`, `"))),
        None => error.expected(super::all().iter().map(|parser| parser.name).collect::<Vec<_>>().join(", ")),
    }
}

/// Parsers whose names begin with `name`, aliases included.
fn family(name: &str) -> Vec<&'static str> {
    let all = super::all().iter();
    let names = all.flat_map(|parser| std::iter::once(parser.name).chain(parser.aliases.iter().copied()));
    names.filter(|known| name.len() >= 4 && known.starts_with(name)).collect()
}

/// The known name closest to `name`, if it is close: letters and digits the same, or two edits away at most.
fn nearest(name: &str) -> Option<&'static str> {
    let bare = |text: &str| text.chars().filter(char::is_ascii_alphanumeric).collect::<String>();
    let own = super::all()
        .iter()
        .flat_map(|parser| std::iter::once(parser.name).chain(parser.aliases.iter().copied()));
    let known: Vec<&str> = own.chain(UNREAD.iter().map(|(parser, _)| parser.name)).collect();
    let same = known.iter().find(|known| bare(known) == bare(name));
    same.copied().or_else(|| {
        // Long inputs are no typing errors, and the distance takes quadratic time.
        let close = known.iter().filter(|_| name.len() <= 40).map(|known| (distance(known, name), *known));
        close.filter(|(edits, known)| *edits <= 2 && known.len() > 4).min().map(|(_, known)| known)
    })
}

/// Number of letters to insert, delete or replace.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (at, letter) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = at + 1;
        for (column, other) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != *other);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parsers::find;

    fn hint(name: &str) -> String {
        let error = find(name).err().unwrap();
        assert_eq!(error.class(), crate::Class::Usage);
        error.to_string()
    }

    #[test]
    fn qwen3_is_told_apart() {
        let told = hint("qwen3");
        assert!(
            told.contains("`qwen3_coder` for Qwen3.5, Qwen3.6")
                && told.contains("`--reasoning-parser qwen3`")
        );
    }

    #[test]
    fn names_of_other_servers_are_translated() {
        assert!(hint("qwen25").ends_with("SGLang's name: use `hermes`"));
        assert!(hint("gpt-oss").ends_with("use `openai`"));
        assert!(hint("trinity").contains("only SGLang"));
    }

    #[test]
    fn unsupported_parsers_are_known() {
        assert!(hint("cohere_command4").contains("not supported"));
        assert!(hint("hf").contains("response_template"));
    }

    #[test]
    fn dots_of_model_names_do_not_matter() {
        for name in ["qwen3.5", "Qwen3.6", "qwen3_5"] {
            assert!(hint(name).ends_with("use `qwen3_coder`"), "{}", hint(name));
        }
        assert!(hint("qwen2.5").ends_with("use `hermes`"));
    }

    #[test]
    fn a_family_without_a_version_lists_its_parsers() {
        let told = hint("llama4");
        assert!(told.contains("`llama4_json`") && told.contains("`llama4_pythonic`"), "{told}");
        assert!(hint("deepseek").contains("`deepseek_v31`"));
    }

    #[test]
    fn typing_errors_are_corrected() {
        assert!(hint("qwen3-coder").ends_with("did you mean `qwen3_coder`?"));
        assert!(hint("Hermes").ends_with("did you mean `hermes`?"));
        assert!(hint("hermse").ends_with("did you mean `hermes`?"));
        assert!(hint("nonsense").contains("expected qwen3_coder, hermes"));
    }

    #[test]
    fn every_correction_leads_to_a_parser() {
        for (_, meant, _) in CONFUSED {
            assert!(find(meant).is_ok() || unread(meant).is_some(), "{meant}");
        }
    }
}

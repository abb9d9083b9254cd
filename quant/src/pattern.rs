//! Module patterns of `--ignore`: a glob over the whole path, or `re:` and an expression that must match
//! from the start of the path (the meaning that compressed-tensors gives it).

use fancy_regex::Regex;
use globset::{Glob, GlobMatcher};
use verify::error::{Error, Result};
use verify::names::Shown;

/// A pattern over module paths, such as `model.layers.0.*` or `re:.*down_proj$`.
#[derive(Debug, Clone)]
pub struct Pattern {
    text: String,
    matcher: Matcher,
}

#[derive(Debug, Clone)]
enum Matcher {
    Glob(GlobMatcher),
    Expression(Box<Regex>),
}

impl Pattern {
    /// Reads a pattern. A `.weight` at the end is dropped: patterns name modules.
    ///
    /// # Errors
    /// Exit 2 where it is no glob or no expression.
    pub fn parse(text: &str) -> Result<Self> {
        let bad = |e: String| Error::usage(format!("`{}` is no pattern", Shown(text))).found(e);
        let matcher = match text.strip_prefix("re:") {
            // Alternatives need the group, or only the first would be tied to the start.
            Some(re) => Matcher::Expression(Box::new(
                Regex::new(&format!("^(?:{re})")).map_err(|e| bad(e.to_string()))?,
            )),
            None => {
                let glob = Glob::new(text.strip_suffix(".weight").unwrap_or(text));
                Matcher::Glob(glob.map_err(|e| bad(e.to_string()))?.compile_matcher())
            }
        };
        Ok(Pattern { text: text.to_string(), matcher })
    }

    /// The pattern as it was given.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// True where the pattern matches `module`.
    ///
    /// # Errors
    /// Exit 2 where the expression takes too long.
    pub fn matches(&self, module: &str) -> Result<bool> {
        match &self.matcher {
            Matcher::Glob(glob) => Ok(glob.is_match(module)),
            Matcher::Expression(re) => re.is_match(module).map_err(|e| {
                Error::usage(format!("`{}` is no usable pattern", self.text)).found(e.to_string())
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, module: &str) -> bool {
        Pattern::parse(pattern).unwrap().matches(module).unwrap()
    }

    #[test]
    fn glob_matches_the_whole_path() {
        assert!(matches("*.mlp.down_proj", "model.layers.3.mlp.down_proj"));
        assert!(matches("model.layers.[01].*", "model.layers.1.self_attn.q_proj"));
        assert!(matches("lm_head.weight", "lm_head"));
        assert!(!matches("down_proj", "model.layers.3.mlp.down_proj"));
        assert!(!matches("model.layers.1.*", "model.layers.10.mlp.up_proj"));
    }

    #[test]
    fn expression_matches_from_the_start() {
        assert!(matches("re:.*down_proj$", "model.layers.3.mlp.down_proj"));
        assert!(matches("re:model", "model.layers.3.mlp.down_proj"));
        assert!(!matches("re:down_proj|mlp", "model.layers.3.mlp.down_proj"));
    }

    #[test]
    fn broken_pattern_is_a_usage_error() {
        for bad in ["re:(", "a[", "re:*"] {
            assert_eq!(Pattern::parse(bad).unwrap_err().class().exit_code(), 2, "{bad}");
        }
    }
}

//! From the module paths of the trained model to those of the checkpoint.
//!
//! Why they differ: Qwen3.5 and 3.6 files hold `model.language_model.layers`, an adapter trained on the
//! text-only class has `model.layers`, and older multimodal trainers wrote `language_model.model.layers`.

/// (prefix in the adapter, prefix in the base), tried in order after the path as it is.
const RULES: [(&str, &str); 11] = [
    ("model.", "model.language_model."),
    ("model.language_model.", "model."),
    ("language_model.model.", "model.language_model."),
    ("model.language_model.", "language_model.model."),
    ("model.model.language_model.", "model.language_model."),
    ("language_model.lm_head", "lm_head"),
    ("visual.", "model.visual."),
    ("model.visual.", "visual."),
    ("transformer.", ""),
    ("", "transformer."),
    ("model.language_model.lm_head", "lm_head"),
];

/// A path that may exist in the base, and the rewrite that gave it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The path.
    pub path: String,
    /// `FROM* → TO*`; `None` for the path as it is.
    pub rule: Option<String>,
}

/// All paths to try for `path`, in order.
pub fn candidates(path: &str) -> Vec<Candidate> {
    let rewritten = RULES.iter().filter_map(|(from, to)| {
        let rest = path.strip_prefix(from)?;
        Some(Candidate { path: format!("{to}{rest}"), rule: Some(format!("{from}* → {to}*")) })
    });
    std::iter::once(Candidate { path: path.to_string(), rule: None }).chain(rewritten).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rewrite_is_tried_after_the_path_itself() {
        for (path, want) in [
            ("model.layers.0.q", "model.language_model.layers.0.q"),
            ("model.language_model.layers.0.q", "model.layers.0.q"),
            ("language_model.model.layers.0.q", "model.language_model.layers.0.q"),
            ("model.language_model.layers.0.q", "language_model.model.layers.0.q"),
            ("model.model.language_model.layers.0.q", "model.language_model.layers.0.q"),
            ("language_model.lm_head", "lm_head"),
            ("visual.blocks.0", "model.visual.blocks.0"),
            ("model.visual.blocks.0", "visual.blocks.0"),
            ("transformer.h.0", "h.0"),
            ("h.0", "transformer.h.0"),
        ] {
            let all = candidates(path);
            assert_eq!((all[0].path.as_str(), &all[0].rule), (path, &None));
            assert!(all.iter().any(|c| c.path == want && c.rule.is_some()), "{path} → {want}");
        }
    }
}

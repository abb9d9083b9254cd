//! What the keys of `adapter_model.safetensors` mean.
//!
//! Source: the names that PEFT 0.21 writes (`get_peft_model_state_dict`), and raw state dicts, which hold
//! the adapter's name as one more part.

use verify::{Error, Result, Shown};

/// A key taken apart. Paths are those of the trained model, without wrapper prefixes and `base_layer`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// Module, or for [`Role::Whole`] the full name of the tensor.
    pub path: String,
    /// Number of `base_layer` parts before the factor: which of several wrappers of one module it is.
    pub depth: usize,
    /// What it is for that module.
    pub role: Role,
    /// Adapter name, where the key holds one.
    pub adapter: Option<String>,
    /// Where in `path` the part after `modules_to_save` begins: it may be a name too, see [`Key::drop_name`].
    pub saved_at: Option<usize>,
}

impl Key {
    /// Takes the part after `modules_to_save` out of the path where it is one of `names`, the adapter names
    /// that the file's other keys hold.
    pub fn drop_name(&mut self, names: &[String]) {
        let Some(at) = self.saved_at else { return };
        let Some((first, rest)) = self.path[at..].split_once('.') else { return };
        if first == "default" || names.iter().any(|n| n == first) {
            self.adapter = Some(first.to_string());
            self.path = format!("{}{rest}", &self.path[..at]);
        }
    }
}

/// What a tensor of an adapter is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// `lora_A.weight`, (r, in).
    A,
    /// `lora_B.weight`, (out, r).
    B,
    /// `lora_B.bias`, (out).
    BiasB,
    /// `lora_embedding_A`, (r, vocab).
    EmbeddingA,
    /// `lora_embedding_B`, (dim, r).
    EmbeddingB,
    /// `lora_magnitude_vector` of DoRA.
    Magnitude,
    /// `trainable_tokens_delta`: new rows.
    TokenRows,
    /// A whole tensor that replaces the one of the base.
    Whole(Whole),
    /// `original_module`: a copy of the base.
    Copy,
}

/// How a whole tensor came to be in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whole {
    /// Under `modules_to_save`.
    Saved,
    /// As the `base_layer` of a wrapped module.
    BaseLayer,
    /// Under its own name.
    Plain,
}

/// Parts that only other methods write.
const FOREIGN: [&str; 12] = [
    "ia3_l",
    "hada_",
    "lokr_",
    "oft_",
    "vera_",
    "boft_",
    "lora_",
    "ranknum",
    "hra_",
    "randlora_",
    "road_",
    "miss_",
];

/// Takes `key` apart.
///
/// # Errors
/// Exit 3 for keys of other methods than LoRA.
pub fn parse(key: &str) -> Result<Key> {
    let rest = strip_prefixes(key);
    let parts: Vec<&str> = rest.split('.').collect();
    let at = parts.iter().position(|p| is_marker(p));
    let (head, tail) = match at {
        Some(at) => (&parts[..at], &parts[at..]),
        None => (&parts[..], &[][..]),
    };
    let (path, depth) = without_base_layers(head);
    let found = match tail {
        [] => whole(&parts),
        ["lora_A", rest @ ..] => named(rest, &["weight"]).map(|n| (Role::A, n)),
        ["lora_B", rest @ ..] => match rest.last() {
            Some(&"bias") => named(rest, &["bias"]).map(|n| (Role::BiasB, n)),
            _ => named(rest, &["weight"]).map(|n| (Role::B, n)),
        },
        ["lora_embedding_A", rest @ ..] => named(rest, &[]).map(|n| (Role::EmbeddingA, n)),
        ["lora_embedding_B", rest @ ..] => named(rest, &[]).map(|n| (Role::EmbeddingB, n)),
        ["lora_magnitude_vector", rest @ .., "weight"] => named(rest, &[]).map(|n| (Role::Magnitude, n)),
        ["lora_magnitude_vector", rest @ ..] => named(rest, &[]).map(|n| (Role::Magnitude, n)),
        ["token_adapter", "trainable_tokens_delta", rest @ ..] => {
            named(rest, &[]).map(|n| (Role::TokenRows, n))
        }
        ["token_adapter", "base_layer", last] => {
            return Ok(base_layer(&path, last));
        }
        ["original_module", ..] => Some((Role::Copy, None)),
        ["modules_to_save", ..] => return Ok(saved(&path, tail)),
        _ => None,
    };
    match found {
        Some((Role::Whole(Whole::BaseLayer), _)) => {
            Ok(base_layer(&without_base_layers(&parts[..parts.len() - 1]).0, parts[parts.len() - 1]))
        }
        Some((role, adapter)) => Ok(Key { path, depth, role, adapter, saved_at: None }),
        None => Err(Error::input(format!("adapter tensor `{}` belongs to another method", Shown(key)))
            .found(Shown(tail.first().unwrap_or(&"")).to_string())
            .expected("factors of LoRA or DoRA, trainable token rows, or whole tensors")
            .hint("merge it with the tool it was trained with")),
    }
}

fn strip_prefixes(key: &str) -> &str {
    let mut rest = key;
    while let Some(r) = rest.strip_prefix("module.").or_else(|| rest.strip_prefix("_orig_mod.")) {
        rest = r;
    }
    let stripped = rest.strip_prefix("base_model.model.").or_else(|| rest.strip_prefix("base_model."));
    stripped.unwrap_or(rest)
}

fn is_marker(part: &str) -> bool {
    matches!(part, "token_adapter" | "modules_to_save" | "original_module" | "trainable_tokens_delta")
        || FOREIGN.iter().any(|f| part.starts_with(f))
}

/// The path without `base_layer` parts, and how many stood at its end.
fn without_base_layers(parts: &[&str]) -> (String, usize) {
    let depth = parts.iter().rev().take_while(|p| **p == "base_layer").count();
    let kept: Vec<&str> = parts.iter().copied().filter(|p| *p != "base_layer").collect();
    (kept.join("."), depth)
}

/// The adapter's name in `rest`, which is `[NAME] end`; `None` where it is anything else.
#[allow(clippy::option_option)]
fn named(rest: &[&str], end: &[&str]) -> Option<Option<String>> {
    match rest.strip_suffix(end)? {
        [] => Some(None),
        [name] => Some(Some(name.to_string())),
        _ => None,
    }
}

fn whole(parts: &[&str]) -> Option<(Role, Option<String>)> {
    let kind = match parts {
        [.., "base_layer", _] => Whole::BaseLayer,
        _ => Whole::Plain,
    };
    Some((Role::Whole(kind), None))
}

fn base_layer(path: &str, last: &str) -> Key {
    let path = format!("{path}.{last}");
    Key { path, depth: 0, role: Role::Whole(Whole::BaseLayer), adapter: None, saved_at: None }
}

/// `M.modules_to_save[.NAME].rest`, the name left in the path.
fn saved(path: &str, tail: &[&str]) -> Key {
    let role = Role::Whole(Whole::Saved);
    let saved_at = Some(path.len() + 1);
    Key { path: format!("{path}.{}", tail[1..].join(".")), depth: 0, role, adapter: None, saved_at }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(path: &str, role: Role, adapter: Option<&str>) -> Key {
        Key { path: path.into(), depth: 0, role, adapter: adapter.map(str::to_string), saved_at: None }
    }

    #[test]
    fn every_form_of_the_table_is_read() {
        use Whole::*;
        for (text, want) in [
            ("base_model.model.m.q_proj.lora_A.weight", key("m.q_proj", Role::A, None)),
            ("base_model.model.m.q_proj.lora_B.default.weight", key("m.q_proj", Role::B, Some("default"))),
            ("base_model.model.m.q_proj.lora_B.bias", key("m.q_proj", Role::BiasB, None)),
            ("base_model.model.e.lora_embedding_A", key("e", Role::EmbeddingA, None)),
            ("base_model.model.e.lora_embedding_B.x", key("e", Role::EmbeddingB, Some("x"))),
            ("base_model.model.q.lora_magnitude_vector", key("q", Role::Magnitude, None)),
            ("base_model.model.q.lora_magnitude_vector.weight", key("q", Role::Magnitude, None)),
            ("base_model.model.q.lora_magnitude_vector.d.weight", key("q", Role::Magnitude, Some("d"))),
            ("base_model.model.e.token_adapter.trainable_tokens_delta", key("e", Role::TokenRows, None)),
            ("base_model.model.lm_head.weight", key("lm_head.weight", Role::Whole(Plain), None)),
            ("base_model.model.q.base_layer.bias", key("q.bias", Role::Whole(BaseLayer), None)),
            (
                "base_model.model.e.token_adapter.base_layer.weight",
                key("e.weight", Role::Whole(BaseLayer), None),
            ),
            ("base_model.model.lm_head.original_module.weight", key("lm_head", Role::Copy, None)),
        ] {
            assert_eq!(parse(text).unwrap(), want, "{text}");
        }
    }

    #[test]
    fn name_under_modules_to_save_is_dropped_where_it_is_one() {
        for (text, path, adapter) in [
            ("lm_head.modules_to_save.weight", "lm_head.weight", None),
            ("lm_head.modules_to_save.default.weight", "lm_head.weight", Some("default")),
            ("lm_head.modules_to_save.style.weight", "lm_head.weight", Some("style")),
            ("l.0.mlp.modules_to_save.gate_proj.weight", "l.0.mlp.gate_proj.weight", None),
            ("l.0.mlp.modules_to_save.style.gate_proj.weight", "l.0.mlp.gate_proj.weight", Some("style")),
        ] {
            let mut k = parse(&format!("base_model.model.{text}")).unwrap();
            k.drop_name(&["style".to_string()]);
            assert_eq!((k.path.as_str(), k.adapter.as_deref()), (path, adapter), "{text}");
        }
    }

    #[test]
    fn wrapper_prefixes_are_stripped_in_order() {
        for text in [
            "module._orig_mod.module.base_model.model.a.lora_A.weight",
            "base_model.a.lora_A.weight",
            "a.lora_A.weight",
        ] {
            assert_eq!(parse(text).unwrap().path, "a", "{text}");
        }
    }

    #[test]
    fn base_layer_counts_the_wrappers_inside() {
        let k = parse("base_model.model.m.experts.base_layer.lora_A.weight").unwrap();
        assert_eq!((k.path.as_str(), k.depth), ("m.experts", 1));
    }

    #[test]
    fn other_methods_are_refused_by_key() {
        for part in [
            "lora_E",
            "ia3_l",
            "hada_w1_a",
            "lokr_w1",
            "oft_r",
            "vera_lambda_b",
            "boft_R",
            "lora_diag",
            "ranknum",
        ] {
            let e = parse(&format!("base_model.model.q.{part}.weight")).unwrap_err();
            assert!(e.to_string().contains(part), "{part}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_key_panics(parts in proptest::collection::vec(
            proptest::sample::select(vec![
                "base_model", "model", "module", "base_layer", "lora_A", "lora_B", "lora_embedding_A", "weight",
                "bias", "default", "modules_to_save", "original_module", "token_adapter", "trainable_tokens_delta",
                "lora_magnitude_vector", "experts", "0", "q_proj", "",
            ]), 1..9,
        )) {
            if let Ok(mut key) = parse(&parts.join(".")) {
                key.drop_name(&["0".to_string()]);
            }
        }
    }
}

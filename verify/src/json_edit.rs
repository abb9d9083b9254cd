//! One key of a JSON object changed in its text, everything else left byte for byte.
//!
//! Why not parse and print: a round trip rewrites numbers (`1e-06`, integers beyond 64 bits such as the
//! usual `model_max_length`), spacing and escapes of files that we only want to add a key to.

use std::path::Path;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::names::Shown;

/// Sets `key` to `value` (or removes it with `None`) in the object `section` of `text`, or in the top level.
///
/// # Errors
/// Exit 3 where `text` or the section is no JSON object.
pub fn set(
    text: &str,
    section: Option<&str>,
    key: &str,
    value: Option<&Value>,
    path: &Path,
) -> Result<String> {
    let bad = || Error::input(format!("{} is not a JSON object", Shown::path(path)));
    serde_json::from_str::<serde::de::IgnoredAny>(text).map_err(|e| bad().found(e.to_string()))?;
    let mut object = Members::scan(text, 0).ok_or_else(bad)?;
    if let Some(section) = section {
        let outer = object.find(section).ok_or_else(|| bad().expected(format!("an object `{section}`")))?;
        object = Members::scan(text, outer.value.0).ok_or_else(bad)?;
    }
    Ok(match (object.find(key), value) {
        (Some(m), Some(v)) => splice(text, m.value, &indented(v, &object.indent(text))),
        (Some(_), None) => object.without(text, key),
        (None, Some(v)) => object.with(text, key, v),
        (None, None) => text.to_string(),
    })
}

fn splice(text: &str, (begin, end): (usize, usize), new: &str) -> String {
    format!("{}{new}{}", &text[..begin], &text[end..])
}

/// `value` printed with the indent of the object that will hold it.
fn indented(value: &Value, indent: &str) -> String {
    match indent.is_empty() {
        true => value.to_string(),
        false => format!("{value:#}").replace('\n', &format!("\n{indent}")),
    }
}

struct Member {
    key: String,
    begin: usize,
    value: (usize, usize),
}

/// The members of one object in the text, by byte ranges.
struct Members {
    open: usize,
    close: usize,
    list: Vec<Member>,
}

impl Members {
    /// Scans the object that starts at or after `at`. The text is known to be valid JSON.
    fn scan(text: &str, at: usize) -> Option<Self> {
        let bytes = text.as_bytes();
        let open = skip_space(bytes, at);
        if bytes.get(open) != Some(&b'{') {
            return None;
        }
        let mut list = Vec::new();
        let mut at = skip_space(bytes, open + 1);
        while bytes.get(at)? != &b'}' {
            let begin = at;
            let end = skip_value(bytes, at)?;
            let key = serde_json::from_str(&text[begin..end]).ok()?;
            at = skip_space(bytes, end) + 1; // the colon
            let from = skip_space(bytes, at);
            let to = skip_value(bytes, from)?;
            list.push(Member { key, begin, value: (from, to) });
            at = skip_space(bytes, to);
            if bytes.get(at) == Some(&b',') {
                at = skip_space(bytes, at + 1);
            }
        }
        Some(Members { open, close: at, list })
    }

    /// The last member of that name: the one that parsers see.
    fn find(&self, key: &str) -> Option<&Member> {
        self.list.iter().rev().find(|m| m.key == key)
    }

    /// The white space before members: what follows the line break before the first one.
    fn indent(&self, text: &str) -> String {
        let Some(first) = self.list.first() else { return String::new() };
        let before = &text[self.open + 1..first.begin];
        before.rfind('\n').map_or(String::new(), |n| before[n + 1..].to_string())
    }

    fn with(&self, text: &str, key: &str, value: &Value) -> String {
        let name = Value::from(key);
        match self.list.last() {
            None => splice(text, (self.open + 1, self.close), &format!("{name}: {value}")),
            Some(last) => {
                let first = &self.list[0];
                let gap = &text[self.open + 1..first.begin];
                let gap = if gap.is_empty() { " " } else { gap };
                let value = indented(value, &self.indent(text));
                splice(text, (last.value.1, last.value.1), &format!(",{gap}{name}: {value}"))
            }
        }
    }

    fn without(&self, text: &str, key: &str) -> String {
        let kept: Vec<_> = self.list.iter().filter(|m| m.key != key).collect();
        let mut out = text[..=self.open].to_string();
        if let (Some(first), Some(last)) = (self.list.first(), self.list.last()) {
            let gap = &text[self.open + 1..first.begin];
            let members: Vec<_> = kept.iter().map(|m| &text[m.begin..m.value.1]).collect();
            if !members.is_empty() {
                out.push_str(gap);
                out.push_str(&members.join(&format!(",{}", if gap.is_empty() { " " } else { gap })));
                out.push_str(&text[last.value.1..self.close]);
            }
        }
        out + &text[self.close..]
    }
}

fn skip_space(bytes: &[u8], mut at: usize) -> usize {
    while bytes.get(at).is_some_and(u8::is_ascii_whitespace) {
        at += 1;
    }
    at
}

/// The end of the value that starts at `at`.
fn skip_value(bytes: &[u8], at: usize) -> Option<usize> {
    let mut depth = 0usize;
    let mut i = at;
    loop {
        match bytes.get(i)? {
            b'"' => {
                i += 1;
                while bytes.get(i)? != &b'"' {
                    i += if bytes[i] == b'\\' { 2 } else { 1 };
                }
                i += 1;
            }
            b'{' | b'[' => {
                depth += 1;
                i += 1;
            }
            b'}' | b']' => {
                depth = depth.checked_sub(1)?;
                i += 1;
            }
            b',' | b':' => i += 1,
            c if c.is_ascii_whitespace() => i += 1,
            _ => {
                while bytes
                    .get(i)
                    .is_some_and(|c| !matches!(c, b',' | b'}' | b']' | b':') && !c.is_ascii_whitespace())
                {
                    i += 1;
                }
            }
        }
        if depth == 0 {
            return Some(i);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn edit(text: &str, section: Option<&str>, key: &str, value: Option<Value>) -> String {
        set(text, section, key, value.as_ref(), Path::new("t.json")).unwrap()
    }

    #[test]
    fn other_text_stays_as_it_is() {
        let text = "{\n  \"eps\": 1e-06,\n  \"max\": 1000000000000000019884624838656,\n  \"x\": [1,  2]\n}\n";
        let out = edit(text, None, "x", Some(json!(3)));
        assert_eq!(out, text.replace("[1,  2]", "3"));
        let out = edit(text, None, "new", Some(json!({"a": 1})));
        assert_eq!(out, text.replace("2]\n}", "2],\n  \"new\": {\n    \"a\": 1\n  }\n}"));
    }

    #[test]
    fn keys_inside_a_section_are_found() {
        let text = r#"{"a": 1, "s": {"a": 2, "b": "}\""}}"#;
        assert_eq!(edit(text, Some("s"), "a", Some(json!(7))), r#"{"a": 1, "s": {"a": 7, "b": "}\""}}"#);
        assert_eq!(edit(text, Some("s"), "a", None), r#"{"a": 1, "s": {"b": "}\""}}"#);
    }

    #[test]
    fn not_an_object_is_an_error() {
        assert!(set("[1]", None, "a", Some(&json!(1)), Path::new("t")).is_err());
        assert!(set("{\"a\":", None, "a", Some(&json!(1)), Path::new("t")).is_err());
        assert!(set("{}", Some("s"), "a", Some(&json!(1)), Path::new("t")).is_err());
    }

    proptest! {
        #[test]
        fn edit_equals_parse_and_set(keys in proptest::collection::vec("[a-c\"\\\\]{1,2}", 0..4), key in "[a-c\"\\\\]{1,2}", pretty: bool, remove: bool) {
            let mut object = serde_json::Map::new();
            for (i, k) in keys.iter().enumerate() {
                object.insert(k.clone(), json!([i, {"k": "v,}"}, null]));
            }
            let v = Value::Object(object.clone());
            let text = if pretty { format!("{v:#}") } else { v.to_string() };
            let new = json!({"deep": [true]});
            let out = edit(&text, None, &key, (!remove).then(|| new.clone()));
            if remove { object.shift_remove(&key); } else { object.insert(key, new); }
            prop_assert_eq!(serde_json::from_str::<Value>(&out).unwrap(), Value::Object(object));
        }
    }
}

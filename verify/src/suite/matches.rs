//! Expected argument values: a plain value is compared as it is, an object with one `$` key says more.
//!
//! | written | matches |
//! | --- | --- |
//! | `{"$any": true}` | every value |
//! | `{"$any_of": [..]}` | what matches one of them |
//! | `{"$regex": ".."}` | a text that matches as a whole |
//! | `{"$number": 5, "$within": 0.1}` | a number, integer or not, at most that far off (default: equal) |
//! | `{"$optional": ..}` | as what it holds; the argument may be missing |

use fancy_regex::Regex;
use serde_json::{Map, Value};

const KINDS: &str = "$any, $any_of, $regex, $number (with $within), $optional";

/// Whether `found` is what `expected` asks for. Plain values must have the same type: 5 is not 5.0.
pub fn matches(expected: &Value, found: &Value) -> bool {
    if let Some((kind, wanted)) = special(expected) {
        return match (kind, wanted) {
            ("$any", _) => true,
            ("$any_of", Value::Array(list)) => list.iter().any(|e| matches(e, found)),
            ("$regex", Value::String(text)) => {
                let whole = Regex::new(&whole(text));
                found.as_str().is_some_and(|f| whole.is_ok_and(|r| r.is_match(f).unwrap_or(false)))
            }
            ("$number", wanted) => near(wanted, found, expected.get("$within")),
            ("$optional", inner) => matches(inner, found),
            _ => false,
        };
    }
    match (expected, found) {
        (Value::Array(e), Value::Array(f)) => {
            e.len() == f.len() && e.iter().zip(f).all(|(e, f)| matches(e, f))
        }
        (Value::Object(e), Value::Object(f)) => difference(e, f).is_none(),
        _ => expected == found,
    }
}

/// How the members of an object differ, if they do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Difference<'a> {
    /// An expected key is not there.
    Missing(&'a str),
    /// A key is there that was not expected.
    Unexpected(&'a str),
    /// A value does not match.
    Value(&'a str),
}

/// The first difference: missing keys, then unexpected ones, then values.
pub fn difference<'a>(
    expected: &'a Map<String, Value>,
    found: &'a Map<String, Value>,
) -> Option<Difference<'a>> {
    let optional = |v: &Value| matches!(special(v), Some(("$optional", _)));
    if let Some((key, _)) = expected.iter().find(|(k, v)| !found.contains_key(*k) && !optional(v)) {
        return Some(Difference::Missing(key));
    }
    if let Some(key) = found.keys().find(|k| !expected.contains_key(*k)) {
        return Some(Difference::Unexpected(key));
    }
    let wrong = expected.iter().find(|(k, e)| found.get(*k).is_some_and(|f| !matches(e, f)));
    wrong.map(|(key, _)| Difference::Value(key))
}

/// Checks every `$` object in `expected` when a suite is read.
///
/// # Errors
/// The sentence that says what is wrong.
pub fn check(expected: &Value) -> Result<(), String> {
    match expected {
        Value::Array(list) => list.iter().try_for_each(check),
        Value::Object(map) if map.keys().any(|k| k.starts_with('$')) => {
            let (kind, wanted) =
                special(expected).ok_or(format!("{expected} is no matcher; known are {KINDS}"))?;
            match (kind, wanted) {
                ("$any", Value::Bool(true)) => Ok(()),
                ("$any_of", Value::Array(list)) if !list.is_empty() => list.iter().try_for_each(check),
                ("$regex", Value::String(text)) => {
                    Regex::new(&whole(text)).map(|_| ()).map_err(|e| format!("`$regex` {wanted}: {e}"))
                }
                ("$number", Value::Number(_)) => match map.get("$within") {
                    None => Ok(()),
                    Some(by) if by.as_f64().is_some_and(|by| by >= 0.0) => Ok(()),
                    Some(by) => Err(format!("`$within` {by} is no positive number")),
                },
                ("$optional", inner) => check(inner),
                (kind, wanted) => Err(format!("`{kind}` does not take {wanted}")),
            }
        }
        Value::Object(map) => map.values().try_for_each(check),
        _ => Ok(()),
    }
}

/// The kind and the content of a `$` object.
fn special(expected: &Value) -> Option<(&str, &Value)> {
    let map = expected.as_object()?;
    let mut others = map.iter().filter(|(k, _)| k.as_str() != "$within");
    let (kind, wanted) = others.next()?;
    let known = ["$any", "$any_of", "$regex", "$number", "$optional"].contains(&kind.as_str());
    let alone = others.next().is_none() && (map.len() == 1 || kind == "$number");
    (known && alone).then_some((kind.as_str(), wanted))
}

fn whole(pattern: &str) -> String {
    format!("^(?:{pattern})$")
}

fn near(wanted: &Value, found: &Value, within: Option<&Value>) -> bool {
    let within = within.and_then(Value::as_f64).unwrap_or(0.0);
    match (wanted.as_f64(), found.as_f64()) {
        (Some(a), Some(b)) => (a - b).abs() <= within,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn plain_values_need_the_same_type() {
        for (e, f) in
            [(json!(5), json!(5.0)), (json!(5), json!("5")), (json!(true), json!(1)), (json!([1]), json!([]))]
        {
            assert!(matches(&e, &e) && !matches(&e, &f), "{e} {f}");
        }
    }

    #[test]
    fn matchers_match_what_they_say() {
        for (e, yes, no) in [
            (json!({"$any_of": ["a", 1]}), json!(1), json!("b")),
            (json!({"$regex": "a+|b"}), json!("aa"), json!("ab")),
            (json!({"$number": 5}), json!(5.0), json!(5.1)),
            (json!({"$number": 5, "$within": 0.2}), json!(5.1), json!("5")),
            (json!([{"$regex": "x."}]), json!(["xy"]), json!(["x"])),
            (json!({"a": {"$optional": 1}}), json!({}), json!({"a": 2})),
            (json!({"a": {"$any": true}}), json!({"a": null}), json!({})),
        ] {
            assert_eq!(check(&e), Ok(()));
            assert!(matches(&e, &yes), "{e} {yes}");
            assert!(!matches(&e, &no), "{e} {no}");
        }
    }

    #[test]
    fn faults_of_matchers_are_found() {
        for bad in [
            json!({"$regexp": "a"}),
            json!({"$regex": "("}),
            json!({"$regex": 5}),
            json!({"$any_of": []}),
            json!({"$number": "5"}),
            json!({"$number": 5, "$within": -1}),
            json!({"$regex": "a", "$any": true}),
            json!({"a": [{"$any": false}]}),
        ] {
            assert!(check(&bad).is_err(), "{bad}");
        }
    }
}

//! JSON from a request as the values that a template sees, with Python's methods.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use minijinja::value::{Enumerator, Kwargs, Object, ObjectExt, ObjectRepr, Tuple, Value};
use minijinja::{Error, ErrorKind, State};
use minijinja_contrib::pycompat;

use super::python;

/// JSON as a template value; objects answer Python's dict methods even where a key has a method's name.
pub fn from_json(json: &serde_json::Value) -> Value {
    match json {
        serde_json::Value::Object(map) => {
            let pairs: Vec<_> = map.iter().map(|(k, v)| (Value::from(k.as_str()), from_json(v))).collect();
            let at = map.keys().enumerate().map(|(at, k)| (k.clone(), at)).collect();
            Value::from_object(Dict { pairs, at })
        }
        serde_json::Value::Array(list) => list.iter().map(from_json).collect(),
        other => Value::from(minijinja::value::Serde(other)),
    }
}

#[derive(Debug)]
struct Dict {
    pairs: Vec<(Value, Value)>,
    at: HashMap<String, usize>,
}

impl Object for Dict {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Map
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.at.get(key.as_str()?).map(|at| self.pairs[*at].1.clone())
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.mapped_enumerator(|this| Box::new(this.pairs.iter().map(|(key, _)| key.clone())))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.pairs.len())
    }

    fn call_method(
        self: &Arc<Self>,
        state: &mut State<'_, '_>,
        method: &str,
        args: &[Value],
    ) -> Result<Value, Error> {
        // The engine would call the value under the key `items` where there is one.
        self::method(state, &Value::from_dyn_object(self.clone()), method, args)
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = python::str(&Value::from_dyn_object(self.clone())).map_err(|_| fmt::Error)?;
        f.write_str(&text)
    }
}

/// Methods of Python's `str` and `list` beyond those of minijinja's own compatibility layer.
pub fn method(state: &mut State<'_, '_>, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    match value.as_str().and_then(|s| string_method(s, name, args)) {
        Some(result) => Ok(result),
        None if name == "index" && args.len() == 1 && value.as_object().is_some() => {
            let at = value.try_iter()?.position(|item| item == args[0]);
            at.map(Value::from).ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "value is not in list"))
        }
        None if name == "copy" && args.is_empty() && value.as_object().is_some() => Ok(value.clone()),
        None => pycompat::unknown_method_callback(state, value, name, args),
    }
}

fn string_method(s: &str, name: &str, args: &[Value]) -> Option<Value> {
    let text = |at: usize| args.get(at).and_then(Value::as_str);
    let triple = |a: &str, b: &str, c: &str| Value::from(Tuple::from([a, b, c].map(Value::from)));
    Some(match (name, args.len()) {
        ("removeprefix", 1) => s.strip_prefix(text(0)?).unwrap_or(s).into(),
        ("removesuffix", 1) => s.strip_suffix(text(0)?).unwrap_or(s).into(),
        ("partition", 1) => {
            let sep = text(0).filter(|t| !t.is_empty())?;
            s.split_once(sep).map_or_else(|| triple(s, "", ""), |(a, b)| triple(a, sep, b))
        }
        ("rpartition", 1) => {
            let sep = text(0).filter(|t| !t.is_empty())?;
            s.rsplit_once(sep).map_or_else(|| triple("", "", s), |(a, b)| triple(a, sep, b))
        }
        ("rsplit", 2) => {
            let sep = text(0).filter(|t| !t.is_empty())?;
            let count = usize::try_from(args[1].as_i64().filter(|n| *n >= 0)?).ok()?;
            let mut parts: Vec<&str> = s.rsplitn(count.checked_add(1)?, sep).collect();
            parts.reverse();
            parts.into_iter().map(Value::from).collect()
        }
        ("rsplit", 1) => s.split(text(0).filter(|t| !t.is_empty())?).map(Value::from).collect(),
        ("title", 0) => title(s).into(),
        ("split", 2) if args[1].is_kwargs() => {
            let count: usize = Kwargs::try_from(args[1].clone()).ok()?.get("maxsplit").ok()?;
            s.splitn(count.checked_add(1)?, text(0).filter(|t| !t.is_empty())?).map(Value::from).collect()
        }
        ("index", 1) => s[..s.find(text(0)?)?].chars().count().into(),
        ("splitlines", 0) => lines(s).into_iter().map(Value::from).collect(),
        _ => return None,
    })
}

/// Python's `str.title`: a letter after anything but a letter is upper case.
fn title(s: &str) -> String {
    let mut inside = false;
    let mut out = String::with_capacity(s.len());
    for c in s.chars() {
        match inside {
            true => out.extend(c.to_lowercase()),
            false => out.extend(c.to_uppercase()),
        }
        inside = c.is_alphabetic();
    }
    out
}

/// Python's `splitlines`: it knows more line ends than Rust's `lines`.
pub fn lines(s: &str) -> Vec<&str> {
    let mut out = Vec::new();
    let mut rest = s;
    let breaks =
        ['\n', '\r', '\u{b}', '\u{c}', '\u{1c}', '\u{1d}', '\u{1e}', '\u{85}', '\u{2028}', '\u{2029}'];
    while let Some(at) = rest.find(breaks) {
        out.push(&rest[..at]);
        let width = match rest[at..].starts_with("\r\n") {
            true => 2,
            false => rest[at..].chars().next().map_or(1, char::len_utf8),
        };
        rest = &rest[at + width..];
    }
    if !rest.is_empty() {
        out.push(rest);
    }
    out
}

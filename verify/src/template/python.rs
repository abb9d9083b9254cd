//! How Python prints values: `str`, `repr` and `json.dumps`, so that prompts come out as under transformers.

use std::fmt::Write;

use minijinja::value::{Tuple, Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// Deeper values are refused: a namespace can hold itself.
const MAX_DEPTH: usize = 200;
/// Longer texts are refused: a list can hold one list twice, and that one another twice.
const MAX_TEXT: usize = 16 << 20;

/// A float as Python's `repr` prints it: shortest digits, exponent below 1e-4 and from 1e16.
pub fn float(x: f64) -> String {
    if x.is_nan() {
        return "nan".into();
    }
    if x.is_infinite() {
        return if x > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let shortest = format!("{x:e}");
    let (digits, exponent) = shortest.split_once('e').unwrap_or((&shortest, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if x != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = x.to_string();
    if plain.contains('.') { plain } else { plain + ".0" }
}

/// Python's `str(value)`; undefined is empty, as Jinja prints it.
///
/// # Errors
/// For values nested without end.
pub fn str(value: &Value) -> Result<String, Error> {
    match value.as_str() {
        Some(s) => Ok(s.to_string()),
        None if value.is_undefined() => Ok(String::new()),
        None => {
            let mut out = String::new();
            repr(value, &mut out, 0)?;
            Ok(out)
        }
    }
}

fn repr(value: &Value, out: &mut String, depth: usize) -> Result<(), Error> {
    check_bounds(depth, out.len())?;
    if let Some(s) = value.as_str() {
        quote(s, out);
    } else if let Some(x) = float_in(value) {
        out.push_str(&float(x));
    } else {
        match value.kind() {
            ValueKind::Seq => {
                let tuple = value.downcast_object_ref::<Tuple>().is_some();
                out.push(if tuple { '(' } else { '[' });
                let mut count = 0;
                for item in value.try_iter()? {
                    out.push_str(if count > 0 { ", " } else { "" });
                    repr(&item, out, depth + 1)?;
                    count += 1;
                }
                out.push_str(match (tuple, count) {
                    (true, 1) => ",)",
                    (true, _) => ")",
                    (false, _) => "]",
                });
            }
            ValueKind::Map => {
                out.push('{');
                for (at, key) in value.try_iter()?.enumerate() {
                    out.push_str(if at > 0 { ", " } else { "" });
                    repr(&key, out, depth + 1)?;
                    out.push_str(": ");
                    repr(&value.get_item(&key)?, out, depth + 1)?;
                }
                out.push('}');
            }
            ValueKind::Undefined => out.push_str("Undefined"),
            _ => {
                let _ = write!(out, "{value}");
            }
        }
    }
    Ok(())
}

fn check_bounds(depth: usize, len: usize) -> Result<(), Error> {
    match depth > MAX_DEPTH || len > MAX_TEXT {
        true => Err(Error::new(ErrorKind::InvalidOperation, "value is too large or nested too deeply")),
        false => Ok(()),
    }
}

/// The value where it is a float; integers are printed by themselves.
fn float_in(value: &Value) -> Option<f64> {
    match value.kind() == ValueKind::Number && !value.is_integer() {
        true => f64::try_from(value.clone()).ok(),
        false => None,
    }
}

/// A string literal as Python's `repr` writes it.
fn quote(s: &str, out: &mut String) {
    let q = if s.contains('\'') && !s.contains('"') { '"' } else { '\'' };
    out.push(q);
    for c in s.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == q => {
                out.push('\\');
                out.push(c);
            }
            c if (c as u32) < 0x20 || (0x7f..=0xa0).contains(&(c as u32)) || c == '\u{ad}' => {
                let _ = write!(out, "\\x{:02x}", c as u32);
            }
            '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push(q);
}

/// The arguments of Python's `json.dumps`.
#[derive(Debug, Clone, Default)]
pub struct JsonStyle {
    /// Write non-ASCII characters as `\uXXXX`.
    pub ensure_ascii: bool,
    /// The indent of one level; `None` writes everything on one line.
    pub indent: Option<String>,
    /// Item and key separators; `None` takes Python's defaults.
    pub separators: Option<(String, String)>,
    /// Write keys in sorted order.
    pub sort_keys: bool,
}

/// Python's `json.dumps(value, ...)`.
///
/// # Errors
/// For undefined and for values that JSON does not know, as in Python.
pub fn to_json(value: &Value, style: &JsonStyle) -> Result<String, Error> {
    let (item, key) = match (&style.separators, &style.indent) {
        (Some((item, key)), _) => (item.as_str(), key.as_str()),
        (None, Some(_)) => (",", ": "),
        (None, None) => (", ", ": "),
    };
    let mut writer = JsonWriter { style, item, key, out: String::new() };
    writer.value(value, 0)?;
    Ok(writer.out)
}

struct JsonWriter<'a> {
    style: &'a JsonStyle,
    item: &'a str,
    key: &'a str,
    out: String,
}

impl JsonWriter<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        check_bounds(depth, self.out.len())?;
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.out.push_str(&number(value)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.container(('[', ']'), items.len(), depth, |w, at| w.value(&items[at], depth + 1))?;
            }
            ValueKind::Map => {
                let mut pairs = Vec::new();
                for key in value.try_iter()? {
                    let item = value.get_item(&key)?;
                    pairs.push((key, item));
                }
                if self.style.sort_keys {
                    pairs.sort_by(|a, b| a.0.cmp(&b.0));
                }
                self.container(('{', '}'), pairs.len(), depth, |w, at| {
                    w.member(&pairs[at].0, &pairs[at].1, depth)
                })?;
            }
            _ => {
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    format!("tojson: a value of type {} is not JSON serializable", value.kind()),
                ));
            }
        }
        Ok(())
    }

    fn container(
        &mut self,
        (open, close): (char, char),
        len: usize,
        depth: usize,
        mut write: impl FnMut(&mut Self, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(open);
        for at in 0..len {
            if at > 0 {
                self.out.push_str(self.item);
            }
            self.line(depth + 1);
            write(self, at)?;
        }
        if len > 0 {
            self.line(depth);
        }
        self.out.push(close);
        Ok(())
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = &self.style.indent {
            self.out.push('\n');
            for _ in 0..depth {
                self.out.push_str(indent);
            }
        }
    }

    fn member(&mut self, key: &Value, value: &Value, depth: usize) -> Result<(), Error> {
        match key.kind() {
            ValueKind::String => self.string(key.as_str().unwrap_or_default()),
            ValueKind::None => self.string("null"),
            ValueKind::Bool => self.string(if key.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.string(&number(key)),
            kind => {
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    format!("tojson: keys must be strings or numbers, not {kind}"),
                ));
            }
        }
        self.out.push_str(self.key);
        self.value(value, depth + 1)
    }

    fn string(&mut self, s: &str) {
        self.out.push('"');
        for c in s.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if (c as u32) < 0x20 || (self.style.ensure_ascii && !c.is_ascii()) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(self.out, "\\u{unit:04x}");
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

fn number(value: &Value) -> String {
    match float_in(value) {
        Some(x) if x.is_nan() => "NaN".into(),
        Some(x) if x.is_infinite() => if x > 0.0 { "Infinity" } else { "-Infinity" }.into(),
        Some(x) => float(x),
        None => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_print_as_in_python() {
        for (x, text) in [
            (1e-7, "1e-07"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (123456789012345680.0, "1.2345678901234568e+17"),
            (1e15, "1000000000000000.0"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (5.0, "5.0"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(float(x), text);
        }
    }

    #[test]
    fn lists_and_strings_print_as_repr() {
        let value =
            Value::from_serialize_json(r#"{"a": ["it's", "say \"x\"", null, true, 1.0, 1e20], "b": {}}"#);
        assert_eq!(str(&value).unwrap(), r#"{'a': ["it's", 'say "x"', None, True, 1.0, 1e+20], 'b': {}}"#);
    }

    trait FromJson {
        fn from_serialize_json(text: &str) -> Value;
    }

    impl FromJson for Value {
        fn from_serialize_json(text: &str) -> Value {
            let json: serde_json::Value = serde_json::from_str(text).unwrap();
            Value::from(minijinja::value::Serde(json))
        }
    }
}

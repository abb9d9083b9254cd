//! Filters, tests and functions of Jinja2 where the engine's own differ, and without those that Jinja2 lacks.

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};

use super::python::{self, JsonStyle};
use super::values;

/// Filter that stands behind the iterable of every loop.
pub const ITERATE: &str = "__iterate";

/// Makes `env` know exactly what Jinja2's own environment knows, as far as it is supported.
pub fn install(env: &mut Environment<'_>) {
    // A template that uses these works here and fails on the server; the last two answer otherwise.
    for name in ["split", "lines", "bool", "chain", "zip", "pprint", "attr"] {
        env.remove_filter(name);
    }
    for name in ["startingwith", "endingwith", "int", "safe"] {
        env.remove_test(name);
    }
    env.remove_global("debug");
    env.add_filter("tojson", tojson);
    env.add_filter("string", |value: &Value| python::str(value));
    env.add_filter("join", join);
    for name in ["default", "d"] {
        env.add_filter(name, default);
    }
    for name in ["escape", "e", "forceescape"] {
        env.add_filter(name, escape);
    }
    env.add_filter("indent", indent);
    env.add_filter("center", center);
    env.add_filter("wordcount", |s: &str| words(s));
    env.add_filter(ITERATE, iterate);
    env.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Undefined)
    });
    env.add_test("iterable", |value: &Value| {
        !matches!(value.kind(), ValueKind::None | ValueKind::Number | ValueKind::Bool)
    });
    env.add_function("joiner", minijinja_contrib::globals::joiner);
}

/// The engine runs a loop over `None` zero times; Python raises.
fn iterate(value: Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::None | ValueKind::Bool | ValueKind::Number => Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("a loop over {}, which is not iterable", python::str(&value)?),
        )),
        _ => Ok(value),
    }
}

fn default(value: Value, other: Option<Value>, boolean: Option<bool>, args: Kwargs) -> Result<Value, Error> {
    let other = other.or(args.get::<Option<Value>>("default_value")?).unwrap_or_else(|| Value::from(""));
    let boolean = boolean.or(args.get::<Option<bool>>("boolean")?).unwrap_or(false);
    args.assert_all_used()?;
    Ok(if value.is_undefined() || (boolean && !value.is_true()) { other } else { value })
}

fn escape(value: &Value) -> Result<Value, Error> {
    if value.is_safe() {
        return Ok(value.clone());
    }
    let mut out = String::new();
    for c in python::str(value)?.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    Ok(Value::from_safe_string(out))
}

/// Jinja2 splits at every line end that Python knows and joins with `\n`.
fn indent(
    state: &State<'_, '_>,
    text: &str,
    width: Option<Value>,
    first: Option<bool>,
    args: Kwargs,
) -> Result<String, Error> {
    let width = width.or(args.get::<Option<Value>>("width")?);
    let first = first.or(args.get::<Option<bool>>("first")?).unwrap_or(false);
    let blank = args.get::<Option<bool>>("blank")?.unwrap_or(false);
    args.assert_all_used()?;
    let indent = match width {
        None => " ".repeat(4),
        Some(width) if width.as_str().is_some() => width.to_string(),
        Some(width) => " ".repeat(width.as_i64().map_or(0, |n| n.clamp(0, 1 << 10) as usize)),
    };
    let text = format!("{text}\n");
    let lines = values::lines(&text);
    state.consume_fuel((text.len() + lines.len() * indent.len()) as u64 / 64)?;
    let mut out = String::with_capacity(text.len());
    for (at, line) in lines.iter().enumerate() {
        out.push_str(if at > 0 { "\n" } else { "" });
        let shift = if at == 0 { first } else { blank || !line.is_empty() };
        out.push_str(if shift { &indent } else { "" });
        out.push_str(line);
    }
    Ok(out)
}

/// Python's `str.center`: the odd space goes right in a string of even length, left otherwise.
fn center(s: &str, width: Option<usize>) -> String {
    let width = width.unwrap_or(80).min(1 << 16);
    let gap = width.saturating_sub(s.chars().count());
    let left = gap / 2 + (gap & width & 1);
    format!("{}{s}{}", " ".repeat(left), " ".repeat(gap - left))
}

fn words(s: &str) -> usize {
    s.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|w| !w.is_empty()).count()
}

fn tojson(state: &State<'_, '_>, value: &Value, args: Kwargs) -> Result<String, Error> {
    let style = json_style(&args)?;
    args.assert_all_used()?;
    let text = python::to_json(value, &style)?;
    state.consume_fuel(text.len() as u64 / 64)?;
    Ok(text)
}

fn json_style(args: &Kwargs) -> Result<JsonStyle, Error> {
    let truth = |name| args.get::<Option<Value>>(name).map(|v| v.is_some_and(|v| v.is_true()));
    let indent = match args.get::<Option<Value>>("indent")? {
        Some(v) if v.as_str().is_some() => v.as_str().map(str::to_string),
        Some(v) if v.is_integer() => {
            Some(" ".repeat(v.as_i64().and_then(|n| usize::try_from(n).ok()).unwrap_or(0).min(64)))
        }
        _ => None,
    };
    let separators = match args.get::<Option<Value>>("separators")? {
        Some(v) if !v.is_none() => {
            let pair: Vec<String> = v.try_iter()?.map(|s| s.to_string()).collect();
            match <[String; 2]>::try_from(pair) {
                Ok([item, key]) => Some((item, key)),
                Err(_) => {
                    return Err(Error::new(
                        ErrorKind::InvalidOperation,
                        "tojson: separators must be two texts",
                    ));
                }
            }
        }
        _ => None,
    };
    Ok(JsonStyle { ensure_ascii: truth("ensure_ascii")?, indent, separators, sort_keys: truth("sort_keys")? })
}

fn join(
    state: &mut State<'_, '_>,
    value: Value,
    joiner: Option<String>,
    attribute: Option<Value>,
    args: Kwargs,
) -> Result<String, Error> {
    let joiner = match joiner {
        Some(joiner) => joiner,
        None => args.get::<Option<String>>("d")?.unwrap_or_default(),
    };
    let attribute = attribute.or(args.get::<Option<Value>>("attribute")?);
    args.assert_all_used()?;
    let value = match attribute {
        Some(attribute) => {
            let by = Kwargs::from_iter([("attribute", attribute)]);
            state.apply_filter("map", &[value, by.into()])?
        }
        None => value,
    };
    let mut out = String::new();
    for (at, item) in value.try_iter()?.enumerate() {
        if at > 0 {
            out.push_str(&joiner);
        }
        out.push_str(&python::str(&item)?);
        state.consume_fuel(1 + joiner.len() as u64 / 64)?;
    }
    Ok(out)
}

//! Values of Python literals.

use std::collections::{HashMap, HashSet};

use super::syntax::{self, Expr};
use super::{Dict, Json, number};

/// What `ast.literal_eval` finds.
#[derive(Debug, Clone, PartialEq)]
pub enum Literal {
    /// A value that JSON has.
    Json(Json),
    /// A value that `json.dumps` refuses.
    Unwritable,
}

/// `ast.literal_eval(text)`; `None` where it raises.
pub fn eval(text: &str) -> Option<Literal> {
    literal(&syntax::expression(text.trim_start_matches([' ', '\t']))?)
}

/// The value of an argument of a tool call, as the pythonic parsers of the server read it.
pub fn argument(expr: &Expr) -> Option<Json> {
    match expr {
        Expr::Constant(value) => Some(value.clone()),
        Expr::Format(text) => Some(Json::Str(text.clone())),
        Expr::Name(name) => match name.as_str() {
            "null" => Some(Json::Null),
            "true" => Some(Json::Bool(true)),
            "false" => Some(Json::Bool(false)),
            _ => None,
        },
        Expr::List(items) | Expr::Tuple(items) | Expr::Set(items) => {
            items.iter().map(argument).collect::<Option<_>>().map(Json::List)
        }
        Expr::Dict(entries) => {
            let mut numbers = HashMap::new();
            let mut dict = Dict::default();
            for (key, value) in entries {
                let text = key_text(key)?;
                // Numbers that are equal are one key, under the name that came first.
                let text = match number_of(key) {
                    Some(number) => numbers.entry(number).or_insert(text).clone(),
                    None => text,
                };
                dict.insert(text, argument(value)?);
            }
            Some(Json::Dict(dict))
        }
        Expr::Signed(minus, operand) => signed(*minus, argument(operand)?),
        Expr::Call(_) | Expr::Unwritable | Expr::Other => None,
    }
}

/// A literal key as `json.dumps` writes it.
fn key_text(key: &Expr) -> Option<String> {
    match key {
        Expr::Constant(Json::Str(text)) => Some(text.clone()),
        Expr::Constant(other) => Some(other.dump()),
        _ => None,
    }
}

/// The integer that a key equals: for Python `1`, `1.0` and `True` are the same.
fn number_of(key: &Expr) -> Option<String> {
    match key {
        Expr::Constant(Json::Bool(value)) => Some(u8::from(*value).to_string()),
        Expr::Constant(Json::Int(digits)) => Some(digits.clone()),
        Expr::Constant(Json::Float(value)) => number::whole(*value),
        _ => None,
    }
}

fn signed(minus: bool, operand: Json) -> Option<Json> {
    match operand {
        value @ (Json::Int(_) | Json::Float(_)) if !minus => Some(value),
        Json::Float(value) => Some(Json::Float(-value)),
        Json::Int(digits) if digits == "0" => Some(Json::Int(digits)),
        Json::Int(digits) => {
            Some(Json::Int(digits.strip_prefix('-').map_or_else(|| format!("-{digits}"), ToOwned::to_owned)))
        }
        _ => None,
    }
}

fn literal(expr: &Expr) -> Option<Literal> {
    let list = |items: &[Expr]| {
        let items = items.iter().map(literal).collect::<Option<Vec<_>>>()?;
        let values = items.into_iter().map(Literal::json).collect::<Option<Vec<_>>>();
        Some(values.map_or(Literal::Unwritable, |values| Literal::Json(Json::List(values))))
    };
    match expr {
        Expr::Constant(value) => Some(Literal::Json(value.clone())),
        Expr::List(items) | Expr::Tuple(items) => list(items),
        Expr::Set(items) => list(items).map(|_| Literal::Unwritable),
        Expr::Dict(entries) => {
            let mut dict = Some(Dict::default());
            for (key, value) in entries {
                literal(key)?;
                let pair = key_text(key).zip(literal(value)?.json());
                dict = dict.zip(pair).map(|(mut dict, (key, value))| {
                    dict.insert(key, value);
                    dict
                });
            }
            Some(dict.map_or(Literal::Unwritable, |dict| Literal::Json(Json::Dict(dict))))
        }
        Expr::Signed(minus, operand) if matches!(**operand, Expr::Constant(_)) => {
            signed(*minus, literal(operand)?.json()?).map(Literal::Json)
        }
        Expr::Call(call) if call.name.as_deref() == Some("set") && call.keywords.is_empty() => {
            Some(Literal::Unwritable)
        }
        Expr::Unwritable => Some(Literal::Unwritable),
        _ => None,
    }
}

/// The values as an object, unless one is left that JSON does not have; a later value takes the place of an earlier one.
pub fn writable(values: impl Iterator<Item = (String, Literal)>) -> Option<Dict> {
    let mut dict = Dict::default();
    let mut unwritable = HashSet::new();
    for (key, value) in values {
        match value {
            Literal::Json(value) => {
                unwritable.remove(&key);
                dict.insert(key, value);
            }
            Literal::Unwritable => {
                dict.insert(key.clone(), Json::Null);
                unwritable.insert(key);
            }
        }
    }
    unwritable.is_empty().then_some(dict)
}

impl Literal {
    fn json(self) -> Option<Json> {
        match self {
            Literal::Json(value) => Some(value),
            Literal::Unwritable => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evaluated(text: &str) -> Option<String> {
        match eval(text)? {
            Literal::Json(value) => Some(value.dump()),
            Literal::Unwritable => Some("unwritable".into()),
        }
    }

    #[test]
    fn literals_are_evaluated() {
        for (text, wanted) in [
            ("  ('a', None)", "[\"a\", null]"),
            ("1, 2", "[1, 2]"),
            ("{'a': -1, 2: [True]}", "{\"a\": -1, \"2\": [true]}"),
            ("0x1f # comment", "31"),
            ("{1, 2}", "unwritable"),
            ("b'x'", "unwritable"),
            ("[1j]", "unwritable"),
            ("set()", "unwritable"),
        ] {
            assert_eq!(evaluated(text).as_deref(), Some(wanted), "{text}");
        }
    }

    #[test]
    fn anything_else_is_no_literal() {
        for text in [
            "",
            "x",
            "f()",
            "1 + 1",
            "[x]",
            "f'a'",
            "-'a'",
            "--1",
            "1\n2",
            "'a",
            "{**a}",
            "null",
            "a b",
            "1 if 1 else 2",
        ] {
            assert_eq!(evaluated(text), None, "{text}");
        }
    }

    #[test]
    fn a_later_value_takes_the_place_of_one_json_does_not_have() {
        let pair = |key: &str, value| (key.to_owned(), value);
        let one = || Literal::Json(Json::Int("1".into()));
        assert!(writable([pair("a", Literal::Unwritable), pair("a", one())].into_iter()).is_some());
        assert!(writable([pair("a", one()), pair("a", Literal::Unwritable)].into_iter()).is_none());
    }

    #[test]
    fn nesting_is_bounded() {
        assert!(eval(&("[".repeat(150) + &"]".repeat(150))).is_some());
        for piece in ["[", "(", "-", "not ", "{1:", "f(", "1 if 2 else ", "x."] {
            assert_eq!(eval(&piece.repeat(100_000)), None, "{piece}");
        }
    }
}

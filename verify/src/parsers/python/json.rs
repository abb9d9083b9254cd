//! JSON as Python's `json` module reads and writes it.
//!
//! Kept apart from `serde_json`: integers stay exact at any length, `NaN` and `Infinity` are read, a repeated key
//! keeps its last value, and output has `, ` and `: ` between the parts.

use super::{Dict, number};

/// Nesting at which Python gives up.
const MAX_DEPTH: usize = 990;

/// A JSON value with Python's distinction between `int` and `float`.
#[derive(Debug, Clone, PartialEq)]
pub enum Json {
    /// `None`.
    Null,
    /// `bool`.
    Bool(bool),
    /// `int`, as canonical digits.
    Int(String),
    /// `float`, infinities and NaN included.
    Float(f64),
    /// `str`; a lone surrogate has become U+FFFD.
    Str(String),
    /// `list`.
    List(Vec<Json>),
    /// `dict`.
    Dict(Dict),
}

/// What counts as JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// As by default in Python: `NaN` and the infinities are numbers.
    Python,
    /// Control characters in strings are taken as they are, too.
    Lenient,
    /// The standard, which knows only finite numbers.
    Standard,
}

impl Json {
    /// The text of a string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Json::Str(text) => Some(text),
            _ => None,
        }
    }

    /// The entries of an object.
    pub fn as_dict(&self) -> Option<&Dict> {
        match self {
            Json::Dict(dict) => Some(dict),
            _ => None,
        }
    }

    /// Whether no number in it is infinite or NaN.
    pub fn is_finite(&self) -> bool {
        match self {
            Json::Float(value) => value.is_finite(),
            Json::List(items) => items.iter().all(Json::is_finite),
            Json::Dict(dict) => dict.iter().all(|(_, value)| value.is_finite()),
            _ => true,
        }
    }

    /// `json.dumps(value, ensure_ascii=False)`.
    pub fn dump(&self) -> String {
        let mut out = String::new();
        write(self, Escape::Control, &mut out);
        out
    }

    /// `json.dumps(value)`: everything outside ASCII is escaped.
    pub fn dump_ascii(&self) -> String {
        let mut out = String::new();
        write(self, Escape::NonAscii, &mut out);
        out
    }
}

/// `json.loads(text)`.
pub fn loads(text: &str) -> Option<Json> {
    let (value, end) = value_at(text, blanks(text, 0), Dialect::Python)?;
    (blanks(text, end) == text.len()).then_some(value)
}

/// The value of a text that is JSON for everyone.
pub fn standard(text: &str) -> Option<Json> {
    let (value, end) = value_at(text, blanks(text, 0), Dialect::Standard)?;
    Some(value).filter(|value| blanks(text, end) == text.len() && value.is_finite())
}

/// `JSONDecoder().raw_decode(text, at)`: the value that starts exactly at byte `at`, and where it ends.
pub fn raw_decode(text: &str, at: usize) -> Option<(Json, usize)> {
    value_at(text, at, Dialect::Python)
}

/// As [`raw_decode`] in any dialect.
pub fn value_at(text: &str, at: usize, dialect: Dialect) -> Option<(Json, usize)> {
    let mut reader = Reader { text, at, dialect };
    let value = reader.value(0)?;
    Some((value, reader.at))
}

/// First byte at or after `at` that is no JSON white space.
pub fn blanks(text: &str, at: usize) -> usize {
    let rest = text.as_bytes().get(at..).unwrap_or_default();
    at + rest.iter().position(|b| !matches!(b, b' ' | b'\t' | b'\n' | b'\r')).unwrap_or(rest.len())
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    dialect: Dialect,
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_blanks(&mut self) {
        self.at = blanks(self.text, self.at);
    }

    fn take(&mut self, word: &str) -> bool {
        let found = self.text.as_bytes()[self.at..].starts_with(word.as_bytes());
        if found {
            self.at += word.len();
        }
        found
    }

    fn value(&mut self, depth: usize) -> Option<Json> {
        if depth > MAX_DEPTH {
            return None;
        }
        match self.peek()? {
            b'"' => self.string().map(Json::Str),
            b'{' => self.object(depth),
            b'[' => self.array(depth),
            b'n' => self.take("null").then_some(Json::Null),
            b't' => self.take("true").then_some(Json::Bool(true)),
            b'f' => self.take("false").then_some(Json::Bool(false)),
            b'N' | b'I' if self.dialect == Dialect::Standard => None,
            b'N' => self.take("NaN").then_some(Json::Float(f64::NAN)),
            b'I' => self.take("Infinity").then_some(Json::Float(f64::INFINITY)),
            b'-' if self.dialect != Dialect::Standard && self.take("-Infinity") => {
                Some(Json::Float(f64::NEG_INFINITY))
            }
            b'-' | b'0'..=b'9' => self.number(),
            _ => None,
        }
    }

    fn object(&mut self, depth: usize) -> Option<Json> {
        let mut dict = Dict::default();
        self.at += 1;
        self.skip_blanks();
        if self.take("}") {
            return Some(Json::Dict(dict));
        }
        loop {
            if self.peek()? != b'"' {
                return None;
            }
            let key = self.string()?;
            self.skip_blanks();
            if !self.take(":") {
                return None;
            }
            self.skip_blanks();
            let value = self.value(depth + 1)?;
            dict.insert(key, value);
            self.skip_blanks();
            if self.take("}") {
                return Some(Json::Dict(dict));
            }
            if !self.take(",") {
                return None;
            }
            self.skip_blanks();
        }
    }

    fn array(&mut self, depth: usize) -> Option<Json> {
        let mut items = Vec::new();
        self.at += 1;
        self.skip_blanks();
        if self.take("]") {
            return Some(Json::List(items));
        }
        loop {
            items.push(self.value(depth + 1)?);
            self.skip_blanks();
            if self.take("]") {
                return Some(Json::List(items));
            }
            if !self.take(",") {
                return None;
            }
            self.skip_blanks();
        }
    }

    fn digits(&mut self) -> usize {
        let start = self.at;
        while self.peek().is_some_and(|b| b.is_ascii_digit()) {
            self.at += 1;
        }
        self.at - start
    }

    fn number(&mut self) -> Option<Json> {
        let start = self.at;
        let negative = self.take("-");
        let first = self.at;
        if !self.take("0") && self.digits() == 0 {
            return None;
        }
        let whole_end = self.at;
        // A point or an exponent without digits after it is no part of the number.
        if self.take(".") && self.digits() == 0 {
            self.at = whole_end;
        }
        let point_end = self.at;
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            let _ = self.take("+") || self.take("-");
            if self.digits() == 0 {
                self.at = point_end;
            }
        }
        if self.at > whole_end {
            return self.text[start..self.at].parse().ok().map(Json::Float);
        }
        let digits = &self.text[first..whole_end];
        number::fits(digits).then(|| Json::Int(number::canonical(negative, digits)))
    }

    fn string(&mut self) -> Option<String> {
        self.at += 1;
        let mut out = String::new();
        loop {
            let rest = &self.text.as_bytes()[self.at..];
            let plain = rest.iter().position(|&b| b == b'"' || b == b'\\' || b < 0x20)?;
            out.push_str(&self.text[self.at..self.at + plain]);
            self.at += plain;
            match rest[plain] {
                b'"' => {
                    self.at += 1;
                    return Some(out);
                }
                b'\\' => out.push(self.escape()?),
                _ if self.dialect != Dialect::Lenient => return None,
                control => {
                    out.push(char::from(control));
                    self.at += 1;
                }
            }
        }
    }

    fn escape(&mut self) -> Option<char> {
        self.at += 1;
        let kind = self.peek()?;
        self.at += 1;
        Some(match kind {
            b'"' => '"',
            b'\\' => '\\',
            b'/' => '/',
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => self.unicode_escape()?,
            _ => return None,
        })
    }

    fn unicode_escape(&mut self) -> Option<char> {
        let first = self.hex4()?;
        if !(0xd800..0xdc00).contains(&first) {
            return Some(char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER));
        }
        let before = self.at;
        if self.take("\\u") {
            // A broken second escape is a fault of its own, found when it is read again.
            if let Some(second) = self.hex4().filter(|second| (0xdc00..0xe000).contains(second)) {
                return char::from_u32(0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00));
            }
            self.at = before;
        }
        Some(char::REPLACEMENT_CHARACTER)
    }

    fn hex4(&mut self) -> Option<u32> {
        let digits = self.text.as_bytes().get(self.at..self.at + 4)?;
        self.at += 4;
        digits.iter().try_fold(0, |sum, &b| char::from(b).to_digit(16).map(|digit| sum * 16 + digit))
    }
}

/// What is written as an escape besides `"` and `\`.
#[derive(Clone, Copy, PartialEq)]
enum Escape {
    Control,
    NonAscii,
}

fn write(value: &Json, escape: Escape, out: &mut String) {
    match value {
        Json::Null => out.push_str("null"),
        Json::Bool(true) => out.push_str("true"),
        Json::Bool(false) => out.push_str("false"),
        Json::Int(digits) => out.push_str(digits),
        Json::Float(value) => out.push_str(&number::repr(*value)),
        Json::Str(text) => write_string(text, escape, out),
        Json::List(items) => {
            out.push('[');
            for (at, item) in items.iter().enumerate() {
                out.push_str(if at == 0 { "" } else { ", " });
                write(item, escape, out);
            }
            out.push(']');
        }
        Json::Dict(dict) => {
            out.push('{');
            for (at, (key, value)) in dict.iter().enumerate() {
                out.push_str(if at == 0 { "" } else { ", " });
                write_string(key, escape, out);
                out.push_str(": ");
                write(value, escape, out);
            }
            out.push('}');
        }
    }
}

fn write_string(text: &str, escape: Escape, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' || (escape == Escape::NonAscii && !(' '..='~').contains(&c)) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn again(text: &str) -> Option<String> {
        loads(text).map(|value| value.dump())
    }

    #[test]
    fn separators_and_non_ascii_are_pythons() {
        assert_eq!(again(" {\"ä\":[1,2],\"b\":{}}\n").as_deref(), Some("{\"ä\": [1, 2], \"b\": {}}"));
        assert_eq!(loads("\"ä\u{1f600}\u{7f}\"").unwrap().dump_ascii(), "\"\\u00e4\\ud83d\\ude00\\u007f\"");
    }

    #[test]
    fn numbers_keep_kind_and_digits() {
        for (text, written) in [
            ("12345678901234567890123", "12345678901234567890123"),
            ("-0", "0"),
            ("-0.0", "-0.0"),
            ("5.0", "5.0"),
            ("1e3", "1000.0"),
            ("1e400", "Infinity"),
            ("[NaN,-Infinity]", "[NaN, -Infinity]"),
        ] {
            assert_eq!(again(text).as_deref(), Some(written));
        }
    }

    #[test]
    fn last_of_equal_keys_wins_in_first_place() {
        assert_eq!(again(r#"{"a":1,"b":2,"a":3}"#).as_deref(), Some(r#"{"a": 3, "b": 2}"#));
    }

    #[test]
    fn broken_json_is_refused() {
        for text in [
            "",
            "{",
            "[1,]",
            "{\"a\":1,}",
            "01",
            "1.",
            ".5",
            "+1",
            "'a'",
            "{a:1}",
            "\"a\nb\"",
            "\"\\x\"",
            "nul",
            "1 2",
            "\"\\u12g4\"",
            "\u{feff}1",
            "-",
            "\u{a0}1",
            "{\"a\" 1}",
            "[1 2]",
            "\"\\ud800\\u12\"",
        ] {
            assert_eq!(loads(text), None, "{text:?}");
        }
    }

    #[test]
    fn control_characters_need_the_lenient_reading() {
        assert_eq!(value_at("\"a\nb\"", 0, Dialect::Lenient), Some((Json::Str("a\nb".into()), 5)));
    }

    #[test]
    fn the_standard_knows_only_finite_numbers() {
        for text in ["NaN", "[-Infinity]", "1e999", "{\"a\": NaN, \"a\": 1}"] {
            assert!(standard(text).is_none() && loads(text).is_some(), "{text}");
        }
        assert_eq!(standard(" -1 "), Some(Json::Int("-1".into())));
    }

    #[test]
    fn escapes_are_read_and_written() {
        assert_eq!(again(r#""\ud83d\ude00\/\u0001\n""#).as_deref(), Some("\"😀/\\u0001\\n\""));
        assert_eq!(loads(r#""\ud83dx""#), Some(Json::Str("\u{fffd}x".into())));
    }

    #[test]
    fn trailing_data_ends_a_raw_value() {
        assert_eq!(raw_decode("x{\"a\":1} y", 1).map(|(_, end)| end), Some(8));
        assert_eq!(raw_decode("1.x", 0), Some((Json::Int("1".into()), 1)));
        assert_eq!(raw_decode(" 1", 0), None);
    }

    #[test]
    fn depth_is_bounded() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(loads(&nested(900)).is_some());
        assert_eq!(loads(&nested(100_000)), None);
        assert_eq!(loads(&"{\"a\":".repeat(100_000)), None);
    }
}

//! JSON that ends too early, completed: open strings, lists and objects are closed, half a key is dropped.
//!
//! Source: the library `partial-json-parser`, all kinds of partial values allowed.

use super::{Json, json, space};

const MAX_DEPTH: usize = 900;

/// The value of a text that may be cut; `None` where it is broken in another way.
pub fn loads(text: &str) -> Option<Json> {
    let text = space::strip(text);
    let part = any(text, 0, Level { depth: 0 })?;
    let (end, tail) = match part {
        Part::Whole(end) => (end, String::new()),
        Part::Cut(end, tail) => (end, tail),
        Part::Nothing => return None,
    };
    json::loads(&format!("{}{tail}", &text[..end]))
}

/// How much of a value is there.
enum Part {
    /// All of it, up to this byte.
    Whole(usize),
    /// Up to this byte, and what has to follow.
    Cut(usize, String),
    /// Too little to tell.
    Nothing,
}

#[derive(Clone, Copy)]
struct Level {
    depth: usize,
}

fn skip(text: &str, at: usize) -> usize {
    text.len() - text[at..].trim_start_matches(space::is_space).len()
}

fn any(text: &str, at: usize, level: Level) -> Option<Part> {
    let at = skip(text, at);
    let rest = &text[at..];
    if level.depth > MAX_DEPTH {
        return None;
    }
    match rest.bytes().next() {
        None => Some(Part::Nothing),
        Some(b'"') => Some(string(text, at)),
        Some(b'0'..=b'9') => number(text, at, level),
        Some(b'[') => list(text, at, level),
        Some(b'{') => object(text, at, level),
        Some(b'-') if rest.len() == 1 => Some(Part::Nothing),
        Some(b'-') if !rest.starts_with("-I") => number(text, at, level),
        Some(_) => ["null", "true", "false", "Infinity", "-Infinity", "NaN"].iter().find_map(|word| {
            if rest.starts_with(word) {
                return Some(Part::Whole(at + word.len()));
            }
            word.starts_with(rest).then(|| Part::Cut(at, (*word).to_owned()))
        }),
    }
}

fn string(text: &str, start: usize) -> Part {
    let bytes = text.as_bytes();
    let mut at = start + 1;
    let mut escape = None;
    while at < bytes.len() {
        match bytes[at] {
            b'"' => return Part::Whole(at + 1),
            b'\\' => {
                escape = Some(at);
                if at + 1 == bytes.len() {
                    break;
                }
                at += 1 + text[at + 1..].chars().next().map_or(1, char::len_utf8);
            }
            _ => at += 1,
        }
    }
    // Half an escape is dropped.
    let end = escape.filter(|at| bytes.get(at + 1) == Some(&b'u') && text[*at..].chars().count() < 6);
    let end = end.or(escape.filter(|at| at + 1 == bytes.len()));
    Part::Cut(end.unwrap_or(bytes.len()), "\"".into())
}

fn number(text: &str, start: usize, level: Level) -> Option<Part> {
    let rest = &text[start..];
    let part = |c: char| c.is_ascii_digit() || matches!(c, '.' | '-' | '+' | 'e' | 'E');
    let length = 1 + rest[1..].find(|c| !part(c)).unwrap_or(rest.len() - 1);
    let sound = rest[..length].trim_end_matches(['.', '-', '+', 'e', 'E']).len();
    let at_end = length == rest.len();
    if at_end && (sound < length || level.depth > 0) {
        return Some(Part::Cut(start + sound, String::new()));
    }
    (sound == length).then_some(Part::Whole(start + length))
}

fn list(text: &str, start: usize, level: Level) -> Option<Part> {
    let inner = Level { depth: level.depth + 1 };
    // Where the last whole element ends.
    let mut whole = start + 1;
    let mut at = start + 1;
    loop {
        at = skip(text, at);
        if text[at..].starts_with(']') {
            return Some(Part::Whole(at + 1));
        }
        match any(text, at, inner)? {
            Part::Nothing => return Some(Part::Cut(whole, "]".into())),
            Part::Cut(end, tail) => return Some(Part::Cut(end, tail + "]")),
            Part::Whole(end) => (whole, at) = (end, skip(text, end)),
        }
        match text.as_bytes().get(at) {
            Some(b',') => at += 1,
            Some(b']') => return Some(Part::Whole(at + 1)),
            Some(_) => return None,
            None => return Some(Part::Cut(whole, "]".into())),
        }
    }
}

fn object(text: &str, start: usize, level: Level) -> Option<Part> {
    let inner = Level { depth: level.depth + 1 };
    let mut whole = start + 1;
    let mut at = start + 1;
    let cut = |whole| Some(Part::Cut(whole, "}".into()));
    loop {
        at = skip(text, at);
        match text.as_bytes().get(at) {
            Some(b'}') => return Some(Part::Whole(at + 1)),
            Some(b'"') => {}
            Some(_) => return None,
            None => return cut(whole),
        }
        let Part::Whole(end) = string(text, at) else { return cut(whole) };
        at = skip(text, end);
        match text.as_bytes().get(at) {
            Some(b':') => {}
            Some(_) => return None,
            None => return cut(whole),
        }
        match any(text, at + 1, inner)? {
            Part::Nothing => return cut(whole),
            Part::Cut(end, tail) => return Some(Part::Cut(end, tail + "}")),
            Part::Whole(end) => (whole, at) = (end, skip(text, end)),
        }
        match text.as_bytes().get(at) {
            Some(b',') => at += 1,
            Some(b'}') => return Some(Part::Whole(at + 1)),
            Some(_) => return None,
            None => return cut(whole),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cut_values_are_completed() {
        for (text, wanted) in [
            ("[1, 2", "[1, 2]"),
            ("[1, 2.", "[1, 2]"),
            ("{\"a\": \"b", "{\"a\": \"b\"}"),
            ("{\"a\": 1, \"b", "{\"a\": 1}"),
            ("{\"a\": tr", "{\"a\": true}"),
            ("[\"a\\u12", "[\"a\"]"),
            ("[\"a\\", "[\"a\"]"),
            ("[{\"a\": [", "[{\"a\": []}]"),
            ("[1,", "[1]"),
        ] {
            assert_eq!(loads(text).map(|value| value.dump()).as_deref(), Some(wanted), "{text}");
        }
        for text in ["", "x", "[1., 2", "[1 2", "{a", "[}"] {
            assert_eq!(loads(text), None, "{text}");
        }
        assert_eq!(loads(&"[".repeat(100_000)), None);
    }
}

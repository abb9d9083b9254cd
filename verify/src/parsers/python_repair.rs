//! Repairs of call lists that are not quite Python, tried one after the other.
//!
//! Source: vLLM 0.33, `lfm2`: line breaks in strings, numbers with leading zeros, unescaped quotes within strings, and
//! parameters named after keywords.

use super::python::space;
use super::python::syntax::{self, Expr};

/// Ends the name of a parameter that is a keyword, until it has been read.
const MARK: &str = "_pyreservedkw_";
/// Characters that are read to find the closing quote of one string; each quote that is tried means all of the source.
const MAX_TRIES: usize = 2_000_000;

/// The elements of the list after the first repair that helps.
pub fn list_statement(source: &str) -> Option<Vec<Expr>> {
    let escaped = escape_control(&without_leading_zeros(source));
    let mut candidates = vec![escaped.clone()];
    candidates.extend(requoted(&escaped).map(|text| escape_control(&text)));
    let last = candidates.last().map_or("", String::as_str);
    let renamed = rename_keywords(last);
    if renamed != last {
        candidates.push(renamed);
    }
    candidates.iter().find_map(|candidate| syntax::list_statement(candidate))
}

/// The name a parameter had before it was renamed.
pub fn restored(name: &str) -> &str {
    name.strip_suffix(MARK).filter(|word| syntax::is_keyword(word)).unwrap_or(name)
}

/// A character of source with what it belongs to.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Code,
    /// Inside a string, its quotes included.
    Text,
}

/// Walks over source that is too broken for a tokenizer: a quote opens a string, the same quote ends it, a backslash
/// takes the next character along.
fn places(chars: &[char]) -> Vec<Place> {
    let mut places = Vec::with_capacity(chars.len());
    let mut quote = None;
    let mut at = 0;
    while at < chars.len() {
        let c = chars[at];
        let inside = quote.is_some() || matches!(c, '\'' | '"');
        places.push(if inside { Place::Text } else { Place::Code });
        match quote {
            None if inside => quote = Some(c),
            Some(_) if c == '\\' && at + 1 < chars.len() => {
                places.push(Place::Text);
                at += 1;
            }
            Some(open) if open == c => quote = None,
            _ => {}
        }
        at += 1;
    }
    places
}

fn escape_control(source: &str) -> String {
    let chars: Vec<char> = source.chars().collect();
    let places = places(&chars);
    let mut out = String::with_capacity(source.len());
    let mut escaped = false;
    for (c, place) in chars.iter().zip(places) {
        let plain = place == Place::Code || escaped;
        escaped = place == Place::Text && !escaped && *c == '\\';
        match c {
            '\n' if !plain => out.push_str("\\n"),
            '\r' if !plain => out.push_str("\\r"),
            '\t' if !plain => out.push_str("\\t"),
            '\0' if !plain => out.push_str("\\x00"),
            c => out.push(*c),
        }
    }
    out
}

/// `07` becomes `7`; what Python reads already stays: zeros alone, fractions, exponents and other bases.
fn without_leading_zeros(source: &str) -> String {
    let chars: Vec<char> = source.chars().collect();
    let places = places(&chars);
    let mut out = String::with_capacity(source.len());
    let mut at = 0;
    while at < chars.len() {
        let run = |part: fn(char) -> bool| chars[at..].iter().take_while(|c| part(**c)).count();
        let length = match chars[at] {
            _ if places[at] == Place::Text => 0,
            c if is_name_start(c) => run(is_name_part),
            c if c.is_ascii_digit() => run(|c| c.is_ascii_digit() || c == '_'),
            _ => 0,
        };
        let token: String = chars[at..at + length.max(1)].iter().collect();
        let digits: String = token.chars().filter(|c| *c != '_').collect();
        let follower = chars.get(at + token.chars().count());
        let whole =
            !matches!(follower, Some('.' | 'e' | 'E' | 'j' | 'J')) && (at == 0 || chars[at - 1] != '.');
        let number = length > 0 && chars[at].is_ascii_digit();
        let short = digits.trim_start_matches('0');
        if number && whole && digits.starts_with('0') && !short.is_empty() {
            out.push_str(short);
        } else {
            out.push_str(&token);
        }
        at += length.max(1);
    }
    out
}

/// Closes the first string whose own closing quote cannot be one, at the only later quote with which all of it reads.
fn requoted(source: &str) -> Option<String> {
    let chars: Vec<char> = source.chars().collect();
    let closes = closers(&chars);
    let mut at = 0;
    while at < chars.len() {
        let quote = chars[at];
        if !matches!(quote, '\'' | '"') {
            at += 1;
            continue;
        }
        let mut quotes = unescaped(&chars, at + 1, quote);
        let first = quotes.next()?;
        if closes[first] {
            at = first + 1;
            continue;
        }
        let candidates: Vec<usize> = quotes.filter(|at| closes[*at]).collect();
        if candidates.len().saturating_mul(chars.len()) > MAX_TRIES {
            return None;
        }
        let mut winners = candidates.into_iter().filter_map(|close| {
            let text = closed_at(&chars, at, close);
            syntax::is_valid(&escape_control(&text)).then_some(text)
        });
        return winners.next().filter(|_| winners.next().is_none());
    }
    None
}

/// Whether a quote at each place could close a string: a comma, a closing bracket or a colon comes next.
fn closers(chars: &[char]) -> Vec<bool> {
    let mut closes = vec![false; chars.len()];
    let mut follower = None;
    for (at, c) in chars.iter().enumerate().rev() {
        closes[at] = matches!(follower, Some(',' | ')' | ']' | '}' | ':'));
        if !space::is_space(*c) {
            follower = Some(*c);
        }
    }
    closes
}

fn unescaped(chars: &[char], from: usize, quote: char) -> impl Iterator<Item = usize> {
    let mut at = from;
    std::iter::from_fn(move || {
        while at < chars.len() {
            let here = at;
            at += if chars[here] == '\\' { 2 } else { 1 };
            if chars[here] == quote {
                return Some(here);
            }
        }
        None
    })
}

/// The source with the string that opens at `open` closed at `close`, quotes between escaped.
fn closed_at(chars: &[char], open: usize, close: usize) -> String {
    let mut out: String = chars[..=open].iter().collect();
    let mut backslashes = 0;
    for &c in &chars[open + 1..close] {
        if c == chars[open] && backslashes % 2 == 0 {
            out.push('\\');
        }
        backslashes = if c == '\\' { backslashes + 1 } else { 0 };
        out.push(c);
    }
    out.extend(&chars[close..]);
    out
}

/// `from=` becomes a name that Python takes, where a parameter stands.
fn rename_keywords(source: &str) -> String {
    let chars: Vec<char> = source.chars().collect();
    let places = places(&chars);
    let mut out = String::with_capacity(source.len());
    let mut before = ' ';
    let mut at = 0;
    while at < chars.len() {
        if places[at] == Place::Text || !is_name_start(chars[at]) {
            out.push(chars[at]);
            if places[at] == Place::Text || !space::is_space(chars[at]) {
                before = chars[at];
            }
            at += 1;
            continue;
        }
        let name: String = chars[at..].iter().take_while(|c| is_name_part(**c)).collect();
        at += name.chars().count();
        let mut rest = chars[at..].iter().skip_while(|c| space::is_space(**c));
        let assigned = rest.next() == Some(&'=') && rest.next() != Some(&'=');
        out.push_str(&name);
        if assigned && matches!(before, '(' | ',') && syntax::is_keyword(&name) {
            out.push_str(MARK);
        }
        before = name.chars().last().unwrap_or(before);
    }
    out
}

fn is_name_start(c: char) -> bool {
    c.is_alphabetic() || c == '_'
}

fn is_name_part(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

//! The tags of a template before it is compiled: two are rewritten, and what would be rendered otherwise
//! than by Jinja2 is refused with its name and line.

use super::filters::ITERATE;
use super::render::Failure;

/// Methods of Python's `dict`: Jinja2 finds them before a key of that name.
const DICT_METHODS: [&str; 10] =
    ["items", "keys", "values", "get", "copy", "pop", "update", "clear", "setdefault", "popitem"];

/// Operators in one tag, and `elif` in one template: the compiler needs a stack frame for each.
const MAX_CHAIN: usize = 1000;

/// Returns the text as minijinja shall compile it.
///
/// `{% generation %}` and its end only mark what a trainer masks, so they become `{% with %}`, which has the
/// same scope and the same white-space marks. Line ends become `\n`, as in Jinja2.
///
/// # Errors
/// [`Failure::Unsupported`] for tags that Jinja2 lacks or that would read other files.
pub fn prepare(text: &str) -> Result<String, Failure> {
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(text.len());
    let mut rest = text.as_str();
    let mut line = 1;
    let mut elifs = 0;
    while let Some(at) = rest.find('{') {
        let (before, tag) = rest.split_at(at);
        line += before.matches('\n').count();
        out.push_str(before);
        let end = match tag.as_bytes().get(1) {
            Some(b'#') => tag.find("#}").map_or(tag.len(), |e| e + 2),
            Some(b'{') => code_end(tag, "}}"),
            Some(b'%') => match raw_end(tag) {
                Some(end) => end,
                None => code_end(tag, "%}"),
            },
            _ => 1,
        };
        let (tag, after) = tag.split_at(end);
        let word = tag.strip_prefix("{%").map_or("", first_word);
        let line_of_word = line + tag.find(word).map_or(0, |at| tag[..at].matches('\n').count());
        let unsupported = |construct: &str| {
            Err(Failure::Unsupported { construct: construct.to_string(), line: Some(line_of_word) })
        };
        match word {
            "generation" => out.push_str(&tag.replacen("generation", "with", 1)),
            "endgeneration" => out.push_str(&tag.replacen("endgeneration", "endwith", 1)),
            "for" => out.push_str(&checked_loop(tag)),
            "do" => return unsupported("{% do %}, which chat templates of transformers do not have"),
            "autoescape" => return unsupported("{% autoescape %}, which has no use in a prompt"),
            "include" | "import" | "extends" | "from" => {
                return unsupported(&format!("{{% {word} %}}: a chat template cannot read other files"));
            }
            _ => out.push_str(tag),
        }
        let code = tag.starts_with("{{") || (tag.starts_with("{%") && word != "raw");
        elifs += usize::from(word == "elif");
        if code && (operators(tag) > MAX_CHAIN || elifs > MAX_CHAIN) {
            let what = format!("a chain of more than {MAX_CHAIN} operators or branches");
            return Err(Failure::Limit { what, line: Some(line_of_word) });
        }
        if let Some(name) = uncalled_method(tag).filter(|_| code) {
            return unsupported(&format!(
                "`.{name}` without a call, which is a method in Python and not the key `{name}`"
            ));
        }
        line += tag.matches('\n').count();
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}

fn first_word(inside: &str) -> &str {
    let inside = inside.trim_start_matches(['-', '+']).trim_start();
    let end = inside.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(inside.len());
    &inside[..end]
}

/// The end of `{% raw %} ... {% endraw %}`, where `tag` starts one.
fn raw_end(tag: &str) -> Option<usize> {
    if first_word(&tag[2..]) != "raw" {
        return None;
    }
    let mut from = 2;
    while let Some(at) = tag[from..].find("{%") {
        from += at + 2;
        if first_word(&tag[from..]) == "endraw" {
            return Some(tag[from..].find("%}").map_or(tag.len(), |e| from + e + 2));
        }
    }
    Some(tag.len())
}

/// The end of a tag; `close` inside string literals does not count.
fn code_end(tag: &str, close: &str) -> usize {
    let end = code_chars(tag).find(|(at, _)| *at >= 2 && tag[*at..].starts_with(close));
    end.map_or(tag.len(), |(at, _)| at + close.len())
}

/// `for x in EXPR` with the iterable checked as Python checks it.
fn checked_loop(tag: &str) -> String {
    let words = words_outside(tag);
    let Some(begin) = words.iter().find(|(_, w)| *w == "in").map(|(at, _)| at + 2) else {
        return tag.to_string();
    };
    let close = tag.len() - 2 - usize::from(tag.as_bytes()[tag.len() - 3] == b'-');
    let next = words.iter().find(|(at, w)| *at > begin && (*w == "if" || *w == "recursive"));
    let end = next.map_or(close, |(at, _)| *at);
    match begin < end && end <= close {
        true => format!("{} ({})|{ITERATE} {}", &tag[..begin], tag[begin..end].trim(), &tag[end..]),
        false => tag.to_string(),
    }
}

/// Words of a tag that stand outside of brackets and string literals, with their places.
fn words_outside(tag: &str) -> Vec<(usize, &str)> {
    let mut words = Vec::new();
    let mut depth = 0usize;
    let mut last = 0;
    for (at, c) in code_chars(tag).filter(|(at, _)| *at >= 2) {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            c if depth == 0 && at >= last && (c.is_alphabetic() || c == '_') => {
                let word = first_word(&tag[at..]);
                words.push((at, word));
                last = at + word.len();
            }
            _ => {}
        }
    }
    words
}

/// What can stand in a chain: operators, subscripts, calls, filters, and words that join expressions.
fn operators(tag: &str) -> usize {
    let mut count = 0;
    let mut last = 0;
    for (at, c) in code_chars(tag) {
        match c {
            '.' | '|' | '~' | '+' | '-' | '*' | '/' | '%' | '<' | '>' | '=' | '!' | '(' | '[' | '{' => {
                count += 1
            }
            c if at >= last && c.is_alphabetic() => {
                let word = first_word(&tag[at..]);
                last = at + word.len();
                count += usize::from(matches!(word, "and" | "or" | "not" | "if" | "is" | "in"));
            }
            _ => {}
        }
    }
    count
}

/// The characters of a tag outside of string literals.
fn code_chars(tag: &str) -> impl Iterator<Item = (usize, char)> {
    let mut open = None;
    let mut escaped = false;
    tag.char_indices().filter(move |(_, c)| {
        let outside = open.is_none();
        match open {
            Some(_) if escaped => escaped = false,
            Some(_) if *c == '\\' => escaped = true,
            Some(q) if *c == q => open = None,
            None if *c == '\'' || *c == '"' => open = Some(*c),
            _ => {}
        }
        outside && open.is_none()
    })
}

/// A dict method that is used as a value, outside of string literals.
fn uncalled_method(tag: &str) -> Option<&'static str> {
    code_chars(tag).filter(|(_, c)| *c == '.').find_map(|(at, _)| {
        let word = first_word(&tag[at + 1..]);
        let after = tag[at + 1..].trim_start().get(word.len()..)?.trim_start();
        DICT_METHODS.iter().find(|m| **m == word && !after.starts_with('(')).copied()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_keeps_its_white_space_marks() {
        assert_eq!(
            prepare("a{%- generation -%} b {%+ endgeneration %}").unwrap(),
            "a{%- with -%} b {%+ endwith %}"
        );
    }

    #[test]
    fn comments_strings_and_raw_are_left_alone() {
        for text in [
            "{# {% generation %} #}",
            "{{ '{% generation %}' }}",
            "{{ \"}}\" ~ '{% do x %}' }}",
            "{% raw %}{% generation %}{{ a.items }}{% endraw %}",
            "{ {a} {",
            "{{ 'a.items' }}",
            "{{ x.items() }}",
        ] {
            assert_eq!(prepare(text).unwrap(), text);
        }
    }

    #[test]
    fn loops_check_their_iterable() {
        for (text, iterable) in [
            ("{%- for a, b in x.items() if a -%}", "{%- for a, b in (x.items())|__iterate if a -%}"),
            ("{% for a in 'in if' %}", "{% for a in ('in if')|__iterate %}"),
            (
                "{% for a in (b if c else d) recursive %}",
                "{% for a in ((b if c else d))|__iterate recursive %}",
            ),
        ] {
            assert_eq!(prepare(text).unwrap(), iterable);
        }
    }

    #[test]
    fn unsupported_tags_are_named_with_their_line() {
        for (text, word) in [
            ("\n{%- include 'x' %}", "include"),
            ("\n{% do x.append(1) %}", "do"),
            ("\n{{ a.items }}", ".items"),
            ("\n{% import 'x' as y %}", "import"),
        ] {
            match prepare(text) {
                Err(Failure::Unsupported { construct, line: Some(2) }) => assert!(construct.contains(word)),
                other => panic!("{text}: {other:?}"),
            }
        }
    }
}

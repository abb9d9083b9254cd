//! Calls written as Python: `[f(a=1), g()]`.
//!
//! Source: vLLM 0.33, `pythonic`, `llama4_pythonic`, `olmo3` and `lfm2`.

use super::python::literal;
use super::python::syntax::{self, Expr};
use super::python::{Dict, Json, space};
use super::scan::between;
use super::{Context, Parsed, ToolCall, python_repair};

/// `pythonic`: the whole text is a list of calls.
pub fn pythonic(text: &str, _: &Context) -> Option<Parsed> {
    listed(text)
}

/// `llama4_pythonic`: the same, its tokens taken off if it starts with one.
pub fn llama4_pythonic(text: &str, _: &Context) -> Option<Parsed> {
    match text.strip_prefix("<|python_start|>") {
        Some(inside) => listed(&inside.replace("<|python_end|>", "")),
        None => listed(text),
    }
}

/// `olmo3`: a call on each line, between tags if there are any.
pub fn olmo3(text: &str, _: &Context) -> Option<Parsed> {
    let inside = between(text, "<function_calls>", "</function_calls>").next();
    let inside = inside.map_or(text, |piece| space::strip(piece.inside));
    let lines: Vec<_> =
        inside.split(is_line_break).map(space::strip).filter(|line| !line.is_empty()).collect();
    listed(&format!("[{}]", lines.join(", ")))
}

/// Where Python's `splitlines` splits.
fn is_line_break(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// `lfm2`: between its tokens, and repaired where it is not quite Python.
pub fn lfm2(text: &str, _: &Context) -> Option<Parsed> {
    const START: &str = "<|tool_call_start|>";
    const END: &str = "<|tool_call_end|>";
    let (before, rest) = text.split_once(START)?;
    let (source, after) = rest.split_once(END).unwrap_or((rest, ""));
    // Behind a second end the model speaks to the user again; before it, it repeats itself.
    let after = after.rsplit_once(END).map_or(after, |(_, after)| after);
    let source = space::strip(source);
    if !source.starts_with('[') || !source.ends_with(']') {
        return None;
    }
    let items = syntax::list_statement(source).or_else(|| python_repair::list_statement(source))?;
    let calls = calls(&items).filter(|calls| !calls.is_empty())?;
    let content: Vec<_> =
        [before, after].map(space::strip).into_iter().filter(|part| !part.is_empty()).collect();
    Some(Parsed::called(&content.join("\n"), calls))
}

fn listed(text: &str) -> Option<Parsed> {
    if !looks_like_calls(text) {
        return None;
    }
    Some(Parsed::called("", calls(&syntax::list_statement(text)?)?))
}

/// The calls of a list, all or none.
fn calls(items: &[Expr]) -> Option<Vec<ToolCall>> {
    items.iter().map(call).collect()
}

fn call(item: &Expr) -> Option<ToolCall> {
    let Expr::Call(call) = item else { return None };
    let mut dict = Dict::default();
    for (name, value) in &call.keywords {
        let name = name.as_deref().unwrap_or("null");
        dict.insert(python_repair::restored(name).to_owned(), literal::argument(value)?);
    }
    Some(ToolCall { name: call.name.clone()?, arguments: Json::Dict(dict).dump() })
}

/// The server's test of the text before it is read as Python: a bracket, names of ASCII letters first, calls whose
/// arguments start with a keyword or are empty. From the first keyword on anything goes, up to `)` and `]`.
fn looks_like_calls(text: &str) -> bool {
    let Some(mut rest) = text.strip_prefix('[') else { return false };
    // Once two calls stand side by side without a comma, no comma can follow.
    let mut commas = true;
    loop {
        let Some(arguments) = name(rest).and_then(|rest| rest.strip_prefix('(')) else { return false };
        if let Some(value) = name(arguments).and_then(|rest| rest.strip_prefix('=')) {
            return value.match_indices(')').any(|(at, _)| value[at + 1..].trim_start().starts_with(']'));
        }
        let Some(after) = arguments.strip_prefix(')') else { return false };
        if let Some(next) = after.strip_prefix(',').filter(|_| commas) {
            rest = next.trim_start();
            continue;
        }
        rest = after.trim_start();
        if rest.starts_with(']') {
            return true;
        }
        commas = false;
    }
}

/// What follows a name of an ASCII letter and word characters.
fn name(text: &str) -> Option<&str> {
    text.strip_prefix(|c: char| c.is_ascii_alphabetic())
        .map(|rest| rest.trim_start_matches(|c: char| c.is_alphanumeric() || c == '_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(text: &str) -> Option<String> {
        let parsed = pythonic(text, &Context::default())?;
        assert_eq!(parsed.content, None);
        Some(parsed.tool_calls.first()?.arguments.clone())
    }

    #[test]
    fn values_become_json() {
        for (value, json) in [
            ("'a\\'b'", "\"a'b\""),
            ("\"ä\\n\\x41\\u00e9\\101\\d\"", "\"ä\\nAéA\\\\d\""),
            ("'a' \"b\"", "\"ab\""),
            ("r'\\n'", "\"\\\\n\""),
            ("'''a\nb'''", "\"a\\nb\""),
            ("f'{{x}}'", "\"{x}\""),
            ("-1", "-1"),
            ("+1_000", "1000"),
            ("0x1F", "31"),
            ("1e3", "1000.0"),
            ("-.5", "-0.5"),
            ("123456789012345678901234567890", "123456789012345678901234567890"),
            ("True", "true"),
            ("null", "null"),
            ("(1, 2)", "[1, 2]"),
            ("(1)", "1"),
            ("(1,)", "[1]"),
            ("{1, 'a'}", "[1, \"a\"]"),
            ("{'a': [1], 2: None, True: {}}", "{\"a\": [1], \"2\": null, \"true\": {}}"),
            ("[]", "[]"),
            ("{1: 'a', True: 'b', 1.0: 'c', '2': 'd'}", "{\"1\": \"c\", \"2\": \"d\"}"),
            ("{False: 'a', 0: 'b'}", "{\"false\": \"b\"}"),
        ] {
            assert_eq!(arguments(&format!("[f(a={value})]")), Some(format!("{{\"a\": {json}}}")), "{value}");
        }
    }

    #[test]
    fn anything_else_is_content() {
        for value in [
            "x",
            "g()",
            "1 + 2",
            "b'x'",
            "1j",
            "...",
            "07",
            "'a\nb'",
            "not True",
            "-'a'",
            "-True",
            "f'{x}'",
            "[x]",
            "{x: 1}",
            "{**a}",
            "1 if 2 else 3",
            "'a",
            "{'a', 1: 2}",
            "*x",
            "'\\x4'",
            "1__0",
            "a.b",
            "a[0]",
            "",
        ] {
            assert_eq!(arguments(&format!("[f(a={value})]")), None, "{value}");
        }
    }

    #[test]
    fn the_text_has_to_look_like_calls() {
        for text in [
            " [f()]",
            "[_f()]",
            "[a.b()]",
            "[f(1)]",
            "[f]",
            "[]",
            "[f()",
            "f()",
            "[f() , g()]",
            "[f()] x",
            "[f()](a=1)",
            "[f(from=1)]",
            "[f(a=1, 2)]",
            "[f(a=1)]\n x",
            "[f(a=1)]\ntext here",
            "[f(a=1)].",
            "[f(a=1)], 1",
            "[f() g()]",
        ] {
            assert_eq!(pythonic(text, &Context::default()), None, "{text}");
        }
    }

    #[test]
    fn lines_below_have_to_be_python() {
        for text in [
            "[f(a=1)]\n",
            "[f(a=1)]  # comment",
            "[f(a=1)]\nDone",
            "[f(a=1)]; x = 1",
            "[f(a=1)]\n\n[g()]\n# x",
        ] {
            assert_eq!(arguments(text).as_deref(), Some("{\"a\": 1}"), "{text}");
        }
    }

    #[test]
    fn a_keyword_given_twice_keeps_its_last_value() {
        assert_eq!(arguments("[f(a=1, b=2, a=3)]").as_deref(), Some("{\"a\": 3, \"b\": 2}"));
        assert_eq!(arguments("[f(\n  a = 1, # x\n)]").as_deref(), None);
        assert_eq!(arguments("[f(a= 1, # x\n)]").as_deref(), Some("{\"a\": 1}"));
    }

    #[test]
    fn llama4_takes_its_tokens_off_only_at_the_start() {
        let parse = |text| llama4_pythonic(text, &Context::default()).is_some();
        assert!(parse("<|python_start|>[f()]<|python_end|>") && parse("[f()]"));
        assert!(!parse("[f()]<|python_end|>"));
    }

    #[test]
    fn olmo3_reads_a_call_a_line() {
        let text = "a<function_calls>\nf(a=1)\n\n g()\n</function_calls>b";
        let parsed = olmo3(text, &Context::default()).unwrap();
        assert_eq!((parsed.content, parsed.tool_calls.len()), (None, 2));
    }

    #[test]
    fn lfm2_keeps_the_text_around() {
        let text = " a <|tool_call_start|>[m.f(1, a=2)]<|tool_call_end|>echo<|tool_call_end|> b";
        let parsed = lfm2(text, &Context::default()).unwrap();
        assert_eq!(parsed.content.as_deref(), Some("a\nb"));
        assert_eq!(parsed.tool_calls, [ToolCall { name: "m.f".into(), arguments: "{\"a\": 2}".into() }]);
        assert_eq!(lfm2("<|tool_call_start|>[]<|tool_call_end|>", &Context::default()), None);
    }

    #[test]
    fn lfm2_repairs_what_is_not_quite_python() {
        for (source, json) in [
            ("[f(a='x\ny')]", "{\"a\": \"x\\ny\"}"),
            ("[f(a=07)]", "{\"a\": 7}"),
            ("[f(a='sed -n '1,9p' f', b=1)]", "{\"a\": \"sed -n '1,9p' f\", \"b\": 1}"),
            ("[f(from=1, in='class=2')]", "{\"from\": 1, \"in\": \"class=2\"}"),
        ] {
            let parsed = lfm2(&format!("<|tool_call_start|>{source}<|tool_call_end|>"), &Context::default());
            assert_eq!(parsed.unwrap().tool_calls[0].arguments, json);
        }
    }
}

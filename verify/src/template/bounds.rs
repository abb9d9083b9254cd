//! What an untrusted template cannot do: read the host, run without end, fill the memory.

use serde_json::json;

use super::render::Failure;
use super::testing::renderer;
use super::{ChatTemplate, Place, Renderer, Request, Source};

fn render(text: &str) -> Result<String, String> {
    let source = Source { file: "t.jinja".into(), place: Place::Jinja, name: None };
    let renderer = Renderer::new(ChatTemplate { text: text.to_string(), source }, serde_json::Map::new())
        .map_err(|e| e.to_string())?;
    renderer.render(&Request::new(&[json!({"role": "user", "content": "x"})], &[])).map_err(|e| e.to_string())
}

#[test]
fn bombs_end_in_a_limit() {
    for bomb in [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{{ 'xxxxxxxxxxxxxxxx' }}{% endfor %}{% endfor %}",
        "{% set ns = namespace(s='x') %}{% for a in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set ns = namespace(s='x') %}{% for a in range(99) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s | tojson }}",
        "{% set ns = namespace(s='x') %}{% for a in range(99) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}",
        "{% set ns = namespace(s='x') %}{% for a in range(99) %}{% set ns.s = ns.s | center(65000) | indent(1000, true) %}{% endfor %}{% for a in range(99999) %}{{ ns.s }}{% endfor %}",
        "{{ 'a' * 10 ** 11 }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% macro m(n) %}{{ m(n) ~ m(n) }}{% endmacro %}{{ m(1) }}",
        "{{ range(10 ** 12) | list }}",
        "{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}",
        "{% set ns = namespace() %}{% set ns.me = ns %}{{ ns | tojson }}",
    ] {
        assert!(render(bomb).is_err(), "{bomb}");
    }
}

#[test]
fn deep_nesting_is_refused() {
    let deep = |open: &str, close: &str| format!("{}1{}", open.repeat(5000), close.repeat(5000));
    for text in [
        format!("{{{{ {} }}}}", deep("(", ")")),
        format!("{{{{ {} }}}}", deep("[", "]")),
        format!("{{{{ {}1 }}}}", "not ".repeat(5000)),
        format!("{{{{ {}1 }}}}", "-".repeat(5000)),
        "{% if true %}".repeat(5000) + &"{% endif %}".repeat(5000),
        "{% for a in [1] %}".repeat(5000) + &"{% endfor %}".repeat(5000),
        "{{ a".to_string() + &".b".repeat(50000) + "}}",
        "{{ a".to_string() + &" ~ b".repeat(50000) + "}}",
        "{{ a".to_string() + &"|e".repeat(50000) + "}}",
        "{{ a".to_string() + &" and b".repeat(50000) + "}}",
        "{{ a".to_string() + &"[0]".repeat(50000) + "}}",
        "{{ a".to_string() + &"()".repeat(50000) + "}}",
        "{{ 1".to_string() + &" if b else 1".repeat(50000) + "}}",
        "{{ 1".to_string() + &" ** 2".repeat(50000) + "}}",
        "{% if a %}".to_string() + &"{% elif b %}".repeat(50000) + "{% endif %}",
    ] {
        assert!(render(&text).is_err(), "{:.40}", text);
    }
}

#[test]
fn long_but_sound_templates_compile() {
    let chain = "{{ 'a'".to_string() + &" ~ 'b'".repeat(900) + "}}";
    assert_eq!(render(&chain).unwrap().len(), 901);
    let list = format!("{{{{ [{}] | length }}}}", "'x', ".repeat(20_000));
    assert_eq!(render(&list).unwrap(), "20000");
    assert!(
        render(&("{% if false %}".to_string() + &"{% elif false %}".repeat(400) + "{% endif %}")).is_ok()
    );
}

#[test]
fn the_host_is_out_of_reach() {
    for text in [
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{% from 'os' import environ %}",
        "{% extends 'x' %}",
        "{{ ''.__class__.__mro__ }}",
        "{{ ''.__class__.__subclasses__() }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ namespace.__init__.__globals__['os'] }}",
        "{{ self.__init__ }}",
        "{{ cycler.__init__.__globals__.os.popen('id') }}",
        "{{ open('/etc/passwd') }}",
        "{{ env('HOME') }}",
        "{{ debug() }}",
    ] {
        assert!(render(text).is_err(), "{text} -> {:?}", render(text));
    }
    for text in ["{{ ''.__class__ }}", "{{ messages.__class__ }}", "{{ raise_exception.__globals__ }}"] {
        assert_eq!(render(text).unwrap_or_default(), "", "{text}");
    }
}

#[test]
fn words_of_raise_exception_are_passed_on_even_out_of_a_macro() {
    let nested = "{% macro m() %}{% for x in [1] %}{{ raise_exception('deep words') }}{% endfor %}{% endmacro %}\n{% set x = m() %}";
    let request = Request::new(&[], &[]);
    match renderer(nested).render(&request) {
        Err(Failure::Raised { message, .. }) => assert_eq!(message, "deep words"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_unknown_construct_is_named_with_its_line() {
    let request = Request::new(&[], &[]);
    match renderer("a\n{{ '%s' % 'x' }}").render(&request) {
        Err(Failure::Unsupported { construct, line }) => {
            assert!(construct.contains('%') && line == Some(2), "{construct} {line:?}");
        }
        other => panic!("{other:?}"),
    }
    let e = render("a\n{{ x | frobnicate }}").unwrap_err();
    assert!(e.contains("frobnicate") && e.contains("line 2"), "{e}");
}

#[test]
fn a_number_that_would_print_otherwise_is_refused() {
    let message = json!({"role": "user", "content": "x", "tiny": 1e-7});
    let request = Request::new(&[message], &[]);
    assert!(renderer("{{ 'a' ~ messages[0].tiny }}").render(&request).is_err());
    assert_eq!(renderer("{{ messages[0].tiny }}").render(&request).unwrap(), "1e-07");
}

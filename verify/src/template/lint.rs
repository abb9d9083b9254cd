//! Renders the conversations that tool-using clients really send, and names each one that a template refuses.

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::finding::{Finding, Level};
use super::render::{Failure, Nulls, Renderer, Request};

/// One conversation tried.
#[derive(Debug, Clone, Serialize)]
pub struct Tried {
    /// What is special about it.
    pub name: &'static str,
    /// Why it gave no prompt.
    pub failure: Option<Failure>,
    /// Text of the conversation that is missing from the prompt.
    pub lost: Vec<String>,
}

/// Tries all conversations.
pub fn try_all(renderer: &Renderer) -> Vec<Tried> {
    conversations()
        .into_iter()
        .map(|Conversation { name, request, must_hold }| match renderer.render(&request) {
            Ok(text) => {
                let lost = must_hold.iter().filter(|m| !holds(&text, m)).map(|m| m.to_string()).collect();
                Tried { name, failure: None, lost }
            }
            Err(failure) => Tried { name, failure: Some(failure), lost: Vec::new() },
        })
        .collect()
}

/// The findings of [`try_all`].
pub fn findings(tried: &[Tried]) -> Vec<Finding> {
    tried.iter().filter_map(finding).collect()
}

/// The same as one line: which conversations fail.
pub fn summary(tried: &[Tried]) -> Option<Finding> {
    let failing: Vec<_> = tried.iter().filter(|t| finding(t).is_some()).map(|t| t.name).collect();
    (!failing.is_empty()).then(|| {
        Finding::new(
            Level::Note,
            format!(
                "the template refuses or loses part of {} of {} usual conversations: {}",
                failing.len(),
                tried.len(),
                failing.join("; ")
            ),
            "see why with `prep template check MODEL`, and keep clients from sending these",
        )
    })
}

fn finding(tried: &Tried) -> Option<Finding> {
    let Tried { name, failure, lost } = tried;
    Some(match failure {
        Some(failure @ Failure::Raised { .. }) => Finding::new(
            Level::Warning,
            format!("conversation `{name}`: {failure}"),
            "clients that send this get an error: use a template that accepts it, or keep clients from sending it",
        ),
        Some(failure @ Failure::Failed { .. }) => Finding::new(
            Level::Warning,
            format!("conversation `{name}`: {failure}"),
            "the template does not expect this form: guard the value, for example with `(x or '')`",
        ),
        Some(failure) => Finding::new(
            Level::Error,
            format!("conversation `{name}`: {failure}"),
            "write the template without this construct",
        ),
        None if lost.is_empty() => return None,
        None => Finding::new(
            Level::Warning,
            format!("conversation `{name}`: the prompt lacks {}", lost.join(", ")),
            "the model never sees this part: use a template that writes it",
        ),
    })
}

struct Conversation {
    name: &'static str,
    request: Request,
    /// Texts of the conversation that every sound prompt holds.
    must_hold: &'static [&'static str],
}

fn holds(text: &str, part: &str) -> bool {
    text.contains(part) || text.contains(&part.escape_unicode_json())
}

trait EscapeJson {
    fn escape_unicode_json(&self) -> String;
}

impl EscapeJson for str {
    /// As `json.dumps` with `ensure_ascii` writes it.
    fn escape_unicode_json(&self) -> String {
        self.encode_utf16()
            .map(|unit| match u8::try_from(unit) {
                Ok(byte) if byte.is_ascii() => char::from(byte).to_string(),
                _ => format!("\\u{unit:04x}"),
            })
            .collect()
    }
}

/// A tool for probes, with a parameter of each common type.
pub fn probe_tool() -> Value {
    json!({"type": "function", "function": {
        "name": "probe_weather",
        "description": "Weather of a city.",
        "parameters": {"type": "object", "properties": {
            "probe_city": {"type": "string", "description": "Name of the city."},
            "days": {"type": "integer"}
        }, "required": ["probe_city"]}
    }})
}

/// A call of [`probe_tool`] in OpenAI form.
pub fn probe_call(city: &str) -> Value {
    json!({"id": "call00001", "type": "function", "function": {
        "name": "probe_weather", "arguments": {"probe_city": city, "days": 2}
    }})
}

fn conversations() -> Vec<Conversation> {
    let turn = |role: &str, text: &str| json!({"role": role, "content": text});
    let user = || turn("user", "probe question");
    let system = || turn("system", "probe rule");
    let calls = |content: Value, calls: &[Value]| json!({"role": "assistant", "content": content, "tool_calls": calls});
    let result = |text: &str| json!({"role": "tool", "name": "probe_weather", "tool_call_id": "call00001", "content": text});
    let new = |name, messages: Vec<Value>, must_hold| Conversation {
        name,
        request: Request::new(&messages, &[probe_tool()]),
        must_hold,
    };
    let text_arguments = json!({"id": "call00001", "type": "function", "function": {
        "name": "probe_weather", "arguments": "{\"probe_city\": \"Oslo\"}"
    }});
    let mut list = vec![
        new("tools and a system turn", vec![system(), user()], &["probe rule", "probe question"]),
        new("tools and no system turn", vec![user()], &["probe question"]),
        new(
            "two system turns",
            vec![system(), turn("system", "second rule"), user()],
            &["probe rule", "second rule", "probe question"],
        ),
        new("system turn later", vec![user(), turn("assistant", "ok"), system(), user()], &["probe rule"]),
        new("no user turn", vec![system()], &["probe rule"]),
        new("tool result first", vec![result("sunny"), user()], &["sunny", "probe question"]),
        new(
            "empty content beside a call",
            vec![user(), calls(json!(""), &[probe_call("Oslo")]), result("sunny")],
            &["probe_weather", "Oslo", "sunny"],
        ),
        new(
            "parallel calls and results",
            vec![
                user(),
                calls(json!("text"), &[probe_call("Oslo"), probe_call("Rome")]),
                result("sunny"),
                result("rainy"),
            ],
            &["Oslo", "Rome", "sunny", "rainy"],
        ),
        new(
            "answer after a result, then the next question",
            vec![
                user(),
                calls(json!(""), &[probe_call("Oslo")]),
                result("sunny"),
                turn("assistant", "It is sunny."),
                turn("user", "next question"),
            ],
            &["Oslo", "sunny", "It is sunny.", "next question"],
        ),
        new(
            "arguments as JSON text",
            vec![user(), calls(json!(""), &[text_arguments]), result("sunny")],
            &["Oslo", "sunny"],
        ),
        new(
            "arguments that are not ASCII",
            vec![user(), calls(json!(""), &[probe_call("北京 é")]), result("晴")],
            &["北京 é", "晴"],
        ),
    ];
    let null = vec![user(), calls(Value::Null, &[probe_call("Oslo")]), result("sunny")];
    list.push(new("null content beside a call", null.clone(), &["Oslo", "sunny"]));
    let mut kept = new("null content, kept as older servers do", null, &["Oslo", "sunny"]);
    kept.request.nulls = Nulls::Kept;
    list.push(kept);
    for (name, thinking) in [("enable_thinking on", true), ("enable_thinking off", false)] {
        let mut c = new(name, vec![system(), user()], &["probe question"]);
        c.request.kwargs = Map::from_iter([("enable_thinking".to_string(), thinking.into())]);
        list.push(c);
    }
    let mut plain = new("no tools", vec![system(), user()], &["probe rule", "probe question"]);
    plain.request.tools.clear();
    list.push(plain);
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::testing::renderer;

    #[test]
    fn refused_order_is_a_finding_with_the_templates_words() {
        let strict = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('System first!') }}{% endif %}{{ m.content }}{{ m.tool_calls }}{% endfor %}";
        let found = findings(&try_all(&renderer(strict)));
        assert!(
            found.iter().any(|f| f.what.contains("two system turns") && f.what.contains("System first!")),
            "{found:?}"
        );
    }

    #[test]
    fn kept_null_content_fails_where_the_template_joins_it() {
        let joins = "{% for m in messages %}{{ m.role + m.content }}{{ m.tool_calls }}{% endfor %}";
        let tried = try_all(&renderer(joins));
        let failed: Vec<_> = tried.iter().filter(|t| t.failure.is_some()).map(|t| t.name).collect();
        assert!(failed.contains(&"null content, kept as older servers do"), "{failed:?}");
    }

    #[test]
    fn a_lost_result_is_a_finding() {
        let drops =
            "{% for m in messages if m.role != 'tool' %}{{ m.content }}{{ m.tool_calls }}{% endfor %}";
        let found = findings(&try_all(&renderer(drops)));
        assert!(found.iter().any(|f| f.what.contains("lacks sunny")), "{found:?}");
    }

    #[test]
    fn the_tiny_tool_template_renders_all_but_a_second_system_turn() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/templates/tiny_tools.jinja");
        let found = findings(&try_all(&renderer(&std::fs::read_to_string(path).unwrap())));
        let names: Vec<_> = found.iter().map(|f| f.what.split('`').nth(1).unwrap().to_string()).collect();
        assert_eq!(names, ["two system turns", "system turn later"], "{found:?}");
    }

    /// A template that writes everything, and stops where `condition` holds.
    fn refusing(condition: &str) -> String {
        format!(
            "{{% if {condition} %}}{{{{ raise_exception('REFUSED') }}}}{{% endif %}}\
             {{{{ tools }}}}{{% for m in messages %}}{{{{ m.content }}}}{{{{ m.tool_calls }}}}{{% endfor %}}"
        )
    }

    #[test]
    fn each_construct_that_a_template_refuses_is_named() {
        let all = try_all(&renderer(&refusing("false")));
        assert!(all.iter().all(|t| t.failure.is_none() && t.lost.is_empty()), "{all:?}");
        let two = "messages | selectattr('role', 'equalto', 'system') | list | length > 1";
        let calls = "(messages | selectattr('tool_calls', 'defined') | map(attribute='tool_calls') | list)";
        for (name, condition) in [
            ("tools and a system turn", "tools and messages[0].role == 'system'".to_string()),
            ("tools and no system turn", "tools and messages[0].role == 'user'".to_string()),
            ("two system turns", two.to_string()),
            (
                "system turn later",
                "'system' in (messages[1:] | map(attribute='role') | list) and messages[0].role == 'user'"
                    .to_string(),
            ),
            ("no user turn", "'user' not in (messages | map(attribute='role') | list)".to_string()),
            ("tool result first", "messages[0].role == 'tool'".to_string()),
            (
                "null content, kept as older servers do",
                "messages | selectattr('content', 'none') | list".to_string(),
            ),
            ("parallel calls and results", format!("{calls} and {calls}[0] | length > 1")),
            ("enable_thinking on", "enable_thinking is defined and enable_thinking".to_string()),
            ("enable_thinking off", "enable_thinking is defined and not enable_thinking".to_string()),
            ("arguments that are not ASCII", format!("'北京' in ({calls} | string)")),
            ("no tools", "not tools".to_string()),
        ] {
            let found = findings(&try_all(&renderer(&refusing(&condition))));
            let named = found.iter().find(|f| f.what.contains(&format!("`{name}`")));
            assert!(named.is_some_and(|f| f.what.contains("REFUSED")), "{name}: {found:?}");
            assert!(found.len() < all.len(), "{name} is not told apart: {found:?}");
        }
    }

    #[test]
    fn a_template_that_joins_arguments_as_text_is_named() {
        let joins = "{{ tools }}{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}\
                     {{ c.function.name + c.function.arguments }}{% endfor %}{% endfor %}";
        let found = findings(&try_all(&renderer(joins)));
        assert!(found.iter().any(|f| f.what.contains("`parallel calls and results`")), "{found:?}");
    }

    #[test]
    fn text_that_is_lost_is_named_whatever_its_script() {
        let ascii = "{{ tools }}{% for m in messages %}{% if m.content != '晴' %}{{ m.content }}{% endif %}{{ m.tool_calls }}{% endfor %}";
        let found = findings(&try_all(&renderer(ascii)));
        let [only] = found.as_slice() else { panic!("{found:?}") };
        assert!(only.what.contains("`arguments that are not ASCII`") && only.what.contains("晴"), "{only:?}");
    }
}

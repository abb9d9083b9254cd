//! The file of a suite: cases of a conversation, tools and what must come out.

use std::collections::HashSet;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::checkpoint::json;
use crate::error::{Error, Result};
use crate::names::Shown;

/// The version of the format that is read.
pub const VERSION: u64 = 1;

/// The suite that is used where none is given: 24 scored cases in four classes, 72 points, and 6 controls.
const DEFAULT: &str = include_str!("default.json");

/// Cases in the order in which they are run.
#[derive(Debug, Clone, PartialEq)]
pub struct Suite {
    /// Where it came from, for the report.
    pub name: String,
    /// Scored cases.
    pub cases: Vec<Case>,
    /// Unscored cases that show how the model behaves otherwise.
    pub controls: Vec<Case>,
}

/// One conversation and what is expected of the next turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// Name, unique in the suite.
    pub id: String,
    /// The class that its points count for.
    pub class: String,
    /// Turns in OpenAI form.
    pub messages: Vec<Value>,
    /// Tools in OpenAI form.
    pub tools: Vec<Value>,
    /// What must come out.
    pub expect: Expect,
    /// Further variables of the chat template.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub chat_template_kwargs: Map<String, Value>,
}

/// What must come out of a case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Expect {
    /// These calls, in this order.
    Calls(ExpectCalls),
    /// No call, and a text that refuses.
    Refusal(ExpectRefusal),
    /// Exactly this text.
    Text(ExpectText),
}

/// See [`Expect::Calls`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpectCalls {
    /// The calls, at least one.
    pub calls: Vec<ExpectedCall>,
}

/// One expected call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpectedCall {
    /// Function name.
    pub name: String,
    /// All arguments.
    pub arguments: Map<String, Value>,
}

/// See [`Expect::Refusal`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpectRefusal {
    /// Always true.
    pub refusal: bool,
    /// Texts of which one must stand in the answer.
    pub marks: Vec<String>,
}

/// See [`Expect::Text`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpectText {
    /// The whole answer.
    pub text: String,
}

impl Suite {
    /// The built-in suite.
    ///
    /// # Errors
    /// Never for the file as it is shipped, which a test reads.
    pub fn default_suite() -> Result<Self> {
        Self::parse(DEFAULT, Path::new("built-in suite"))
    }

    /// Reads a suite file.
    ///
    /// # Errors
    /// Exit 3 naming the case and the field that is wrong.
    pub fn read(path: &Path) -> Result<Self> {
        Self::parse(&json::read_text(path, json::MAX_CONFIG)?, path)
    }

    /// Parses the text of the suite file `path`.
    ///
    /// # Errors
    /// As [`Suite::read`].
    pub fn parse(text: &str, path: &Path) -> Result<Self> {
        let file = json::parse(text, path)?;
        let bad = |what: &str| Error::input(format!("suite {}: {what}", Shown::path(path)));
        let object = file.as_object().ok_or_else(|| bad("not a JSON object"))?;
        match object.get("version").and_then(Value::as_u64) {
            Some(VERSION) => {}
            _ => {
                let found = object.get("version").map_or("none".to_string(), Value::to_string);
                return Err(bad("unknown version").found(found).expected(VERSION.to_string()));
            }
        }
        if let Some(key) =
            object.keys().find(|k| !["version", "scoring", "cases", "controls"].contains(&k.as_str()))
        {
            return Err(
                bad(&format!("unknown key `{}`", Shown(key))).expected("version, scoring, cases, controls")
            );
        }
        let cases = cases(object.get("cases"), "cases", &bad)?;
        if cases.is_empty() {
            return Err(bad("`cases` is empty").expected("at least one case"));
        }
        let controls = match object.get("controls") {
            None => Vec::new(),
            some => self::cases(some, "controls", &bad)?,
        };
        let mut seen = HashSet::new();
        if let Some(twice) = cases.iter().chain(&controls).find(|c| !seen.insert(&c.id)) {
            return Err(bad(&format!("case `{}` stands there twice", Shown(&twice.id))));
        }
        Ok(Suite { name: Shown::path(path), cases, controls })
    }

    /// Cases, then controls.
    pub fn all(&self) -> impl Iterator<Item = &Case> {
        self.cases.iter().chain(&self.controls)
    }
}

fn cases(list: Option<&Value>, key: &str, bad: &dyn Fn(&str) -> Error) -> Result<Vec<Case>> {
    let list = list.and_then(Value::as_array).ok_or_else(|| bad(&format!("`{key}` is not a list")))?;
    let mut cases = Vec::with_capacity(list.len());
    for (at, value) in list.iter().enumerate() {
        let name =
            value.get("id").and_then(Value::as_str).map_or(format!("number {at}"), |s| Shown(s).to_string());
        let case: Case = serde_json::from_value(value.clone()).map_err(|e| {
            let hint = match e.to_string().contains("untagged") {
                true => "`expect` is {\"calls\": [{\"name\", \"arguments\"}]}, {\"refusal\": true, \"marks\": [..]} or {\"text\": ..}",
                false => "see the format of a suite in the README",
            };
            bad(&format!("case `{name}` in `{key}`")).found(e.to_string()).hint(hint)
        })?;
        check(&case).map_err(|found| bad(&format!("case `{name}` in `{key}`")).found(found))?;
        cases.push(case);
    }
    Ok(cases)
}

fn check(case: &Case) -> Result<(), String> {
    let names: Vec<&str> = case.tools.iter().filter_map(|t| t.pointer("/function/name")?.as_str()).collect();
    if case.id.is_empty() || case.class.is_empty() {
        return Err("an empty `id` or `class`".into());
    }
    if case.messages.is_empty() || !case.messages.iter().all(|m| m.get("role").is_some_and(Value::is_string))
    {
        return Err("`messages` is empty or holds a turn without `role`".into());
    }
    if names.len() != case.tools.len() {
        return Err("a tool without `function.name`".into());
    }
    match &case.expect {
        Expect::Calls(e) if e.calls.is_empty() => Err("`expect.calls` is empty".into()),
        Expect::Calls(e) => match e.calls.iter().find(|c| !names.contains(&c.name.as_str())) {
            Some(call) => Err(format!("a call of `{}`, which is not among the tools", Shown(&call.name))),
            None => Ok(()),
        },
        Expect::Refusal(e) if !e.refusal => Err("`refusal` is false".into()),
        Expect::Refusal(e) if e.marks.is_empty() || e.marks.iter().any(String::is_empty) => {
            Err("`marks` is empty or holds an empty text, which every answer contains".into())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(value: Value) -> Result<Suite> {
        Suite::parse(&value.to_string(), Path::new("s.json"))
    }

    fn case(expect: Value) -> Value {
        json!({"id": "a", "class": "c", "messages": [{"role": "user", "content": "q"}],
               "tools": [{"type": "function", "function": {"name": "f"}}], "expect": expect})
    }

    #[test]
    fn the_built_in_suite_is_sound() {
        let suite = Suite::default_suite().unwrap();
        assert_eq!((suite.cases.len(), suite.controls.len()), (24, 6));
    }

    #[test]
    fn each_fault_is_named_with_its_case() {
        let suite = |c: Value| json!({"version": 1, "cases": [c]});
        for (value, word) in [
            (json!({"version": 2, "cases": []}), "version"),
            (json!({"version": 1, "cases": []}), "empty"),
            (json!({"version": 1, "cases": [], "more": 1}), "`more`"),
            (suite(case(json!({"calls": []}))), "`a`"),
            (suite(case(json!({"calls": [{"name": "g", "arguments": {}}]}))), "`g`"),
            (suite(case(json!({"calls": [{"name": "f", "arguments": "x"}]}))), "expect"),
            (suite(case(json!({"refusal": true, "marks": [""]}))), "marks"),
            (suite(case(json!({"refusal": true, "mark": ["x"]}))), "expect"),
            (suite(json!({"id": "b"})), "`b`"),
            (
                json!({"version": 1, "cases": [case(json!({"text": "x"})), case(json!({"text": "x"}))]}),
                "twice",
            ),
        ] {
            let e = parse(value).unwrap_err().to_string();
            assert!(e.contains(word), "{word}: {e}");
        }
    }
}

//! The file of a suite: cases of a conversation, tools and what must come out.

use std::collections::HashSet;
use std::path::Path;

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::matches;
use crate::checkpoint::json;
use crate::error::{Error, Result};
use crate::names::Shown;

/// The version of the format that is read.
pub const VERSION: u64 = 1;

/// The JSON schema of a suite file.
pub const SCHEMA: &str = include_str!("schema.json");

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
    /// Turns after the first: the model's own calls are answered, and it goes on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub then: Vec<FollowUp>,
}

/// Results for the calls of the turn before, and what is expected then.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FollowUp {
    /// One for each call, in order; what is not text is written as JSON.
    pub results: Vec<Value>,
    /// What must come out.
    pub expect: Expect,
}

/// What must come out of a turn.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Expect {
    /// These calls, in this order.
    Calls(ExpectCalls),
    /// No call, and a text that refuses.
    Refusal(ExpectRefusal),
    /// No call, and some text.
    NoCall(ExpectNoCall),
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
    /// All arguments: plain values, or matchers such as `{"$regex": ".."}`.
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

/// See [`Expect::NoCall`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpectNoCall {
    /// Always true.
    pub no_call: bool,
    /// Texts of which one must stand in the answer; any answer will do where there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub marks: Vec<String>,
}

/// See [`Expect::Text`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpectText {
    /// The whole answer.
    pub text: String,
}

impl<'de> Deserialize<'de> for Expect {
    /// Chooses by the key, so that an error names the field that is wrong.
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(d)?;
        let has = |key| value.get(key).is_some();
        let parsed = if has("calls") {
            located(value).map(Expect::Calls)
        } else if has("refusal") {
            located(value).map(Expect::Refusal)
        } else if has("no_call") {
            located(value).map(Expect::NoCall)
        } else if has("text") {
            located(value).map(Expect::Text)
        } else {
            return Err(D::Error::custom("none of the keys calls, refusal, no_call, text"));
        };
        parsed.map_err(D::Error::custom)
    }
}

/// The value as a `T`, or what is wrong, with the field that it is wrong in.
fn located<T: DeserializeOwned>(value: Value) -> Result<T, String> {
    serde_path_to_error::deserialize(value).map_err(|e| match e.path().to_string().as_str() {
        "." => e.into_inner().to_string(),
        path => format!("`{path}`: {}", e.inner()),
    })
}

/// One turn of a case, as it is scored.
#[derive(Debug, Clone)]
pub struct Step<'a> {
    /// Name of the case, with the turn behind it from the second on.
    pub id: String,
    /// The case.
    pub case: &'a Case,
    /// 0 for the first turn.
    pub turn: usize,
    /// What must come out.
    pub expect: &'a Expect,
    /// False for controls.
    pub scored: bool,
}

impl Suite {
    /// The most points that a model can reach.
    pub fn max_points(&self) -> u32 {
        let turns: usize = self.cases.iter().map(|c| 1 + c.then.len()).sum();
        u32::try_from(turns).unwrap_or(u32::MAX).saturating_mul(super::score::MAX)
    }

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

    /// The suite with these variables of the chat template where a case does not set them itself.
    pub fn with_kwargs(mut self, kwargs: &Map<String, Value>) -> Self {
        for case in self.cases.iter_mut().chain(&mut self.controls) {
            for (key, value) in kwargs {
                case.chat_template_kwargs.entry(key.clone()).or_insert_with(|| value.clone());
            }
        }
        self
    }

    /// Cases, then controls.
    pub fn all(&self) -> impl Iterator<Item = &Case> {
        self.cases.iter().chain(&self.controls)
    }

    /// The turns of all cases, in order.
    pub fn steps(&self) -> Vec<Step<'_>> {
        let mut steps = Vec::new();
        for (at, case) in self.all().enumerate() {
            let scored = at < self.cases.len();
            steps.push(Step { id: case.id.clone(), case, turn: 0, expect: &case.expect, scored });
            for (turn, follow) in (1..).zip(&case.then) {
                let id = format!("{} turn {}", case.id, turn + 1);
                steps.push(Step { id, case, turn, expect: &follow.expect, scored });
            }
        }
        steps
    }
}

fn cases(list: Option<&Value>, key: &str, bad: &dyn Fn(&str) -> Error) -> Result<Vec<Case>> {
    let list = list.and_then(Value::as_array).ok_or_else(|| bad(&format!("`{key}` is not a list")))?;
    let mut cases = Vec::with_capacity(list.len());
    for (at, value) in list.iter().enumerate() {
        let name =
            value.get("id").and_then(Value::as_str).map_or(format!("number {at}"), |s| Shown(s).to_string());
        let case: Case = located(value.clone()).map_err(|found| {
            bad(&format!("case `{name}` in `{key}`"))
                .found(found)
                .hint("the format is described by verify/src/suite/schema.json")
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
    check_expect(&case.expect, &names)?;
    let mut before = &case.expect;
    for follow in &case.then {
        match before {
            Expect::Calls(e) if e.calls.len() == follow.results.len() => {}
            Expect::Calls(e) => {
                return Err(format!("{} results for {} calls", follow.results.len(), e.calls.len()));
            }
            _ => return Err("`then` after a turn that expects no calls".into()),
        }
        check_expect(&follow.expect, &names)?;
        before = &follow.expect;
    }
    Ok(())
}

fn check_expect(expect: &Expect, tools: &[&str]) -> Result<(), String> {
    let empty_mark = |marks: &[String]| marks.iter().any(String::is_empty);
    match expect {
        Expect::Calls(e) if e.calls.is_empty() => Err("`expect.calls` is empty".into()),
        Expect::Calls(e) => e.calls.iter().try_for_each(|call| {
            if !tools.contains(&call.name.as_str()) {
                return Err(format!("a call of `{}`, which is not among the tools", Shown(&call.name)));
            }
            let check = |(key, value): (&String, &Value)| {
                matches::check(value)
                    .map_err(|e| format!("argument `{}` of `{}`: {e}", Shown(key), Shown(&call.name)))
            };
            call.arguments.iter().try_for_each(check)
        }),
        Expect::Refusal(e) if !e.refusal => Err("`refusal` is false".into()),
        Expect::Refusal(e) if e.marks.is_empty() || empty_mark(&e.marks) => {
            Err("`marks` is empty or holds an empty text, which every answer contains".into())
        }
        Expect::NoCall(e) if !e.no_call => Err("`no_call` is false".into()),
        Expect::NoCall(e) if empty_mark(&e.marks) => Err("`marks` holds an empty text".into()),
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

    fn with_then(follow: Value) -> Value {
        let mut case = case(json!({"calls": [{"name": "f", "arguments": {}}]}));
        case["then"] = json!([follow]);
        case
    }

    #[test]
    fn follow_ups_are_steps_of_their_own() {
        let follow = with_then(json!({"results": [{"t": 21}], "expect": {"no_call": true}}));
        let suite = parse(json!({"version": 1, "cases": [follow]})).unwrap();
        let ids: Vec<_> = suite.steps().into_iter().map(|s| (s.id, s.turn)).collect();
        assert_eq!(ids, [("a".to_string(), 0), ("a turn 2".to_string(), 1)]);
    }

    #[test]
    fn the_schema_names_the_keys_that_are_read() {
        let schema: Value = serde_json::from_str(SCHEMA).unwrap();
        let keys = |pointer: &str| -> Vec<String> {
            schema.pointer(pointer).unwrap().as_object().unwrap().keys().cloned().collect()
        };
        assert_eq!(keys("/properties"), ["version", "scoring", "cases", "controls"]);
        let full = with_then(json!({"results": ["x"], "expect": {"text": "y"}}));
        let mut case: Case = serde_json::from_value(full).unwrap();
        case.chat_template_kwargs.insert("k".into(), 1.into());
        let case = serde_json::to_value(&case).unwrap();
        let known: Vec<String> = case.as_object().unwrap().keys().cloned().collect();
        assert_eq!(keys("/$defs/case/properties"), known);
        let kinds = schema.pointer("/$defs/expect/oneOf").unwrap().as_array().unwrap();
        for kind in kinds {
            let key = kind["required"][0].as_str().unwrap();
            assert!(["calls", "refusal", "no_call", "text"].contains(&key));
        }
        assert_eq!(kinds.len(), 4);
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
            (suite(case(json!({"calls": [{"name": "f", "arguments": {"a": {"$regex": "("}}}]}))), "$regex"),
            (suite(with_then(json!({"results": [], "expect": {"no_call": true}}))), "0 results for 1"),
            (suite(with_then(json!({"results": ["x"], "expect": {"no_call": false}}))), "no_call"),
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

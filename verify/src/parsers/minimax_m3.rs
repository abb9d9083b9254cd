//! MiniMax M3's elements, each tag behind `]<]minimax[>[`.
//!
//! Source: vLLM 0.33, `minimax_m3`. Parameters are elements named after the argument and may nest.

use serde_json::Value;

use super::engine::{self, Arguments, Blank, Body, Delivery, Event, Grammar, Mark, Naming, Rule, State};
use super::python::{Dict, Json, space};
use super::{Context, Parsed, schema};

const RULES: &[Rule] = &[
    (State::Content, Mark::ToolStart, State::Preamble, &[]),
    (State::Preamble, Mark::CallStart, State::Name, &[Event::CallStart]),
    (State::Between, Mark::CallStart, State::Name, &[Event::CallStart]),
    (State::Name, Mark::NameEnd, State::Args, &[]),
    (State::Args, Mark::CallEnd, State::Between, &[Event::CallEnd]),
    (State::Preamble, Mark::ToolEnd, State::Between, &[]),
    (State::Between, Mark::ToolEnd, State::Between, &[]),
];

const MINIMAX_M3: Grammar = Grammar {
    markers: &[
        (Mark::ToolStart, "]<]minimax[>[<tool_call>"),
        (Mark::ToolEnd, "]<]minimax[>[</tool_call>"),
        (Mark::CallStart, "]<]minimax[>[<invoke name=\""),
        (Mark::CallStart, "]<]minimax[>[<invoke name='"),
        (Mark::CallStart, "]<]minimax[>[<invoke name="),
        (Mark::CallEnd, "]<]minimax[>[</invoke>"),
        (Mark::NameEnd, "\">"),
        (Mark::NameEnd, "'>"),
        (Mark::NameEnd, ">"),
    ],
    rules: RULES,
    start: State::Content,
    body: Body::Single,
    arguments: Arguments::Whole(|body, name, context| Some(arguments(body, name, context))),
    naming: Naming::Plain,
    kept_tokens: &[],
    trims_reasoning: true,
    blank: Blank::Dropped,
    known_names_only: false,
};

/// `minimax_m3`.
pub fn minimax_m3(text: &str, context: &Context, delivery: Delivery) -> Parsed {
    engine::parse(text, context, delivery, &MINIMAX_M3)
}

const SPACE: &str = "]<]minimax[>[";
const MAX_DEPTH: usize = 128;

/// An element's value: its text, or its children in order.
enum Element {
    Text(String),
    Children(Vec<(String, Element)>),
}

fn arguments(body: &str, name: &str, context: &Context) -> String {
    let properties = schema::properties(context, space::strip(name));
    let property = |key: &str| properties.and_then(|properties| properties.get(key));
    Json::Dict(object(parameters(body), &property)).dump()
}

/// The elements up to the first that is broken or has no end.
fn parameters(body: &str) -> Vec<(String, Element)> {
    let mut found = Vec::new();
    let mut rest = body.trim_start_matches(space::is_space);
    while let Some((name, element, after)) = element(rest, 1) {
        found.push((name, element));
        rest = after.trim_start_matches(space::is_space);
    }
    found
}

/// The element that starts the text: name, value and what follows.
fn element(text: &str, depth: usize) -> Option<(String, Element, &str)> {
    if depth > MAX_DEPTH {
        return None;
    }
    let (name, mut rest) = text.strip_prefix(SPACE)?.strip_prefix('<')?.split_once('>')?;
    if name.starts_with('/') || space::is_blank(name) {
        return None;
    }
    let mut own_text = String::new();
    let mut children = Vec::new();
    loop {
        let marker = rest.find(SPACE)?;
        own_text.push_str(&rest[..marker]);
        rest = &rest[marker..];
        if let Some(after) = closing(rest, name) {
            return Some((name.to_owned(), value(own_text, children), after));
        }
        let (child, value, after) = element(rest, depth + 1)?;
        children.push((child, value));
        rest = after;
    }
}

fn closing<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.strip_prefix(SPACE)?.strip_prefix("</")?.strip_prefix(name)?.strip_prefix('>')
}

/// Text beside children is kept under a name that no child has.
fn value(text: String, mut children: Vec<(String, Element)>) -> Element {
    if children.is_empty() {
        return Element::Text(text);
    }
    if !space::is_blank(&text) {
        let longest = children.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        let mut field = "$text".to_owned();
        while field.len() <= longest && children.iter().any(|(name, _)| *name == field) {
            field.insert(0, '$');
        }
        children.push((field, Element::Text(text)));
    }
    Element::Children(children)
}

/// An array or an object that a schema asks for.
#[derive(Clone, Copy)]
enum Container<'a> {
    Array(&'a Value),
    Object(&'a Value),
}

/// The first container among the alternatives of a schema.
fn container(schema: &Value) -> Option<Container<'_>> {
    let kinds = schema.get("type");
    let names = |wanted: &str| match kinds {
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == wanted),
        Some(kind) => kind == wanted,
        None => false,
    };
    let untyped = kinds.is_none_or(Value::is_null);
    let has = |key: &str| untyped && schema.get(key).is_some();
    if names("array") {
        return Some(Container::Array(schema));
    }
    if names("object") {
        return Some(Container::Object(schema));
    }
    if has("items") {
        return Some(Container::Array(schema));
    }
    if has("properties") || has("additionalProperties") {
        return Some(Container::Object(schema));
    }
    let branches = ["anyOf", "oneOf"].into_iter().filter_map(|key| schema.get(key)?.as_array()).flatten();
    branches.filter(|branch| branch.is_object()).find_map(container)
}

fn convert(element: Element, schema: Option<&Value>) -> Json {
    let schema = schema.filter(|schema| schema.is_object());
    let container = schema.and_then(container);
    match (element, container) {
        (Element::Text(text), container) => {
            let Some(schema) = schema else { return Json::Str(text) };
            match container {
                Some(container) if !schema::allows_string(schema) && space::is_blank(&text) => {
                    match container {
                        Container::Array(_) => Json::List(Vec::new()),
                        Container::Object(_) => Json::Dict(Dict::default()),
                    }
                }
                _ => schema::convert_text(&text, schema).unwrap_or(Json::Str(text)),
            }
        }
        (Element::Children(children), Some(Container::Array(schema))) => {
            let items = schema.get("items");
            Json::List(children.into_iter().map(|(_, child)| convert(child, items)).collect())
        }
        (Element::Children(children), container) => {
            let schema = match container {
                Some(Container::Object(schema)) => Some(schema),
                _ => None,
            };
            let property = |key: &str| {
                let named = schema?.get("properties").and_then(|properties| properties.get(key));
                named.or_else(|| schema?.get("additionalProperties"))
            };
            Json::Dict(object(children, &property))
        }
    }
}

/// Named elements as an object; a repeated name collects its values in a list.
fn object<'a>(elements: Vec<(String, Element)>, property: &dyn Fn(&str) -> Option<&'a Value>) -> Dict {
    let mut dict = Dict::default();
    let mut repeated = std::collections::HashSet::new();
    for (name, element) in elements {
        let value = convert(element, property(&name));
        match dict.get_mut(&name) {
            None => dict.insert(name, value),
            Some(Json::List(items)) if repeated.contains(&name) => items.push(value),
            Some(first) => {
                *first = Json::List(vec![std::mem::replace(first, Json::Null), value]);
                repeated.insert(name);
            }
        }
    }
    dict
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answer(parameters: &str) -> String {
        let properties = json!({"n": {"type": "integer"}, "l": {"type": "array", "items": {"type": "integer"}},
            "o": {"type": "object", "properties": {"n": {"type": "integer"}}, "additionalProperties": {"type": "boolean"}}});
        let tools = vec![json!({"function": {"name": "f", "parameters": {"properties": properties}}})];
        let text = format!("a \n<tool_call><invoke name=\"f\">{parameters}</invoke></tool_call>lost");
        let text = text.replace('<', "]<]minimax[>[<");
        let parsed = minimax_m3(&text, &Context { tools, ..Context::default() }, Delivery::Whole);
        assert_eq!(parsed.content.as_deref(), Some("a \n"));
        parsed.tool_calls[0].arguments.clone()
    }

    #[test]
    fn elements_convert_by_schema() {
        assert_eq!(answer("<n>1</n>\n<s>1</s>"), "{\"n\": 1, \"s\": \"1\"}");
        assert_eq!(answer("<l><item>1</item><x>2</x></l>"), "{\"l\": [1, 2]}");
        assert_eq!(answer("<o><n>1</n><b>true</b></o>"), "{\"o\": {\"n\": 1, \"b\": true}}");
        assert_eq!(answer("<l></l><o> </o>"), "{\"l\": [], \"o\": {}}");
    }

    #[test]
    fn repeated_names_become_lists() {
        assert_eq!(answer("<s>1</s><s>2</s><s>3</s>"), "{\"s\": [\"1\", \"2\", \"3\"]}");
    }

    #[test]
    fn text_beside_children_has_a_name_of_its_own() {
        assert_eq!(answer("<s>x<k>1</k>y</s>"), "{\"s\": {\"k\": \"1\", \"$text\": \"xy\"}}");
    }

    #[test]
    fn the_first_broken_element_ends_the_arguments() {
        assert_eq!(answer("<s>1</s><t>2<u>3</t><v>4</v>"), "{\"s\": \"1\"}");
    }
}

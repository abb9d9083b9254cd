//! The state machine over literal markers that most XML-like formats share.
//!
//! Source: vLLM 0.33, the parser engine, as it answers without streaming. The longest marker at a position wins; text
//! between markers belongs to the current state. A grammar is data: markers, rules, and what its argument bodies are.

mod lexer;
mod machine;
mod parameters;
mod streamed;

use std::collections::HashMap;

use super::python::{Dict, Json, json, space};
use super::{Context, Parsed, Reasoned, ToolCall, schema};
pub use parameters::{Form, Parameter};

use machine::{Machine, Slot};

/// Where the machine is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Text for the user.
    Content,
    /// Text of the model's reasoning.
    Reasoning,
    /// After a wrapper, before the name: text is dropped.
    Preamble,
    /// Inside the function's name.
    Name,
    /// Inside the argument body.
    Args,
    /// After a call, before the wrapper's end: text is dropped.
    Between,
}

impl State {
    /// Whether the state belongs to a call.
    pub fn in_call(self) -> bool {
        !matches!(self, State::Content | State::Reasoning)
    }
}

/// What a marker means; the same meanings serve all grammars.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    ThinkStart,
    ThinkEnd,
    ToolStart,
    ToolEnd,
    CallStart,
    CallEnd,
    NameEnd,
    ParamStart,
    ParamEnd,
    /// No rule knows it: text of any state, but never part of another marker.
    Plain,
    /// A special token of the tokenizer that the grammar does not know.
    Dropped,
}

/// What a rule does besides the change of state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    ReasoningEnd,
    CallStart,
    CallEnd,
    /// The marker itself is part of the argument body.
    Body,
}

/// `(state, marker) -> (next state, events)`.
pub type Rule = (State, Mark, State, &'static [Event]);

/// What an argument body is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body {
    /// The arguments of one call.
    Single,
    /// A JSON array of objects with `name` and `arguments`, each a call; its `]` ends the call region.
    Array,
}

/// How an argument body becomes the argument string.
#[derive(Clone, Copy)]
pub enum Arguments {
    /// Named parameters, from which the second function makes the string.
    Parameters(fn(&str) -> Vec<Parameter<'_>>, fn(Dict, name: &str, context: &Context) -> String),
    /// Anything else; `None` where it cannot be read. Streamed once it is whole.
    Whole(fn(&str, name: &str, context: &Context) -> Option<String>),
    /// As `Whole`, but streamed as it is written, and only converted by the schema at its end.
    AsWritten(fn(&str) -> Option<String>),
    /// As `Whole`, but streamed as the model writes it, and neither cut nor converted by the schema.
    Raw(fn(&str) -> String),
}

/// How the text of the name state becomes a name.
#[derive(Clone, Copy)]
pub enum Naming {
    /// As it stands.
    Plain,
    /// White space around is removed before the name is compared with the tools.
    Trimmed,
    /// The header holds more than the name; text that does not yield one counts as no name.
    Header(fn(&str) -> Option<&str>),
    /// Nothing but this text can be the name, even where it is empty.
    Final,
}

/// One wire format.
#[derive(Clone, Copy)]
pub struct Grammar {
    /// Markers and their spellings.
    pub markers: &'static [(Mark, &'static str)],
    /// Rules; a marker without a rule in the current state is text of that state.
    pub rules: &'static [Rule],
    /// Where the text of a model with this reasoning parser begins.
    pub start: State,
    /// What argument bodies are.
    pub body: Body,
    /// How they are read.
    pub arguments: Arguments,
    /// How names are read.
    pub naming: Naming,
    /// Special tokens that are neither markers nor deleted.
    pub kept_tokens: &'static [&'static str],
    /// Whether white space at the end of the reasoning is removed.
    pub trims_reasoning: bool,
    /// What becomes of white space around the content when calls are reported.
    pub blank: Blank,
    /// Whether calls of tools that were not offered are dropped.
    pub known_names_only: bool,
}

/// Treatment of white space around the content of an answer with calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blank {
    /// Content is trimmed.
    Trimmed,
    /// Content of nothing but white space disappears, other content stays as it is.
    Dropped,
    /// Content stays as it is.
    Kept,
}

/// How the client asked for the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// In one piece.
    Whole,
    /// As deltas; what counts is what a client puts together from them.
    Streamed,
}

/// Whether markers of reasoning are markers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Think {
    /// A reasoning parser runs as well: stray markers are swallowed.
    Markers,
    /// No reasoning parser: they are text.
    Text,
}

/// What the server answers for `text`, reasoning already taken off.
pub fn parse(text: &str, context: &Context, delivery: Delivery, grammar: &Grammar) -> Parsed {
    let think = if context.reasoned == Reasoned::No { Think::Text } else { Think::Markers };
    let mut machine = Machine::new(grammar, context, think);
    machine.run(text);
    if delivery == Delivery::Streamed {
        let calls = machine.slots.iter().filter_map(|slot| sent(slot, grammar, context)).collect();
        return Parsed::called(&machine.streamed.end(), calls);
    }
    let calls = report(&machine.slots, grammar, context);
    let content = machine.content();
    let content = match grammar.blank {
        Blank::Trimmed if !calls.is_empty() => space::strip(&content),
        _ => &content,
    };
    Parsed::called(content, calls)
}

/// Splits `text` into reasoning and the rest, call markup included.
pub fn split_reasoning(text: &str, context: &Context, grammar: &Grammar) -> (String, String) {
    let mut machine = Machine::for_reasoning(grammar, context);
    machine.run(text);
    let reasoning =
        if grammar.trims_reasoning { space::strip_end(&machine.reasoning) } else { &machine.reasoning };
    (reasoning.to_owned(), machine.content())
}

/// The calls as the client sees them.
fn report(slots: &[Slot], grammar: &Grammar, context: &Context) -> Vec<ToolCall> {
    // The server looks the name for a body up among the bodies, so that of equal bodies the first lends its name.
    let mut owners = HashMap::new();
    for slot in slots {
        owners.entry(slot.body.as_str()).or_insert(slot.name.as_str());
    }
    let mut calls = Vec::new();
    for slot in slots.iter().filter(|slot| !slot.name.is_empty() || !slot.body.is_empty()) {
        let name = space::strip(&slot.name);
        let (name, arguments) = if space::is_blank(&slot.body) {
            (name.to_owned(), "{}".to_owned())
        } else if name.is_empty() && !matches!(grammar.naming, Naming::Final) {
            name_and_arguments(&slot.body)
        } else {
            let owner = owners.get(slot.body.as_str()).copied().unwrap_or_default();
            let converted = converted(&slot.body, owner, grammar, context);
            (name.to_owned(), converted.unwrap_or_else(|| name_and_arguments(&slot.body).1))
        };
        if accepts(&name, grammar, context) {
            let arguments = schema::convert_arguments(arguments, &name, context);
            calls.push(ToolCall { name, arguments });
        }
    }
    calls
}

/// The argument string of a whole body, before conversion by the schema.
fn converted(body: &str, name: &str, grammar: &Grammar, context: &Context) -> Option<String> {
    match grammar.arguments {
        Arguments::Parameters(read, write) => Some(write(parameters::whole(&read(body)), name, context)),
        Arguments::Whole(read) => read(body, name, context),
        Arguments::AsWritten(read) => read(body),
        Arguments::Raw(read) => Some(read(body)),
    }
}

/// The call as a client puts it together from deltas, if it has been told of it.
fn sent(slot: &Slot, grammar: &Grammar, context: &Context) -> Option<ToolCall> {
    if !slot.announced {
        return None;
    }
    let name = &slot.name;
    let convert = |text| schema::convert_arguments(text, name, context);
    let stages = match grammar.arguments {
        Arguments::Parameters(read, write) => parameters::stages(&read(&slot.body))
            .into_iter()
            .map(|dict| convert(write(dict, name, context)))
            .collect(),
        Arguments::AsWritten(read) => {
            let mut text = read(&slot.body).unwrap_or_default();
            text.pop();
            vec![text]
        }
        Arguments::Whole(_) => Vec::new(),
        Arguments::Raw(_) => return Some(ToolCall { name: name.clone(), arguments: slot.body.clone() }),
    };
    let end = converted(&slot.body, name, grammar, context).map(convert).unwrap_or_default();
    Some(ToolCall { name: name.clone(), arguments: streamed::arguments(&stages, &end, name, context) })
}

/// Whether a call of this name is reported.
fn accepts(name: &str, grammar: &Grammar, context: &Context) -> bool {
    match grammar.naming {
        Naming::Final => true,
        _ => !name.is_empty() && (!grammar.known_names_only || schema::offers(context, name)),
    }
}

/// Reads a body of the form `{"name": .., "arguments": ..}`; without `arguments` the other keys are the arguments.
/// A body that is no JSON object is passed on as it is.
fn name_and_arguments(body: &str) -> (String, String) {
    let body = space::strip(body);
    let Some(Json::Dict(dict)) = json::loads(body) else { return (String::new(), body.to_owned()) };
    let name = dict.get("name").and_then(Json::as_str).unwrap_or_default().to_owned();
    let arguments = match dict.get("arguments").or_else(|| dict.get("parameters")) {
        Some(Json::Str(text)) => text.clone(),
        Some(other) => other.dump(),
        None => Json::Dict(
            dict.iter().filter(|(key, _)| *key != "name").map(|(k, v)| (k.to_owned(), v.clone())).collect(),
        )
        .dump(),
    };
    (name, arguments)
}

//! Argument bodies made of named parameters.

use std::collections::HashSet;

use crate::parsers::python::{Dict, Json, json};

/// A parameter of a body, in the order of the text.
#[derive(Debug, Clone, Copy)]
pub struct Parameter<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its value as the grammar reads it.
    pub value: &'a str,
    /// What the value is.
    pub form: Form,
    /// Whether the value has an end; one without can only be the last.
    pub closed: bool,
}

/// What a value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A string, whatever it looks like.
    Text,
    /// JSON, or else a string.
    Json,
}

/// The arguments of a whole body: a value without an end is dropped.
pub fn whole(parameters: &[Parameter]) -> Dict {
    parameters.iter().filter(|parameter| parameter.closed).map(entry).collect()
}

/// The arguments at the points of streaming that decide what a client has been sent: before a name is repeated, and with
/// the value that has no end.
pub fn stages(parameters: &[Parameter]) -> Vec<Dict> {
    let mut names = HashSet::new();
    let repeated = parameters.iter().position(|parameter| !names.insert(parameter.name));
    let mut stages: Vec<Dict> = repeated.map(|at| whole(&parameters[..at])).into_iter().collect();
    // Half a JSON value is not sent.
    let open = parameters.last().filter(|parameter| !parameter.closed && parameter.form == Form::Text);
    let mut last = whole(parameters);
    if let Some((name, value)) = open.map(entry) {
        last.insert(name, value);
    }
    stages.push(last);
    stages
}

fn entry(parameter: &Parameter) -> (String, Json) {
    let text = || Json::Str(parameter.value.to_owned());
    let value = match parameter.form {
        Form::Text => text(),
        Form::Json => json::loads(parameter.value).unwrap_or_else(text),
    };
    (parameter.name.to_owned(), value)
}

//! The chat template: its text, and the prompts that it makes.

use serde::Serialize;
use serde_json::{Value, json};

use crate::error::Result;
use crate::inspect::Tokens;
use crate::names::Digest;
use crate::rewrite::ModelView;
use crate::template::{ChatTemplate, Places, Renderer, Request, lint};

/// Two templates that are not the same text.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TemplateDifference {
    /// Digest of the first; `None` where there is none.
    pub a: Option<Digest>,
    /// Digest of the second.
    pub b: Option<Digest>,
    /// Conversations whose prompts differ.
    pub prompts: Vec<PromptDifference>,
    /// In words.
    pub sentence: String,
}

/// A conversation whose prompts differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PromptDifference {
    /// Which conversation.
    pub conversation: &'static str,
    /// The first line that differs, in the first and in the second.
    pub lines: [String; 2],
}

pub fn difference(a: &ModelView, b: &ModelView) -> Result<Option<TemplateDifference>> {
    let (x, y) = (chosen(a)?, chosen(b)?);
    let text = |t: &Option<ChatTemplate>| t.as_ref().map(|t| t.text.clone());
    if text(&x) == text(&y) {
        return Ok(None);
    }
    let digest = |t: &Option<ChatTemplate>| t.as_ref().map(ChatTemplate::digest);
    let (da, db) = (digest(&x), digest(&y));
    let prompts = match (x, y) {
        (Some(x), Some(y)) => prompts(&prompts_of(x, a)?, &prompts_of(y, b)?),
        _ => Vec::new(),
    };
    let sentence = match (da, db, prompts.first()) {
        (None, _, _) => "the first has no chat template".into(),
        (_, None, _) => "the second has no chat template".into(),
        (_, _, None) => "the templates differ in text and make the same prompts".into(),
        (_, _, Some(first)) => format!("the templates differ, first for `{}`", first.conversation),
    };
    Ok(Some(TemplateDifference { a: da, b: db, prompts, sentence }))
}

fn chosen(view: &ModelView) -> Result<Option<ChatTemplate>> {
    Ok(Places::of(view)?.chosen())
}

/// What the usual conversations become; a refusal counts as a prompt of its own.
fn prompts_of(template: ChatTemplate, view: &ModelView) -> Result<Vec<(&'static str, String)>> {
    let renderer = match Renderer::new(template, Tokens::of(view)?.for_template) {
        Ok(renderer) => renderer,
        Err(e) => return Ok(vec![("any", e.what().to_string())]),
    };
    let render = |(name, request): (&'static str, Request)| {
        (name, renderer.render(&request).unwrap_or_else(|f| format!("refused: {f}")))
    };
    Ok(conversations().into_iter().map(render).collect())
}

fn conversations() -> Vec<(&'static str, Request)> {
    let turn = |role: &str, text: &str| json!({"role": role, "content": text});
    let system = turn("system", "Be brief.");
    let user = turn("user", "What is the weather in Oslo?");
    let call = json!({"role": "assistant", "content": "", "tool_calls": [lint::probe_call("Oslo")]});
    let result =
        json!({"role": "tool", "name": "probe_weather", "tool_call_id": "call00001", "content": "sunny"});
    let tools = [lint::probe_tool()];
    let mut off = Request::new(&[system.clone(), user.clone()], &[]);
    off.kwargs.insert("enable_thinking".into(), Value::Bool(false));
    vec![
        ("a question", Request::new(std::slice::from_ref(&user), &[])),
        ("a system turn and a question", Request::new(&[system, user.clone()], &[])),
        ("a question without thinking", off),
        ("a question with tools", Request::new(std::slice::from_ref(&user), &tools)),
        ("a call and its result", Request::new(&[user, call, result], &tools)),
    ]
}

fn prompts(a: &[(&'static str, String)], b: &[(&'static str, String)]) -> Vec<PromptDifference> {
    let both = a.iter().zip(b).filter(|(x, y)| x.1 != y.1);
    both.map(|((name, x), (_, y))| PromptDifference { conversation: name, lines: first_line(x, y) }).collect()
}

fn first_line(a: &str, b: &str) -> [String; 2] {
    let (mut x, mut y) = (a.lines(), b.lines());
    loop {
        match (x.next(), y.next()) {
            (Some(p), Some(q)) if p == q => {}
            (None, None) => return ["(line ends)".into(), "(line ends)".into()],
            (p, q) => return [p, q].map(|line| line.unwrap_or("(the prompt ends)").to_string()),
        }
    }
}

/// What differs of the tokenizer, in words.
pub fn tokenizer(a: &ModelView, b: &ModelView) -> Result<Vec<String>> {
    let (x, y) = (Tokens::of(a)?, Tokens::of(b)?);
    let mut found = Vec::new();
    if x.tokenizer_size != y.tokenizer_size {
        let size = |n: Option<usize>| n.map_or("no tokenizer.json".to_string(), |n| format!("{n} tokens"));
        found.push(format!(
            "{} in the first, {} in the second",
            size(x.tokenizer_size),
            size(y.tokenizer_size)
        ));
    }
    let lost = |x: &Tokens, y: &Tokens| -> Vec<String> {
        x.added.iter().filter(|t| !y.added.contains(t)).map(|(text, id)| format!("`{text}` ({id})")).collect()
    };
    for (which, list) in [("first", lost(&x, &y)), ("second", lost(&y, &x))] {
        if !list.is_empty() {
            let list = crate::checkpoint::list_some(&list);
            found.push(format!("added tokens only in the {which}: {list}"));
        }
    }
    for (role, token) in &x.special {
        if y.special.get(role).is_some_and(|other| other != token) {
            let other = &y.special[role].text;
            found.push(format!("{role} is `{}` in the first, `{other}` in the second", token.text));
        }
    }
    let ids = |t: &Tokens| t.stop.iter().map(|s| s.id).collect::<Vec<_>>();
    if ids(&x) != ids(&y) {
        found.push(format!("stop tokens {:?} in the first, {:?} in the second", ids(&x), ids(&y)));
    }
    Ok(found)
}

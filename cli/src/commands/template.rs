//! `prep template`: show, render, check and embed chat templates.

use std::path::Path;

use serde_json::{Map, Value, json};
use verify::checkpoint::folder::refuse_unfinished;
use verify::checkpoint::json as files;
use verify::template::embed::{self, Files};
use verify::template::{ChatTemplate, Finding, Level, Places, Renderer, Request, lint, special_tokens};
use verify::write::write_file;
use verify::{Error, FileName, Result, Shown, diagnose, report};

use super::folder_of;
use crate::args::{Template, TemplateCheck, TemplateEmbed, TemplateModel, TemplateRender};
use crate::output::Output;

pub fn run(args: &Template, output: &Output) -> Result<u8> {
    let model = args.model();
    refuse_unfinished(folder_of(model)?)?;
    match args {
        Template::Show(a) => show(a, output),
        Template::Render(a) => render(a, output),
        Template::Check(a) => check(a, output),
        Template::Embed(a) => embed(a, output),
    }
}

fn show(args: &TemplateModel, output: &Output) -> Result<u8> {
    let template = ChatTemplate::open(&args.model)?;
    let places = Places::read(&args.model)?;
    if output.is_json() {
        let found: Vec<_> =
            places.found.iter().map(|t| json!({"source": t.source, "sha256": t.digest()})).collect();
        output.result(0, json!({"text": template.text, "source": template.source, "places": found}));
    } else {
        output.raw(&template.text);
        output.remark(&format!("from {}, sha256 {}", template.source, template.digest()));
    }
    Ok(0)
}

fn render(args: &TemplateRender, output: &Output) -> Result<u8> {
    let template = ChatTemplate::open(args.from.as_deref().unwrap_or(&args.model))?;
    let renderer = Renderer::new(template, special_tokens(&args.model)?)?;
    let mut request = conversation(&args.messages, args.tools.as_deref(), args.kwargs.as_deref())?;
    request.add_generation_prompt = !args.no_generation_prompt;
    let text = renderer.render(&request).map_err(|f| f.into_error(renderer.template()))?;
    match output.is_json() {
        true => output.result(0, json!({"prompt": text})),
        false => output.raw(&text),
    }
    Ok(0)
}

/// A conversation from files: a list of messages, or an object with `messages` and `tools`.
pub fn conversation(messages: &Path, tools: Option<&Path>, kwargs: Option<&str>) -> Result<Request> {
    let value = files::read(messages)?;
    let list = |v: &Value, what: &str, path: &Path| -> Result<Vec<Value>> {
        v.as_array().cloned().ok_or_else(|| {
            Error::input(format!("{} holds no list of {what}", Shown::path(path))).found(kind(v))
        })
    };
    let (turns, own_tools) = match value.get("messages") {
        Some(m) => (m.clone(), value.get("tools").cloned()),
        None => (value, None),
    };
    let turns = list(&turns, "messages", messages)?;
    let tools = match (tools, own_tools) {
        (Some(path), _) => list(&files::read(path)?, "tools", path)?,
        (None, Some(v)) if !v.is_null() => list(&v, "tools", messages)?,
        _ => Vec::new(),
    };
    let mut request = Request::new(&turns, &tools);
    request.kwargs = kwargs.map(object).transpose()?.unwrap_or_default();
    Ok(request)
}

/// The object that `--kwargs` holds.
pub fn object(text: &str) -> Result<Map<String, Value>> {
    serde_json::from_str(text).map_err(|e| Error::usage("--kwargs is no JSON object").found(e.to_string()))
}

fn kind(v: &Value) -> &'static str {
    match v {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn check(args: &TemplateCheck, output: &Output) -> Result<u8> {
    let wanted = args.from.as_deref().map(ChatTemplate::open).transpose()?;
    let places = Places::read(&args.model)?;
    let mut findings = embed::check(&places, wanted.as_ref());
    let mut taught = None;
    if places.chosen().is_some() {
        let renderer = Renderer::open(&args.model)?;
        let teaches = diagnose::taught(&renderer);
        findings.extend(diagnose::teaches_nothing(&teaches));
        findings.extend(lint::findings(&lint::try_all(&renderer)));
        output.text(&format!("{}: {}", renderer.template().source, teaches.sentence()));
        taught = Some(teaches);
    }
    let findings: Vec<_> = findings.into_iter().map(|f| f.about(&args.model)).collect();
    say_findings(&findings, output);
    let failed = findings.iter().any(|f| f.level == Level::Error);
    if findings.is_empty() {
        output.text("no fault found");
    }
    output.result(u8::from(failed), json!({"places": places, "teaches": taught, "findings": findings}));
    Ok(u8::from(failed))
}

/// Findings as lines: what, and what to do.
pub fn say_findings(findings: &[Finding], output: &Output) {
    for f in findings {
        output.text(&format!("{}: {}", f.level.name(), f.what));
        output.text(&format!("  hint: {}", f.advice));
    }
}

fn embed(args: &TemplateEmbed, output: &Output) -> Result<u8> {
    let template = ChatTemplate::open(args.from.as_deref().unwrap_or(&args.model))?;
    // A template that does not compile would leave the folder worse than before.
    let taught = diagnose::taught(&Renderer::new(template.clone(), special_tokens(&args.model)?)?);
    if !taught.shows_tools {
        output.warning(&taught.sentence());
    }
    let text_of = |name: &str| -> Result<Option<String>> {
        let path = args.model.join(name);
        path.exists().then(|| files::read_text(&path, files::MAX_CONFIG)).transpose()
    };
    let before = Files {
        tokenizer_config: text_of("tokenizer_config.json")?,
        processor: text_of("chat_template.json")?,
    };
    let written = embed::embed(&template.text, &before)?;
    let mut names = Vec::new();
    for file in &written {
        let name = FileName::parse(file.name)?;
        write_file(&args.model, &name, file.text.as_bytes())?;
        names.push(name);
    }
    report::refresh_sums(&args.model, &names)?;
    let list = written.iter().map(|w| w.name).collect::<Vec<_>>();
    let from = Shown::path(&template.source.file);
    output.text(&format!(
        "template of {from} written to {} of {}",
        list.join(", "),
        Shown::path(&args.model)
    ));
    output.result(0, json!({"source": template.source, "sha256": template.digest(), "written": list}));
    Ok(0)
}

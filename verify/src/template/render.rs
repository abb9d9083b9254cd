//! Renders a conversation exactly as transformers' `apply_chat_template` does, or says why it cannot.
//!
//! Untrusted text: there is no loader and no host behind it, and fuel, output, depth and time are bounded.
//! Source: transformers 5 `utils/chat_template_utils.py`.

use std::fmt;
use std::io;
use std::path::Path;
use std::time::Instant;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value as Jinja;
use minijinja::{AutoEscape, Environment, ErrorKind, Output, State, escape_formatter};
use serde::Serialize;
use serde_json::{Map, Value};

use super::find::ChatTemplate;
use super::{filters, python, request, tags, values, watch};
use crate::error::{Error, Result};

pub use super::request::{Nulls, Request};

const FUEL: u64 = 10_000_000;
const MAX_OUTPUT: usize = 16 << 20;
const MAX_DEPTH: usize = 200;

/// A compiled template with the special tokens of its tokenizer.
#[derive(Debug, Clone)]
pub struct Renderer {
    template: ChatTemplate,
    prepared: String,
    tokens: Map<String, Value>,
}

/// Why a template gives no prompt.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Failure {
    /// The template refused the conversation through `raise_exception`.
    Raised {
        /// Its words.
        message: String,
        /// The line of the template.
        line: Option<usize>,
    },
    /// The template uses something that is not rendered here, or that Jinja2 does not have.
    Unsupported {
        /// What it is.
        construct: String,
        /// The line of the template.
        line: Option<usize>,
    },
    /// A bound on work, output, depth or time was reached.
    Limit {
        /// Which one.
        what: String,
        /// The line of the template.
        line: Option<usize>,
    },
    /// It failed on these values, as it would under Jinja2.
    Failed {
        /// The engine's words.
        reason: String,
        /// The line of the template.
        line: Option<usize>,
    },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = match self {
            Failure::Raised { message, line } => {
                write!(f, "the template refuses the conversation: {message}")?;
                line
            }
            Failure::Unsupported { construct, line } => {
                write!(f, "not supported: {construct}")?;
                line
            }
            Failure::Limit { what, line } => {
                write!(f, "{what}")?;
                line
            }
            Failure::Failed { reason, line } => {
                write!(f, "{reason}")?;
                line
            }
        };
        line.map_or(Ok(()), |line| write!(f, " (line {line})"))
    }
}

impl Failure {
    /// As an error that names the template.
    pub fn into_error(self, template: &ChatTemplate) -> Error {
        let hint = match &self {
            Failure::Raised { .. } => "send the turns in an order that the template accepts",
            Failure::Unsupported { .. } => {
                "write the template without it, in what Jinja2 and transformers know"
            }
            Failure::Limit { .. } => "the template does not end or writes without bound: use another one",
            Failure::Failed { .. } => "run `prep template check` to see which conversations fail",
        };
        Error::input(format!("chat template ({}) cannot be rendered", template.source))
            .found(self.to_string())
            .hint(hint)
    }
}

impl Renderer {
    /// Compiles `template`; `tokens` are the special tokens by name (`bos_token`, ...).
    ///
    /// # Errors
    /// Exit 3 for a template that does not compile.
    pub fn new(template: ChatTemplate, tokens: Map<String, Value>) -> Result<Self> {
        let prepared = match tags::prepare(&template.text) {
            Ok(prepared) => prepared,
            Err(failure) => return Err(failure.into_error(&template)),
        };
        let text = prepared.clone();
        let compiled = watch::guarded(move || {
            environment().template_from_named_str("chat_template", &text).map(|_| ()).map_err(Ended::Engine)
        });
        match compiled {
            Ok(Ok(())) => Ok(Renderer { template, prepared, tokens }),
            Ok(Err(e)) => Err(e.into_failure(&template.text).into_error(&template)),
            Err(what) => Err(Failure::Limit { what: what.into(), line: None }.into_error(&template)),
        }
    }

    /// The template of a model folder with the special tokens of its tokenizer.
    ///
    /// # Errors
    /// As [`ChatTemplate::open`] and [`Renderer::new`].
    pub fn open(dir: &Path) -> Result<Self> {
        Self::new(ChatTemplate::open(dir)?, request::special_tokens(dir)?)
    }

    /// The template.
    pub fn template(&self) -> &ChatTemplate {
        &self.template
    }

    /// The special tokens.
    pub fn tokens(&self) -> &Map<String, Value> {
        &self.tokens
    }

    /// The prompt for `request`.
    ///
    /// # Errors
    /// A [`Failure`], with the line of the template where one is known.
    pub fn render(&self, request: &Request) -> Result<String, Failure> {
        let context = Value::Object(request.context(&self.tokens)?);
        let (prepared, values) = (self.prepared.clone(), context.clone());
        let text = match watch::guarded(move || execute(&prepared, &values)) {
            Ok(result) => result.map_err(|e| e.into_failure(&self.template.text))?,
            Err(what) => return Err(Failure::Limit { what: what.to_string(), line: None }),
        };
        check_floats(&context, &text)?;
        Ok(text)
    }
}

/// How a rendering ended without a text.
enum Ended {
    Over(&'static str),
    Engine(minijinja::Error),
}

impl Ended {
    fn into_failure(self, source: &str) -> Failure {
        match self {
            Ended::Over(what) => Failure::Limit { what: what.to_string(), line: None },
            Ended::Engine(e) => failure(&e, source),
        }
    }
}

fn execute(prepared: &str, context: &Value) -> Result<String, Ended> {
    let env = environment();
    let template = env.template_from_named_str("chat_template", prepared).map_err(Ended::Engine)?;
    let mut out = Bounded { text: Vec::new(), start: Instant::now(), over: None };
    let result = template.render_captured_to(values::from_json(context), &mut out).map(|_| ());
    match (out.over, result) {
        (Some(what), _) => Err(Ended::Over(what)),
        (None, Err(e)) => Err(Ended::Engine(e)),
        (None, Ok(())) => Ok(String::from_utf8_lossy(&out.text).into_owned()),
    }
}

/// Output that ends at a size and a time.
struct Bounded {
    text: Vec<u8>,
    start: Instant,
    over: Option<&'static str>,
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.text.len() + bytes.len() > MAX_OUTPUT {
            self.over = Some("the template writes more than 16 MiB");
        } else if self.start.elapsed() > watch::MAX_TIME {
            self.over = Some(watch::TOO_LONG);
        } else {
            self.text.extend_from_slice(bytes);
            return Ok(bytes.len());
        }
        Err(io::Error::other("limit"))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn environment<'a>() -> Environment<'a> {
    let mut env = Environment::new();
    // Nothing can fail here: the delimiters are the usual ones.
    if let Ok(syntax) = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build() {
        env.set_syntax(syntax);
    }
    env.set_fuel(Some(FUEL));
    env.set_recursion_limit(MAX_DEPTH);
    env.set_debug(true);
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_unknown_method_callback(values::method);
    env.set_formatter(format);
    env.add_function("raise_exception", raise);
    env.add_function("strftime_now", strftime_now);
    filters::install(&mut env);
    env
}

fn format(out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Jinja) -> Result<(), minijinja::Error> {
    if !matches!(state.auto_escape(), AutoEscape::None) || value.as_str().is_some() {
        return escape_formatter(out, state, value);
    }
    let text = python::str(value)?;
    out.write_str(&text).map_err(|_| minijinja::Error::from(ErrorKind::WriteFailure))
}

/// The message of `raise_exception`, kept apart from the engine's own words.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

fn raise(message: &Jinja) -> Result<Jinja, minijinja::Error> {
    let raised = Raised(python::str(message)?);
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(raised))
}

fn strftime_now(format: &str) -> Result<String, minijinja::Error> {
    use chrono::format::{Item, StrftimeItems};
    // chrono's `%f` counts nanoseconds where Python's counts microseconds.
    let bad = format.contains("%f") || StrftimeItems::new(format).any(|item| matches!(item, Item::Error));
    match bad {
        true => Err(minijinja::Error::new(
            ErrorKind::InvalidOperation,
            format!("strftime_now: format `{format}` is not known"),
        )),
        false => Ok(chrono::Local::now().format(format).to_string()),
    }
}

fn failure(e: &minijinja::Error, source: &str) -> Failure {
    let mut line = e.line();
    let mut inner = e;
    let mut at: Option<&(dyn std::error::Error + 'static)> = std::error::Error::source(e);
    while let Some(cause) = at {
        if let Some(raised) = cause.downcast_ref::<Raised>() {
            return Failure::Raised { message: raised.0.clone(), line };
        }
        if let Some(cause) = cause.downcast_ref::<minijinja::Error>() {
            inner = cause;
            line = cause.line().or(line);
        }
        at = cause.source();
    }
    let code = line.and_then(|n| source.lines().nth(n.saturating_sub(1))).map_or("", str::trim);
    let words = inner.detail().map_or_else(|| inner.kind().to_string(), str::to_string);
    match inner.kind() {
        ErrorKind::OutOfFuel => Failure::Limit { what: "the template does too much work".into(), line },
        ErrorKind::InvalidOperation if words.contains("recursion limit") => {
            Failure::Limit { what: "the template calls itself without end".into(), line }
        }
        ErrorKind::SyntaxError
        | ErrorKind::UnknownFilter
        | ErrorKind::UnknownTest
        | ErrorKind::UnknownFunction
        | ErrorKind::UnknownMethod => Failure::Unsupported { construct: in_code(words, code), line },
        ErrorKind::InvalidOperation if words.contains("% operator") || code.contains("' %") => {
            Failure::Unsupported { construct: in_code(format!("`%` on text: {words}"), code), line }
        }
        _ => Failure::Failed { reason: in_code(words, code), line },
    }
}

fn in_code(words: String, code: &str) -> String {
    match code.is_empty() {
        true => words,
        false => format!("{words}, in `{}`", crate::names::Shown(code)),
    }
}

/// The one place that Python's float format does not reach is the operator `~`: refuse rather than write
/// another number than Python would.
fn check_floats(context: &Value, text: &str) -> Result<(), Failure> {
    let mut odd = Vec::new();
    odd_floats(context, &mut odd);
    match odd.into_iter().find(|(engine, _)| text.contains(engine.as_str())) {
        Some((_, python)) => Err(Failure::Unsupported {
            construct: format!("the number {python} joined with `~`: use the filter `string` or `tojson`"),
            line: None,
        }),
        None => Ok(()),
    }
}

/// Floats that the engine prints otherwise than Python, as (engine, Python).
fn odd_floats(value: &Value, out: &mut Vec<(String, String)>) {
    match value {
        Value::Array(list) => list.iter().for_each(|v| odd_floats(v, out)),
        Value::Object(map) => map.values().for_each(|v| odd_floats(v, out)),
        Value::Number(n) if n.is_f64() => {
            let x = n.as_f64().unwrap_or_default();
            let (engine, python) = (Jinja::from(x).to_string(), python::float(x));
            if engine != python {
                out.push((engine, python));
            }
        }
        _ => {}
    }
}

//! HTTP to one server: time limits, waiting where it asks for it, and one sentence for every way it can fail.

use std::io::{BufRead, BufReader, Read};
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;
use ureq::http::Response;
use ureq::{Agent, Body};
use verify::parsers::ToolCall;
use verify::suite::{Lost, Message};
use verify::{Class, Error};

use super::{Address, ApiKey, excerpt};
use crate::retry_after::retry_after;

/// So often is a request sent again that the server is too busy for.
const RETRIES: u32 = 3;
/// A longer wait is not accepted.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// No answer is larger.
const MAX_BODY: u64 = 64 << 20;

/// A connection to one server.
pub struct Client {
    agent: Agent,
    address: Address,
    key: ApiKey,
    timeout: Duration,
}

/// Why a request failed; `what` names its address.
#[derive(Debug, Clone, PartialEq)]
pub enum Trouble {
    /// No connection, silence, or an answer cut off.
    Network { what: String },
    /// The server answered with an error.
    Status { code: u16, message: String },
    /// An answer that is none.
    Malformed { what: String },
}

impl Trouble {
    /// As the reason why a case has no answer.
    pub fn lost(self) -> Lost {
        match self {
            Trouble::Network { what } => Lost::network(what),
            Trouble::Malformed { what } => Lost::server(what),
            Trouble::Status { code: code @ (429 | 503), message } => {
                Lost::network(format!("the server is too busy (HTTP {code}: {message})"))
            }
            Trouble::Status { code, message } => Lost::server(format!("HTTP {code}: {message}")),
        }
    }

    /// True where the server says that it does not have what was asked for, and never will.
    pub fn is_unknown_path(&self) -> bool {
        matches!(self, Trouble::Status { code: 404 | 405 | 501, .. })
    }

    /// True where the server has the path and does not take this request, such as a prompt too long for it.
    pub fn is_refused(&self) -> bool {
        matches!(self, Trouble::Status { code: 400 | 422, .. })
    }
}

impl Client {
    /// For the server at `address`; `timeout` is its longest silence.
    pub fn new(address: Address, key: ApiKey, timeout: Duration) -> Self {
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(timeout.min(Duration::from_secs(10))))
            .timeout_per_read(Some(timeout))
            // Ends a server that goes on for ever, a few bytes at a time.
            .timeout_global(Some(timeout * 10))
            .user_agent(concat!("prep/", env!("CARGO_PKG_VERSION")));
        if address.is_local() {
            config = config.proxy(None);
        }
        Client { agent: config.build().new_agent(), address, key, timeout }
    }

    /// Where it is.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// A message without the key, which may have come in pieces or in escapes.
    pub fn hide(&self, message: Message) -> Message {
        let text = |text: Option<String>| text.map(|t| self.key.hide(t));
        let call =
            |c: ToolCall| ToolCall { name: self.key.hide(c.name), arguments: self.key.hide(c.arguments) };
        Message {
            content: text(message.content),
            reasoning: text(message.reasoning),
            tool_calls: message.tool_calls.into_iter().map(call).collect(),
            ..message
        }
    }

    /// A text without the key.
    pub fn hide_text(&self, text: String) -> String {
        self.key.hide(text)
    }

    /// The JSON at `path` below the API.
    pub fn get(&self, path: &str) -> Result<Value, Trouble> {
        let url = self.address.at(path);
        let response = self.send(&url, || {
            let request = self.agent.get(&url);
            match self.key.header() {
                Some(key) => request.header("Authorization", key).call(),
                None => request.call(),
            }
        })?;
        self.json(response, &url)
    }

    /// The JSON that `path` below the API answers `body` with.
    pub fn post(&self, path: &str, body: &Value) -> Result<Value, Trouble> {
        let url = self.address.at(path);
        self.post_to(&url, body)
    }

    /// As [`Client::post`], to `path` below the server itself.
    pub fn post_root(&self, path: &str, body: &Value) -> Result<Value, Trouble> {
        let url = self.address.at_root(path);
        self.post_to(&url, body)
    }

    fn post_to(&self, url: &str, body: &Value) -> Result<Value, Trouble> {
        let response = self.open(url, body)?;
        self.json(response, url)
    }

    /// Gives every event of a streamed answer to `event`, until it says that it has seen enough.
    pub fn stream(
        &self,
        path: &str,
        body: &Value,
        event: &mut dyn FnMut(&str) -> Result<Go, Trouble>,
    ) -> Result<(), Trouble> {
        let url = self.address.at(path);
        let response = self.open(&url, body)?;
        let kind = header(&response, "content-type").unwrap_or_default();
        if !kind.starts_with("text/event-stream") {
            return Err(Trouble::Malformed {
                what: format!("{url} answers a streamed request with `{}`, not with events", excerpt(&kind)),
            });
        }
        let mut lines = BufReader::new(response.into_body().into_reader().take(MAX_BODY));
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = lines.read_until(b'\n', &mut line).map_err(|e| self.broken(&url, e))?;
            if read == 0 {
                return Ok(());
            }
            let text = self.key.hide(String::from_utf8_lossy(&line).into_owned());
            // Comments keep a connection alive; other fields of an event have no meaning here.
            let data = text.trim_end().strip_prefix("data:");
            if data.map(|d| event(d.trim())).transpose()? == Some(Go::Enough) {
                return Ok(());
            }
        }
    }

    /// `trouble` as the error that ends the command.
    pub fn error(&self, trouble: &Trouble) -> Error {
        let at = format!("the server at {}", self.address);
        match trouble {
            Trouble::Network { what } => Error::new(Class::Network, what.clone())
                .hint("check the address, and that the server is up: it may still be loading its model"),
            Trouble::Status { code: code @ (401 | 403), message } => {
                Error::new(Class::Network, format!("{at} refuses access"))
                    .found(format!("HTTP {code}: {message}"))
                    .hint(self.key.advice())
            }
            Trouble::Status { code: code @ (429 | 503), message } => {
                Error::new(Class::Network, format!("{at} is too busy"))
                    .found(format!("HTTP {code}: {message}"))
                    .hint("try again later, or with a smaller --concurrency")
            }
            Trouble::Status { code, message } => {
                Error::new(Class::Network, format!("{at} refuses the request"))
                    .found(format!("HTTP {code}: {message}"))
                    .hint("see the server's own log, and check the address up to `/v1`")
            }
            Trouble::Malformed { what } => Error::new(Class::Network, what.clone())
                .hint("give the address of an OpenAI-compatible API, such as http://localhost:8000/v1"),
        }
    }

    fn open(&self, url: &str, body: &Value) -> Result<Response<Body>, Trouble> {
        let text = body.to_string();
        self.send(url, || {
            let request = self.agent.post(url).header("Content-Type", "application/json");
            match self.key.header() {
                Some(key) => request.header("Authorization", key).send(text.as_str()),
                None => request.send(text.as_str()),
            }
        })
    }

    /// Sends until the server has time; anything but success is trouble.
    fn send(
        &self,
        url: &str,
        request: impl Fn() -> Result<Response<Body>, ureq::Error>,
    ) -> Result<Response<Body>, Trouble> {
        let mut tries = 0;
        loop {
            let began = Instant::now();
            let response = request().map_err(|e| self.unreachable(url, &e, began))?;
            let code = response.status().as_u16();
            match code {
                200..300 => return Ok(response),
                429 | 503 if tries < RETRIES => {
                    let told = header(&response, "retry-after");
                    let asked = told.and_then(|text| retry_after(&text, SystemTime::now()));
                    let wait = asked.unwrap_or(Duration::from_secs(1 << tries));
                    if wait > LONGEST_WAIT {
                        let message = format!("asks to wait {} s", wait.as_secs());
                        return Err(Trouble::Status { code, message });
                    }
                    std::thread::sleep(wait);
                    tries += 1;
                }
                300..400 => {
                    let to = header(&response, "location").map_or_else(String::new, |to| excerpt(&to));
                    return Err(Trouble::Status { code, message: format!("sends elsewhere: {to}") });
                }
                _ => return Err(Trouble::Status { code, message: self.message(response) }),
            }
        }
    }

    /// What an error's body says.
    fn message(&self, response: Response<Body>) -> String {
        let reason = response.status().canonical_reason().unwrap_or("no reason given");
        let text = response.into_body().into_with_config().limit(1 << 16).read_to_string();
        let text = self.key.hide(text.unwrap_or_default());
        let value: Value = serde_json::from_str(&text).unwrap_or_default();
        let said = [&value["error"]["message"], &value["message"], &value["detail"], &value["error"]];
        let said = said.iter().find_map(|v| v.as_str()).unwrap_or(&text);
        match said.trim().is_empty() || said.trim_start().starts_with('<') {
            true => reason.to_string(),
            false => excerpt(said),
        }
    }

    fn json(&self, response: Response<Body>, url: &str) -> Result<Value, Trouble> {
        let body = response.into_body().into_with_config().limit(MAX_BODY).read_to_vec();
        let bytes = body.map_err(|e| self.broken(url, std::io::Error::other(e)))?;
        let text = self.key.hide(String::from_utf8_lossy(&bytes).into_owned());
        serde_json::from_str(&text).map_err(|e| Trouble::Malformed {
            what: format!("{url} answers with what is no JSON ({e}): {}", excerpt(&text)),
        })
    }

    fn unreachable(&self, url: &str, error: &ureq::Error, began: Instant) -> Trouble {
        let what = match error {
            ureq::Error::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve) => {
                format!(
                    "{url} cannot be reached: no connection within {:.0} s",
                    began.elapsed().as_secs_f64()
                )
            }
            ureq::Error::Timeout(_) => self.silent(url),
            ureq::Error::Io(e) if is_timeout(e) => self.silent(url),
            ureq::Error::Io(e) => {
                format!("{url} cannot be reached: {}", excerpt(&self.key.hide(e.to_string())))
            }
            ureq::Error::HostNotFound => format!("{url} cannot be reached: no such host"),
            e => format!("{url} cannot be reached: {}", excerpt(&self.key.hide(e.to_string()))),
        };
        Trouble::Network { what }
    }

    /// An answer that began and did not end.
    fn broken(&self, url: &str, error: std::io::Error) -> Trouble {
        let what = match is_timeout(&error) {
            true => self.silent(url),
            false => {
                format!("the answer of {url} was cut off: {}", excerpt(&self.key.hide(error.to_string())))
            }
        };
        Trouble::Network { what }
    }

    fn silent(&self, url: &str) -> String {
        format!("{url} said nothing for {} s (--timeout)", self.timeout.as_secs())
    }
}

/// Whether a reader of events wants more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Go {
    /// The next event.
    On,
    /// None.
    Enough,
}

fn header(response: &Response<Body>, name: &str) -> Option<String> {
    response.headers().get(name)?.to_str().ok().map(str::to_string)
}

fn is_timeout(error: &std::io::Error) -> bool {
    let inner = error.get_ref().and_then(|e| e.downcast_ref::<ureq::Error>());
    match inner {
        Some(ureq::Error::Timeout(_)) => true,
        Some(ureq::Error::Io(e)) => is_timeout(e),
        _ => error.kind() == std::io::ErrorKind::TimedOut,
    }
}

//! Requests to a hub: where the token may go, how redirects are followed, how long is waited.

use std::future::Future;
use std::ops::Range;
use std::time::{Duration, Instant, SystemTime};

use reqwest::header::{self, HeaderMap, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Client, Response, Url};
use serde_json::Value;
use tokio::runtime::Runtime;
use verify::progress::Progress;
use verify::{Class, Error, Result};

use super::digest::Expected;
use super::environment::{Environment, token_variable};
use super::failure::{Answer, Asked, Failure};
use super::limits::Limits;
use super::source::strange;
use crate::args::Hub;
use crate::console::{Console, seconds};
use crate::retry_after::retry_after;

/// Longest listing page that is read.
const MAX_PAGE: usize = 64 << 20;
/// How often a wait looks whether the user wants to stop.
const TICK: Duration = Duration::from_millis(200);

/// One connection to a hub and the hosts that it redirects to; each worker has its own.
pub struct Http<'a> {
    runtime: Runtime,
    client: Client,
    environment: &'a Environment,
    hub: Hub,
    repo: &'a str,
    revision: &'a str,
    pub limits: Limits,
    pub console: &'a Console,
}

/// An answer with a body.
pub struct Reply {
    response: Response,
    /// Length and place of the body, as the headers say.
    pub range: Option<(u64, Option<u64>)>,
    /// `Content-Length`.
    pub length: Option<u64>,
    /// The digest that the hub itself names in `X-Linked-Etag` or `ETag`.
    pub digest: Option<Expected>,
    /// `X-Repo-Commit` of the hub.
    pub commit: Option<String>,
}

impl<'a> Http<'a> {
    /// A connection for questions about `repo` at `revision`.
    ///
    /// # Errors
    /// Exit 4 where no client can be made, such as without certificates.
    pub fn new(
        environment: &'a Environment,
        hub: Hub,
        (repo, revision): (&'a str, &'a str),
        console: &'a Console,
    ) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| no_client(&e.to_string()))?;
        let client = client(Policy::none(), Limits::read())?;
        Ok(Http { runtime, client, environment, hub, repo, revision, limits: Limits::read(), console })
    }

    /// A client that follows redirects, for a library that makes its own requests.
    ///
    /// # Errors
    /// As [`Http::new`].
    pub fn following(&self) -> Result<Client> {
        let policy = Policy::custom(|attempt| {
            let from = attempt.previous().last().cloned();
            if attempt.previous().len() > Limits::HOPS {
                return attempt.error("too many redirects");
            }
            match from.is_some_and(|f| f.scheme() == "https" && attempt.url().scheme() != "https") {
                true => attempt.error("redirected from https to http"),
                false => attempt.follow(),
            }
        });
        client(policy, self.limits)
    }

    /// What was asked, for messages.
    pub fn asked<'b>(&'b self, what: &'b str) -> Asked<'b> {
        Asked {
            endpoint: self.environment.shown(),
            repo: self.repo,
            revision: self.revision,
            what,
            token_from: token_variable(self.hub),
            with_token: self.environment.token.is_some(),
        }
    }

    /// Asks for `url`, or a range of it, following redirects: never from https to http, and with the token only
    /// where the hub itself is asked.
    ///
    /// # Errors
    /// What the hub refuses, and connections that break or stall.
    pub fn get(&self, url: &Url, range: Option<Range<u64>>, what: &str) -> Result<Reply, Failure> {
        let mut url = url.clone();
        let mut seen = Seen::default();
        for _ in 0..=Limits::HOPS {
            let mut request = self.client.get(url.clone());
            if let Some(r) = &range {
                request =
                    request.header(header::RANGE, format!("bytes={}-{}", r.start, r.end.saturating_sub(1)));
            }
            let by_hub = url.origin() == self.environment.endpoint.origin();
            if by_hub {
                request = request.headers(self.authorization());
            }
            let response = self.wait(self.limits.stall, request.send())?;
            let response = response
                .ok_or_else(|| Failure::connection(what, self.stalled()))?
                .map_err(|e| Failure::connection(what, describe(e)))?;
            if by_hub {
                seen.read(response.headers());
            }
            if !response.status().is_redirection() {
                return self.reply(response, seen, by_hub, what);
            }
            url = self.next(&url, response.headers(), what)?;
        }
        Err(Failure::Final(
            Error::new(Class::Network, format!("{what} is redirected in a circle"))
                .found(format!("more than {} redirects", Limits::HOPS))
                .hint("check the endpoint, or try another mirror"),
        ))
    }

    fn reply(&self, response: Response, seen: Seen, by_hub: bool, what: &str) -> Result<Reply, Failure> {
        let headers = response.headers();
        if !response.status().is_success() {
            let answer = Answer {
                status: response.status().as_u16(),
                code: text(headers, "x-error-code").map(str::to_string),
                wait: text(headers, "retry-after").and_then(|t| retry_after(t, SystemTime::now())),
                by_hub,
            };
            if answer.status == 416 {
                return Err(Failure::Changed("the server says that it is shorter".into()));
            }
            return Err(answer.failure(self.asked(what)));
        }
        let range = text(headers, "content-range").and_then(content_range);
        let range = range.filter(|_| response.status().as_u16() == 206);
        let length = text(headers, "content-length").and_then(|t| t.parse().ok());
        Ok(Reply { response, range, length, digest: seen.digest, commit: seen.commit })
    }

    /// The next piece of a body; `None` at its end.
    ///
    /// # Errors
    /// Where the connection breaks, or no byte comes in time.
    pub fn chunk(&self, reply: &mut Reply, what: &str) -> Result<Option<bytes::Bytes>, Failure> {
        match self.wait(self.limits.stall, reply.response.chunk())? {
            Some(Ok(chunk)) => Ok(chunk),
            Some(Err(e)) => Err(Failure::connection(what, describe(e))),
            None => Err(Failure::connection(what, self.stalled())),
        }
    }

    /// At most `most` bytes of a body. The rest of a longer one is never read, which costs its connection.
    ///
    /// # Errors
    /// As [`Http::chunk`]; where next to nothing comes.
    pub fn take(&self, reply: &mut Reply, most: usize, what: &str) -> Result<Vec<u8>, Failure> {
        let (mut body, mut rate) = (Vec::new(), Rate::new());
        while body.len() < most {
            let Some(chunk) = self.chunk(reply, what)? else { break };
            rate.check(chunk.len(), what, self.limits)?;
            body.extend_from_slice(&chunk[..chunk.len().min(most - body.len())]);
        }
        Ok(body)
    }

    /// A JSON answer, with its headers.
    ///
    /// # Errors
    /// As [`Http::get`]; final where it is no JSON.
    pub fn json(&self, url: &Url, what: &str) -> Result<(Value, HeaderMap), Failure> {
        let mut reply = self.get(url, None, what)?;
        let headers = reply.response.headers().clone();
        let body = self.take(&mut reply, MAX_PAGE + 1, what)?;
        if body.len() > MAX_PAGE {
            return Err(strange(what, "a page over 64 MiB").into());
        }
        if reply.length.is_some_and(|n| n != body.len() as u64) {
            return Err(Failure::connection(what, "the answer was cut".into()));
        }
        let value = serde_json::from_slice(&body).map_err(|e| strange(what, &format!("no JSON: {e}")))?;
        Ok((value, headers))
    }

    /// Waits for `future`, at most `limit` (`None` then), looking now and then whether the user wants to stop.
    ///
    /// # Errors
    /// Exit 130 where the user does.
    pub fn wait<T>(&self, limit: Duration, future: impl Future<Output = T>) -> Result<Option<T>> {
        let began = Instant::now();
        self.runtime.block_on(async {
            let mut future = std::pin::pin!(future);
            loop {
                let tick = TICK.min(limit);
                if let Ok(value) = tokio::time::timeout(tick, &mut future).await {
                    return Ok(Some(value));
                }
                self.console.check()?;
                if began.elapsed() >= limit {
                    return Ok(None);
                }
            }
        })
    }

    /// Asks until it works or [`Limits::TRIES`] are used up.
    ///
    /// # Errors
    /// What the last try failed with.
    pub fn persist<T>(&self, what: &str, mut ask: impl FnMut() -> Result<T, Failure>) -> Result<T> {
        let mut patience = Patience::new(self.limits, self.console);
        loop {
            match ask() {
                Ok(value) => return Ok(value),
                Err(failure) => patience.failed(failure, what, false)?,
            }
        }
    }

    fn stalled(&self) -> String {
        format!("no byte for {}", seconds(self.limits.stall.as_secs_f64()))
    }

    fn authorization(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let mut add = |name, value: String| {
            if let Ok(mut value) = HeaderValue::from_str(&value) {
                value.set_sensitive(true);
                headers.insert(name, value);
            }
        };
        if let Some(token) = &self.environment.token {
            add(header::AUTHORIZATION, format!("Bearer {}", token.reveal()));
            if self.hub == Hub::Modelscope {
                add(header::COOKIE, format!("m_session_id={}", token.reveal()));
            }
        }
        headers
    }

    fn next(&self, from: &Url, headers: &HeaderMap, what: &str) -> Result<Url, Failure> {
        let wrong = |found: &str| {
            let error = Error::new(Class::Network, format!("the redirect of {what} is refused"));
            Failure::Final(error.found(found.to_string()).hint("check the endpoint, or try another mirror"))
        };
        let location = text(headers, "location").ok_or_else(|| wrong("no address"))?;
        let to = from.join(location).map_err(|_| wrong("no address that can be followed"))?;
        match (from.scheme(), to.scheme()) {
            ("https", "http") => Err(wrong("from https to http")),
            (_, "http" | "https") => Ok(to),
            _ => Err(wrong("neither https nor http")),
        }
    }
}

/// What the hub itself says about a file, on the way to where its bytes are.
#[derive(Default)]
struct Seen {
    digest: Option<Expected>,
    commit: Option<String>,
}

impl Seen {
    fn read(&mut self, headers: &HeaderMap) {
        let etag = text(headers, "x-linked-etag").or_else(|| text(headers, "etag"));
        let bare = etag.map(|e| e.trim_start_matches("W/").trim_matches('"'));
        self.digest = self.digest.or_else(|| bare.and_then(Expected::parse));
        let commit = text(headers, "x-repo-commit").map(str::to_string);
        self.commit = self.commit.take().or(commit);
    }
}

/// Counts tries without progress and waits between them, with one line each.
pub struct Patience<'a> {
    limits: Limits,
    console: &'a Console,
    tries: u32,
}

impl<'a> Patience<'a> {
    /// No try yet.
    pub fn new(limits: Limits, console: &'a Console) -> Self {
        Patience { limits, console, tries: 0 }
    }

    /// Notes a failed try at `what` and waits until the next one is due.
    ///
    /// # Errors
    /// What is final, or the failure itself once tries run out; exit 130 where the user wants to stop.
    pub fn failed(&mut self, failure: Failure, what: &str, progressed: bool) -> Result<()> {
        let (why, wait, error) = match failure {
            Failure::Again { what, wait, error } => (what, wait, error),
            Failure::Final(e) => return Err(e),
            Failure::RangeIgnored => return Err(strange(what, "a whole file instead of a range")),
            Failure::Changed(how) => return Err(strange(what, &how)),
        };
        self.tries = if progressed { 0 } else { self.tries + 1 };
        if self.tries >= Limits::TRIES {
            return Err(error);
        }
        let asked = wait.unwrap_or_default().min(self.limits.retry_after);
        let delay = asked.max(self.backoff());
        if delay.is_zero() {
            self.console.note(&format!("{what}: {why}; continuing"));
            return Ok(());
        }
        let next = self.tries + 1;
        let wait = seconds(delay.as_secs_f64());
        self.console.say(&format!("{what}: {why}; waiting {wait}, then try {next} of {}", Limits::TRIES));
        let until = Instant::now() + delay;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            self.console.check()?;
            std::thread::sleep(left.min(TICK));
        }
        Ok(())
    }

    /// Doubled each time, with up to half as much again, so that many clients do not come back at once.
    fn backoff(&self) -> Duration {
        let Some(doublings) = self.tries.checked_sub(1) else { return Duration::ZERO };
        let base = self.limits.backoff * 2u32.pow(doublings);
        let random =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.subsec_micros());
        base + base.mul_f64(f64::from(random % 1000) / 2000.0)
    }
}

/// Notices connections that are alive and bring next to nothing.
pub struct Rate {
    since: Instant,
    bytes: u64,
}

impl Rate {
    /// Nothing came yet.
    pub fn new() -> Self {
        Rate { since: Instant::now(), bytes: 0 }
    }

    /// Notes `n` more bytes.
    ///
    /// # Errors
    /// Where too few came for too long.
    pub fn check(&mut self, n: usize, what: &str, limits: Limits) -> Result<(), Failure> {
        self.bytes += n as u64;
        let passed = self.since.elapsed();
        if passed < limits.slow {
            return Ok(());
        }
        let rate = self.bytes as f64 / passed.as_secs_f64();
        *self = Rate::new();
        match rate < Limits::SLOW_RATE as f64 {
            true => Err(Failure::connection(what, format!("only {rate:.0} bytes per second"))),
            false => Ok(()),
        }
    }
}

fn client(policy: Policy, limits: Limits) -> Result<Client> {
    Client::builder()
        .user_agent(concat!("prep/", env!("CARGO_PKG_VERSION")))
        .redirect(policy)
        .referer(false)
        .connect_timeout(limits.stall)
        // One stream per connection: ranges of one file must not share a window. And bytes as they are.
        .http1_only()
        .no_gzip()
        .no_brotli()
        .no_zstd()
        .no_deflate()
        .build()
        .map_err(|e| no_client(&describe(e)))
}

fn no_client(why: &str) -> Error {
    Error::new(Class::Network, "no connection can be made on this machine")
        .found(why.to_string())
        .hint("check SSL_CERT_FILE and the proxy variables")
}

/// An error of the client without any address: addresses of storage hosts are signed.
pub fn describe(e: reqwest::Error) -> String {
    let e = e.without_url();
    let mut text = e.to_string();
    let mut source = std::error::Error::source(&e);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    verify::Shown(&text).to_string()
}

fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

/// `bytes 5-9/10` as (5, Some(10)).
fn content_range(value: &str) -> Option<(u64, Option<u64>)> {
    let (span, total) = value.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (start, _) = span.split_once('-')?;
    Some((start.trim().parse().ok()?, total.trim().parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_never_go_from_https_to_http() {
        let console = Console::new(true, false);
        let environment = Environment::read(Hub::Modelscope).unwrap();
        let http = Http::new(&environment, Hub::Modelscope, ("a/b", "main"), &console).unwrap();
        let next = |from: &str, to: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("location", to.parse().unwrap());
            http.next(&Url::parse(from).unwrap(), &headers, "x").map(String::from)
        };
        assert_eq!(next("https://hub/a", "/b").unwrap(), "https://hub/b");
        assert_eq!(next("http://hub/a", "https://cdn/b").unwrap(), "https://cdn/b");
        for to in ["http://hub/a", "ftp://hub/a", "file:///etc/passwd"] {
            assert!(next("https://hub/a", to).is_err(), "{to}");
        }
    }

    #[test]
    fn content_range_names_start_and_total() {
        assert_eq!(content_range("bytes 5-9/10"), Some((5, Some(10))));
        assert_eq!(content_range("bytes 5-9/*"), Some((5, None)));
        assert_eq!(content_range("bytes */10"), None);
    }

    #[test]
    fn tries_end_without_progress_and_start_again_with_it() {
        let console = Console::new(true, false);
        let limits = Limits { backoff: Duration::ZERO, ..Limits::read() };
        let mut patience = Patience::new(limits, &console);
        let mut fail =
            |progressed| patience.failed(Failure::connection("x", "cut".into()), "x", progressed).is_ok();
        assert!((0..4).all(|_| fail(false)) && fail(true) && (0..4).all(|_| fail(false)) && !fail(false));
    }
}

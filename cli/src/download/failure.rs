//! What can go wrong with one request: for good, or worth another try.

use std::time::Duration;

use verify::{Class, Error, Shown};

use super::limits::Limits;

/// Why a request did not bring what it should.
#[derive(Debug)]
pub enum Failure {
    /// Another try would end the same way.
    Final(Error),
    /// Worth another try, after at least `wait` where the server names a time.
    Again {
        /// One clause, such as `the connection was cut`.
        what: String,
        /// What the server asked for.
        wait: Option<Duration>,
        /// The error once tries run out.
        error: Error,
    },
    /// The server sends the whole file where a range was asked for.
    RangeIgnored,
    /// The server names another content than the listing.
    Changed(String),
}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        Failure::Final(e)
    }
}

impl Failure {
    /// A broken connection while `what` was fetched.
    pub fn connection(what: &str, how: String) -> Self {
        if how.contains("invalid peer certificate") {
            let error =
                Error::new(Class::Network, format!("cannot fetch {what}: nobody vouches for the server"));
            return Failure::Final(error.found(how).hint(
                "set SSL_CERT_FILE to the certificates of your mirror or proxy; if there is none, do not trust this network",
            ));
        }
        let error = Error::new(Class::Network, format!("cannot fetch {what}"))
            .found(how.clone())
            .hint("check the connection and run the same command again: it continues where it stopped");
        Failure::Again { what: how, wait: None, error }
    }
}

/// A refusal as a server gave it.
#[derive(Debug)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// `X-Error-Code` of a hub.
    pub code: Option<String>,
    /// `Retry-After`.
    pub wait: Option<Duration>,
    /// True where the hub itself answered, false for a host that it redirected to.
    pub by_hub: bool,
}

/// What was asked of the hub, for messages.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// The hub's address without user and query.
    pub endpoint: &'a str,
    /// The repository.
    pub repo: &'a str,
    /// The revision.
    pub revision: &'a str,
    /// The file, or what else was asked for.
    pub what: &'a str,
    /// Where a token is read from.
    pub token_from: &'a str,
    /// True where a token was sent.
    pub with_token: bool,
}

impl Answer {
    /// The refusal as a failure: four different sentences for gated, private, missing and rate-limited.
    pub fn failure(&self, asked: Asked<'_>) -> Failure {
        let Asked { endpoint, repo, revision, what, token_from, with_token } = asked;
        let (repo, revision, what) = (Shown(repo), Shown(revision), Shown(what));
        let network = |text: String| Error::new(Class::Network, text).found(self.said());
        if !self.by_hub && matches!(self.status, 400..=404) {
            // A signed address that ran out: the next try asks the hub for a new one.
            return Failure::connection(asked.what, format!("the storage host answered {}", self.status));
        }
        let private = || {
            let hint = match with_token {
                true => format!("the token of {token_from} has no access: use one of an account that has"),
                false => format!(
                    "if it is private, set {token_from} to a token that may read it; else check the spelling"
                ),
            };
            network(format!("{repo} cannot be seen without the right token")).hint(hint)
        };
        Failure::Final(match (self.code.as_deref(), self.status) {
            (Some("GatedRepo"), _) => network(format!("{repo} is gated: its owner grants access one by one"))
                .hint(match with_token {
                    true => format!("accept the terms at {endpoint}/{repo} with the account of your token"),
                    false => format!("accept the terms at {endpoint}/{repo}, then set {token_from}"),
                }),
            (Some("RevisionNotFound"), _) => network(format!("{repo} has no revision `{revision}`"))
                .hint("check --revision: a branch, a tag or a full commit"),
            (Some("EntryNotFound"), _) => network(format!("{repo} has no file `{what}` at {revision}"))
                .hint("the hub lists a file that it does not have: try again later, or another mirror"),
            (_, 401) => private(),
            (Some("RepoNotFound"), _) | (_, 404) => {
                network(format!("{endpoint} has no model {repo}")).hint(match with_token {
                    true => "check the spelling of OWNER/NAME".to_string(),
                    false => format!("check the spelling of OWNER/NAME; a private model needs {token_from}"),
                })
            }
            (_, 403) => private(),
            (_, 429) => {
                return self.again(asked, "the hub limits the rate", |e| {
                    e.hint(match with_token {
                    true => "wait some minutes and run the same command again: it continues where it stopped"
                        .into(),
                    false => format!(
                        "wait some minutes and run again, or set {token_from}: limits are higher with a token"
                    ),
                })
                });
            }
            (_, 408 | 500..=599) => {
                return self.again(asked, "the hub is in trouble", |e| {
                    e.hint("wait and run the same command again: it continues where it stopped")
                });
            }
            _ => network(format!("{endpoint} refused {what} of {repo}"))
                .hint("check the endpoint; a mirror may lack this model"),
        })
    }

    fn again(&self, asked: Asked<'_>, why: &str, hint: impl Fn(Error) -> Error) -> Failure {
        let what = match self.status {
            429 => format!("{} is rate-limited: too many requests", Shown(asked.repo)),
            _ => format!("cannot fetch {} of {}", Shown(asked.what), Shown(asked.repo)),
        };
        let said = self.said();
        let error = hint(Error::new(Class::Network, what).found(format!("{said}, {} times", Limits::TRIES)));
        Failure::Again { what: format!("{why} ({said})"), wait: self.wait, error }
    }

    fn said(&self) -> String {
        match &self.code {
            Some(code) => format!("status {}, {}", self.status, Shown(code)),
            None => format!("status {}", self.status),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(with_token: bool) -> Asked<'static> {
        Asked {
            endpoint: "https://hub",
            repo: "a/b",
            revision: "main",
            what: "the commit",
            token_from: "HF_TOKEN",
            with_token,
        }
    }

    fn text(status: u16, code: Option<&str>, with_token: bool) -> String {
        let answer = Answer { status, code: code.map(str::to_string), wait: None, by_hub: true };
        match answer.failure(asked(with_token)) {
            Failure::Final(e) | Failure::Again { error: e, .. } => e.to_string(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn gated_private_missing_and_limited_are_four_sentences() {
        let told = [
            text(403, Some("GatedRepo"), false),
            text(401, None, false),
            text(404, Some("RepoNotFound"), true),
            text(429, None, false),
        ];
        let firsts: std::collections::BTreeSet<_> = told.iter().map(|t| t.lines().next().unwrap()).collect();
        assert_eq!(firsts.len(), 4, "{told:#?}");
        assert!(told[0].contains("accept the terms at https://hub/a/b") && told[1].contains("set HF_TOKEN"));
    }

    #[test]
    fn signed_address_that_ran_out_is_tried_again() {
        let answer = Answer { status: 403, code: None, wait: None, by_hub: false };
        assert!(matches!(answer.failure(asked(true)), Failure::Again { .. }));
    }
}

//! Where a server's API begins: `http://host:8000` stands for `http://host:8000/v1`.

use std::fmt;

use ureq::http::Uri;
use verify::{Error, Result, Shown};

/// The checked address of an API, without credentials.
#[derive(Debug, Clone, PartialEq)]
pub struct Address {
    base: String,
    host: String,
    encrypted: bool,
}

impl Address {
    /// Reads what the user gave.
    ///
    /// # Errors
    /// Exit 2 for anything but an http or https address, and for one that holds credentials or a query: these would
    /// stand in process lists and reports. The message never repeats them.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = |what: &str| {
            Error::usage(format!("--endpoint {what}")).expected("an address such as http://localhost:8000/v1")
        };
        let text = text.trim();
        if text.contains('@') {
            return Err(wrong("holds credentials, which others could read in the list of processes").hint(
                "put the key into the environment: OPENAI_API_KEY, or a variable named by --api-key-env",
            ));
        }
        if text.contains(['?', '#']) {
            return Err(wrong("has a query or a fragment").hint("give the address up to its path"));
        }
        let uri: Uri = text.parse().map_err(|_| wrong("is no address").found(Shown(text).to_string()))?;
        let encrypted = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(wrong("is no http address").found(Shown(text).to_string())),
        };
        let host = uri.host().filter(|h| !h.is_empty()).ok_or_else(|| wrong("names no host"))?.to_string();
        let path = uri.path().trim_end_matches('/').trim_end_matches("/chat/completions");
        let path = if path.is_empty() { "/v1" } else { path };
        let authority = uri.authority().map(ToString::to_string).unwrap_or_default();
        let scheme = if encrypted { "https" } else { "http" };
        Ok(Address { base: format!("{scheme}://{authority}{path}"), host, encrypted })
    }

    /// The address of `path` below the API, such as `/models`.
    pub fn at(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    /// The address of `path` below the server itself.
    pub fn at_root(&self, path: &str) -> String {
        format!("{}{path}", self.base.strip_suffix("/v1").unwrap_or(&self.base))
    }

    /// True where nobody between here and the server can read along.
    pub fn is_private(&self) -> bool {
        self.encrypted || self.is_local()
    }

    /// True for this machine.
    pub fn is_local(&self) -> bool {
        let host = self.host.trim_matches(['[', ']']);
        host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_added_where_it_is_left_out() {
        for (given, base) in [
            ("http://h:8000", "http://h:8000/v1"),
            ("http://h:8000/", "http://h:8000/v1"),
            ("https://h/api/v1/", "https://h/api/v1"),
            ("http://h/v1/chat/completions", "http://h/v1"),
            ("http://[::1]:8000/v1", "http://[::1]:8000/v1"),
        ] {
            assert_eq!(Address::parse(given).unwrap().to_string(), base);
        }
        assert_eq!(Address::parse("http://h:8/v1").unwrap().at_root("/x"), "http://h:8/x");
    }

    #[test]
    fn credentials_are_refused_and_not_repeated() {
        for given in ["http://me:hush@h/v1", "http://h/v1?key=hush", "http://h/#hush"] {
            let e = Address::parse(given).unwrap_err();
            assert!(e.class() == verify::Class::Usage && !e.to_string().contains("hush"), "{e}");
        }
    }

    #[test]
    fn only_http_is_spoken() {
        for given in ["h:8000", "ftp://h", "http://", "/v1", ""] {
            assert!(Address::parse(given).is_err(), "{given}");
        }
    }

    #[test]
    fn this_machine_and_encrypted_ones_are_private() {
        for given in ["http://127.0.0.1:1", "http://localhost:1", "http://[::1]:1", "https://h"] {
            assert!(Address::parse(given).unwrap().is_private(), "{given}");
        }
        assert!(!Address::parse("http://h:1").unwrap().is_private());
    }
}

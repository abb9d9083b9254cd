//! API keys: read from the environment, sent in one header, hidden in everything that comes back.

use std::fmt;

use verify::{Error, Result, Shown};

use super::Address;

/// The variable that is read where none is named.
pub const USUAL: &str = "OPENAI_API_KEY";

/// A key, or none. It is never printed.
#[derive(Clone, Default)]
pub struct ApiKey {
    key: Option<String>,
    /// The usual variable is set, but its key is not for this server.
    held_back: bool,
}

impl ApiKey {
    /// The key for `address`: that of the variable called `name`, else that of the usual variable. The latter is
    /// not sent over the network in the clear: it may be meant for quite another server.
    ///
    /// # Errors
    /// Exit 2 where a named variable is not set, or holds what is no key.
    pub fn of_environment(name: Option<&str>, address: &Address) -> Result<Self> {
        let read = |variable: &str| std::env::var(variable).ok().filter(|key| !key.trim().is_empty());
        let key = match name {
            Some(name) => Some(read(name).ok_or_else(|| {
                Error::usage(format!("--api-key-env: the variable {} is not set", Shown(name)))
                    .hint("give the name of the variable, not the key itself")
            })?),
            None => read(USUAL),
        };
        if name.is_none() && key.is_some() && !address.is_private() {
            return Ok(ApiKey { key: None, held_back: true });
        }
        Self::checked(key, name.unwrap_or(USUAL))
    }

    fn checked(key: Option<String>, variable: &str) -> Result<Self> {
        let key = key.map(|k| k.trim().to_string());
        match key.as_deref().is_none_or(|k| k.bytes().all(|b| b.is_ascii_graphic())) {
            true => Ok(ApiKey { key, held_back: false }),
            false => Err(Error::usage(format!("{} holds what is no key", Shown(variable)))
                .expected("ASCII characters without blanks")),
        }
    }

    /// The header that carries the key.
    pub fn header(&self) -> Option<String> {
        self.key.as_ref().map(|key| format!("Bearer {key}"))
    }

    /// `text` without the key: servers may repeat it. Placeholders such as `EMPTY` are no secrets.
    pub fn hide(&self, text: String) -> String {
        match &self.key {
            Some(key) if key.len() >= 8 && text.contains(key.as_str()) => text.replace(key.as_str(), "***"),
            _ => text,
        }
    }

    /// What to do where a server refuses it.
    pub fn advice(&self) -> String {
        match (&self.key, self.held_back) {
            (Some(_), _) => "the server refuses the key: check the variable it is read from".into(),
            (None, true) => format!(
                "{USUAL} is not sent in the clear to another machine: use https, or name it with --api-key-env {USUAL}"
            ),
            (None, false) => format!("put the key into {USUAL}, or name its variable with --api-key-env"),
        }
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.key.is_some() { "ApiKey(***)" } else { "ApiKey(none)" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_never_shown() {
        let key = ApiKey::checked(Some("sk-secret-123".into()), "X").unwrap();
        assert_eq!(format!("{key:?}"), "ApiKey(***)");
        assert_eq!(key.hide("wrong key sk-secret-123!".into()), "wrong key ***!");
        assert!(!key.advice().contains("secret"));
    }

    #[test]
    fn a_key_with_line_breaks_is_refused_unseen() {
        let e = ApiKey::checked(Some("sk-secret\r\nX: y".into()), "X").unwrap_err();
        assert!(!e.to_string().contains("secret"), "{e}");
    }
}

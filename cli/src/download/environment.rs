//! What the environment says: endpoints, tokens, folders. Read here, so that it holds for every request alike,
//! whatever a library would read by itself.

use std::fmt;
use std::path::{Path, PathBuf};

use reqwest::Url;
use verify::{Error, Result, Shown};

use crate::args::Hub;

/// A secret. It can be sent; it cannot be printed.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    /// The secret itself, for a header.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Where one hub is and how to speak to it.
#[derive(Debug, Clone)]
pub struct Environment {
    /// The hub's address, without user, query and trailing slash.
    pub endpoint: Url,
    /// The user's token, if any.
    pub token: Option<Token>,
}

impl Environment {
    /// Reads the environment for `hub`.
    ///
    /// # Errors
    /// Exit 2 where an endpoint is no http address, or a token cannot stand in a header.
    pub fn read(hub: Hub) -> Result<Self> {
        Self::from(hub, &|name| std::env::var(name).ok().filter(|v| !v.trim().is_empty()))
    }

    fn from(hub: Hub, get: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        let (name, address) = match hub {
            Hub::Hf => ("HF_ENDPOINT", get("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".into())),
            Hub::Modelscope => ("MODELSCOPE_DOMAIN", modelscope(get)),
        };
        let token = match hub {
            Hub::Hf => hf_token(get),
            Hub::Modelscope => get("MODELSCOPE_API_TOKEN"),
        };
        let token = token.map(|t| t.trim().to_string()).filter(|t| !t.is_empty());
        if token.as_ref().is_some_and(|t| !t.bytes().all(|b| b.is_ascii_graphic())) {
            return Err(Error::usage(format!("the token of {} is no token", token_variable(hub)))
                .expected("one line of plain characters")
                .hint("copy it again from the settings of your account"));
        }
        Ok(Environment { endpoint: parse_endpoint(name, &address)?, token: token.map(Token) })
    }

    /// The address as it may be printed and kept.
    pub fn shown(&self) -> &str {
        self.endpoint.as_str().trim_end_matches('/')
    }
}

/// The variable that a user sets for a token.
pub fn token_variable(hub: Hub) -> &'static str {
    match hub {
        Hub::Hf => "HF_TOKEN",
        Hub::Modelscope => "MODELSCOPE_API_TOKEN",
    }
}

/// True where `HF_HUB_OFFLINE` asks for no connection.
pub fn offline() -> bool {
    let on = |v: String| matches!(v.trim().to_ascii_uppercase().as_str(), "1" | "ON" | "YES" | "TRUE");
    std::env::var("HF_HUB_OFFLINE").is_ok_and(on)
}

/// The folder of the hub cache that other tools share.
///
/// # Errors
/// Exit 2 where no variable and no home folder tell.
pub fn hub_cache() -> Result<PathBuf> {
    hub_cache_from(&|name| std::env::var(name).ok().filter(|v| !v.is_empty())).ok_or_else(|| {
        Error::usage("nobody knows where the hub cache is").hint("set HF_HOME, or download with --out DIR")
    })
}

fn hub_cache_from(get: &dyn Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let direct = get("HF_HUB_CACHE").or_else(|| get("HUGGINGFACE_HUB_CACHE")).map(PathBuf::from);
    direct.or_else(|| Some(hf_home(get)?.join("hub"))).map(|p| home_resolved(&p, get))
}

fn hf_home(get: &dyn Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let set = get("HF_HOME").map(PathBuf::from);
    let cache = get("XDG_CACHE_HOME").map(|x| Path::new(&x).join("huggingface"));
    set.or(cache).or_else(|| Some(Path::new(&get("HOME")?).join(".cache/huggingface")))
}

/// `~/x` as a shell would have made it: these variables are often written in quotes.
fn home_resolved(path: &Path, get: &dyn Fn(&str) -> Option<String>) -> PathBuf {
    match (path.strip_prefix("~"), get("HOME")) {
        (Ok(rest), Some(home)) => Path::new(&home).join(rest),
        _ => path.to_path_buf(),
    }
}

/// As the hub's own client finds it: the variable, the file of `HF_TOKEN_PATH`, the file that a login leaves.
fn hf_token(get: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    if get("HF_HUB_DISABLE_IMPLICIT_TOKEN").is_some_and(|v| v != "0") {
        return None;
    }
    let file = || {
        let path = get("HF_TOKEN_PATH").map(PathBuf::from).or_else(|| Some(hf_home(get)?.join("token")))?;
        std::fs::read_to_string(home_resolved(&path, get)).ok()
    };
    get("HF_TOKEN").or_else(file)
}

fn modelscope(get: &dyn Fn(&str) -> Option<String>) -> String {
    let abroad = get("MODELSCOPE_PREFER_AI_SITE").is_some_and(|v| v.eq_ignore_ascii_case("true") || v == "1");
    match get("MODELSCOPE_DOMAIN") {
        Some(domain) if domain.contains("://") => domain,
        Some(domain) => format!("https://{domain}"),
        None if abroad => "https://www.modelscope.ai".into(),
        None => "https://modelscope.cn".into(),
    }
}

fn parse_endpoint(name: &str, address: &str) -> Result<Url> {
    let wrong = || {
        // A user part can hold a secret: the value is not repeated.
        Error::usage(format!("{name} is no address of a hub"))
            .expected("https://HOST, without user, query and fragment")
            .hint(format!("correct {name}, or unset it"))
    };
    let mut url = Url::parse(address.trim()).map_err(|_| wrong())?;
    let plain = url.username().is_empty()
        && url.password().is_none()
        && url.query().is_none()
        && url.fragment().is_none();
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() || !plain {
        return Err(wrong());
    }
    let path = url.path().trim_end_matches('/').to_string();
    url.set_path(&path);
    Ok(url)
}

/// `endpoint` with more path segments, each escaped.
pub fn join(endpoint: &Url, segments: &[&str]) -> Result<Url> {
    let mut url = endpoint.clone();
    let no_base = || Error::usage(format!("{} cannot be extended", Shown(endpoint.as_str())));
    url.path_segments_mut().map_err(|()| no_base())?.pop_if_empty().extend(segments);
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(hub: Hub, pairs: &[(&str, &str)]) -> Result<Environment> {
        Environment::from(hub, &|n| pairs.iter().find(|(k, _)| *k == n).map(|(_, v)| v.to_string()))
    }

    #[test]
    fn token_is_the_variable_then_the_file_named_then_that_of_a_login() {
        let dir = tempfile::tempdir().unwrap();
        let at = |n: &str| dir.path().join(n).to_str().unwrap().to_string();
        std::fs::write(at("token"), "login\n").unwrap();
        std::fs::write(at("other"), "named\n").unwrap();
        let (home, other) = (dir.path().to_str().unwrap().to_string(), at("other"));
        let token =
            |pairs: &[(&str, &str)]| env(Hub::Hf, pairs).unwrap().token.map(|t| t.reveal().to_string());
        let login = ("HF_HOME", home.as_str());
        assert_eq!(token(&[login]).as_deref(), Some("login"));
        assert_eq!(token(&[login, ("HF_TOKEN_PATH", &other)]).as_deref(), Some("named"));
        assert_eq!(token(&[login, ("HF_TOKEN_PATH", &other), ("HF_TOKEN", "v")]).as_deref(), Some("v"));
        assert_eq!(token(&[login, ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")]), None);
    }

    #[test]
    fn token_is_printed_as_stars() {
        let e = env(Hub::Hf, &[("HF_TOKEN", "hf_secret")]).unwrap();
        assert!(!format!("{e:?}").contains("secret") && format!("{e:?}").contains("***"));
        assert!(env(Hub::Hf, &[("HF_TOKEN", "two words")]).is_err());
    }

    #[test]
    fn endpoint_with_a_password_is_refused_and_not_repeated() {
        let e = env(Hub::Hf, &[("HF_ENDPOINT", "https://me:pass@mirror")]).unwrap_err();
        assert!(!e.to_string().contains("pass"), "{e}");
        for bad in ["mirror", "ftp://mirror", "https://mirror?x=1"] {
            assert!(env(Hub::Hf, &[("HF_ENDPOINT", bad)]).is_err(), "{bad}");
        }
        assert_eq!(env(Hub::Hf, &[("HF_ENDPOINT", "https://m/x/")]).unwrap().shown(), "https://m/x");
    }

    #[test]
    fn cache_is_where_the_hubs_own_client_has_it() {
        let cache = |pairs: &[(&str, &str)]| {
            hub_cache_from(&|n| pairs.iter().find(|(k, _)| *k == n).map(|(_, v)| v.to_string()))
        };
        assert_eq!(cache(&[("HOME", "/h")]), Some("/h/.cache/huggingface/hub".into()));
        assert_eq!(cache(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")]), Some("/x/huggingface/hub".into()));
        assert_eq!(cache(&[("HOME", "/h"), ("HF_HOME", "/y")]), Some("/y/hub".into()));
        assert_eq!(cache(&[("HOME", "/h"), ("HF_HUB_CACHE", "~/z")]), Some("/h/z".into()));
    }

    #[test]
    fn modelscope_has_its_own_variables() {
        let at = |pairs: &[(&str, &str)]| env(Hub::Modelscope, pairs).unwrap().shown().to_string();
        assert_eq!(at(&[]), "https://modelscope.cn");
        assert_eq!(at(&[("MODELSCOPE_PREFER_AI_SITE", "True")]), "https://www.modelscope.ai");
        assert_eq!(at(&[("MODELSCOPE_DOMAIN", "m.example")]), "https://m.example");
    }
}

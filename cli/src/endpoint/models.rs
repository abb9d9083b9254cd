//! What a server serves, and which one it is.

use verify::{Class, Error, Result, Shown};

use super::client::{Client, Trouble};

/// Servers that know more than OpenAI's own fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// Any other: sent nothing that OpenAI does not know, unless the user asked for it.
    Other,
}

/// What `/v1/models` says.
#[derive(Debug)]
pub struct Listed {
    /// Names of the models; empty where the server does not tell.
    pub names: Vec<String>,
    /// The server, by the owner it gives.
    pub dialect: Dialect,
}

/// Asks for the list; a server without one is fine.
///
/// # Errors
/// Exit 4 where the server cannot be reached or refuses the key.
pub fn list(client: &Client) -> Result<Listed> {
    let answer = match client.get("/models") {
        Ok(answer) => answer,
        Err(trouble) if trouble.is_unknown_path() => {
            return Ok(Listed { names: Vec::new(), dialect: Dialect::Other });
        }
        Err(trouble) => return Err(client.error(&trouble)),
    };
    let Some(models) = answer["data"].as_array() else {
        let what = format!("{} lists no models under `data`", client.address().at("/models"));
        return Err(client.error(&Trouble::Malformed { what }));
    };
    let dialect = match models.first().and_then(|m| m["owned_by"].as_str()) {
        Some("vllm") => Dialect::Vllm,
        Some("sglang") => Dialect::Sglang,
        _ => Dialect::Other,
    };
    let names = models.iter().filter_map(|m| m["id"].as_str()).map(str::to_string).collect();
    Ok(Listed { names, dialect })
}

/// The wanted model, or the only one.
///
/// # Errors
/// Exit 2 where none is wanted and the server has not just one.
pub fn choose(client: &Client, listed: &Listed, wanted: Option<String>) -> Result<String> {
    match (wanted, listed.names.as_slice()) {
        (Some(name), _) => Ok(name),
        (None, [only]) => Ok(only.clone()),
        (None, _) => Err(Error::usage(format!("which model of {}?", client.address()))
            .found(names(listed))
            .hint("choose one with --model NAME")),
    }
}

/// The error for a model that the server does not have.
pub fn unknown(client: &Client, listed: &Listed, model: &str) -> Error {
    Error::new(Class::Network, format!("the server at {} has no model `{}`", client.address(), Shown(model)))
        .found(names(listed))
        .hint("give its name there with --model NAME (vLLM: --served-model-name)")
}

fn names(listed: &Listed) -> String {
    match listed.names.as_slice() {
        [] => "a server that does not list its models".into(),
        names => {
            let shown: Vec<_> = names.iter().take(20).map(|n| Shown(n).to_string()).collect();
            let more =
                if names.len() > 20 { format!(" and {} more", names.len() - 20) } else { String::new() };
            format!("{}{more}", shown.join(", "))
        }
    }
}

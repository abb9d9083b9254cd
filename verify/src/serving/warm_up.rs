//! The first request: it compiles what is compiled on demand, and with a tool in it shows that calls are parsed.

use serde_json::json;

use super::launch::Launch;
use super::quote;

/// Where a server says that it is ready; both servers have it.
pub const HEALTH: &str = "/health";
/// Seconds in which the largest models load from a slow disk.
pub const START_SECONDS: u32 = 1800;

/// The request's body.
pub fn body(launch: &Launch) -> String {
    let mut body = json!({
        "model": launch.served_name,
        "messages": [{"role": "user", "content": "ping"}],
        "max_tokens": 8,
    });
    if launch.tools {
        let parameters = json!({"type": "object", "properties": {}});
        body["tools"] = json!([{"type": "function", "function": {"name": "ping", "parameters": parameters}}]);
    }
    body.to_string()
}

/// A shell command that waits until the server at `base` is ready and sends the request.
pub fn script(launch: &Launch, base: &str) -> String {
    format!(
        "until curl -sf {base}{HEALTH}; do sleep 5; done; \
         curl -sf {base}/v1/chat/completions -H 'Content-Type: application/json' -d {}",
        quote::shell(&body(launch))
    )
}

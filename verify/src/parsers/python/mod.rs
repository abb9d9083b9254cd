//! What of Python the server's answers depend on: its JSON, its numbers, its white space.
//!
//! The server is written in Python, so a faithful answer needs `json.loads` and `json.dumps`, `int()` and `float()`
//! and `str.strip()` with their corners: integers of any length, the last of two equal keys, `5.0` kept apart from `5`.

mod dict;
pub mod json;
pub mod literal;
pub mod number;
pub mod partial_json;
mod source;
pub mod space;
pub mod syntax;

pub use dict::Dict;
pub use json::Json;

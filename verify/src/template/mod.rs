//! Chat templates: find, compare, embed, render.

mod filters;
pub mod find;
#[cfg(test)]
mod golden;
mod python;
pub mod render;
mod request;
mod tags;
mod values;

pub use find::{ChatTemplate, Place, Places, Source};
pub use render::{Failure, Nulls, Renderer, Request};
pub use request::{special_tokens, tokens_of};

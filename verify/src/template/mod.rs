//! Chat templates: find, compare, embed, render.
//!
//! ```text
//!   folder ──▶ Places ──▶ ChatTemplate ──▶ Renderer ──▶ prompt
//!                │                             └──▶ lint (conversations that fail)
//!                └──▶ embed (one text in every place), check
//! ```

#[cfg(test)]
mod bounds;
pub mod embed;
mod filters;
pub mod find;
mod finding;
#[cfg(test)]
mod golden;
pub mod lint;
mod python;
pub mod render;
mod request;
mod stage;
mod tags;
#[cfg(test)]
pub(crate) mod testing;
mod values;
mod watch;

pub use find::{ChatTemplate, Place, Places, Source};
pub use finding::{Finding, Level};
pub use render::{Failure, Nulls, Renderer, Request};
pub use request::{special_tokens, tokens_of};
pub use stage::EmbedTemplate;

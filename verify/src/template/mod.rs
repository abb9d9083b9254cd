//! Chat templates: find, compare, embed, render.

//! A launch line to paste into a shell.

use super::launch::Launch;
use super::quote::{comment, shell};

/// The line, and above it a comment with the reason of each flag.
pub fn line(launch: &Launch) -> String {
    let engine = launch.engine;
    let mut text = format!("# {} {}, {}\n", engine.title(), engine.version(), comment(&launch.model));
    let width = launch.flags.iter().map(|f| f.name.len()).max().unwrap_or(0);
    for f in &launch.flags {
        text += &format!("#   {:width$}  {}\n", f.name, comment(&f.reason));
    }
    let words: Vec<String> = engine.program(&launch.model).iter().map(|w| shell(w)).collect();
    let mut lines = vec![words.join(" ")];
    lines.extend(launch.flags.iter().map(|f| match &f.value {
        Some(value) => format!("{} {}", f.name, shell(value)),
        None => f.name.to_string(),
    }));
    lines.extend((!launch.extra.is_empty()).then(|| {
        let extra: Vec<_> = launch.extra.iter().map(|w| shell(w)).collect();
        extra.join(" ")
    }));
    text + &lines.join(" \\\n  ") + "\n"
}

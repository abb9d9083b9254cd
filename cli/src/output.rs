//! The only place that prints: data to stdout, everything else to stderr, the same content with `--json`.

use std::cell::Cell;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Mutex;

use serde_json::{Value, json};
use verify::Error;

use crate::args::Global;

/// Where and how results are printed.
pub struct Output {
    json: bool,
    quiet: bool,
    ended: Cell<bool>,
}

impl Output {
    /// As the global options say.
    pub fn new(global: &Global) -> Self {
        Output { json: global.json, quiet: global.quiet, ended: Cell::new(false) }
    }

    /// True where JSON is wanted.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// Data for people: one line (or more) on stdout. Left out with `--json`.
    pub fn text(&self, text: &str) {
        if !self.json {
            stdout(text);
        }
    }

    /// Data for programs, only with `--json`; `status` and `code` are added. Must be the last line of stdout.
    pub fn result(&self, code: u8, mut value: Value) {
        if self.json {
            let status = if code == 0 { "ok" } else { "failed" };
            if let Some(map) = value.as_object_mut() {
                map.insert("status".into(), json!(status));
                map.insert("code".into(), json!(code));
            }
            stdout(&value.to_string());
            self.ended.set(true);
        }
    }

    /// Raw text on stdout, with or without `--json`: for commands whose output is the data itself.
    pub fn raw(&self, text: &str) {
        write_stdout(text.as_bytes());
    }

    /// For commands whose stdout is JSON lines already: nothing more is printed.
    pub fn lines_are_the_result(&self) {
        self.ended.set(true);
    }

    /// A remark on stderr, silenced by `--quiet`.
    pub fn remark(&self, text: &str) {
        if !self.quiet {
            stderr(text);
        }
    }

    /// A warning on stderr: something to act on.
    pub fn warning(&self, text: &str) {
        stderr(&format!("warning: {text}"));
    }

    /// Ends a command that printed its result.
    pub fn done(&self, code: u8) -> u8 {
        if self.json && !self.ended.get() {
            self.result(code, json!({}));
        }
        code_after_printing(code)
    }

    /// Ends a command that failed; returns the exit code.
    pub fn failed(&self, e: &Error) -> u8 {
        let code = e.class().exit_code();
        if self.json && !self.ended.get() {
            let value =
                json!({"status": "error", "code": code, "message": e.to_string(), "hint": e.advice()});
            stdout(&value.to_string());
        }
        stderr(&format!("error: {e}"));
        code
    }
}

/// Prints what clap says: help and version are results, all else is wrong usage.
pub fn usage(e: &clap::Error) -> ExitCode {
    let code = e.exit_code();
    if code == 2 && std::env::args().any(|a| a == "--json") {
        let value = json!({"status": "error", "code": 2, "message": e.to_string().trim(), "hint": "see `prep --help`"});
        stdout(&value.to_string());
    }
    let _ = e.print();
    ExitCode::from(u8::try_from(code).unwrap_or(2))
}

static STDOUT: Mutex<Stdout> = Mutex::new(Stdout::Open);

/// What became of stdout.
enum Stdout {
    Open,
    /// A reader that has seen enough (`prep ... | head -1`): no error, nothing more is printed.
    Closed,
    /// The output is lost.
    Failed(std::io::Error),
}

fn stdout(text: &str) {
    write_stdout(format!("{text}\n").as_bytes());
}

fn write_stdout(bytes: &[u8]) {
    let mut state = STDOUT.lock().unwrap_or_else(|p| p.into_inner());
    if !matches!(*state, Stdout::Open) {
        return;
    }
    let mut out = std::io::stdout().lock();
    if let Err(e) = out.write_all(bytes).and_then(|()| out.flush()) {
        *state = match e.kind() {
            std::io::ErrorKind::BrokenPipe => Stdout::Closed,
            _ => Stdout::Failed(e),
        };
    }
}

/// The exit code, which is that of the work, unless the output that was asked for was lost.
fn code_after_printing(code: u8) -> u8 {
    match &*STDOUT.lock().unwrap_or_else(|p| p.into_inner()) {
        Stdout::Failed(e) if code == 0 => {
            stderr(&format!("error: cannot write to stdout\n  found    {e}"));
            verify::Class::Disk.exit_code()
        }
        _ => code,
    }
}

fn stderr(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Rows with their columns aligned; the first row is the head. Columns whose cells are numbers go right.
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count()).max().unwrap_or(0);
    let numeric = |c: usize| {
        rows.iter()
            .skip(1)
            .filter_map(|r| r.get(c))
            .all(|s| s.is_empty() || s.starts_with(|ch: char| ch.is_ascii_digit()))
    };
    let line = |row: &Vec<String>| {
        let cells = row.iter().enumerate().map(|(c, s)| {
            let pad = " ".repeat(width(c) - s.chars().count());
            if c > 0 && numeric(c) { format!("{pad}{s}") } else { format!("{s}{pad}") }
        });
        let _ = columns;
        format!("  {}", cells.collect::<Vec<_>>().join("  ")).trim_end().to_string()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_aligned_to_the_right() {
        let rows = [
            vec!["class".to_string(), "score".into()],
            vec!["a".into(), "7".into()],
            vec!["b".into(), "12".into()],
        ];
        assert_eq!(table(&rows), "  class  score\n  a          7\n  b         12");
    }
}

//! Each test uses the driver in a process of its own, as a program does: what it leaves behind, an error for ever or
//! a leak, is part of the test.

use std::process::Command;

use super::cuda::Cuda;
use super::library::{Checks, Report, StandIn};

const CHILD: &str = "PREP_STANDIN_CHILD";

/// How the process is run.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    checks: Checks,
    variables: &'static [(&'static str, &'static str)],
}

/// Every access is checked, the settings are those that the library has.
pub const CHECKED: Run = Run { checks: Checks::Accesses, variables: &[] };
/// Pointers are checked only.
pub const FAST: Run = Run { checks: Checks::Pointers, variables: &[] };

impl Run {
    /// With these variables in the environment.
    pub const fn with(self, variables: &'static [(&'static str, &'static str)]) -> Run {
        Run { variables, ..self }
    }
}

/// Orders in which threads, blocks and streams run.
pub const SEEDS: [Run; 5] = [
    CHECKED.with(&[("PREP_STANDIN_SEED", "0")]),
    CHECKED.with(&[("PREP_STANDIN_SEED", "1")]),
    CHECKED.with(&[("PREP_STANDIN_SEED", "2")]),
    CHECKED.with(&[("PREP_STANDIN_SEED", "3")]),
    CHECKED.with(&[("PREP_STANDIN_SEED", "4")]),
];

/// Runs `body` with a context in a process of its own. `test` is the name of the calling test. What the process
/// reported; `None` in that process itself, and where there is no compiler.
#[track_caller]
pub fn with_driver(test: &str, run: &Run, body: impl FnOnce(&Cuda)) -> Option<Report> {
    in_child(test, run, || body(&Cuda::start()))
}

/// The same without a context.
#[track_caller]
pub fn in_child(test: &str, run: &Run, body: impl FnOnce()) -> Option<Report> {
    if std::env::var_os(CHILD).is_some_and(|name| name == test) {
        body();
        return None;
    }
    let stand_in = StandIn::new(run.checks)?;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report");
    let out = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads", "1"])
        .envs(stand_in.environment(&file))
        .envs(run.variables.iter().copied())
        .env(CHILD, test)
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(out.status.success(), "{}\n{}{}", out.status, text(&out.stdout), text(&out.stderr));
    assert!(text(&out.stdout).contains("1 passed"), "{}", text(&out.stdout));
    Some(Report::read(&file))
}

//! Each test uses the driver in a process of its own, as a program does: what it leaves behind, an error for ever or
//! a leak, is part of the test.

use std::process::Command;

use super::cuda::Cuda;
use super::library::{Checks, Report, StandIn};

const CHILD: &str = "PREP_STANDIN_CHILD";

/// How the process is run.
pub struct Run {
    pub checks: Checks,
    pub variables: &'static [(&'static str, &'static str)],
}

/// Every access is checked, the settings are those that the library has.
pub const CHECKED: Run = Run { checks: Checks::Accesses, variables: &[] };

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

impl Report {
    /// Panics where this is not the only fault.
    #[track_caller]
    pub fn assert_fault(&self, parts: &[&str]) {
        assert_eq!(self.faults.len(), 1, "{:#?}", self.faults);
        for part in parts {
            assert!(self.faults[0].contains(part), "`{part}` is not in: {}", self.faults[0]);
        }
    }
}

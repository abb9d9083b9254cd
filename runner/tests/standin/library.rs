//! The stand-in for NVIDIA's driver (kernels/host/driver): builds it, gives the environment in which a program loads
//! it, reads its report.
//!
//! A test includes this file by its path, and runs a program with [`StandIn::environment`]. No sanitizer has to be
//! loaded before the program: the kernels' accesses are checked by the library itself.

// Not every test that includes it looks at all of it.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;

#[path = "../kernels/compile.rs"]
mod compile;

use compile::{Recipe, compiler};

macro_rules! files {
    ($($name:literal),*) => {
        &[$(($name, include_str!(concat!("../../kernels/host/", $name)))),*]
    };
}

const LIBRARY: &str = "libcuda.so";

const FILES: &[(&str, &str)] = files![
    "cuda.h",
    "fibers.cpp",
    "driver/access.cpp",
    "driver/access.h",
    "driver/allocate.cpp",
    "driver/arena.cpp",
    "driver/arena.h",
    "driver/call.cpp",
    "driver/call.h",
    "driver/capture.cpp",
    "driver/capture.h",
    "driver/context.cpp",
    "driver/copy.cpp",
    "driver/device.cpp",
    "driver/driver.cpp",
    "driver/driver.h",
    "driver/event.cpp",
    "driver/graph.cpp",
    "driver/handles.h",
    "driver/host.cpp",
    "driver/host.h",
    "driver/launch.cpp",
    "driver/memory.cpp",
    "driver/memory.h",
    "driver/module.cpp",
    "driver/module.h",
    "driver/ptx.cpp",
    "driver/ptx.h",
    "driver/refusal.h",
    "driver/report.cpp",
    "driver/report.h",
    "driver/settings.cpp",
    "driver/settings.h",
    "driver/shared.cpp",
    "driver/stream.cpp",
    "driver/stream.h",
    "driver/types.h",
    "driver/workers.cpp",
    "driver/workers.h"
];

/// What the library looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Checks {
    /// Every access of a kernel before it happens; one block at a time.
    Accesses,
    /// The pointers that a kernel is given; blocks on all processors. Several times as fast.
    Pointers,
}

/// The library, built.
#[derive(Debug, Clone)]
pub struct StandIn {
    folder: PathBuf,
    checks: Checks,
}

impl StandIn {
    /// `None` where there is no C++ compiler, which is said.
    pub fn new(checks: Checks) -> Option<Self> {
        static BUILT: [OnceLock<Option<PathBuf>>; 2] = [OnceLock::new(), OnceLock::new()];
        if !cfg!(target_os = "linux") {
            eprintln!("skipped: the stand-in driver is for Linux");
            return None;
        }
        let build = || compiler().map(|c| build(checks, &c));
        let folder = BUILT[checks as usize].get_or_init(build).clone()?;
        Some(StandIn { folder, checks })
    }

    /// What a program has to find in its environment to load the library as its driver. The report is appended to the
    /// file `report`.
    pub fn environment(&self, report: &Path) -> Vec<(&'static str, OsString)> {
        let mut path = OsString::from(&self.folder);
        if let Some(before) = std::env::var_os("LD_LIBRARY_PATH") {
            path.push(":");
            path.push(before);
        }
        let threads = match self.checks {
            Checks::Accesses => 1,
            Checks::Pointers => std::thread::available_parallelism().map_or(1, usize::from),
        };
        vec![
            ("LD_LIBRARY_PATH", path),
            ("PREP_STANDIN_REPORT", report.into()),
            ("PREP_STANDIN_THREADS", threads.to_string().into()),
        ]
    }
}

/// The folder with the library.
fn build(checks: Checks, compiler: &OsStr) -> PathBuf {
    let flags = &["-std=c++17", "-O2", "-g1", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off"];
    // The same for both, so made once.
    let driver = Recipe {
        name: "driver-object",
        output: "driver.o",
        files: FILES,
        kernels: false,
        flags,
        kernel_flags: &[],
        link_flags: &["-r"],
    };
    let object = driver.built(compiler).join(driver.output);
    let library = Recipe {
        name: if checks == Checks::Accesses { "driver-checked" } else { "driver-fast" },
        output: LIBRARY,
        files: &[("cuda.h", include_str!("../../kernels/host/cuda.h"))],
        kernels: true,
        flags,
        kernel_flags: if checks == Checks::Accesses { call_before_access(compiler) } else { &[] },
        link_flags: &[
            &object.to_string_lossy(),
            "-shared",
            "-pthread",
            "-Wl,-soname,libcuda.so.1",
            "-Wl,-z,defs",
            // Whoever closes it and opens it again finds the same state; the report comes at exit.
            "-Wl,-z,nodelete",
        ],
    };
    let folder = library.built(compiler);
    // Programs ask for either name; another process may have made it.
    #[cfg(unix)]
    let _ = std::os::unix::fs::symlink(LIBRARY, folder.join("libcuda.so.1"));
    folder
}

/// Arrays on the stack are left to tests/kernels.
fn call_before_access(compiler: &OsStr) -> &'static [&'static str] {
    match is_clang(compiler) {
        true => &[
            "-fsanitize=kernel-address",
            "-mllvm",
            "-asan-instrumentation-with-call-threshold=0",
            "-mllvm",
            "-asan-stack=0",
            "-mllvm",
            "-asan-globals=0",
        ],
        false => &[
            "-fsanitize=kernel-address",
            "--param=asan-instrumentation-with-call-threshold=0",
            "--param=asan-stack=0",
            "--param=asan-globals=0",
        ],
    }
}

fn is_clang(compiler: &OsStr) -> bool {
    let said = Command::new(compiler).arg("--version").output();
    said.is_ok_and(|out| String::from_utf8_lossy(&out.stdout).contains("clang"))
}

/// What a run did, as the library tells it at exit.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Summary {
    /// By kernel.
    pub launches: BTreeMap<String, u64>,
    /// Graphs that were launched; their kernels count as launches too.
    pub graph_launches: u64,
    /// Bytes of device memory, the most at a time.
    pub peak_bytes: u64,
    /// Bytes copied.
    pub bytes_to_device: u64,
    /// Bytes copied.
    pub bytes_to_host: u64,
    /// Kernels, copies and fills that the host never waited for.
    pub unwaited: u64,
    /// What was never given back: how many of each kind.
    pub leaks: BTreeMap<String, u64>,
    /// Bytes of device memory among it.
    pub leaked_bytes: u64,
}

/// The report of one or more runs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    /// What a GPU would have punished: `FUNCTION: WHAT`.
    pub faults: Vec<String>,
    /// One for each process that used the driver to its end.
    pub summaries: Vec<Summary>,
}

impl Report {
    /// Reads a file; an empty report where there is none.
    pub fn read(file: &Path) -> Self {
        let mut report = Report::default();
        for line in std::fs::read_to_string(file).unwrap_or_default().lines() {
            let line: Value = serde_json::from_str(line).unwrap();
            match line.get("summary") {
                Some(s) => report.summaries.push(Summary::of(s)),
                None => {
                    report.faults.push(format!("{}: {}", text(&line["call"]), text(&line["fault"])));
                }
            }
        }
        report
    }

    /// Panics where something was punished or left, or where a process did not come to its end.
    #[track_caller]
    pub fn assert_clean(&self) {
        assert_eq!(self.faults, [] as [String; 0]);
        assert!(!self.summaries.is_empty(), "no process used the driver to its end");
        for s in &self.summaries {
            assert!(s.leaks.is_empty(), "never given back: {:?}", s.leaks);
        }
    }

    /// Panics where this is not the only fault, each part of it in its text.
    #[track_caller]
    pub fn assert_fault(&self, parts: &[&str]) {
        assert_eq!(self.faults.len(), 1, "{:#?}", self.faults);
        for part in parts {
            assert!(self.faults[0].contains(part), "`{part}` is not in: {}", self.faults[0]);
        }
    }

    /// Panics where these are not the faults, a part of each in their order.
    #[track_caller]
    pub fn assert_faults(&self, parts: &[&str]) {
        assert_eq!(self.faults.len(), parts.len(), "{:#?}", self.faults);
        for (fault, part) in self.faults.iter().zip(parts) {
            assert!(fault.contains(part), "`{part}` is not in: {fault}");
        }
    }
}

impl Summary {
    fn of(value: &Value) -> Self {
        let number = |name: &str| value[name].as_u64().unwrap();
        let counts = |name: &str| {
            let all = value[name].as_object().unwrap();
            all.iter().map(|(k, v)| (k.clone(), v.as_u64().unwrap())).collect()
        };
        Summary {
            launches: counts("launches"),
            graph_launches: number("graph_launches"),
            peak_bytes: number("peak_bytes"),
            bytes_to_device: number("bytes_to_device"),
            bytes_to_host: number("bytes_to_host"),
            unwaited: number("unwaited"),
            leaks: counts("leaks"),
            leaked_bytes: number("leaked_bytes"),
        }
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

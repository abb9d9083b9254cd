//! The program that runs kernels for these tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::compile::{Recipe, compiler};

/// How it is made.
pub const SERVER: Recipe<'static> = Recipe {
    name: "kernels",
    output: "server",
    files: &[
        ("cuda.h", include_str!("../../kernels/host/cuda.h")),
        ("fibers.cpp", include_str!("../../kernels/host/fibers.cpp")),
        ("server.cpp", include_str!("../../kernels/host/server.cpp")),
    ],
    kernels: true,
    flags: &[
        "-std=c++17",
        "-O1",
        "-g1",
        "-ffp-contract=off",
        "-fno-omit-frame-pointer",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
    ],
    kernel_flags: &[],
    link_flags: &[],
};

/// The program with all kernels. `None` without a compiler.
pub fn server() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    BUILT.get_or_init(|| compiler().map(|c| SERVER.built(&c).join(SERVER.output))).as_deref()
}

/// Copies the objects that do not depend on any kernel from one folder to another.
pub fn copy_host(from: &Path, to: &Path) {
    for unit in SERVER.units() {
        let object = format!("{unit}.o");
        fs::copy(from.join(&object), to.join(&object)).unwrap();
    }
}

//! Compiles the kernels for this processor.

use std::collections::hash_map::DefaultHasher;
use std::ffi::OsString;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use runner::cuda::sources::{HEADERS, MODULES, Module};

const HOST: [(&str, &str); 3] = [
    ("cuda.h", include_str!("../../kernels/host/cuda.h")),
    ("fibers.cpp", include_str!("../../kernels/host/fibers.cpp")),
    ("server.cpp", include_str!("../../kernels/host/server.cpp")),
];

const FLAGS: [&str; 9] = [
    "-std=c++17",
    "-O1",
    "-g1",
    "-ffp-contract=off",
    "-fno-omit-frame-pointer",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-Wno-unknown-pragmas",
    "-I.",
];

/// `CXX`, or the first of the usual names that runs.
pub fn compiler() -> Option<OsString> {
    static FOUND: OnceLock<Option<OsString>> = OnceLock::new();
    FOUND
        .get_or_init(|| {
            let named = std::env::var_os("CXX").into_iter();
            let usual = ["c++", "g++", "clang++"].map(OsString::from);
            let works =
                |c: &OsString| Command::new(c).arg("--version").output().is_ok_and(|o| o.status.success());
            let found = named.chain(usual).find(works);
            if found.is_none() {
                eprintln!("skipped: no C++ compiler");
            }
            found
        })
        .clone()
}

/// The program that runs all kernels; compiled once for each state of the sources. `None` without a compiler.
pub fn server() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let build = || {
        let compiler = compiler()?;
        let mut hash = DefaultHasher::new();
        (&HOST, FLAGS, &compiler).hash(&mut hash);
        let texts = MODULES.iter().map(|m| m.source).chain(HEADERS).map(|s| (s.name, s.text));
        texts.for_each(|t| t.hash(&mut hash));
        let home = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let folder = home.join(format!("kernels-{:016x}", hash.finish()));
        let program = folder.join("server");
        if !program.exists() {
            // Those of other states of the sources.
            for old in fs::read_dir(home).unwrap().flatten() {
                if old.file_name().to_string_lossy().starts_with("kernels-") {
                    let _ = fs::remove_dir_all(old.path());
                }
            }
            fs::create_dir_all(&folder).unwrap();
            compile(&compiler, &folder, &MODULES, &|text| text.to_string()).unwrap();
        }
        Some(program)
    };
    BUILT.get_or_init(build).as_deref()
}

/// Copies the objects that do not depend on any kernel from one folder to another.
pub fn copy_host(from: &Path, to: &Path) {
    for (name, _) in HOST.iter().filter(|(name, _)| name.ends_with(".cpp")) {
        let object = format!("{name}.o");
        fs::copy(from.join(&object), to.join(&object)).unwrap();
    }
}

/// Compiles `modules` into `folder/server`, every kernel file changed by `change`. Objects that are there already are
/// taken as they are.
pub fn compile(
    compiler: &OsString,
    folder: &Path,
    modules: &[Module],
    change: &dyn Fn(&str) -> String,
) -> Result<(), String> {
    let write = |name: &str, text: &str| fs::write(folder.join(name), text).map_err(|e| e.to_string());
    for (name, text) in HOST {
        write(name, text)?;
    }
    for header in HEADERS {
        write(header.name, header.text)?;
    }
    let mut units = vec!["fibers.cpp".to_string(), "server.cpp".to_string()];
    for module in modules {
        let name = module.source.name;
        write(name, &change(module.source.text))?;
        let mut text = format!("#define PREP_FILE \"{name}\"\n#include \"{name}\"\n");
        for kernel in module.kernels() {
            text += &format!("PREP_REGISTER({kernel})\n");
        }
        write(&format!("{name}.cpp"), &text)?;
        // The largest first, so that no thread is left with it alone.
        units.insert(if name == "tile.cu" { 0 } else { units.len() }, format!("{name}.cpp"));
    }
    let next = std::sync::atomic::AtomicUsize::new(0);
    let compile_units = || -> Result<(), String> {
        while let Some(unit) = units.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
            if folder.join(format!("{unit}.o")).exists() {
                continue;
            }
            let mut command = Command::new(compiler);
            command.current_dir(folder).args(FLAGS).args(["-include", "cuda.h", "-c", unit, "-o"]);
            run(command.arg(format!("{unit}.o")))?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2).map(|_| scope.spawn(compile_units)).collect();
        threads.into_iter().try_for_each(|t| t.join().unwrap())
    })?;
    let mut link = Command::new(compiler);
    link.current_dir(folder).args(FLAGS).args(units.iter().map(|u| format!("{u}.o")));
    // Whole or absent: another test process may look at the same time.
    run(link.args(["-o", "server.new"]))?;
    fs::rename(folder.join("server.new"), folder.join("server")).map_err(|e| e.to_string())
}

fn run(command: &mut Command) -> Result<(), String> {
    let out = command.output().map_err(|e| e.to_string())?;
    match out.status.success() {
        true => Ok(()),
        false => Err(format!("{command:?}\n{}", String::from_utf8_lossy(&out.stderr))),
    }
}

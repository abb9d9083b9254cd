//! Compiles the kernels for this processor, with what runs them there.

use std::collections::hash_map::DefaultHasher;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use runner::cuda::sources::{HEADERS, MODULES, Module};

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

/// A program, a library or an object, with the kernels in it or without.
#[derive(Debug, Clone, Copy, Hash)]
pub struct Recipe<'a> {
    /// What its folder's name begins with.
    pub name: &'a str,
    /// The file that is made.
    pub output: &'a str,
    /// Name and text of the files besides the kernels; those of `.cpp` are compiled.
    pub files: &'a [(&'a str, &'a str)],
    /// Whether it holds the kernels.
    pub kernels: bool,
    /// For every file.
    pub flags: &'a [&'a str],
    /// For the kernels besides.
    pub kernel_flags: &'a [&'a str],
    /// For the linker besides.
    pub link_flags: &'a [&'a str],
}

impl Recipe<'_> {
    /// The folder with the output, made once for each state of the sources.
    pub fn built(&self, compiler: &OsStr) -> PathBuf {
        let mut hash = DefaultHasher::new();
        (self, compiler).hash(&mut hash);
        let modules: &[Module] = if self.kernels { &MODULES } else { &[] };
        let texts = modules.iter().map(|m| m.source).chain(HEADERS).map(|s| (s.name, s.text));
        texts.for_each(|t| t.hash(&mut hash));
        let home = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let prefix = format!("{}-", self.name);
        let name = format!("{prefix}{:016x}", hash.finish());
        let folder = home.join(&name);
        if !folder.exists() {
            remove_old(home, &prefix);
            // Whole or absent: another test process may make the same at the same time.
            let new = home.join(format!("{name}.{}", std::process::id()));
            fs::create_dir_all(&new).unwrap();
            self.compile(compiler, &new, modules, &|text| text.to_string()).unwrap();
            if fs::rename(&new, &folder).is_err() {
                assert!(folder.exists(), "{}", folder.display());
                let _ = fs::remove_dir_all(&new);
            }
        }
        folder
    }

    /// Compiles `modules` into `folder`, every kernel file changed by `change`. Objects that are there already are
    /// taken as they are.
    pub fn compile(
        &self,
        compiler: &OsStr,
        folder: &Path,
        modules: &[Module],
        change: &dyn Fn(&str) -> String,
    ) -> Result<(), String> {
        let write = |name: &str, text: &str| {
            let path = folder.join(name);
            let parent = path.parent().map_or(Ok(()), fs::create_dir_all);
            parent.and_then(|()| fs::write(&path, text)).map_err(|e| e.to_string())
        };
        for (name, text) in self.files {
            write(name, text)?;
        }
        for header in HEADERS {
            write(header.name, header.text)?;
        }
        let mut units: Vec<Unit> = self.units().map(|name| Unit { name, is_kernel: false }).collect();
        for module in modules {
            let name = module.source.name;
            write(name, &change(module.source.text))?;
            let mut text = format!("#define PREP_FILE \"{name}\"\n#include \"{name}\"\n");
            for kernel in module.kernels() {
                text += &format!("PREP_REGISTER({kernel})\n");
            }
            write(&format!("{name}.cpp"), &text)?;
            // The largest first, so that no thread is left with it alone.
            let at = if name == "tile.cu" { 0 } else { units.len() };
            units.insert(at, Unit { name: format!("{name}.cpp"), is_kernel: true });
        }
        let next = AtomicUsize::new(0);
        let compile_units = || -> Result<(), String> {
            while let Some(unit) = units.get(next.fetch_add(1, Ordering::Relaxed)) {
                self.compile_unit(compiler, folder, unit)?;
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..2).map(|_| scope.spawn(compile_units)).collect();
            threads.into_iter().try_for_each(|t| t.join().unwrap())
        })?;
        let mut link = Command::new(compiler);
        link.current_dir(folder).args(self.flags).args(units.iter().map(|u| u.object()));
        run(link.args(self.link_flags).args(["-o", self.output]))
    }

    /// The files besides the kernels that are compiled.
    pub fn units(&self) -> impl Iterator<Item = String> {
        self.files.iter().map(|f| f.0).filter(|name| name.ends_with(".cpp")).map(String::from)
    }

    fn compile_unit(&self, compiler: &OsStr, folder: &Path, unit: &Unit) -> Result<(), String> {
        if folder.join(unit.object()).exists() {
            return Ok(());
        }
        let mut command = Command::new(compiler);
        command.current_dir(folder).args(self.flags);
        if unit.is_kernel {
            command.args(self.kernel_flags).args(["-include", "cuda.h"]);
        }
        run(command.args(["-I.", "-Wno-unknown-pragmas", "-c", &unit.name, "-o", &unit.object()]))
    }
}

struct Unit {
    name: String,
    is_kernel: bool,
}

impl Unit {
    fn object(&self) -> String {
        format!("{}.o", self.name)
    }
}

/// Those of other states of the sources; what another process makes now stays.
fn remove_old(home: &Path, prefix: &str) {
    let hour_ago = SystemTime::now() - Duration::from_secs(3600);
    for old in fs::read_dir(home).unwrap().flatten() {
        let name = old.file_name().to_string_lossy().into_owned();
        // With a process's number behind it.
        let unfinished = name.contains('.');
        let aged = old.metadata().and_then(|m| m.modified()).is_ok_and(|t| t < hour_ago);
        if name.starts_with(prefix) && (!unfinished || aged) {
            let _ = fs::remove_dir_all(old.path());
        }
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    let out = command.output().map_err(|e| e.to_string())?;
    match out.status.success() {
        true => Ok(()),
        false => Err(format!("{command:?}\n{}", String::from_utf8_lossy(&out.stderr))),
    }
}

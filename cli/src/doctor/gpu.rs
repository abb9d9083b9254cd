//! NVIDIA driver, devices and libraries, and which device `prep` will use.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use runner::cuda::driver::free_memory;
use runner::cuda::{Gpu, gpus};
use runner::machine::first_usable;
use verify::template::Level;

use super::Section;

/// What was found of a driver.
#[derive(Debug, Default)]
struct Driver {
    /// The kernel module's version.
    module: Option<String>,
    /// Device files of GPUs.
    devices: usize,
    /// `libcuda.so.1`, the driver's library.
    libcuda: Option<String>,
    /// `libnvrtc`, the compiler of kernels.
    nvrtc: Option<String>,
    /// Lines of `nvidia-smi`.
    gpus: Vec<String>,
    /// What the driver itself says when `prep` asks it; the reason where it cannot be used.
    asked: Option<Result<Vec<Gpu>, String>>,
}

pub fn look() -> Section {
    report(&Driver::find())
}

impl Driver {
    fn find() -> Self {
        let module = std::fs::read_to_string("/proc/driver/nvidia/version").ok();
        let devices = (0..64).filter(|n| Path::new(&format!("/dev/nvidia{n}")).exists()).count();
        Driver {
            module: module.as_deref().and_then(module_version),
            devices,
            libcuda: library("libcuda.so.1"),
            nvrtc: library("libnvrtc.so"),
            gpus: nvidia_smi(),
            asked: Some(gpus().map_err(|e| e.what().to_string())),
        }
    }

    /// What `prep` generates, calibrates and quantizes on.
    fn used(&self) -> String {
        let first = |gpus: &Vec<Gpu>| first_usable(gpus.clone()).map_err(|e| e.what().to_string());
        match self.asked.as_ref().map(|asked| asked.as_ref().map_err(String::clone).and_then(first)) {
            Some(Ok(gpu)) => format!("GPU {}, {} (`--device auto`)", gpu.ordinal, gpu.name),
            Some(Err(why)) => format!("the CPU: {why}"),
            None => "the CPU".into(),
        }
    }
}

fn report(d: &Driver) -> Section {
    let mut s = Section::new("GPU");
    s.fact("driver", d.module.clone().unwrap_or("none".into()));
    d.gpus.iter().for_each(|gpu| s.fact("GPU", gpu.clone()));
    for gpu in d.asked.iter().flatten().flatten() {
        let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
        let [(major, minor), (cuda, point)] = [gpu.capability, gpu.driver];
        s.fact(
            "CUDA",
            format!(
                "{}: sm_{major}{minor}, {} multiprocessors, {:.1} of {:.1} GiB free, driver for CUDA {cuda}.{point}",
                gpu.name,
                gpu.multiprocessors,
                gib(free_memory(gpu.ordinal).unwrap_or_default()),
                gib(gpu.memory)
            ),
        );
    }
    s.fact("libcuda", d.libcuda.clone().unwrap_or("not found".into()));
    s.fact("libnvrtc", d.nvrtc.clone().unwrap_or("not found".into()));
    s.fact("prep uses", d.used());
    match (&d.module, d.devices, &d.libcuda) {
        (None, 0, _) => s.finding(
            Level::Note,
            "no NVIDIA driver: a server needs one, prep itself runs on the CPU",
            "merging and FP8 need no GPU; for large models verify a served endpoint instead",
        ),
        (_, 0, _) => s.finding(
            Level::Warning,
            "there is a driver, but no GPU can be seen from here",
            "in a container: start it with `--gpus all` (NVIDIA Container Toolkit)",
        ),
        (_, n, None) => s.finding(
            Level::Warning,
            format!("{n} GPU(s), but libcuda.so.1 is not found"),
            "install the driver's libraries (libcuda1, or nvidia-utils), or mount them into the container",
        ),
        _ => {}
    }
    s
}

/// `NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  ...`
fn module_version(text: &str) -> Option<String> {
    let words = text.lines().next()?.split_whitespace();
    let mut numbers = words.filter(|w| w.contains('.') && w.bytes().all(|b| b.is_ascii_digit() || b == b'.'));
    numbers.next().map(str::to_string)
}

/// Where the loader would find a library whose name begins so.
fn library(name: &str) -> Option<String> {
    let own = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let usual = [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/lib/wsl/lib",
        "/usr/local/nvidia/lib64",
        "/usr/local/cuda/lib64",
    ];
    let dirs = std::env::split_paths(&own).chain(usual.iter().map(PathBuf::from));
    let found = dirs.filter(|d| d.is_dir()).find_map(|dir| {
        let entries = std::fs::read_dir(&dir).ok()?;
        let mut names = entries.filter_map(|e| e.ok()?.file_name().into_string().ok());
        Some(dir.join(names.find(|n| n.starts_with(name))?).display().to_string())
    });
    found.or_else(|| {
        let cache = std::fs::read("/etc/ld.so.cache").unwrap_or_default();
        let known = cache.windows(name.len()).any(|w| w == name.as_bytes());
        known.then(|| format!("{name} in the loader's cache"))
    })
}

fn nvidia_smi() -> Vec<String> {
    let query = ["--query-gpu=name,memory.total,compute_cap,driver_version", "--format=csv,noheader"];
    let output = Command::new("nvidia-smi").args(query).stdin(Stdio::null()).output();
    let text =
        output.ok().filter(|o| o.status.success()).map(|o| String::from_utf8_lossy(&o.stdout).into_owned());
    text.unwrap_or_default().lines().map(|l| l.trim().to_string()).filter(|l| !l.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_modules_version_is_read() {
        let text = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22\nGCC version: 12";
        assert_eq!(module_version(text).as_deref(), Some("550.54.14"));
    }

    #[test]
    fn each_state_of_a_driver_has_its_fix() {
        let says = |d: Driver, advice: &str| {
            let s = report(&d);
            assert!(s.findings.iter().any(|f| f.advice.contains(advice)), "{s:?}");
        };
        says(Driver::default(), "endpoint");
        says(Driver { module: Some("1.2".into()), ..Driver::default() }, "--gpus all");
        says(Driver { module: Some("1.2".into()), devices: 1, ..Driver::default() }, "libcuda1");
        let whole =
            Driver { module: Some("1.2".into()), devices: 1, libcuda: Some("x".into()), ..Driver::default() };
        assert!(report(&whole).findings.is_empty());
    }
}

//! Processor, memory, limits.

use verify::template::Level;

use super::Section;
use crate::console::size;

pub fn look() -> Section {
    let mut s = Section::new("machine");
    s.fact("prep", env!("CARGO_PKG_VERSION"));
    s.fact("system", format!("{} {}", std::env::consts::OS, std::env::consts::ARCH));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    s.fact("cores", cores.to_string());
    processor(&mut s);
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    memory(&mut s, &read("/proc/meminfo"), &read("/sys/fs/cgroup/memory.max"));
    limits(&mut s, &read("/proc/self/limits"));
    s
}

fn processor(s: &mut Section) {
    let found = simd();
    s.fact("vectors", if found.is_empty() { "none that prep uses".into() } else { found.join(", ") });
    if cfg!(target_arch = "x86_64") && !found.contains(&"AVX2") {
        let what = "the processor (or the virtual machine) has no AVX2: prep works, several times slower";
        s.finding(Level::Note, what, "give the virtual machine the host's processor type");
    }
}

#[cfg(target_arch = "x86_64")]
fn simd() -> Vec<&'static str> {
    let mut found = Vec::new();
    for (name, there) in [
        ("AVX2", std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma")),
        ("AVX-512", std::is_x86_feature_detected!("avx512f") && std::is_x86_feature_detected!("avx512bw")),
        ("VNNI", std::is_x86_feature_detected!("avx512vnni")),
        ("bf16", std::is_x86_feature_detected!("avx512bf16")),
        ("SHA", std::is_x86_feature_detected!("sha")),
    ] {
        if there {
            found.push(name);
        }
    }
    found
}

#[cfg(not(target_arch = "x86_64"))]
fn simd() -> Vec<&'static str> {
    if cfg!(target_arch = "aarch64") { vec!["NEON"] } else { Vec::new() }
}

/// `/proc/meminfo` and the container's limit.
fn memory(s: &mut Section, meminfo: &str, limit: &str) {
    let kib = |key: &str| {
        let line = meminfo.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(':'))?;
        line.trim().trim_end_matches(" kB").trim().parse::<u64>().ok().map(|n| n << 10)
    };
    let (Some(total), Some(free)) = (kib("MemTotal"), kib("MemAvailable")) else { return };
    s.fact("memory", format!("{} of {} free", size(free), size(total)));
    let limit = limit.trim().parse::<u64>().ok().filter(|n| *n < total);
    if let Some(limit) = limit {
        s.fact("memory limit", format!("{} of this container", size(limit)));
    }
    if limit.unwrap_or(free).min(free) < 1 << 30 {
        let what = "less than 1 GiB of memory is free: merging and quantizing need some hundred MiB";
        s.finding(
            Level::Warning,
            what,
            "end other programs, or raise the container's limit; fewer --threads need less",
        );
    }
}

/// `/proc/self/limits`.
fn limits(s: &mut Section, limits: &str) {
    let soft = |name: &str| {
        let line = limits.lines().find_map(|l| l.strip_prefix(name))?;
        Some(line.split_whitespace().next()?.to_string())
    };
    if let Some(files) = soft("Max open files").and_then(|n| n.parse::<u64>().ok()).filter(|n| *n < 512) {
        let what = format!("only {files} files may be open at once: checkpoints of many shards need more");
        s.finding(Level::Warning, what, "run `ulimit -n 4096` first");
    }
    if let Some(bytes) = soft("Max file size").and_then(|n| n.parse::<u64>().ok()) {
        let what = format!("files may be {} long at most: shards are up to 5 GB", size(bytes));
        s.finding(Level::Error, what, "run `ulimit -f unlimited` first");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_memory_and_limits_are_told_with_their_fix() {
        let mut s = Section::new("machine");
        memory(&mut s, "MemTotal:  8000000 kB\nMemAvailable:  900000 kB\n", "max");
        limits(
            &mut s,
            "Max file size             1000000              unlimited            bytes\n\
             Max open files            256                  4096                 files\n",
        );
        let whats: Vec<_> = s.findings.iter().map(|f| f.what.as_str()).collect();
        assert_eq!(whats.len(), 3, "{whats:?}");
        assert!(s.findings[2].level == Level::Error && s.findings[2].advice.contains("ulimit -f"));
    }

    #[test]
    fn a_containers_limit_counts() {
        let mut s = Section::new("machine");
        memory(&mut s, "MemTotal:  8000000 kB\nMemAvailable:  7900000 kB\n", "536870912\n");
        assert!(s.facts.iter().any(|(k, v)| k == "memory limit" && v.starts_with("512.00 MiB")), "{s:?}");
        assert_eq!(s.findings.len(), 1);
    }
}

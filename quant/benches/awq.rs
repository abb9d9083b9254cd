//! Speed of AWQ: calibrates and quantizes a random Qwen3 MoE of about half a billion parameters.
//!
//! `cargo bench -p quant --bench awq [-- THREADS SAMPLES SEQ_LEN LAYERS]`, in the folder for temporary files (`TMPDIR`).
//!
//! With `PREP_LLM_COMPRESSOR=PYTHON`, an interpreter that has `llmcompressor`, that does the same on the same model and
//! tokens afterwards: see `peers/run_llm_compressor.py`.
#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]

#[path = "../tests/support/random_moe.rs"]
mod random_moe;

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use quant::Awq;
use quant::calibration::data::Samples;
use random_moe::Sizes;
use serde_json::{Value, json};
use verify::Checkpoint;
use verify::progress::Silent;
use verify::rewrite::{Options, OutputPlan, run};

/// As the binary has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const VOCAB: usize = 32_000;

fn main() {
    let mut numbers = std::env::args().filter_map(|a| a.parse::<usize>().ok());
    let threads = numbers.next().unwrap_or(2);
    let (samples, seq_len) = (numbers.next().unwrap_or(32), numbers.next().unwrap_or(256));
    let layers = numbers.next().unwrap_or(8);
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    std::fs::create_dir(&source).unwrap();
    let shape = Sizes {
        hidden: 1024,
        experts: 32,
        chosen: 4,
        inter: 512,
        queries: 16,
        pairs: 4,
        dim: 128,
        vocab: VOCAB,
        layers,
    };
    shape.write(&source);
    let token = |s: usize, i: usize| ((s * 104_729 + i * 7919 + i * i * 31) % VOCAB) as u32;
    let sequences = (0..samples).map(|s| (0..seq_len).map(|i| token(s, i)).collect()).collect();
    let sequences: Vec<Vec<u32>> = sequences;
    let tokens = json!(sequences).to_string();
    let awq = Awq::new(Samples::of(sequences));
    let (before, work_before) = (peak(), processor());
    let started = Instant::now();
    let plan = OutputPlan::new(Checkpoint::open(&source).unwrap(), &[&awq]).unwrap();
    let options = Options { threads, ..Options::default() };
    let done = run(&plan, &dir.path().join("out"), &options, &Silent).unwrap();
    let seconds = started.elapsed().as_secs_f64();
    let details = &done.report.stages[0].details;
    println!(
        "{threads} threads, {layers} layers, {samples} x {seq_len} tokens: {seconds:.1} s ({:.1} s of processor), {:.0} tokens/s, peak memory {:.2} GiB ({:.2} before)",
        processor() - work_before,
        (samples * seq_len) as f64 / seconds,
        peak(),
        before
    );
    println!("mean error {} -> {}", details["mean_error_before"], details["mean_error_after"]);
    let ours = [seconds, processor() - work_before];
    match std::env::var_os("PREP_LLM_COMPRESSOR") {
        Some(python) => peer(&python, dir.path(), &tokens, threads, ours),
        None => println!("llm-compressor is not measured: PREP_LLM_COMPRESSOR names no Python that has it"),
    }
}

/// The same by llm-compressor; `ours` are seconds, and seconds of processor.
fn peer(python: &OsStr, dir: &Path, tokens: &str, threads: usize, ours: [f64; 2]) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/peers/run_llm_compressor.py");
    let (file, out) = (dir.join("tokens.json"), dir.join("peer"));
    std::fs::write(&file, tokens).unwrap();
    let mut command = Command::new(python);
    command.arg(script).args([&dir.join("source"), &file, &out]).arg(threads.to_string());
    let done = command.stderr(std::process::Stdio::inherit()).output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    let Some(result) = said.lines().rev().find_map(|l| serde_json::from_str::<Value>(l).ok()) else {
        return println!("llm-compressor failed: {}\n{said}", done.status);
    };
    let of = |key: &str| result[key].as_f64().unwrap();
    println!(
        "llm-compressor: {:.1} s ({:.1} s of processor), peak memory {:.2} GiB: {:.1} x our time, {:.1} x our processor",
        of("seconds"),
        of("processor"),
        of("peak_gib"),
        of("seconds") / ours[0],
        of("processor") / ours[1]
    );
}

/// The most memory that this process had so far, in GiB; 0 where the system does not tell.
fn peak() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let kib: f64 = line.and_then(|l| l.split_whitespace().next()?.parse().ok()).unwrap_or(0.0);
    kib / f64::from(1 << 20)
}

/// Seconds that this process worked, on all cores together: what others do on the machine does not count.
fn processor() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}

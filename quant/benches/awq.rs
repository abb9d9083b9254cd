//! Speed of AWQ: calibrates and quantizes a random Qwen3 MoE of about half a billion parameters.
//!
//! `cargo bench -p quant --bench awq [-- THREADS SAMPLES SEQ_LEN LAYERS]`, in the folder for temporary files (`TMPDIR`).
//!
//! With `PREP_LLM_COMPRESSOR=PYTHON`, an interpreter that has `llmcompressor`, that does the same on the same model and
//! tokens afterwards: see `peers/run_llm_compressor.py`.
#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use quant::Awq;
use quant::calibration::data::Samples;
use serde_json::{Value, json};
use verify::checkpoint::{TensorSpec, header};
use verify::progress::Silent;
use verify::rewrite::{Options, OutputPlan, run};
use verify::{Checkpoint, Dtype};

const HIDDEN: usize = 1024;
const EXPERTS: usize = 32;
const CHOSEN: usize = 4;
const INTER: usize = 512;
const QUERIES: usize = 16;
const PAIRS: usize = 4;
const DIM: usize = 128;
const VOCAB: usize = 32_000;

fn main() {
    let mut numbers = std::env::args().filter_map(|a| a.parse::<usize>().ok());
    let threads = numbers.next().unwrap_or(2);
    let (samples, seq_len) = (numbers.next().unwrap_or(32), numbers.next().unwrap_or(256));
    let layers = numbers.next().unwrap_or(8);
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    std::fs::create_dir(&source).unwrap();
    write_model(&source, layers);
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

fn write_model(dir: &Path, layers: usize) {
    let mut specs = Vec::new();
    let mut add = |name: String, shape: &[usize]| {
        specs.push(TensorSpec::new(format!("{name}.weight"), Dtype::BF16, shape));
    };
    add("model.embed_tokens".into(), &[VOCAB, HIDDEN]);
    for n in 0..layers {
        let at = format!("model.layers.{n}");
        add(format!("{at}.self_attn.q_proj"), &[QUERIES * DIM, HIDDEN]);
        add(format!("{at}.self_attn.k_proj"), &[PAIRS * DIM, HIDDEN]);
        add(format!("{at}.self_attn.v_proj"), &[PAIRS * DIM, HIDDEN]);
        add(format!("{at}.self_attn.o_proj"), &[HIDDEN, QUERIES * DIM]);
        add(format!("{at}.self_attn.q_norm"), &[DIM]);
        add(format!("{at}.self_attn.k_norm"), &[DIM]);
        add(format!("{at}.input_layernorm"), &[HIDDEN]);
        add(format!("{at}.post_attention_layernorm"), &[HIDDEN]);
        add(format!("{at}.mlp.gate"), &[EXPERTS, HIDDEN]);
        for e in 0..EXPERTS {
            add(format!("{at}.mlp.experts.{e}.gate_proj"), &[INTER, HIDDEN]);
            add(format!("{at}.mlp.experts.{e}.up_proj"), &[INTER, HIDDEN]);
            add(format!("{at}.mlp.experts.{e}.down_proj"), &[HIDDEN, INTER]);
        }
    }
    add("model.norm".into(), &[HIDDEN]);
    add("lm_head".into(), &[VOCAB, HIDDEN]);
    let config = json!({
        "model_type": "qwen3_moe", "hidden_act": "silu", "rms_norm_eps": 1e-6, "vocab_size": VOCAB,
        "hidden_size": HIDDEN, "num_hidden_layers": layers, "num_experts": EXPERTS,
        "num_experts_per_tok": CHOSEN, "moe_intermediate_size": INTER, "norm_topk_prob": true,
        "num_attention_heads": QUERIES, "num_key_value_heads": PAIRS, "head_dim": DIM,
        "rope_theta": 1e6, "max_position_embeddings": 4096, "tie_word_embeddings": false,
    });
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    let file = File::create(dir.join("model.safetensors")).unwrap();
    let mut file = BufWriter::with_capacity(1 << 20, file);
    file.write_all(&header::encode(specs.iter())).unwrap();
    let mut state = 1u64;
    for spec in &specs {
        for _ in 0..spec.elements() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let bits = (state >> 40) as u32;
            // Sign and mantissa at random, exponent of 2^-6 .. 2^-5; norms near 1.
            let number = if spec.shape.len() == 2 { bits & 0x807f | 0x3c80 } else { 0x3f40 | bits & 0x7f };
            file.write_all(&(number as u16).to_le_bytes()).unwrap();
        }
    }
    file.flush().unwrap();
}

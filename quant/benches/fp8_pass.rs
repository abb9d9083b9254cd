//! One FP8 pass over random weights, against the floor measured in the same run: reading the source once
//! and writing as many bytes as the result has, synced; from disk and from memory.
//!
//! `cargo bench -p quant [-- GIB]`, in the folder for temporary files (`TMPDIR`).
#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use quant::{Fp8, Scheme};
use serde_json::json;
use verify::checkpoint::{TensorSpec, header};
use verify::progress::Silent;
use verify::rewrite::{Options, OutputPlan, run};
use verify::{Checkpoint, Dtype};

const HIDDEN: usize = 2048;
const INNER: usize = 6144;

fn main() {
    let gib = std::env::args().filter_map(|a| a.parse::<f64>().ok()).next().unwrap_or(1.0);
    let layer_bytes = 2 * (3 * HIDDEN * INNER + 4 * HIDDEN * HIDDEN);
    let layers = ((gib * f64::from(1 << 30)) as usize / layer_bytes).max(1);
    let dir = tempfile::tempdir().unwrap();
    write_source(dir.path(), layers);
    println!("source {:.2} GiB in {}", len(&dir.path().join("model.safetensors")), dir.path().display());
    for (name, cached) in [("source on disk", Cached::No), ("source in memory", Cached::Yes)] {
        // The least of several rounds: other work on the machine only ever adds.
        let (mut least_floor, mut least) = (f64::MAX, [f64::MAX; 2]);
        for _ in 0..5 {
            least_floor = least_floor.min(floor(dir.path(), cached));
            for (scheme, least) in [Scheme::Block, Scheme::Channel].into_iter().zip(&mut least) {
                *least = least.min(pass(dir.path(), scheme, cached));
            }
        }
        let [block, channel] = least.map(|s| format!("{s:.2} s = {:.2} x", s / least_floor));
        println!("{name}: floor {least_floor:.2} s, block {block}, channel {channel}");
    }
}

/// Whether the source lies in the page cache: models larger than memory never do.
#[derive(Clone, Copy, PartialEq)]
enum Cached {
    Yes,
    No,
}

/// Has the kernel forget the source's pages.
fn evict(dir: &Path, cached: Cached) {
    if cached == Cached::No {
        let file = format!("if={}", dir.join("model.safetensors").display());
        let dropped = Command::new("dd").args([&file, "iflag=nocache", "count=0", "status=none"]).status();
        assert!(dropped.unwrap().success());
    }
}

fn len(path: &Path) -> f64 {
    std::fs::metadata(path).unwrap().len() as f64 / f64::from(1 << 30)
}

fn write_source(dir: &Path, layers: usize) {
    let mut specs = vec![
        TensorSpec::new("model.embed_tokens.weight", Dtype::BF16, [1024, HIDDEN]),
        TensorSpec::new("model.norm.weight", Dtype::BF16, [HIDDEN]),
    ];
    for n in 0..layers {
        let mut add = |name: &str, shape: &[usize]| {
            specs.push(TensorSpec::new(format!("model.layers.{n}.{name}.weight"), Dtype::BF16, shape));
        };
        for norm in ["input_layernorm", "post_attention_layernorm"] {
            add(norm, &[HIDDEN]);
        }
        for part in ["q", "k", "v", "o"] {
            add(&format!("self_attn.{part}_proj"), &[HIDDEN, HIDDEN]);
        }
        for part in ["gate", "up"] {
            add(&format!("mlp.{part}_proj"), &[INNER, HIDDEN]);
        }
        add("mlp.down_proj", &[HIDDEN, INNER]);
    }
    let config = json!({"model_type": "llama", "num_hidden_layers": layers, "tie_word_embeddings": true});
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    let mut file = File::create(dir.join("model.safetensors")).unwrap();
    file.write_all(&header::encode(specs.iter())).unwrap();
    let mut state = 1u64;
    for spec in &specs {
        let next = |_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            // Sign and mantissa at random, magnitudes from 2^-9 to 2^-2.
            let bits = (state >> 48) as u16;
            (bits & 0x807f) | (118 + (bits >> 7 & 7)) << 7
        };
        let bytes: Vec<u8> = (0..spec.elements()).map(next).flat_map(u16::to_le_bytes).collect();
        file.write_all(&bytes).unwrap();
    }
    file.sync_all().unwrap();
}

/// Seconds to read the source and to write half as much.
fn floor(dir: &Path, cached: Cached) -> f64 {
    evict(dir, cached);
    let started = Instant::now();
    let mut source = File::open(dir.join("model.safetensors")).unwrap();
    let path = dir.join("floor.tmp");
    let mut out = File::create(&path).unwrap();
    let mut buffer = vec![0; 4 << 20];
    loop {
        let n = source.read(&mut buffer).unwrap();
        if n == 0 {
            break;
        }
        out.write_all(&buffer[..n / 2]).unwrap();
    }
    out.sync_all().unwrap();
    let seconds = started.elapsed().as_secs_f64();
    std::fs::remove_file(path).unwrap();
    seconds
}

fn pass(dir: &Path, scheme: Scheme, cached: Cached) -> f64 {
    evict(dir, cached);
    let out = dir.with_extension("out");
    let started = Instant::now();
    let plan = OutputPlan::new(Checkpoint::open(dir).unwrap(), &[&Fp8 { scheme, ..Fp8::default() }]).unwrap();
    run(&plan, &out, &Options { threads: 2, ..Options::default() }, &Silent).unwrap();
    let seconds = started.elapsed().as_secs_f64();
    std::fs::remove_dir_all(out).unwrap();
    seconds
}

//! The rewrite engine against the machine's own floor: a plain copy of a checkpoint, hashed on both sides,
//! against `cp` and `sync` of the same bytes in the same run.
//!
//! `cargo bench -p verify --bench copy -- [GB]` (default 0.25)

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use verify::checkpoint::header::encode;
use verify::checkpoint::{Checkpoint, TensorSpec};
use verify::progress::Silent;
use verify::rewrite::{Options, OutputPlan, run};
use verify::{Dtype, report};

fn main() {
    let gb: f64 = std::env::args().skip(1).find_map(|a| a.parse().ok()).unwrap_or(0.25);
    let dir = tempfile::tempdir_in(".").unwrap();
    let base = dir.path().join("base");
    make(&base, (gb * 1e9) as usize);
    sync();
    for round in 1..=3 {
        let copy = dir.path().join("cp");
        let started = Instant::now();
        Command::new("cp").arg("-r").arg(&base).arg(&copy).status().unwrap();
        sync();
        let floor = started.elapsed().as_secs_f64();
        std::fs::remove_dir_all(&copy).unwrap();
        sync();
        let out = dir.path().join("out");
        let started = Instant::now();
        let plan = OutputPlan::new(Checkpoint::open(&base).unwrap(), &[]).unwrap();
        run(&plan, &out, &Options::default(), &Silent).unwrap();
        let ours = started.elapsed().as_secs_f64();
        std::fs::remove_dir_all(&out).unwrap();
        sync();
        let peak = report::peak_memory().unwrap_or(0) >> 20;
        println!(
            "round {round}: cp + sync {floor:.2} s, prep {ours:.2} s, ratio {:.2}, peak {peak} MiB",
            ours / floor
        );
    }
}

fn sync() {
    Command::new("sync").status().unwrap();
}

/// Matrices of 4096 x 2048 bf16 until `bytes` are full.
fn make(base: &Path, bytes: usize) {
    std::fs::create_dir(base).unwrap();
    std::fs::write(base.join("config.json"), r#"{"model_type": "bench"}"#).unwrap();
    let count = (bytes / (4096 * 2048 * 2)).max(1);
    let specs: Vec<_> =
        (0..count).map(|i| TensorSpec::new(format!("w{i}"), Dtype::BF16, [4096, 2048])).collect();
    let mut file = std::fs::File::create(base.join("model.safetensors")).unwrap();
    file.write_all(&encode(specs.iter())).unwrap();
    let mut x = 1u64;
    let mut block = vec![0u8; 4096 * 2048 * 2];
    for _ in 0..count {
        for word in block.chunks_exact_mut(8) {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            word.copy_from_slice(&(x ^ (x >> 29)).to_le_bytes());
        }
        file.write_all(&block).unwrap();
    }
}

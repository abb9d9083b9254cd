//! Time and memory of a merge against `cp` and `sync` of the same base, and against a plain copy by the
//! engine (which reads, hashes and writes the same bytes), in turn.
//!
//! `cargo bench -p merge --bench merge -- [GB] [RANK] [ROUNDS] [DTYPE] [DIR]`: a random base of `GB` (0.1) in
//! `DTYPE` (BF16) and an adapter of `RANK` (16) on all linears are made in `DIR` (a temporary folder) and merged
//! `ROUNDS` (3) times. Seconds of the processor are printed too: they mean something on a busy machine as well.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use merge::{MergeLora, Options};
use verify::Dtype;
use verify::checkpoint::{Checkpoint, TensorSpec, header};
use verify::progress::Silent;
use verify::rewrite::{self, OutputPlan, Rewrite};

const HIDDEN: usize = 2048;
const INNER: usize = 6144;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let number = |i: usize, default: f64| args.get(i).map_or(default, |a| a.parse().unwrap());
    let (gb, rank, rounds) = (number(0, 0.1), number(1, 16.0) as usize, number(2, 3.0) as usize);
    let temp = tempfile::tempdir().unwrap();
    let dtype = args.get(3).map_or(Dtype::BF16, |d| Dtype::parse(d).unwrap());
    let dir = args.get(4).map_or(temp.path(), Path::new);
    let linears = linears(gb, dtype);
    make(dir, &linears, rank);
    let bytes: u64 = linears.iter().map(TensorSpec::byte_len).sum();
    println!("base {:.2} GB in {} linears, rank {rank}", bytes as f64 / 1e9, linears.len());
    let mut ratios = Vec::new();
    for round in 0..rounds {
        let copy = timed(|| copy(&dir.join("base"), &dir.join("copy")));
        std::fs::remove_dir_all(dir.join("copy")).unwrap();
        let engine = timed_busy(|| rewrite(dir, &[]));
        std::fs::remove_dir_all(dir.join("out")).unwrap();
        let merge = timed_busy(|| {
            rewrite(dir, &[&MergeLora::open(&[(dir.join("adapter"), 1.0)], Options::default()).unwrap()]);
        });
        std::fs::remove_dir_all(dir.join("out")).unwrap();
        ratios.push(merge.0 / copy);
        println!(
            "round {round}: cp + sync {copy:.2} s; engine alone {:.2} s ({:.2} s of the processor); \
             merge {:.2} s ({:.2} s of the processor), ratio {:.2}",
            engine.0,
            engine.1,
            merge.0,
            merge.1,
            merge.0 / copy
        );
    }
    ratios.sort_by(f64::total_cmp);
    let peak = verify::report::peak_memory().unwrap_or(0) >> 20;
    let adapter = std::fs::metadata(dir.join("adapter/adapter_model.safetensors")).unwrap().len() >> 20;
    println!(
        "median ratio {:.2}; peak memory {peak} MiB, of which adapter {adapter} MiB",
        ratios[ratios.len() / 2]
    );
}

fn timed(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

/// Seconds on the wall, and of the processor.
fn timed_busy(work: impl FnOnce()) -> (f64, f64) {
    let before = processor_seconds();
    let wall = timed(work);
    (wall, processor_seconds() - before)
}

/// User and system time of this process, by the kernel's ticks of 10 ms.
fn processor_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-r").arg(from).arg(to).status().unwrap().success());
    assert!(Command::new("sync").arg("-f").arg(to).status().unwrap().success());
}

fn rewrite(dir: &Path, stages: &[&dyn Rewrite]) {
    let plan = OutputPlan::new(Checkpoint::open(&dir.join("base")).unwrap(), stages).unwrap();
    rewrite::run(&plan, &dir.join("out"), &rewrite::Options::default(), &Silent).unwrap();
}

/// The linears of as many decoder layers as make about `gb`.
fn linears(gb: f64, dtype: Dtype) -> Vec<TensorSpec> {
    let layer = |l: usize| {
        let of = |name: &str, out: usize, inp: usize| {
            TensorSpec::new(format!("model.layers.{l}.{name}.weight"), dtype, [out, inp])
        };
        [
            of("self_attn.q_proj", HIDDEN, HIDDEN),
            of("self_attn.k_proj", HIDDEN / 4, HIDDEN),
            of("self_attn.v_proj", HIDDEN / 4, HIDDEN),
            of("self_attn.o_proj", HIDDEN, HIDDEN),
            of("mlp.gate_proj", INNER, HIDDEN),
            of("mlp.up_proj", INNER, HIDDEN),
            of("mlp.down_proj", HIDDEN, INNER),
        ]
    };
    let size: u64 = layer(0).iter().map(TensorSpec::byte_len).sum();
    let count = ((gb * 1e9 / size as f64).round() as usize).max(1);
    (0..count).flat_map(layer).collect()
}

fn make(dir: &Path, linears: &[TensorSpec], rank: usize) {
    for part in ["base", "adapter"] {
        std::fs::create_dir_all(dir.join(part)).unwrap();
    }
    let mut noise = 1u64;
    write(&dir.join("base/model.safetensors"), linears, &mut noise);
    std::fs::write(dir.join("base/config.json"), r#"{"model_type": "qwen3"}"#).unwrap();
    let factors: Vec<TensorSpec> = linears
        .iter()
        .flat_map(|l| {
            let module = l.name.strip_suffix(".weight").unwrap();
            let of = |part: &str, shape: [usize; 2]| {
                TensorSpec::new(format!("base_model.model.{module}.lora_{part}.weight"), Dtype::BF16, shape)
            };
            [of("A", [rank, l.shape[1]]), of("B", [l.shape[0], rank])]
        })
        .collect();
    write(&dir.join("adapter/adapter_model.safetensors"), &factors, &mut noise);
    let config = format!(r#"{{"peft_type": "LORA", "r": {rank}, "lora_alpha": {rank}}}"#);
    std::fs::write(dir.join("adapter/adapter_config.json"), config).unwrap();
}

/// Random values of about ±0.02.
fn write(path: &Path, tensors: &[TensorSpec], noise: &mut u64) {
    let mut file = std::io::BufWriter::with_capacity(1 << 20, std::fs::File::create(path).unwrap());
    file.write_all(&header::encode(tensors.iter())).unwrap();
    for t in tensors {
        for _ in 0..t.elements() {
            *noise ^= *noise << 13;
            *noise ^= *noise >> 7;
            *noise ^= *noise << 17;
            let value = (*noise >> 40) as f32 / 16_777_216.0 - 0.5;
            let value = value * 0.04;
            match t.dtype {
                Dtype::BF16 => file.write_all(&half::bf16::from_f32(value).to_le_bytes()).unwrap(),
                Dtype::F16 => file.write_all(&half::f16::from_f32(value).to_le_bytes()).unwrap(),
                _ => file.write_all(&value.to_le_bytes()).unwrap(),
            }
        }
    }
    file.into_inner().unwrap().sync_all().unwrap();
}

//! Speed of the CPU backend against the machine's own limit: `cargo bench -p runner --bench speed [-- THREADS] [avx2]
//! [bf16] [fp8] [int4]`.
//!
//! Makes a random Qwen3 MoE of half a billion parameters, in bf16, in FP8 and in 4 bit, decodes and reads prompts with it,
//! and compares the bytes that a token needs with a streaming read of the same files in the same run.
//!
//! With `PREP_LLAMA_CPP=PYTHON`, an interpreter that has `llama-cpp-python`, `gguf` and `numpy`, llama.cpp runs the same
//! shapes in between, three times each: see `peers/run_llama_cpp.py`.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::ffi::OsStr;
use std::fs::File;
use std::hint::black_box;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use rayon::prelude::*;
use runner::backend::{Backend, Linear};
use runner::cpu::{Array, Isa};
use runner::decoder::{Part, Sequence, Want};
use runner::weights::{Awq, Bytes, Format, Int4, Matrix, Scales};
use runner::{Cpu, Model, Options};
use verify::Checkpoint;
use verify::codec::Float;

const HIDDEN: usize = 1024;
const LAYERS: usize = 8;
const EXPERTS: usize = 32;
const CHOSEN: usize = 4;
const INTER: usize = 512;
const HEADS: [usize; 3] = [16, 4, 128];
const VOCAB: usize = 32_000;

fn main() {
    let threads = std::env::args().filter_map(|a| a.parse().ok()).next();
    let threads = threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let wanted = |isa: &Isa| std::env::args().any(|a| a == isa.name());
    let isa = Isa::available().into_iter().find(wanted).unwrap_or(Isa::best());
    println!("{} threads, {}", threads, isa.name());
    for (name, format) in formats() {
        in_cache(isa, name, format);
    }
    let peer = std::env::var_os("PREP_LLAMA_CPP");
    if peer.is_none() {
        println!("llama.cpp is not measured: PREP_LLAMA_CPP names no Python that has it");
    }
    let kinds = [Kind::Bf16, Kind::Fp8, Kind::Int4];
    let named = |kind: &Kind| std::env::args().any(|a| a == kind.name().trim());
    let all = !kinds.iter().any(named);
    for kind in kinds.into_iter().filter(|kind| all || named(kind)) {
        let dir = tempfile::tempdir().unwrap();
        write_model(dir.path(), kind);
        let peer = peer.as_deref().zip(kind.of_llama_cpp());
        let (mut ours, mut theirs) = (Speed::default(), Speed::default());
        // One after the other, so that both see what else the machine does.
        for _ in 0..if peer.is_some() { 3 } else { 1 } {
            ours = ours.or(measure(dir.path(), kind, isa, threads));
            if let Some((python, kind)) = peer {
                theirs = theirs.or(llama_cpp(python, kind, dir.path(), threads));
            }
        }
        ours.print(kind);
        if let Some((_, theirs_is)) = peer {
            println!(
                "{} beside llama.cpp {theirs_is}: decode {:.1} and {:.1} tok/s, {:.2} x; prompt of 64 {:.1} and {:.1} tok/s, {:.2} x",
                kind.name(),
                ours.decode,
                theirs.decode,
                ours.decode / theirs.decode,
                ours.prompts[1],
                theirs.prompts[1],
                ours.prompts[1] / theirs.prompts[1],
            );
        }
    }
}

/// Lengths of the prompts.
const PROMPTS: [usize; 3] = [16, 64, 256];

/// The best that was seen.
#[derive(Clone, Copy, Default)]
struct Speed {
    /// Bytes a second, read in order.
    read: f64,
    /// Tokens a second.
    decode: f64,
    /// Tokens a second of each of [`PROMPTS`].
    prompts: [f64; 3],
}

impl Speed {
    fn or(self, other: Speed) -> Speed {
        Speed {
            read: self.read.max(other.read),
            decode: self.decode.max(other.decode),
            prompts: std::array::from_fn(|i| self.prompts[i].max(other.prompts[i])),
        }
    }

    fn print(&self, kind: Kind) {
        let (name, active) = (kind.name(), active_bytes(kind) as f64);
        println!("{name} streaming read  {:7.2} GB/s", self.read / 1e9);
        println!(
            "{name} decode          {:7.2} tok/s, {:.0} MB a token, {:7.2} GB/s, {:.1} % of the streaming read",
            self.decode,
            active / 1e6,
            active * self.decode / 1e9,
            100.0 * active * self.decode / self.read
        );
        for (tokens, speed) in PROMPTS.iter().zip(self.prompts) {
            println!("{name} prompt of {tokens:4}  {speed:7.1} tok/s");
        }
    }
}

/// What llama.cpp says of itself; it keeps its weights in `dir`.
fn llama_cpp(python: &OsStr, kind: &str, dir: &Path, threads: usize) -> Speed {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/peers/run_llama_cpp.py");
    let threads = threads.to_string();
    let ran = Command::new(python).args([script, kind]).arg(dir).arg(threads).output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(ran.status.success(), "{said}");
    let json: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
    let number = |key: &str| json[key].as_f64().unwrap();
    Speed { read: 0.0, decode: number("decode"), prompts: [0.0, number("prompt"), 0.0] }
}

/// How the projections are stored; embedding, head and routers are in bf16 always.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Bf16,
    /// With a scale for each block of 128 x 128.
    Fp8,
    /// compressed-tensors, with a scale for each 128 of a row.
    Int4,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Bf16 => "bf16",
            Kind::Fp8 => "fp8 ",
            Kind::Int4 => "int4",
        }
    }

    /// The type of llama.cpp that is measured beside it.
    fn of_llama_cpp(self) -> Option<&'static str> {
        match self {
            Kind::Bf16 => Some("bf16"),
            Kind::Fp8 => Some("q8_0"),
            Kind::Int4 => None,
        }
    }

    /// Bytes of a weight, its scales included.
    fn width(self, plain: bool) -> f64 {
        match self {
            Kind::Fp8 if !plain => 1.0,
            Kind::Int4 if !plain => 0.5 + 2.0 / 128.0,
            _ => 2.0,
        }
    }
}

fn measure(dir: &Path, kind: Kind, isa: Isa, threads: usize) -> Speed {
    let model =
        Model::on(Cpu::new(isa), &Checkpoint::open(dir).unwrap(), &Options { threads: Some(threads) });
    let model = model.unwrap();
    let map = Checkpoint::open(dir).unwrap().map().unwrap();
    let weights: Vec<&[u8]> =
        (0..map.index().tensors().len()).flat_map(|t| map.bytes_at(t).chunks(1 << 18)).collect();
    // As many bytes as a token needs, each time others, so that no cache holds them.
    let portion = active_bytes(kind).div_ceil(1 << 18);
    let stream = |portion: &[&[u8]]| {
        let start = Instant::now();
        let sum = model.install(|| portion.par_iter().map(|c| sum(c)).reduce(|| 0, u64::wrapping_add));
        black_box(sum);
        portion.iter().map(|c| c.len()).sum::<usize>() as f64 / start.elapsed().as_secs_f64()
    };
    stream(&weights);
    let (mut read, mut token) = (0.0f64, f64::MAX);
    for _ in 0..8 {
        read = weights.chunks_exact(portion).map(&stream).fold(read, f64::max);
        let mut sequence = model.sequence().unwrap();
        feed(&model, &mut sequence, 16, 1);
        for i in 0..16 {
            let start = Instant::now();
            feed(&model, &mut sequence, 1, i);
            token = token.min(start.elapsed().as_secs_f64());
        }
    }
    let prompts = PROMPTS.map(|tokens| {
        let mut best = f64::MAX;
        for _ in 0..12 {
            let mut sequence = model.sequence().unwrap();
            let start = Instant::now();
            feed(&model, &mut sequence, tokens, 7);
            best = best.min(start.elapsed().as_secs_f64());
        }
        tokens as f64 / best
    });
    Speed { read, decode: 1.0 / token, prompts }
}

const IN_CACHE: [usize; 2] = [128, 1024];

fn formats() -> [(&'static str, Format); 5] {
    let [rows, cols] = IN_CACHE;
    let scales = Scales {
        values: vec![1.0; rows * cols / (128 * 128)].into(),
        block: [128, 128],
        across: cols / 128,
        inputs: None,
    };
    let ones = || Bytes::owned(1f32.to_le_bytes().repeat(rows * cols / 128));
    let zeros = Bytes::owned(vec![0x88; rows * cols / 128 / 2]);
    let int4 = Int4 { scales: ones(), float: Float::F32, zeros: None, group: 128, across: cols / 128 };
    let awq = Awq { scales: ones(), float: Float::F32, zeros, group: 128 };
    [
        ("bf16", Format::Bf16),
        ("fp8 ", Format::E4m3(scales)),
        ("int8", Format::Int8(int4.clone())),
        ("int4", Format::Int4(int4)),
        ("awq ", Format::Awq(awq)),
    ]
}

/// What one thread does with weights that lie in its cache: the arithmetic alone.
fn in_cache(isa: Isa, name: &str, format: Format) {
    let [rows, cols] = IN_CACHE;
    let size = rows * format.row_bytes(cols);
    let bytes: Vec<u8> = (0..size).map(|i| (i * 37 % 64 + 32) as u8).collect();
    let weight = Matrix { name: "w".into(), rows, cols, bytes: Bytes::owned(bytes), format };
    let linear = Linear { weight, bias: None };
    let cpu = Cpu::new(isa);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    for tokens in [1, 8, 64] {
        let x = Array::new(tokens, cols, vec![0.5; tokens * cols]);
        let mut best = f64::MAX;
        pool.install(|| {
            for _ in 0..2000 {
                let start = Instant::now();
                black_box(cpu.linear(&x, [&linear]).unwrap());
                best = best.min(start.elapsed().as_secs_f64());
            }
        });
        let (bytes, sums) = (size as f64, (2 * rows * cols * tokens) as f64);
        println!(
            "{name} in cache, {tokens:2} tokens {:7.2} GB/s, {:6.1} GFLOP/s",
            bytes / best / 1e9,
            sums / best / 1e9
        );
    }
}

fn feed(model: &Model<Cpu>, sequence: &mut Sequence<Cpu>, count: usize, salt: usize) {
    let tokens: Vec<u32> = (0..count).map(|i| ((i * 7919 + salt * 104_729 + 17) % VOCAB) as u32).collect();
    black_box(model.forward(&mut [Part { sequence, tokens: &tokens, want: Want::Last }]).unwrap());
}

/// Four independent sums, so that memory and not the adder is the limit.
fn sum(bytes: &[u8]) -> u64 {
    let (words, _) = bytes.as_chunks::<8>();
    let mut sums = [0u64; 16];
    for chunk in words.chunks_exact(16) {
        for (sum, word) in sums.iter_mut().zip(chunk) {
            *sum = sum.wrapping_add(u64::from_le_bytes(*word));
        }
    }
    sums.iter().fold(0, |a, b| a.wrapping_add(*b))
}

/// Every matrix of the model: name, rows, columns, whether quantizing leaves it in 16 bit, uses of it by a token.
fn matrices() -> Vec<(String, usize, usize, bool, f64)> {
    let [q, kv, dim] = HEADS;
    let mut all = vec![
        ("model.embed_tokens".into(), VOCAB, HIDDEN, true, 0.0),
        ("lm_head".into(), VOCAB, HIDDEN, true, 1.0),
    ];
    for n in 0..LAYERS {
        let at = format!("model.layers.{n}");
        all.push((format!("{at}.self_attn.q_proj"), q * dim, HIDDEN, false, 1.0));
        all.push((format!("{at}.self_attn.k_proj"), kv * dim, HIDDEN, false, 1.0));
        all.push((format!("{at}.self_attn.v_proj"), kv * dim, HIDDEN, false, 1.0));
        all.push((format!("{at}.self_attn.o_proj"), HIDDEN, q * dim, false, 1.0));
        all.push((format!("{at}.mlp.gate"), EXPERTS, HIDDEN, true, 1.0));
        for e in 0..EXPERTS {
            let share = CHOSEN as f64 / EXPERTS as f64;
            all.push((format!("{at}.mlp.experts.{e}.gate_proj"), INTER, HIDDEN, false, share));
            all.push((format!("{at}.mlp.experts.{e}.up_proj"), INTER, HIDDEN, false, share));
            all.push((format!("{at}.mlp.experts.{e}.down_proj"), HIDDEN, INTER, false, share));
        }
    }
    all
}

fn active_bytes(kind: Kind) -> usize {
    let each = matrices().into_iter().map(|(_, r, c, plain, uses)| (r * c) as f64 * kind.width(plain) * uses);
    each.sum::<f64>() as usize
}

fn write_model(dir: &Path, kind: Kind) {
    let mut tensors = Vec::new();
    for (name, rows, cols, plain, _) in matrices() {
        match kind {
            Kind::Fp8 if !plain => {
                tensors.push((format!("{name}.weight"), "F8_E4M3", vec![rows, cols]));
                tensors.push((format!("{name}.weight_scale_inv"), "F32", vec![rows / 128, cols / 128]));
            }
            Kind::Int4 if !plain => {
                tensors.push((format!("{name}.weight_packed"), "I32", vec![rows, cols / 8]));
                tensors.push((format!("{name}.weight_scale"), "BF16", vec![rows, cols / 128]));
            }
            _ => tensors.push((format!("{name}.weight"), "BF16", vec![rows, cols])),
        }
    }
    for n in 0..LAYERS {
        let at = format!("model.layers.{n}");
        for norm in ["input_layernorm", "post_attention_layernorm"] {
            tensors.push((format!("{at}.{norm}.weight"), "BF16", vec![HIDDEN]));
        }
        for norm in ["q_norm", "k_norm"] {
            tensors.push((format!("{at}.self_attn.{norm}.weight"), "BF16", vec![HEADS[2]]));
        }
    }
    tensors.push(("model.norm.weight".into(), "BF16", vec![HIDDEN]));
    write_tensors(&dir.join("model.safetensors"), &tensors);
    let mut config = serde_json::json!({
        "model_type": "qwen3_moe", "hidden_act": "silu", "rms_norm_eps": 1e-6, "vocab_size": VOCAB,
        "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_experts": EXPERTS,
        "num_experts_per_tok": CHOSEN, "moe_intermediate_size": INTER, "norm_topk_prob": true,
        "num_attention_heads": HEADS[0], "num_key_value_heads": HEADS[1], "head_dim": HEADS[2],
        "rope_theta": 1e6, "max_position_embeddings": 4096,
    });
    match kind {
        Kind::Bf16 => {}
        Kind::Fp8 => {
            config["quantization_config"] =
                serde_json::json!({"quant_method": "fp8", "weight_block_size": [128, 128]});
        }
        Kind::Int4 => {
            let weights =
                serde_json::json!({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128});
            config["quantization_config"] = serde_json::json!({
                "quant_method": "compressed-tensors", "format": "pack-quantized",
                "config_groups": {"group_0": {"weights": weights}},
            });
        }
    }
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
}

/// Random numbers of a sensible size in every type: weights around 0.03, scales and norms of 1.
fn write_tensors(path: &Path, tensors: &[(String, &str, Vec<usize>)]) {
    let mut header = serde_json::Map::new();
    let mut end = 0;
    for (name, dtype, shape) in tensors {
        let width = match *dtype {
            "F32" | "I32" => 4,
            "BF16" => 2,
            _ => 1,
        };
        let begin = end;
        end += shape.iter().product::<usize>() * width;
        header.insert(
            name.clone(),
            serde_json::json!({"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}),
        );
    }
    let mut head = serde_json::Value::Object(header).to_string();
    head.push_str(&" ".repeat(head.len().next_multiple_of(8) - head.len()));
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path).unwrap());
    file.write_all(&(head.len() as u64).to_le_bytes()).unwrap();
    file.write_all(head.as_bytes()).unwrap();
    let mut state = 1u64;
    for (_, dtype, shape) in tensors {
        for _ in 0..shape.iter().product::<usize>() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let bits = (state >> 40) as u32;
            match (*dtype, shape.len()) {
                // Sign and mantissa random, exponent of 2^-6 .. 2^-5.
                ("BF16", 2) => file.write_all(&(((bits & 0x807f) | 0x3c80) as u16).to_le_bytes()),
                ("BF16", _) => file.write_all(&0x3f80u16.to_le_bytes()),
                ("F32", _) => file.write_all(&1f32.to_le_bytes()),
                ("I32", _) => file.write_all(&(state >> 32).to_le_bytes()[..4]),
                _ => file.write_all(&[((bits & 0x87) | 0x08) as u8]),
            }
            .unwrap();
        }
    }
    file.flush().unwrap();
}

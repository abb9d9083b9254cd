//! Numbers of a config are held against the tensors' shapes before anything is made in their size.
//!
//! One test in a process of its own, so that its memory is its own.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::time::{Duration, Instant};

use runner::engine::{Request, Stop, complete};
use runner::{Model, Options, Sampling};
use serde_json::{Value, json};
use verify::progress::Silent;

/// Families and their keys that shape tensors, besides [`EVERYWHERE`].
const FAMILIES: [(&str, &[&str]); 6] = [
    ("llama", &["intermediate_size"]),
    ("qwen3", &["intermediate_size", "head_dim"]),
    ("qwen3_moe", &["intermediate_size", "head_dim", "moe_intermediate_size", "num_experts"]),
    ("mixtral", &["intermediate_size", "num_local_experts"]),
    ("qwen3_next", HYBRID),
    ("qwen3_5_moe", HYBRID),
];

const EVERYWHERE: [&str; 5] =
    ["vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"];

const HYBRID: &[&str] = &[
    "head_dim",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "num_experts",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
];

/// The largest that are let through to the shapes, and beyond; all in all but one a multiple of the small true ones.
fn absurd() -> [Value; 7] {
    [
        json!(1 << 20),
        json!((1 << 21) - 1),
        json!(1u64 << 32),
        json!(u64::MAX),
        json!(1e300),
        json!(-8),
        json!("8"),
    ]
}

fn write(dir: &Path, case: &Path, keys: &[(&str, Value)]) {
    let text = std::fs::read_to_string(case.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    let nested = config.get("text_config").is_some();
    let language = if nested { &mut config["text_config"] } else { &mut config };
    for (key, value) in keys {
        language[*key] = value.clone();
    }
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
}

/// The most memory this process ever had, in bytes, where the system tells.
fn peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

#[test]
fn absurd_numbers_are_refused_before_anything_is_made_in_their_size() {
    let dir = tempfile::tempdir().unwrap();
    let mut before = None;
    for (family, keys) in FAMILIES {
        let case = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/logits")).join(family);
        std::fs::copy(case.join("model.safetensors"), dir.path().join("model.safetensors")).unwrap();
        let options = Options { threads: Some(1) };
        write(dir.path(), &case, &[]);
        Model::open(dir.path(), &options).unwrap();
        before = before.or(peak());
        let refused = |keys: &[(&str, Value)]| {
            write(dir.path(), &case, keys);
            let start = Instant::now();
            let error = Model::open(dir.path(), &options).err();
            let error = error.unwrap_or_else(|| panic!("{family} opens with {keys:?}"));
            assert_eq!(error.class().exit_code(), 3, "{family} {keys:?}: {error}");
            assert!(start.elapsed() < Duration::from_secs(5), "{family} {keys:?} took {:?}", start.elapsed());
        };
        for key in EVERYWHERE.iter().chain(keys) {
            for value in absurd() {
                refused(&[(key, value)]);
            }
        }
        // All at once: no product of them may come round to something small.
        let all: Vec<&str> = EVERYWHERE.iter().chain(keys).copied().collect();
        for value in [1u64 << 20, (1 << 21) - 1] {
            refused(&all.iter().map(|key| (*key, json!(value))).collect::<Vec<_>>());
        }
        // A context is a limit and no size, up to the largest count that is taken.
        write(dir.path(), &case, &[("max_position_embeddings", json!(1u64 << 31))]);
        let model = Model::open(dir.path(), &options).unwrap();
        let request = Request { tokens: vec![7, 8], max_new: usize::MAX, stop: Stop::Never };
        let mut told = 0;
        let stopped = complete(&model, (Sampling::default(), 1 << 30), &[request], &Silent, &mut |_, _| {
            told += 1;
            if told < 3 { Ok(()) } else { Err(verify::Error::input("enough")) }
        });
        assert_eq!(stopped.unwrap_err().what(), "enough");
    }
    if let (Some(before), Some(after)) = (before, peak()) {
        assert!(after - before < 16 << 20, "{} bytes were taken", after - before);
    }
}

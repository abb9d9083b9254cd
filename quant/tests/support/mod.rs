//! Running a rewrite over a fixture or over a checkpoint made in the test.
// Each test uses a part of it, and a failure here is a failed test.
#![allow(dead_code, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use verify::checkpoint::{TensorReader, TensorSpec, header};
use verify::error::Result;
use verify::names::Digest;
use verify::progress::Silent;
use verify::report::Report;
use verify::rewrite::{Options, OutputPlan, Rewrite, run};
use verify::{Checkpoint, Dtype};

/// A folder of `tests/fixtures/quant`.
pub fn fixture(path: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/quant")).join(path)
}

/// A finished result, removed when dropped.
pub struct Made {
    pub dir: tempfile::TempDir,
    pub checkpoint: Checkpoint,
    pub report: Report,
}

/// Runs `rewrites` over the checkpoint in `source`.
pub fn rewrite(source: &Path, rewrites: &[&dyn Rewrite], threads: usize) -> Result<Made> {
    let plan = OutputPlan::new(Checkpoint::open(source)?, rewrites)?;
    let dir = tempfile::tempdir().unwrap();
    let options = Options { threads, ..Options::default() };
    let finished = run(&plan, &dir.path().join("out"), &options, &Silent)?;
    let checkpoint = Checkpoint::open(&dir.path().join("out"))?;
    Ok(Made { dir, checkpoint, report: finished.report })
}

impl Made {
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("out")
    }

    pub fn quantization(&self) -> &Value {
        self.checkpoint.config().quantization().unwrap()
    }

    /// Dtype, shape and sha256 of every tensor, as `tensors.json` of a fixture holds them.
    pub fn tensors(&self) -> BTreeMap<String, Value> {
        let describe = |t: &verify::TensorMeta| {
            let bytes = self.checkpoint.read(&t.spec.name).unwrap();
            json!({"dtype": t.spec.dtype.name(), "shape": t.spec.shape, "sha256": Digest::of(&bytes).to_string()})
        };
        self.checkpoint.index().tensors().iter().map(|t| (t.spec.name.clone(), describe(t))).collect()
    }

    /// All files but the report, by name.
    pub fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let files = std::fs::read_dir(self.path()).unwrap().map(|e| e.unwrap());
        files
            .map(|e| (e.file_name().into_string().unwrap(), std::fs::read(e.path()).unwrap()))
            .filter(|(name, _)| name != "prep-report.json")
            .collect()
    }
}

/// `tensors.json` of a reference.
pub fn expected_tensors(reference: &str) -> BTreeMap<String, Value> {
    serde_json::from_slice(&std::fs::read(fixture(reference).join("tensors.json")).unwrap()).unwrap()
}

/// `config.json` of a reference.
pub fn expected_config(reference: &str) -> Value {
    serde_json::from_slice(&std::fs::read(fixture(reference).join("config.json")).unwrap()).unwrap()
}

/// Writes a checkpoint of one shard.
pub fn write(dir: &Path, config: &Value, tensors: &[(TensorSpec, Vec<u8>)]) {
    let mut bytes = header::encode(tensors.iter().map(|(spec, _)| spec));
    tensors.iter().for_each(|(_, data)| bytes.extend(data));
    std::fs::write(dir.join("model.safetensors"), bytes).unwrap();
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
}

/// A dense model of one layer; `change` may replace a tensor.
pub fn tiny_dense(dir: &Path, dtype: Dtype, change: impl Fn(&mut TensorSpec) -> Option<Vec<u8>>) {
    let config = json!({"model_type": "qwen3", "num_hidden_layers": 1, "tie_word_embeddings": true});
    let shapes: [(&str, &[usize]); 13] = [
        ("model.embed_tokens.weight", &[16, 128]),
        ("model.norm.weight", &[128]),
        ("model.layers.0.input_layernorm.weight", &[128]),
        ("model.layers.0.post_attention_layernorm.weight", &[128]),
        ("model.layers.0.mlp.up_proj.weight", &[256, 128]),
        ("model.layers.0.mlp.down_proj.weight", &[128, 256]),
        ("model.layers.0.mlp.gate_proj.weight", &[256, 128]),
        ("model.layers.0.self_attn.q_proj.weight", &[128, 128]),
        ("model.layers.0.self_attn.k_proj.weight", &[128, 128]),
        ("model.layers.0.self_attn.v_proj.weight", &[128, 128]),
        ("model.layers.0.self_attn.o_proj.weight", &[128, 128]),
        ("model.layers.0.self_attn.q_norm.weight", &[64]),
        ("model.layers.0.self_attn.k_norm.weight", &[64]),
    ];
    let tensors: Vec<_> = shapes
        .iter()
        .map(|(name, shape)| {
            let mut spec = TensorSpec::new(*name, dtype, *shape);
            let bytes = change(&mut spec).unwrap_or_else(|| random(&spec));
            (spec, bytes)
        })
        .collect();
    write(dir, &config, &tensors);
}

/// Repeatable numbers in -1 .. 1.
pub fn random(spec: &TensorSpec) -> Vec<u8> {
    let mut state = spec.name.bytes().fold(7u64, |s, b| s.wrapping_mul(31).wrapping_add(u64::from(b)));
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    let values: Vec<f32> = (0..spec.elements()).map(|_| next()).collect();
    verify::codec::Float::of(spec.dtype).unwrap().to_bytes(&values)
}

/// The numbers of a weight with compressed-tensors scales.
pub fn dequantized(c: &Checkpoint, weight: &str, grid: verify::codec::fp8::Grid) -> Vec<f32> {
    let cols = c.index().get(weight).unwrap().spec.cols();
    let scales = verify::codec::Float::F32.to_f32(&c.read(&format!("{weight}_scale")).unwrap());
    verify::codec::fp8::dequantize(&c.read(weight).unwrap(), &scales, grid, (0, cols))
}

//! Running the real engine into a temporary folder, and small checkpoints and adapters built on the spot.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use merge::{MergeLora, Options};
use serde_json::{Value, json};
use verify::checkpoint::{Checkpoint, TensorReader, TensorSpec, header};
use verify::progress::Silent;
use verify::report::Report;
use verify::rewrite::{self, OutputPlan};
use verify::{Dtype, Result};

pub const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures");

/// Merges into `out`.
pub fn merge(base: &Path, adapters: &[(PathBuf, f64)], out: &Path, options: Options) -> Result<Report> {
    merge_with(base, adapters, out, options, 2)
}

pub fn merge_with(
    base: &Path,
    adapters: &[(PathBuf, f64)],
    out: &Path,
    options: Options,
    threads: usize,
) -> Result<Report> {
    let merge = MergeLora::open(adapters, options)?;
    let plan = OutputPlan::new(Checkpoint::open(base)?, &[&merge])?;
    let options = rewrite::Options { threads, ..Default::default() };
    rewrite::run(&plan, out, &options, &Silent).map(|f| f.report)
}

/// Name → (dtype, shape, bytes) of all tensors of a folder.
pub type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

pub fn tensors(dir: &Path) -> Tensors {
    let c = Checkpoint::open(dir).unwrap();
    let all = c.index().tensors().iter().map(|t| {
        let s = &t.spec;
        (s.name.clone(), (s.dtype, s.shape.clone(), c.read(&s.name).unwrap()))
    });
    all.collect()
}

/// The tensors of a single safetensors file.
pub fn file_tensors(path: &Path) -> Tensors {
    let bytes = std::fs::read(path).unwrap();
    let n = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header = header::Header::parse(&bytes[8..8 + n], (bytes.len() - 8 - n) as u64, "file").unwrap();
    let all = header.tensors.into_iter().map(|t| {
        let at = 8 + n + t.begin as usize;
        (t.spec.name, (t.spec.dtype, t.spec.shape, bytes[at..at + t.len as usize].to_vec()))
    });
    all.collect()
}

pub fn floats(dtype: Dtype, bytes: &[u8]) -> Vec<f64> {
    match dtype {
        Dtype::BF16 => bytes
            .chunks_exact(2)
            .map(|b| f64::from(half::bf16::from_le_bytes([b[0], b[1]]).to_f32()))
            .collect(),
        Dtype::F16 => bytes
            .chunks_exact(2)
            .map(|b| f64::from(half::f16::from_le_bytes([b[0], b[1]]).to_f32()))
            .collect(),
        _ => bytes.chunks_exact(4).map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap()))).collect(),
    }
}

/// Elements that differ, and by how many steps at most (of values that are not tiny).
pub fn difference(dtype: Dtype, a: &[u8], b: &[u8]) -> (usize, i64) {
    let width = dtype.bits() / 8;
    let steps = |b: &[u8]| -> i64 {
        let raw = match width {
            2 => i64::from(i16::from_le_bytes([b[0], b[1]])),
            _ => i64::from(i32::from_le_bytes(b.try_into().unwrap())),
        };
        let min = if width == 2 { i64::from(i16::MIN) } else { i64::from(i32::MIN) };
        if raw < 0 { min - raw } else { raw }
    };
    let all = a.chunks_exact(width).zip(b.chunks_exact(width)).map(|(a, b)| (steps(a) - steps(b)).abs());
    all.fold((0, 0), |(n, most), d| (n + usize::from(d != 0), most.max(d)))
}

/// A folder built for one test.
pub struct Lab {
    dir: tempfile::TempDir,
    base: Vec<(TensorSpec, Vec<u8>)>,
    pub base_config: Value,
    adapter: Vec<(TensorSpec, Vec<u8>)>,
    pub adapter_config: Value,
    seed: u32,
}

impl Lab {
    pub fn new() -> Self {
        Lab {
            dir: tempfile::tempdir().unwrap(),
            base: Vec::new(),
            base_config: json!({"model_type": "qwen3", "vocab_size": 6, "tie_word_embeddings": false}),
            adapter: Vec::new(),
            adapter_config: json!({
                "peft_type": "LORA", "r": 2, "lora_alpha": 4, "peft_version": "0.21.2", "base_model_name_or_path": "base"
            }),
            seed: 1,
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn random(&mut self, n: usize) -> Vec<f32> {
        let mut next = || {
            self.seed = self.seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (self.seed >> 8) as f32 / 8_388_608.0 - 1.0
        };
        (0..n).map(|_| next()).collect()
    }

    pub fn base(&mut self, name: &str, shape: &[usize]) -> &mut Self {
        let values = self.random(shape.iter().product());
        self.base_values(name, Dtype::BF16, shape, &values)
    }

    pub fn base_values(&mut self, name: &str, dtype: Dtype, shape: &[usize], values: &[f32]) -> &mut Self {
        self.base.push((TensorSpec::new(name, dtype, shape), encode(dtype, values)));
        self
    }

    pub fn base_bytes(&mut self, name: &str, dtype: Dtype, shape: &[usize], bytes: Vec<u8>) -> &mut Self {
        self.base.push((TensorSpec::new(name, dtype, shape), bytes));
        self
    }

    /// A tensor of the adapter, F32, random.
    pub fn adapter(&mut self, key: &str, shape: &[usize]) -> &mut Self {
        let values = self.random(shape.iter().product());
        self.adapter_values(key, Dtype::F32, shape, &values)
    }

    pub fn adapter_values(&mut self, key: &str, dtype: Dtype, shape: &[usize], values: &[f32]) -> &mut Self {
        let name = format!("base_model.model.{key}");
        self.adapter.push((TensorSpec::new(name, dtype, shape), encode(dtype, values)));
        self
    }

    pub fn config(&mut self, extra: Value) -> &mut Self {
        extend(&mut self.adapter_config, extra);
        self
    }

    pub fn model(&mut self, extra: Value) -> &mut Self {
        extend(&mut self.base_config, extra);
        self
    }

    pub fn file(&mut self, path: &str, content: &str) -> &mut Self {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
        self
    }

    /// Values of a base or adapter tensor, as f64.
    pub fn of_base(&self, name: &str) -> Vec<f64> {
        let (s, b) = self.base.iter().find(|(s, _)| s.name == name).unwrap();
        floats(s.dtype, b)
    }

    pub fn of_adapter(&self, key: &str) -> Vec<f64> {
        let name = format!("base_model.model.{key}");
        let (s, b) = self.adapter.iter().find(|(s, _)| s.name == name).unwrap();
        floats(s.dtype, b)
    }

    pub fn write(&self) {
        for (dir, file, tensors, config, config_file) in [
            ("base", "model.safetensors", &self.base, &self.base_config, "config.json"),
            (
                "adapter",
                "adapter_model.safetensors",
                &self.adapter,
                &self.adapter_config,
                "adapter_config.json",
            ),
        ] {
            std::fs::create_dir_all(self.path(dir)).unwrap();
            write_safetensors(&self.path(dir).join(file), tensors);
            std::fs::write(self.path(dir).join(config_file), format!("{config:#}")).unwrap();
        }
    }

    pub fn merge(&self) -> Result<Report> {
        self.merge_with(Options::default())
    }

    pub fn merge_with(&self, options: Options) -> Result<Report> {
        self.write();
        merge(&self.path("base"), &[(self.path("adapter"), 1.0)], &self.path("out"), options)
    }

    /// Merges and gives the result.
    pub fn merged(&self) -> Merged {
        let report = self.merge().unwrap();
        Merged { tensors: tensors(&self.path("out")), report, dir: self.path("out") }
    }

    /// The message of the refusal; nothing may be left in the output folder.
    pub fn refusal(&self) -> String {
        let error = self.merge().expect_err("must be refused");
        assert_eq!(error.class().exit_code(), 3, "{error}");
        let left = std::fs::read_dir(self.path("out")).into_iter().flatten().flatten();
        let left: Vec<_> = left.map(|f| f.file_name()).filter(|f| f != ".prep").collect();
        assert!(left.is_empty(), "{left:?}");
        error.to_string()
    }
}

pub struct Merged {
    pub tensors: Tensors,
    pub report: Report,
    pub dir: PathBuf,
}

impl Merged {
    pub fn values(&self, name: &str) -> Vec<f64> {
        let (dtype, _, bytes) = &self.tensors[name];
        floats(*dtype, bytes)
    }

    /// Asserts that `name` is `want`, rounded once to its dtype.
    pub fn assert_is(&self, name: &str, want: &[f64]) {
        let (dtype, _, bytes) = &self.tensors[name];
        let want: Vec<f32> = want.iter().map(|v| *v as f32).collect();
        let (differ, most) = difference(*dtype, &encode(*dtype, &want), bytes);
        assert!(want.len() == floats(*dtype, bytes).len(), "{name}: other length");
        assert!(
            differ <= want.len() / 100 && most <= 1,
            "{name}: {differ} of {} differ, by {most}",
            want.len()
        );
    }

    pub fn config(&self) -> Value {
        serde_json::from_str(&std::fs::read_to_string(self.dir.join("config.json")).unwrap()).unwrap()
    }
}

fn extend(object: &mut Value, extra: Value) {
    let Value::Object(extra) = extra else { panic!("an object") };
    object.as_object_mut().unwrap().extend(extra);
}

pub fn encode(dtype: Dtype, values: &[f32]) -> Vec<u8> {
    match dtype {
        Dtype::BF16 => values.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect(),
        Dtype::F16 => values.iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
    }
}

pub fn write_safetensors(path: &Path, tensors: &[(TensorSpec, Vec<u8>)]) {
    let mut bytes = header::encode(tensors.iter().map(|(s, _)| s));
    tensors.iter().for_each(|(_, b)| bytes.extend(b));
    std::fs::write(path, bytes).unwrap();
}

/// `w + s · b @ a`, (out, in).
pub fn plus_product(w: &[f64], s: f64, b: &[f64], a: &[f64], rank: usize) -> Vec<f64> {
    let (out, inp) = (b.len() / rank, a.len() / rank);
    let mut v = w.to_vec();
    for o in 0..out {
        for i in 0..inp {
            v[o * inp + i] += s * (0..rank).map(|j| b[o * rank + j] * a[j * inp + i]).sum::<f64>();
        }
    }
    v
}

pub fn transpose(m: &[f64], rows: usize) -> Vec<f64> {
    let cols = m.len() / rows;
    (0..m.len()).map(|k| m[(k % rows) * cols + k / rows]).collect()
}

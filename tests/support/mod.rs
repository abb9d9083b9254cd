//! What the end-to-end tests share: scratch folders, the fixtures, running `prep`.

pub mod hub;
pub mod server;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// A folder of the repository's fixtures.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(name)
}

/// The repository's root.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A scratch folder that is removed at the end.
pub struct Dir(tempfile::TempDir);

impl Dir {
    pub fn new() -> Self {
        Dir(tempfile::tempdir().unwrap())
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A writable copy of a folder.
    pub fn copy_of(&self, from: &Path, name: &str) -> PathBuf {
        let to = self.join(name);
        std::fs::create_dir(&to).unwrap();
        for entry in std::fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            let bytes = std::fs::read(entry.path()).unwrap();
            std::fs::write(to.join(entry.file_name()), bytes).unwrap();
        }
        to
    }
}

/// A run of `prep` that ended.
pub struct Ended {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    pub fn of(output: Output) -> Self {
        Ended {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Asserts the exit code.
    pub fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, code, "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
        self
    }

    pub fn succeeds(self) -> Self {
        self.exits(0)
    }

    /// Asserts that stdout or stderr holds `text`.
    pub fn says(self, text: &str) -> Self {
        let both = format!("{}\n{}", self.stdout, self.stderr);
        assert!(both.contains(text), "no {text:?} in\n{both}");
        self
    }

    /// The JSON object on the last line of stdout.
    pub fn json(&self) -> Value {
        serde_json::from_str(self.stdout.lines().last().unwrap_or_default())
            .unwrap_or_else(|e| panic!("{e} in\n{}\n{}", self.stdout, self.stderr))
    }
}

/// What a run came to, of any command.
pub fn ended(output: Output) -> Ended {
    Ended::of(output)
}

/// The binary with arguments, not started yet.
pub fn command<I: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = I>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_prep"));
    command.args(args).stdin(Stdio::null()).env("NO_COLOR", "1").env_remove("OPENAI_API_KEY");
    command
}

/// Runs `prep`.
pub fn prep<I: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = I>) -> Ended {
    Ended::of(command(args).output().unwrap())
}

/// Runs `prep` with text on stdin.
pub fn prep_reading<I: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = I>, stdin: &str) -> Ended {
    use std::io::Write;
    let mut child =
        command(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    let text = stdin.to_string();
    let feeder = std::thread::spawn(move || {
        let _ = pipe.write_all(text.as_bytes());
    });
    let output = child.wait_with_output().unwrap();
    feeder.join().unwrap();
    Ended::of(output)
}

/// Kills `prep` once layer 0, 1 and 2 of a calibration are on record, runs it again, and asserts the bytes of a run that
/// nothing disturbed. `run` gives the arguments for a folder.
pub fn assert_resumes_calibration(run: impl Fn(&Path) -> Vec<std::ffi::OsString>) {
    let dir = Dir::new();
    let whole = dir.join("whole");
    prep(run(&whole)).succeeds();
    let mut hits = 0;
    for layer in 0..3 {
        let out = dir.join(&format!("out{layer}"));
        let mut child = command(run(&out)).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let record = out.join(format!(".prep/stage-0/layer-{layer:05}.safetensors"));
        while !record.exists() && child.try_wait().unwrap().is_none() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let _ = child.kill();
        child.wait().unwrap();
        hits += usize::from(record.exists());
        prep(run(&out)).succeeds();
        assert!(files(&out) == files(&whole), "{:?} killed after layer {layer}", run(&out));
    }
    assert!(hits > 0, "no kill came while layers were calibrated");
}

/// Arguments from strings and paths alike.
#[macro_export]
macro_rules! args {
    ($($a:expr),* $(,)?) => { [$(std::ffi::OsString::from(&$a)),*] };
}

/// All files of a folder but the report, which holds times.
pub fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap());
    let named = entries.map(|e| (e.file_name().into_string().unwrap(), e.path()));
    named.filter(|(n, _)| n != "prep-report.json").map(|(n, p)| (n, std::fs::read(p).unwrap())).collect()
}

/// The tiny model merged and quantized, made once for all tests that only read it.
pub fn tiny_fp8() -> &'static Path {
    static MADE: std::sync::OnceLock<(Dir, PathBuf)> = std::sync::OnceLock::new();
    let (_, out) = MADE.get_or_init(|| {
        let dir = Dir::new();
        let out = dir.join("out");
        let recipe = repository().join("recipes/tiny.toml");
        prep(args!["run", recipe, "--out", out]).succeeds();
        (dir, out)
    });
    out
}

/// The tiny model merged, in bf16, made once.
pub fn tiny_merged() -> &'static Path {
    static MADE: std::sync::OnceLock<(Dir, PathBuf)> = std::sync::OnceLock::new();
    let (_, out) = MADE.get_or_init(|| {
        let dir = Dir::new();
        let out = dir.join("merged");
        let (base, adapter) = (fixture("models/qwen3-moe/base"), fixture("models/qwen3-moe/adapter"));
        prep(args!["merge-lora", "--base", base, "--adapter", adapter, "--out", out]).succeeds();
        (dir, out)
    });
    out
}

/// The tiny hybrid model merged, in bf16, made once.
pub fn tiny_hybrid() -> &'static Path {
    static MADE: std::sync::OnceLock<(Dir, PathBuf)> = std::sync::OnceLock::new();
    let (_, out) = MADE.get_or_init(|| {
        let dir = Dir::new();
        let out = dir.join("merged");
        let (base, adapter) = (fixture("models/qwen3_5-moe/base"), fixture("models/qwen3_5-moe/adapter"));
        prep(args!["merge-lora", "--base", base, "--adapter", adapter, "--out", out]).succeeds();
        (dir, out)
    });
    out
}

/// A qwen3 checkpoint of about `bytes`, all weights the same small pattern.
pub fn big_model(dir: &Dir, bytes: usize) -> PathBuf {
    use verify::Dtype;
    use verify::checkpoint::TensorSpec;
    use verify::checkpoint::header::encode;
    let (hidden, inter, vocab) = (1024, 4096, 256);
    let layer_bytes = 2 * (hidden * inter * 3 + hidden * 1024 * 4);
    let layers = bytes.div_ceil(layer_bytes);
    let mut specs = vec![TensorSpec::new("model.embed_tokens.weight", Dtype::BF16, [vocab, hidden])];
    for l in 0..layers {
        let mut add = |n: &str, shape: &[usize]| {
            specs.push(TensorSpec::new(format!("model.layers.{l}.{n}.weight"), Dtype::BF16, shape));
        };
        add("input_layernorm", &[hidden]);
        add("post_attention_layernorm", &[hidden]);
        add("self_attn.q_norm", &[128]);
        add("self_attn.k_norm", &[128]);
        for p in ["q", "k", "v", "o"] {
            add(&format!("self_attn.{p}_proj"), &[1024, hidden]);
        }
        add("mlp.gate_proj", &[inter, hidden]);
        add("mlp.up_proj", &[inter, hidden]);
        add("mlp.down_proj", &[hidden, inter]);
    }
    specs.push(TensorSpec::new("model.norm.weight", Dtype::BF16, [hidden]));
    specs.push(TensorSpec::new("lm_head.weight", Dtype::BF16, [vocab, hidden]));
    let model = dir.join("big");
    std::fs::create_dir(&model).unwrap();
    let config = serde_json::json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": hidden, "intermediate_size": inter,
        "num_hidden_layers": layers, "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 128,
        "vocab_size": vocab, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": false, "hidden_act": "silu",
    });
    std::fs::write(model.join("config.json"), config.to_string()).unwrap();
    let mut file = std::io::BufWriter::new(std::fs::File::create(model.join("model.safetensors")).unwrap());
    use std::io::Write;
    file.write_all(&encode(specs.iter())).unwrap();
    let pattern: Vec<u8> =
        (0..1 << 16).flat_map(|i: u32| (0x3c00u16 | (i % 251) as u16).to_le_bytes()).collect();
    for s in &specs {
        let mut left = s.byte_len() as usize;
        while left > 0 {
            let n = left.min(pattern.len());
            file.write_all(&pattern[..n]).unwrap();
            left -= n;
        }
    }
    file.flush().unwrap();
    model
}

/// The tiny base cut into three shards with an index.
pub fn sharded_model(dir: &Dir) -> PathBuf {
    use verify::checkpoint::header::encode;
    use verify::checkpoint::{Checkpoint, TensorReader};
    let model = dir.copy_of(&fixture("models/qwen3-moe/base"), "sharded");
    let base = Checkpoint::open(&model).unwrap();
    let tensors = base.index().tensors();
    let mut map = serde_json::Map::new();
    for (n, chunk) in tensors.chunks(tensors.len().div_ceil(3)).enumerate() {
        let name = format!("model-{:05}-of-00003.safetensors", n + 1);
        let mut bytes = encode(chunk.iter().map(|t| &t.spec));
        for t in chunk {
            bytes.extend(base.read(&t.spec.name).unwrap());
            map.insert(t.spec.name.clone(), name.clone().into());
        }
        std::fs::write(model.join(name), bytes).unwrap();
    }
    std::fs::remove_file(model.join("model.safetensors")).unwrap();
    let index = serde_json::json!({"metadata": {}, "weight_map": map});
    std::fs::write(model.join("model.safetensors.index.json"), index.to_string()).unwrap();
    model
}

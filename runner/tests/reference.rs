//! Every family against logits and greedy continuations that the reference implementation computed in f32.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use runner::backend::Span;
use runner::cpu::{Array, Cpu, Watch};
use runner::decoder::{Part, Want};
use runner::dump::dump;
use runner::engine::Stop;
use runner::weights::Matrix;
use runner::{Model, Options};

struct Case {
    dir: PathBuf,
    prompts: Vec<Vec<u32>>,
    greedy: Vec<Vec<u32>>,
    noise: f32,
}

fn case(name: &str) -> Case {
    let dir = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/logits")).join(name);
    let text = std::fs::read_to_string(dir.join("case.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let ids = |key: &str| serde_json::from_value(json[key].clone()).unwrap();
    let noise = json["reference_noise"].as_f64().unwrap_or(0.0) as f32;
    Case { prompts: ids("prompts"), greedy: ids("greedy"), noise, dir }
}

/// The expected logits of prompt `n`; the file is a plain safetensors file beside the checkpoint.
fn expected(dir: &Path, n: usize) -> Vec<f32> {
    let bytes = std::fs::read(dir.join("expected.safetensors")).unwrap();
    let head = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let json: serde_json::Value = serde_json::from_slice(&bytes[8..head]).unwrap();
    let at = &json[format!("prompt.{n}.logits")]["data_offsets"];
    let range = head + at[0].as_u64().unwrap() as usize..head + at[1].as_u64().unwrap() as usize;
    bytes[range].as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

/// The case's model with one key of its config changed; `text_config.key` is one within.
fn changed(case: &Case, key: &str, value: serde_json::Value) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(case.dir.join("model.safetensors"), dir.path().join("model.safetensors")).unwrap();
    let text = std::fs::read_to_string(case.dir.join("config.json")).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
    match key.split_once('.') {
        Some((section, key)) => json[section][key] = value,
        None => json[key] = value,
    }
    std::fs::write(dir.path().join("config.json"), json.to_string()).unwrap();
    dir
}

fn assert_close(got: &[f32], want: &[f32], noise: f32, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let allowed = (20.0 * noise).max(2e-3) + 1e-3 * w.abs();
        assert!((g - w).abs() <= allowed, "{what}: logit {i} is {g}, not {w}");
    }
}

fn check(name: &str) {
    let case = case(name);
    let model = Model::open(&case.dir, &Options { threads: Some(2) }).unwrap();
    for (n, prompt) in case.prompts.iter().enumerate() {
        let got = dump(&model, prompt, 16, &Stop::Never).unwrap();
        assert_eq!(got.continuation, case.greedy[n], "{name} prompt {n}");
        let want = expected(&case.dir, n);
        let whole = [&prompt[..], &case.greedy[n]].concat();
        assert_close(&got.logits, &want[..got.logits.len()], case.noise, &format!("{name} prompt {n}"));
        let fed = dump(&model, &whole, 0, &Stop::Never).unwrap().logits;
        assert_close(&fed, &want, case.noise, &format!("{name} prompt {n} and continuation"));
        assert_close(&in_pieces(&model, &whole, 1), &want, case.noise, &format!("{name} one by one"));
    }
}

fn in_pieces(model: &Model<runner::Cpu>, tokens: &[u32], piece: usize) -> Vec<f32> {
    let mut sequence = model.sequence().unwrap();
    let pieces = tokens.chunks(piece).map(|tokens| {
        model.forward(&mut [Part { sequence: &mut sequence, tokens, want: Want::All }]).unwrap()
    });
    pieces.collect::<Vec<_>>().concat()
}

macro_rules! families {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            check(stringify!($name));
        })*
    };
}

families!(llama mixtral olmoe qwen3 qwen3_5 qwen3_5_moe qwen3_5_moe_split qwen3_5_text qwen3_moe qwen3_moe_nonorm qwen3_next);

#[test]
fn any_cut_of_an_attention_models_prompt_gives_the_same_bits() {
    for name in ["llama", "qwen3_moe", "mixtral", "olmoe"] {
        let case = case(name);
        let model = Model::open(&case.dir, &Options::default()).unwrap();
        let whole = in_pieces(&model, &case.prompts[1], usize::MAX);
        for piece in [1, 3, 8] {
            assert_eq!(in_pieces(&model, &case.prompts[1], piece), whole, "{name} in pieces of {piece}");
        }
    }
}

#[test]
fn neighbours_and_threads_change_no_bit() {
    for name in ["qwen3", "qwen3_moe", "qwen3_5_moe", "qwen3_next"] {
        let case = case(name);
        let alone = Model::open(&case.dir, &Options { threads: Some(1) }).unwrap();
        let crowd = Model::open(&case.dir, &Options { threads: Some(3) }).unwrap();
        let mut sequences: Vec<_> = case.prompts.iter().map(|_| crowd.sequence().unwrap()).collect();
        let parts = sequences.iter_mut().zip(&case.prompts);
        let mut parts: Vec<_> =
            parts.map(|(sequence, tokens)| Part { sequence, tokens, want: Want::All }).collect();
        let together = crowd.forward(&mut parts).unwrap();
        let one_by_one: Vec<f32> =
            case.prompts.iter().flat_map(|p| in_pieces(&alone, p, usize::MAX)).collect();
        assert_eq!(together, one_by_one, "{name}");
    }
}

#[test]
fn missing_and_misshapen_tensors_are_named() {
    let case = case("qwen3_moe");
    for (key, value, named) in [
        ("num_hidden_layers", 4, "model.layers.3.input_layernorm.weight"),
        ("moe_intermediate_size", 25, "model.layers.0.mlp.experts.0.gate_proj.weight"),
        ("num_experts", 9, "model.layers.0.mlp.experts.8.gate_proj.weight"),
        ("vocab_size", 97, "model.embed_tokens.weight"),
    ] {
        let dir = changed(&case, key, value.into());
        let e = Model::open(dir.path(), &Options::default()).err().unwrap();
        assert!(e.what().contains(named), "{e}");
        assert_eq!(e.class().exit_code(), 3);
    }
}

#[test]
fn what_is_not_implemented_is_refused_by_name() {
    let json = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    for (name, key, value, named) in [
        ("qwen3", "model_type", r#""gpt_neox""#, "gpt_neox"),
        ("qwen3", "hidden_act", r#""gelu""#, "gelu"),
        ("mixtral", "hidden_act", r#""relu2""#, "relu2"),
        ("qwen3_next", "hidden_act", r#""gelu_pytorch_tanh""#, "gelu_pytorch_tanh"),
        ("qwen3_5_moe", "text_config.hidden_act", r#""gelu""#, "gelu"),
        ("qwen3", "rope_scaling", r#"{"rope_type": "yarn", "factor": 4.0}"#, "yarn"),
        ("llama", "rope_scaling", r#"{"type": "dynamic", "factor": 2.0}"#, "dynamic"),
        ("olmoe", "rope_parameters", r#"{"rope_type": "longrope", "rope_theta": 1e4}"#, "longrope"),
        ("qwen3_5", "text_config.rope_parameters", r#"{"rope_type": "yarn"}"#, "yarn"),
        ("qwen3", "layer_types", r#"["sliding_attention", "full_attention"]"#, "sliding"),
        ("qwen3", "layer_types", r#"["chunked_attention", "full_attention"]"#, "chunked_attention"),
        ("llama", "layer_types", r#"["full_attention", "linear_attention"]"#, "linear_attention"),
        ("qwen3_next", "layer_types", r#"["mamba", "mamba", "mamba", "full_attention"]"#, "mamba"),
        ("mixtral", "sliding_window", "4096", "4096"),
        ("qwen3_5", "text_config.output_gate_type", r#""tanh""#, "tanh"),
        ("qwen3", "quantization_config", r#"{"quant_method": "gptq"}"#, "gptq"),
        ("qwen3_moe", "quantization_config", r#"{"quant_method": "bitsandbytes"}"#, "bitsandbytes"),
        (
            "qwen3",
            "quantization_config",
            r#"{"quant_method": "compressed-tensors", "format": "marlin-24"}"#,
            "marlin-24",
        ),
    ] {
        let dir = changed(&case(name), key, json(value));
        let e = Model::open(dir.path(), &Options::default()).err();
        let e = e.unwrap_or_else(|| panic!("{name} opens with {key} {value}"));
        assert!(e.to_string().contains(named), "{e}");
        assert_eq!(e.class().exit_code(), 3);
    }
}

#[test]
fn a_window_is_refused_where_it_is_used() {
    let case = case("qwen3");
    let dir = changed(&case, "sliding_window", 64.into());
    assert!(Model::open(dir.path(), &Options::default()).is_ok());
    let path = dir.path().join("config.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
    json["use_sliding_window"] = true.into();
    std::fs::write(&path, json.to_string()).unwrap();
    let e = Model::open(dir.path(), &Options::default()).err().unwrap();
    assert!(e.to_string().contains("sliding-window attention"), "{e}");
}

/// Names and rows of everything that went into a matrix.
#[derive(Default)]
struct Seen(Mutex<BTreeMap<String, usize>>);

impl Watch for Seen {
    fn see(&self, matrix: &Matrix, x: &Array) {
        assert_eq!(matrix.cols, x.cols());
        *self.0.lock().unwrap().entry(matrix.name.to_string()).or_default() += x.rows();
    }
}

#[test]
fn a_watch_sees_every_module_by_name_whatever_the_layout() {
    for (name, prefix) in [("qwen3_5_moe", "model.language_model"), ("qwen3_moe", "model")] {
        let case = case(name);
        let seen = Arc::new(Seen::default());
        let cpu = Cpu::default().watched(seen.clone());
        let checkpoint = verify::Checkpoint::open(&case.dir).unwrap();
        let model = Model::on(cpu, &checkpoint, &Options::default()).unwrap();
        let tokens = &case.prompts[2];
        dump(&model, tokens, 0, &Stop::Never).unwrap();
        let seen = seen.0.lock().unwrap();
        for module in ["gate_proj", "up_proj", "down_proj"] {
            let of = |e: usize| seen.get(&format!("{prefix}.layers.0.mlp.experts.{e}.{module}"));
            // Both models choose two of eight experts.
            assert_eq!((0..8).filter_map(of).sum::<usize>(), 2 * tokens.len(), "{name} {module}");
        }
        assert_eq!(seen["lm_head"], tokens.len());
    }
}

#[test]
fn layers_run_one_by_one_as_in_the_whole() {
    let case = case("qwen3_next");
    let model = Model::open(&case.dir, &Options::default()).unwrap();
    let (decoder, cpu, tokens) = (model.decoder(), model.backend(), &case.prompts[2][..]);
    let mut inputs = Vec::new();
    let mut sequence = model.sequence().unwrap();
    let mut parts = [Part { sequence: &mut sequence, tokens, want: Want::Nothing }];
    let mut keep = |_: usize, h: &Array| {
        inputs.push(h.clone());
        Ok(())
    };
    let last = decoder.hidden(cpu, &mut parts, &mut keep).unwrap();
    inputs.push(last);
    let spans = [Span { start: 0, len: tokens.len() }];
    let step = decoder.step(cpu, &spans).unwrap();
    for (n, layer) in decoder.layers.iter().enumerate() {
        let mut h = inputs[n].clone();
        layer.forward(&step, &mut h, vec![&mut layer.memory(cpu).unwrap()]).unwrap();
        assert_eq!(h, inputs[n + 1], "layer {n}");
    }
}

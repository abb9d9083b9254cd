//! The loader's view of stored scales of inputs, keys and values: each fault is found and told in its one sentence.

#![allow(clippy::unwrap_used)]

mod support;

use quant::awq::Awq;
use quant::calibration::data::Samples;
use quant::{Activations, Fp8, KvCache, Scheme};
use serde_json::{Value, json};
use support::{Made, fixture, rewrite, write};
use verify::checkpoint::{TensorReader, TensorSpec};
use verify::loadable::{Fault, check};
use verify::progress::Silent;
use verify::{Checkpoint, Dtype};

struct Folder {
    config: Value,
    tensors: Vec<(TensorSpec, Vec<u8>)>,
}

fn samples() -> Samples {
    Samples::of(vec![(0..50).collect(), (3..40).rev().collect()])
}

fn folder(made: &Made) -> Folder {
    let c = &made.checkpoint;
    let tensors = c.index().tensors().iter();
    Folder {
        config: c.config().value().clone(),
        tensors: tensors.map(|t| (t.spec.clone(), c.read(&t.spec.name).unwrap())).collect(),
    }
}

/// A mixture of experts with all scales there are.
fn whole() -> Folder {
    let fp8 = Fp8 {
        scheme: Scheme::Tensor,
        activations: Activations::Static,
        cache: KvCache::Fp8,
        samples: samples(),
        ..Fp8::default()
    };
    folder(&rewrite(&fixture("qwen3_moe/source"), &[&fp8], 2).unwrap())
}

impl Folder {
    fn faults(&self) -> Vec<Fault> {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &self.config, &self.tensors);
        check(&Checkpoint::open(dir.path()).unwrap(), &Silent).unwrap()
    }

    /// The one fault after a change.
    fn fault(&self, change: impl FnOnce(&mut Folder)) -> String {
        let mut changed = Folder { config: self.config.clone(), tensors: self.tensors.clone() };
        change(&mut changed);
        let faults = changed.faults();
        assert_eq!(faults.len(), 1, "{faults:#?}");
        faults[0].to_string()
    }

    fn remove(&mut self, end: &str) {
        let before = self.tensors.len();
        self.tensors.retain(|(t, _)| !t.name.ends_with(end));
        assert!(self.tensors.len() < before, "{end}");
    }

    fn set(&mut self, name: &str, dtype: Dtype, shape: &[usize], numbers: &[f32]) {
        let bytes = match dtype {
            Dtype::BF16 => verify::codec::Float::BF16.to_bytes(numbers),
            _ => verify::codec::Float::F32.to_bytes(numbers),
        };
        self.tensors.retain(|(t, _)| t.name != name);
        self.tensors.push((TensorSpec::new(name, dtype, shape), bytes));
    }

    fn number(&mut self, name: &str, value: f32) {
        self.set(name, Dtype::F32, &[1], &[value]);
    }

    fn group(&mut self) -> &mut Value {
        &mut self.config["quantization_config"]["config_groups"]["group_0"]
    }
}

const Q: &str = "model.layers.0.self_attn.q_proj.input_scale";
const KEY: &str = "model.layers.1.self_attn.k_scale";

/// That `said` speaks of all of these.
fn speaks(said: &str, words: &[&str]) {
    words.iter().for_each(|w| assert!(said.contains(w), "no {w:?} in {said}"));
}

#[test]
fn values_shapes_and_dtypes_are_checked() {
    let whole = whole();
    assert_eq!(whole.faults(), []);
    // Of a module that reads alone, so that nothing is compared.
    let o = "model.layers.0.self_attn.o_proj.input_scale";
    for name in [o, KEY] {
        for (value, word) in
            [(0.0, "zero"), (-1.0, "negative"), (f32::NAN, "not finite"), (f32::INFINITY, "not finite")]
        {
            speaks(&whole.fault(|f| f.number(name, value)), &[name, word]);
        }
        speaks(&whole.fault(|f| f.set(name, Dtype::F32, &[3], &[0.1; 3])), &[name, "[3]", "one number"]);
        speaks(&whole.fault(|f| f.set(name, Dtype::I32, &[1], &[0.1])), &[name, "I32"]);
    }
    // What others write.
    let mut others = Folder { config: whole.config.clone(), tensors: whole.tensors.clone() };
    others.set(o, Dtype::BF16, &[], &[0.1]);
    others.set(KEY, Dtype::BF16, &[1, 1, 1], &[0.1]);
    assert_eq!(others.faults(), []);
}

#[test]
fn scales_of_inputs_must_be_there_and_only_where_the_config_says_so() {
    let whole = whole();
    speaks(
        &whole.fault(|f| f.remove(Q)),
        &["`model.layers.0.self_attn.q_proj` has no scale for its inputs", Q],
    );
    speaks(&whole.fault(|f| f.remove(".input_scale")), &["input_activations", "there is none"]);
    let said = whole.fault(|f| f.group()["input_activations"]["dynamic"] = json!(true));
    speaks(&said, &["input_scale", "and 55 more", "as they go"]);
    speaks(
        &whole.fault(|f| f.number("model.layers.0.mlp.gate.input_scale", 0.1)),
        &["mlp.gate.input_scale", "no FP8 weight"],
    );
}

#[test]
fn what_reads_one_input_must_have_one_scale() {
    let whole = whole();
    speaks(
        &whole.fault(|f| f.number(Q, 7.0)),
        &["model.layers.0.self_attn.qkv_proj", "different scales", "7 of", "q_proj"],
    );
    let gate = "model.layers.1.mlp.experts.3.gate_proj.input_scale";
    speaks(
        &whole.fault(|f| f.number(gate, 7.0)),
        &["model.layers.1.mlp.experts.3`", "different scales", "up_proj"],
    );
    // Between experts loaders take the largest.
    let mut other = Folder { config: whole.config.clone(), tensors: whole.tensors.clone() };
    for part in ["gate_proj", "up_proj", "down_proj"] {
        other.number(&format!("model.layers.1.mlp.experts.3.{part}.input_scale"), 7.0);
    }
    assert_eq!(other.faults(), []);
}

#[test]
fn weights_beside_which_servers_take_no_stored_scales_are_told() {
    let channel = Fp8 { scheme: Scheme::Channel, ..Fp8::default() };
    let block = Fp8 { scheme: Scheme::CompressedBlock, ..Fp8::default() };
    for (fp8, words) in [(channel, "experts are scaled by channel"), (block, "scaled by blocks")] {
        let made = folder(&rewrite(&fixture("qwen3_moe/source"), &[&fp8], 2).unwrap());
        let said = made.fault(|f| {
            f.group()["input_activations"] =
                json!({"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": false});
            let weights: Vec<String> = f
                .tensors
                .iter()
                .filter_map(|(t, _)| t.name.strip_suffix(".weight_scale").map(str::to_string))
                .collect();
            weights.iter().for_each(|m| f.number(&format!("{m}.input_scale"), 0.5));
        });
        speaks(&said, &["input_activations", words]);
    }
    let plain = folder(&rewrite(&fixture("qwen3_moe/source"), &[&Fp8::default()], 2).unwrap());
    let said = plain.fault(|f| f.config["quantization_config"]["activation_scheme"] = json!("static"));
    speaks(&said, &["activation_scheme", "there is none"]);
}

#[test]
fn every_attention_must_have_both_scales() {
    let whole = whole();
    speaks(&whole.fault(|f| f.remove(KEY)), &[KEY, "is missing, while others"]);
    let v = "model.layers.0.self_attn.v_scale";
    speaks(&whole.fault(|f| f.remove(v)), &[v, "is missing"]);
    let said = whole.fault(|f| {
        f.remove(".k_scale");
        f.remove(".v_scale");
    });
    speaks(&said, &["`kv_cache_scheme`", "there is none"]);
    // vLLM's own name for the module that holds the cache.
    let mut other = Folder { config: whole.config.clone(), tensors: whole.tensors.clone() };
    other.remove(KEY);
    other.number("model.layers.1.self_attn.attn.k_scale", 0.1);
    assert_eq!(other.faults(), []);
}

#[test]
fn hybrid_layers_without_attention_have_no_cache() {
    let fp8 = Fp8 { cache: KvCache::Fp8, samples: samples(), ..Fp8::default() };
    let made = folder(&rewrite(&fixture("qwen3_5_moe-cut/source"), &[&fp8], 2).unwrap());
    let name = "model.language_model.layers.0.self_attn.k_scale";
    speaks(&made.fault(|f| f.number(name, 0.1)), &[name, "has no attention"]);
    let draft = "mtp.layers.0.self_attn.k_scale";
    speaks(&made.fault(|f| f.number(draft, 0.1)), &["mtp.layers.0.self_attn.v_scale", "is missing"]);
}

#[test]
fn scheme_of_the_cache_must_be_one_that_servers_know() {
    let whole = whole();
    let scheme = |f: &mut Folder, key: &str, value: Value| {
        f.config["quantization_config"]["kv_cache_scheme"][key] = value
    };
    for (key, value) in [
        ("num_bits", json!(4)),
        ("type", json!("int")),
        ("symmetric", json!(false)),
        ("strategy", json!("channel")),
    ] {
        let said = whole.fault(|f| scheme(f, key, value.clone()));
        speaks(&said, &["kv_cache_scheme", key, &value.to_string()]);
    }
    speaks(
        &whole.fault(|f| f.config["quantization_config"]["kv_cache_scheme"] = Value::Null),
        &["`kv_cache_scheme` is missing", "SGLang"],
    );
    // A scale for each head, as llm-compressor stores them.
    let by_head = |f: &mut Folder, heads: usize| {
        scheme(f, "strategy", json!("attn_head"));
        for layer in 0..2 {
            for leaf in ["k_scale", "v_scale"] {
                f.set(
                    &format!("model.layers.{layer}.self_attn.{leaf}"),
                    Dtype::BF16,
                    &[heads, 1, 1],
                    &vec![0.1; heads],
                );
            }
        }
    };
    let mut other = Folder { config: whole.config.clone(), tensors: whole.tensors.clone() };
    by_head(&mut other, 2);
    assert_eq!(other.faults(), []);
    by_head(&mut other, 3);
    assert_eq!(other.faults().len(), 4);
    speaks(&other.faults()[0].to_string(), &["[3, 1, 1]", "2 numbers"]);
}

#[test]
fn integer_formats_are_checked_too() {
    let awq = Awq { cache: KvCache::Fp8, ..Awq::new(samples()) };
    let made = folder(&rewrite(&fixture("qwen3_moe/source"), &[&awq], 2).unwrap());
    assert_eq!(made.faults(), []);
    speaks(&made.fault(|f| f.number(KEY, 0.0)), &[KEY, "zero"]);
    speaks(&made.fault(|f| f.remove(KEY)), &[KEY, "is missing"]);
    let gemm = Awq { layout: quant::awq::Layout::AwqGemm, ..Awq::new(samples()) };
    let gemm = folder(&rewrite(&fixture("qwen3/source"), &[&gemm], 2).unwrap());
    speaks(&gemm.fault(|f| f.number(KEY, 0.1)), &[KEY, "AutoAWQ"]);
}

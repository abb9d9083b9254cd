//! Keys that no reference case sets, or that each of them spells out. Expected logits: transformers 5.24 in f32 on the
//! same files, the first five of prompt 1's last position.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use runner::decoder::Mixer;
use runner::dump::dump;
use runner::engine::Stop;
use runner::{Model, Options};
use serde_json::{Map, Value, json};

type Tensors = Map<String, Value>;

fn case(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/logits")).join(name)
}

/// The header of the case's checkpoint and the bytes behind it.
fn checkpoint(name: &str) -> (Tensors, Vec<u8>) {
    let bytes = std::fs::read(case(name).join("model.safetensors")).unwrap();
    let head = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    (serde_json::from_slice(&bytes[8..head]).unwrap(), bytes[head..].to_vec())
}

/// The bf16 numbers of a tensor.
fn numbers(tensors: &Tensors, data: &[u8], name: &str) -> Vec<f32> {
    let at: [usize; 2] = serde_json::from_value(tensors[name]["data_offsets"].clone()).unwrap();
    data[at[0]..at[1]].as_chunks().0.iter().map(|b| half::bf16::from_le_bytes(*b).to_f32()).collect()
}

/// Puts a bf16 tensor there, or in the place of another.
fn put(tensors: &mut Tensors, data: &mut Vec<u8>, name: &str, shape: &[usize], numbers: Vec<f32>) {
    let begin = data.len();
    data.extend(numbers.into_iter().flat_map(|x| half::bf16::from_f32(x).to_le_bytes()));
    let entry = json!({"dtype": "BF16", "shape": shape, "data_offsets": [begin, data.len()]});
    tensors.insert(name.into(), entry);
}

/// The case's model with some keys changed (null removes one; `section.key` is one within) and other tensors.
fn model(
    name: &str,
    keys: &[(&str, Value)],
    edit: fn(&mut Tensors, &mut Vec<u8>),
) -> verify::Result<Model<runner::Cpu>> {
    let dir = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(case(name).join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    for (key, value) in keys {
        let (object, key) = match key.split_once('.') {
            Some((section, key)) => (&mut config[section], key),
            None => (&mut config, *key),
        };
        match value {
            Value::Null => drop(object.as_object_mut().unwrap().remove(key)),
            value => object[key] = value.clone(),
        }
    }
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    let (mut tensors, mut data) = checkpoint(name);
    edit(&mut tensors, &mut data);
    // Every byte belongs to a tensor, one after the other.
    let mut packed = Vec::new();
    for (_, entry) in tensors.iter_mut().filter(|(name, _)| *name != "__metadata__") {
        let at: [usize; 2] = serde_json::from_value(entry["data_offsets"].clone()).unwrap();
        let begin = packed.len();
        packed.extend_from_slice(&data[at[0]..at[1]]);
        entry["data_offsets"] = json!([begin, packed.len()]);
    }
    let mut header = Value::Object(tensors).to_string();
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &packed].concat();
    std::fs::write(dir.path().join("model.safetensors"), file).unwrap();
    Model::open(dir.path(), &Options { threads: Some(1) })
}

fn unchanged(_: &mut Tensors, _: &mut Vec<u8>) {}

/// Biases for the projections whose names hold `part`.
fn add_biases(tensors: &mut Tensors, data: &mut Vec<u8>, part: &str) {
    let weights = tensors.iter().filter(|(n, _)| n.contains(part) && n.ends_with("_proj.weight"));
    let weights = weights.map(|(n, e)| (n.clone(), e["shape"][0].as_u64().unwrap() as usize));
    for (name, rows) in weights.collect::<Vec<_>>() {
        let bias = (0..rows).map(|i| ((i * 37 % 64) as f32 - 31.0) / 64.0).collect();
        put(tensors, data, &name.replace("weight", "bias"), &[rows], bias);
    }
}

/// Logits of the last position of prompt 1.
fn last(name: &str, model: &Model<runner::Cpu>) -> Vec<f32> {
    let text = std::fs::read_to_string(case(name).join("case.json")).unwrap();
    let json: Value = serde_json::from_str(&text).unwrap();
    let prompt: Vec<u32> = serde_json::from_value(json["prompts"][1].clone()).unwrap();
    let logits = dump(model, &prompt, 0, &Stop::Never).unwrap().logits;
    logits[logits.len() - model.vocab()..].to_vec()
}

#[test]
fn every_option_and_default_is_that_of_the_reference() {
    type Edit = fn(&mut Tensors, &mut Vec<u8>);
    let none: Edit = unchanged;
    let attention: Edit = |t, d| add_biases(t, d, "self_attn");
    let mlp: Edit = |t, d| add_biases(t, d, "mlp");
    let keys = |text: &str| serde_json::from_str::<Map<String, Value>>(text).unwrap();
    let mut wrong = Vec::new();
    for (name, changes, edit, expected) in [
        ("olmoe", r#"{"clip_qkv": 0.5}"#, none, [-2.04739, 2.18302, -1.81048, -0.74463, -2.44899]),
        ("llama", r#"{"attention_bias": true}"#, attention, [0.46961, -1.41017, 1.66937, 2.42505, -2.97605]),
        ("qwen3", r#"{"attention_bias": true}"#, attention, [2.62235, 2.27866, 0.24153, 2.5962, 3.6538]),
        ("llama", r#"{"mlp_bias": true}"#, mlp, [1.70003, -0.53474, 1.29839, 2.67147, -1.37171]),
        (
            "llama",
            r#"{"rope_scaling": {"rope_type": "linear", "factor": 4.0}}"#,
            none,
            [-1.15662, -3.37824, 1.02116, 3.32985, -0.31167],
        ),
        (
            "llama",
            r#"{"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 16}}"#,
            none,
            [0.23189, 1.34135, 3.36107, 1.96179, 0.97944],
        ),
        ("llama", r#"{"rope_theta": null}"#, none, [1.51165, 0.34689, -0.94111, 4.09791, 0.67712]),
        (
            "mixtral",
            r#"{"rope_theta": null, "rms_norm_eps": null}"#,
            none,
            [1.2515, -3.44025, 1.07742, -1.3312, 0.24932],
        ),
        ("qwen3_moe", r#"{"norm_topk_prob": null}"#, none, [0.96467, -0.96304, -2.84769, 2.44023, 0.83148]),
        (
            "qwen3_next",
            r#"{"partial_rotary_factor": null, "norm_topk_prob": null}"#,
            none,
            [1.04308, -0.10223, 1.03082, -2.26218, 1.16703],
        ),
        (
            "olmoe",
            r#"{"norm_topk_prob": null, "rms_norm_eps": null}"#,
            none,
            [-3.54781, 0.39911, 0.02455, -0.42674, -2.74296],
        ),
    ] {
        let changes = keys(changes);
        let changes: Vec<_> = changes.iter().map(|(k, v)| (k.as_str(), v.clone())).collect();
        let got = last(name, &model(name, &changes, edit).unwrap())[..5].to_vec();
        if got.iter().zip(expected).any(|(got, want)| (got - want).abs() > 2e-3) {
            wrong.push(format!("{name} {changes:?}: {got:?}, not {expected:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Logits would not tell: the norms of the cases are far from both.
#[test]
fn norms_of_mixtral_and_olmoe_have_their_own_default_eps() {
    for (name, eps) in [("mixtral", 1e-5), ("olmoe", 1e-5), ("llama", 1e-6), ("qwen3_moe", 1e-6)] {
        let model = model(name, &[("rms_norm_eps", Value::Null)], unchanged).unwrap();
        assert_eq!(model.decoder().norm.eps, eps, "{name}");
    }
}

#[test]
fn the_width_of_a_head_is_no_quotient_where_the_family_has_its_own() {
    for (name, shape) in [("qwen3", "[512, 48]"), ("qwen3_next", "[2048, 32]"), ("qwen3_moe", "[48, 48]")] {
        let e = model(name, &[("head_dim", Value::Null)], unchanged).err().unwrap();
        assert!(e.what().contains("q_proj") && e.to_string().contains(shape), "{name}: {e}");
    }
}

#[test]
fn weights_of_the_chosen_are_always_divided_in_qwen3_5_and_mixtral() {
    for (name, key) in [("qwen3_5_moe", "text_config.norm_topk_prob"), ("mixtral", "norm_topk_prob")] {
        let plain = last(name, &model(name, &[], unchanged).unwrap());
        assert_eq!(last(name, &model(name, &[(key, false.into())], unchanged).unwrap()), plain, "{name}");
    }
}

/// As vLLM does; transformers 5.24 takes the head where the two differ.
#[test]
fn a_tied_head_is_the_embedding_whatever_else_the_file_holds() {
    let second: fn(&mut Tensors, &mut Vec<u8>) = |t, d| {
        let twice = numbers(t, d, "model.embed_tokens.weight").into_iter().map(|x| 2.0 * x).collect();
        put(t, d, "lm_head.weight", &[96, 48], twice);
    };
    let plain = last("qwen3", &model("qwen3", &[], unchanged).unwrap());
    assert_eq!(last("qwen3", &model("qwen3", &[], second).unwrap()), plain);
}

#[test]
fn the_top_level_says_whether_the_head_is_the_embedding() {
    let plain = last("qwen3_5", &model("qwen3_5", &[], unchanged).unwrap());
    let nested = model("qwen3_5", &[("text_config.tie_word_embeddings", false.into())], unchanged);
    assert_eq!(last("qwen3_5", &nested.unwrap()), plain);
    assert!(model("qwen3_5", &[("tie_word_embeddings", false.into())], unchanged).is_err());
}

#[test]
fn attention_without_an_output_gate_is_that_with_a_gate_of_one() {
    const Q: &str = "model.layers.3.self_attn.q_proj.weight";
    const O: &str = "model.layers.3.self_attn.o_proj.weight";
    // Heads of 32 entries, each followed by its gate; hidden size 32.
    let halved: fn(&mut Tensors, &mut Vec<u8>) = |t, d| {
        let mut q = numbers(t, d, Q);
        q.chunks_mut(32 * 32).skip(1).step_by(2).for_each(|gate| gate.fill(0.0));
        put(t, d, Q, &[256, 32], q);
        let twice = numbers(t, d, O).into_iter().map(|x| 2.0 * x).collect();
        put(t, d, O, &[32, 128], twice);
    };
    let without: fn(&mut Tensors, &mut Vec<u8>) = |t, d| {
        let queries = numbers(t, d, Q).chunks(32 * 32).step_by(2).flatten().copied().collect();
        put(t, d, Q, &[128, 32], queries);
    };
    let gated = model("qwen3_next", &[], halved).unwrap();
    let plain = model("qwen3_next", &[("attn_output_gate", false.into())], without).unwrap();
    assert_eq!(last("qwen3_next", &gated), last("qwen3_next", &plain));
}

#[test]
fn decay_is_not_rounded() {
    let (tensors, data) = checkpoint("qwen3_next");
    let model = model("qwen3_next", &[], unchanged).unwrap();
    let Mixer::Delta(delta) = &model.decoder().layers[0].mixer else { panic!("layer 0 is attention") };
    let logs = numbers(&tensors, &data, "model.layers.0.linear_attn.A_log");
    let expected: Vec<f32> = logs.into_iter().map(|a| -a.exp()).collect();
    assert_eq!(delta.rule.decay.values(), expected);
}

#[test]
fn the_output_gate_is_the_one_that_is_named() {
    use runner::backend::GateActivation::{Sigmoid, Silu};
    for (named, gate) in
        [(Value::Null, Silu), ("silu".into(), Silu), ("swish".into(), Silu), ("sigmoid".into(), Sigmoid)]
    {
        let model = model("qwen3_5", &[("text_config.output_gate_type", named)], unchanged).unwrap();
        let Mixer::Delta(delta) = &model.decoder().layers[0].mixer else { panic!("layer 0 is attention") };
        assert_eq!(delta.rule.gate, gate);
    }
}

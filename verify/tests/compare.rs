//! Folders compared by the numbers that they stand for, whichever format holds them.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use verify::Dtype;
use verify::checkpoint::header::encode;
use verify::checkpoint::{Checkpoint, TensorSpec};
use verify::compare::{Comparison, compare};
use verify::progress::Silent;

/// How the linears are stored.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    /// The numbers that the 4-bit codes stand for.
    F32,
    /// compressed-tensors `pack-quantized` with zero points.
    Packed,
    /// AutoAWQ `gemm`.
    Awq,
}

const GROUP: usize = 8;
const HIDDEN: usize = 16;
const INTER: usize = 24;

fn code(row: usize, col: usize) -> u32 {
    (row * 7 + col * 5 + row * col) as u32 % 16
}

fn zero(row: usize, group: usize) -> u32 {
    5 + (row + group) as u32 % 6
}

/// Exact in F16 and F32.
fn scale(row: usize, group: usize) -> f32 {
    0.25 + ((row * 3 + group) % 8) as f32 * 0.125
}

fn number(row: usize, col: usize) -> f32 {
    (code(row, col) as f32 - zero(row, col / GROUP) as f32) * scale(row, col / GROUP)
}

/// A word of eight nibbles, nibble `j` from `of(j)`.
fn word(of: impl Fn(usize) -> u32) -> [u8; 4] {
    (0..8).fold(0, |w, j| w | of(j) << (4 * j)).to_le_bytes()
}

type Tensor = (TensorSpec, Vec<u8>);

fn linear(name: &str, rows: usize, cols: usize, form: Form) -> Vec<Tensor> {
    let (groups, f16) = (cols / GROUP, |x: f32| half::f16::from_f32(x).to_le_bytes());
    let spec = |leaf: &str, dtype, shape: &[usize]| TensorSpec::new(format!("{name}.{leaf}"), dtype, shape);
    match form {
        Form::F32 => {
            let numbers = (0..rows * cols).flat_map(|i| number(i / cols, i % cols).to_le_bytes());
            vec![(spec("weight", Dtype::F32, &[rows, cols]), numbers.collect())]
        }
        Form::Packed => {
            let across = cols / 8;
            let codes = (0..rows * across).flat_map(|i| word(|j| code(i / across, i % across * 8 + j)));
            let scales = (0..rows * groups).flat_map(|i| scale(i / groups, i % groups).to_le_bytes());
            let zeros = (0..rows / 8 * groups).flat_map(|i| word(|j| zero(i / groups * 8 + j, i % groups)));
            let shape = [rows as i64, cols as i64].into_iter().flat_map(i64::to_le_bytes);
            vec![
                (spec("weight_packed", Dtype::I32, &[rows, across]), codes.collect()),
                (spec("weight_scale", Dtype::F32, &[rows, groups]), scales.collect()),
                (spec("weight_zero_point", Dtype::I32, &[rows / 8, groups]), zeros.collect()),
                (spec("weight_shape", Dtype::I64, &[2]), shape.collect()),
            ]
        }
        Form::Awq => {
            // Nibble j of word c holds output 8c + ORDER[j]; inputs are the rows.
            const ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];
            let across = rows / 8;
            let codes =
                (0..cols * across).flat_map(|i| word(|j| code(i % across * 8 + ORDER[j], i / across)));
            let zeros =
                (0..groups * across).flat_map(|i| word(|j| zero(i % across * 8 + ORDER[j], i / across)));
            let scales = (0..groups * rows).flat_map(|i| f16(scale(i % rows, i / rows)));
            vec![
                (spec("qweight", Dtype::I32, &[cols, across]), codes.collect()),
                (spec("qzeros", Dtype::I32, &[groups, across]), zeros.collect()),
                (spec("scales", Dtype::F16, &[groups, rows]), scales.collect()),
            ]
        }
    }
}

fn quantization(form: Form) -> Option<Value> {
    match form {
        Form::F32 => None,
        Form::Packed => Some(
            json!({"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
            "config_groups": {"group_0": {"targets": ["Linear"], "format": "pack-quantized",
                "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP, "symmetric": false}}}}),
        ),
        Form::Awq => Some(
            json!({"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": true}),
        ),
    }
}

/// A dense model of one layer; `change` may change tensors before they are written.
fn model(dir: &Path, form: Form, change: impl Fn(&mut Vec<Tensor>)) -> PathBuf {
    std::fs::create_dir_all(dir).unwrap();
    let ones = |name: &str, shape: &[usize]| {
        let spec = TensorSpec::new(name, Dtype::BF16, shape);
        let bytes = [0x80, 0x3f].repeat(spec.elements());
        (spec, bytes)
    };
    let layer = "model.layers.0";
    let mut tensors = vec![
        ones("model.embed_tokens.weight", &[32, HIDDEN]),
        ones("model.norm.weight", &[HIDDEN]),
        ones(&format!("{layer}.input_layernorm.weight"), &[HIDDEN]),
        ones(&format!("{layer}.post_attention_layernorm.weight"), &[HIDDEN]),
        ones(&format!("{layer}.self_attn.q_norm.weight"), &[8]),
        ones(&format!("{layer}.self_attn.k_norm.weight"), &[8]),
    ];
    for (name, rows, cols) in [
        ("self_attn.q_proj", 16, HIDDEN),
        ("self_attn.k_proj", 8, HIDDEN),
        ("self_attn.v_proj", 8, HIDDEN),
        ("self_attn.o_proj", HIDDEN, 16),
        ("mlp.gate_proj", INTER, HIDDEN),
        ("mlp.up_proj", INTER, HIDDEN),
        ("mlp.down_proj", HIDDEN, INTER),
    ] {
        tensors.extend(linear(&format!("{layer}.{name}"), rows, cols, form));
    }
    change(&mut tensors);
    let mut bytes = encode(tensors.iter().map(|(spec, _)| spec));
    tensors.iter().for_each(|(_, data)| bytes.extend(data));
    std::fs::write(dir.join("model.safetensors"), bytes).unwrap();
    let mut config = json!({"model_type": "qwen3", "hidden_size": HIDDEN, "intermediate_size": INTER,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
        "vocab_size": 32, "tie_word_embeddings": true});
    if let Some(q) = quantization(form) {
        config["quantization_config"] = q;
    }
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    dir.to_path_buf()
}

fn compared(a: &Path, b: &Path) -> Comparison {
    compare(&Checkpoint::open(a).unwrap(), &Checkpoint::open(b).unwrap(), &Silent).unwrap()
}

#[test]
fn four_bit_forms_stand_for_the_numbers_written_out() {
    let dir = tempfile::tempdir().unwrap();
    let plain = model(&dir.path().join("f32"), Form::F32, |_| {});
    for (name, form) in [("packed", Form::Packed), ("awq", Form::Awq)] {
        let packed = model(&dir.path().join(name), form, |_| {});
        for (a, b) in [(&plain, &packed), (&packed, &plain)] {
            let found = compared(a, b);
            assert!(found.tensors.only_a.is_empty() && found.tensors.only_b.is_empty(), "{name}");
            assert_eq!(found.tensors.different.len(), 7, "another format is a difference");
            for pair in &found.tensors.different {
                assert_eq!((pair.relative_error, pair.largest), (Some(0.0), Some(0.0)), "{name} {pair:?}");
            }
        }
        assert!(compared(&packed, &packed).same);
    }
}

#[test]
fn one_changed_code_is_found_with_its_size() {
    let dir = tempfile::tempdir().unwrap();
    let a = model(&dir.path().join("a"), Form::Awq, |_| {});
    let b = model(&dir.path().join("b"), Form::Awq, |tensors| {
        let (_, bytes) = tensors.iter_mut().find(|(s, _)| s.name.ends_with("down_proj.qweight")).unwrap();
        bytes[0] ^= 1;
    });
    let found = compared(&a, &b);
    assert!(!found.same);
    let [pair] = &found.tensors.different[..] else { panic!("{:?}", found.tensors.different) };
    // One step of the first group's scale of output 0.
    assert_eq!(
        (pair.name.as_str(), pair.largest),
        ("model.layers.0.mlp.down_proj", Some(f64::from(scale(0, 0))))
    );
    assert!(found.verdict.starts_with("1 of "), "{}", found.verdict);
}

#[test]
fn shapes_types_and_missing_tensors_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let a = model(&dir.path().join("a"), Form::F32, |_| {});
    let b = model(&dir.path().join("b"), Form::F32, |tensors| {
        tensors.retain(|(s, _)| !s.name.ends_with("q_norm.weight"));
        let (spec, bytes) = &mut tensors[0];
        *spec = TensorSpec::new(spec.name.clone(), Dtype::BF16, [33, HIDDEN]);
        bytes.extend([0; 2 * HIDDEN]);
        // The same numbers in another type.
        let (spec, bytes) = &mut tensors[1];
        spec.dtype = Dtype::F32;
        *bytes = [0, 0, 0x80, 0x3f].repeat(HIDDEN);
    });
    let found = compared(&a, &b).tensors;
    assert_eq!(found.only_a, ["model.layers.0.self_attn.q_norm.weight"]);
    let by_name = |name: &str| found.different.iter().find(|p| p.name == name).unwrap();
    let embedding = by_name("model.embed_tokens.weight");
    assert_eq!((embedding.b.as_str(), embedding.relative_error), ("BF16 [33, 16]", None));
    let norm = by_name("model.norm.weight");
    assert_eq!((norm.a.as_str(), norm.b.as_str(), norm.relative_error), ("BF16", "F32", Some(0.0)));
    assert_eq!(found.different.len(), 2);
}

//! The compressed-tensors formats, and starting from a checkpoint that is FP8 already.

#![allow(clippy::unwrap_used)]

mod support;

use quant::{Fp8, Pattern, Scheme};
use serde_json::{Value, json};
use support::{dequantized, expected_config, expected_tensors, fixture, rewrite};
use verify::checkpoint::TensorReader;
use verify::codec::fp8::Grid;
use verify::codec::{Dequantize, Float};
use verify::names::Digest;
use verify::rewrite::Rewrite;
use verify::{Checkpoint, Dtype};

fn with(scheme: Scheme) -> Fp8 {
    Fp8 { scheme, ..Fp8::default() }
}

const CASES: [&str; 2] = ["qwen3-edge", "qwen3_5_moe-cut"];

#[test]
fn channel_codes_and_scales_equal_the_reference() {
    for case in CASES {
        let made = rewrite(&fixture(&format!("{case}/source")), &[&with(Scheme::Channel)], 2).unwrap();
        let mut tensors = made.tensors();
        // The reference stores its scales in BF16; ours are the same numbers in F32.
        for (name, t) in tensors.iter_mut().filter(|(name, _)| name.ends_with("weight_scale")) {
            assert_eq!(t["dtype"], "F32");
            let bytes = Float::BF16.to_bytes(&Float::F32.to_f32(&made.checkpoint.read(name).unwrap()));
            *t = json!({"dtype": "BF16", "shape": t["shape"], "sha256": Digest::of(&bytes).to_string()});
        }
        let reference = format!("{case}/ct-fp8-dynamic");
        assert_eq!(tensors, expected_tensors(&reference), "{case}");
        assert_eq!(*made.checkpoint.config().value(), expected_config(&reference), "{case}");
    }
}

#[test]
fn per_tensor_scales_are_shared_by_what_servers_merge() {
    let made = rewrite(&fixture("qwen3_5_moe-cut/source"), &[&with(Scheme::Tensor)], 2).unwrap();
    let c = &made.checkpoint;
    let layer = "model.language_model.layers";
    let scale = |module: &str| Float::F32.to_f32(&c.read(&format!("{layer}.{module}.weight_scale")).unwrap());
    assert_eq!(scale("1.self_attn.q_proj").len(), 1);
    assert_eq!(scale("1.self_attn.q_proj"), scale("1.self_attn.k_proj"));
    assert_eq!(scale("0.linear_attn.in_proj_qkv"), scale("0.linear_attn.in_proj_z"));
    assert_eq!(scale("0.mlp.experts.1.gate_proj"), scale("0.mlp.experts.1.up_proj"));
    assert_ne!(scale("0.mlp.experts.0.gate_proj"), scale("0.mlp.experts.1.gate_proj"));
    let shape =
        &c.index().get(&format!("{layer}.0.mlp.shared_expert.up_proj.weight_scale")).unwrap().spec.shape;
    assert_eq!(*shape, [1]);
    let weights = &made.quantization()["config_groups"]["group_0"]["weights"];
    assert_eq!((&weights["strategy"], &weights["num_bits"]), (&json!("tensor"), &json!(8)));
}

#[test]
fn every_scheme_stays_within_half_a_step_of_its_scale() {
    let source = Checkpoint::open(&fixture("qwen3_moe/source")).unwrap();
    for (scheme, grid) in [
        (Scheme::Channel, Grid::Channel),
        (Scheme::Tensor, Grid::Tensor),
        (Scheme::CompressedBlock, Grid::Block),
    ] {
        let made = rewrite(&fixture("qwen3_moe/source"), &[&with(scheme)], 2).unwrap();
        for t in made.checkpoint.index().tensors().iter().filter(|t| t.spec.dtype == Dtype::F8_E4M3) {
            let want = Float::BF16.to_f32(&source.read(&t.spec.name).unwrap());
            let amax = want.iter().fold(0.0f32, |a, v| a.max(v.abs()));
            let got = dequantized(&made.checkpoint, &t.spec.name, grid);
            // A scale of the whole tensor is at least amax / 448 of any part; BF16 scales may lie 1/256 above.
            let worst = want.iter().zip(&got).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            let shared = if scheme == Scheme::Tensor { 2.0 } else { 1.0 };
            assert!(
                worst <= shared * amax / 28.0 * (1.0 + 1.0 / 128.0),
                "{scheme:?} {} {worst}",
                t.spec.name
            );
        }
    }
}

#[test]
fn compressed_block_config_names_the_blocks() {
    let made = rewrite(&fixture("qwen3_moe/source"), &[&with(Scheme::CompressedBlock)], 2).unwrap();
    let group = &made.quantization()["config_groups"]["group_0"];
    assert_eq!(group["weights"]["block_structure"], json!([128, 128]));
    assert_eq!(group["input_activations"]["group_size"], 128);
    let scale = made.checkpoint.index().get("model.layers.0.self_attn.q_proj.weight_scale").unwrap();
    assert_eq!(scale.spec.shape, [2, 2]);
}

#[test]
fn channel_quantizes_what_blocks_cannot() {
    let made = rewrite(&fixture("qwen3-tail/source"), &[&with(Scheme::Channel)], 2).unwrap();
    let codes = made.checkpoint.index().tensors().iter().filter(|t| t.spec.dtype == Dtype::F8_E4M3);
    assert_eq!(codes.count(), 14);
}

#[test]
fn bytes_do_not_depend_on_threads_with_shared_scales() {
    let files =
        |threads| rewrite(&fixture("qwen3_moe/source"), &[&with(Scheme::Tensor)], threads).unwrap().files();
    assert_eq!(files(1), files(5));
}

#[test]
fn expressions_are_ignored_too() {
    let ignore = vec![Pattern::parse(r"re:.*layers\.0\..*").unwrap()];
    let fp8 = Fp8 { scheme: Scheme::Channel, ignore, ..Fp8::default() };
    let made = rewrite(&fixture("qwen3_moe/source"), &[&fp8], 2).unwrap();
    let in_layer = |n| made.tensors().iter().any(|(name, t)| name.contains(n) && t["dtype"] == "F8_E4M3");
    assert!(!in_layer("layers.0.") && in_layer("layers.1."));
}

#[test]
fn dequantized_model_is_plain_again() {
    let source = Checkpoint::open(&fixture("qwen3_moe/source")).unwrap();
    for scheme in [Scheme::Block, Scheme::CompressedBlock, Scheme::Channel, Scheme::Tensor] {
        let quantized = rewrite(&fixture("qwen3_moe/source"), &[&with(scheme)], 2).unwrap();
        let back = rewrite(&quantized.path(), &[&Dequantize], 2).unwrap();
        assert_eq!(back.checkpoint.config().value(), source.config().value());
        assert_eq!(back.tensors().len(), source.index().tensors().len());
        for t in source.index().tensors() {
            let (a, b) = (source.read(&t.spec.name).unwrap(), back.checkpoint.read(&t.spec.name).unwrap());
            let (a, b) = (Float::BF16.to_f32(&a), Float::BF16.to_f32(&b));
            let square = |v: f32| f64::from(v) * f64::from(v);
            let error: f64 = a.iter().zip(&b).map(|(a, b)| square(a - b)).sum();
            assert!(
                error.sqrt() <= 0.03 * a.iter().map(|a| square(*a)).sum::<f64>().sqrt(),
                "{}",
                t.spec.name
            );
        }
    }
}

#[test]
fn from_quantized_in_one_pass_equals_two_passes() {
    let block = rewrite(&fixture("qwen3_5_moe-cut/source"), &[&with(Scheme::Block)], 2).unwrap();
    let channel = with(Scheme::Channel);
    let chain: [&dyn Rewrite; 2] = [&Dequantize, &channel];
    let at_once = rewrite(&block.path(), &chain, 2).unwrap();
    let plain = rewrite(&block.path(), &[&Dequantize], 2).unwrap();
    let after = rewrite(&plain.path(), &[&channel], 2).unwrap();
    assert_eq!(at_once.files(), after.files());
}

#[test]
fn damaged_fp8_source_is_refused_with_tensor_and_index() {
    let block = rewrite(&fixture("qwen3-edge/source"), &[&with(Scheme::Block)], 2).unwrap();
    let shard = block.path().join("model.safetensors");
    let at = block.checkpoint.index().position("model.layers.1.mlp.up_proj.weight").unwrap();
    let mut bytes = std::fs::read(&shard).unwrap();
    bytes[block.checkpoint.location(at).offset as usize + 256 * 2 + 3] = 0x7f;
    std::fs::write(&shard, bytes).unwrap();
    std::fs::remove_file(block.path().join("SHA256SUMS")).unwrap();
    let e = rewrite(&block.path(), &[&Dequantize], 2).err().unwrap();
    assert!(e.to_string().contains("layers.1.mlp.up_proj.weight") && e.to_string().contains("[2, 3]"), "{e}");
}

#[test]
fn other_quantized_sources_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    support::tiny_dense(dir.path(), Dtype::BF16, |_| None);
    let path = dir.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    config["quantization_config"] = json!({"quant_method": "gptq", "bits": 4});
    std::fs::write(&path, config.to_string()).unwrap();
    let e = rewrite(dir.path(), &[&Dequantize], 1).err().unwrap();
    assert!(e.class().exit_code() == 3 && e.to_string().contains("gptq"), "{e}");
}

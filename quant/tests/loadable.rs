//! The loader's view: what `quant` writes has no fault, and each fault is found and told.

#![allow(clippy::unwrap_used)]

mod support;

use quant::{Fp8, Scheme};
use serde_json::{Value, json};
use support::{Made, fixture, rewrite, write};
use verify::checkpoint::{TensorReader, TensorSpec};
use verify::loadable::{Fault, check};
use verify::progress::Silent;
use verify::{Checkpoint, Dtype};

fn made(case: &str, scheme: Scheme) -> Made {
    rewrite(&fixture(&format!("{case}/source")), &[&Fp8 { scheme, ..Fp8::default() }], 2).unwrap()
}

/// Faults of a result after `change` to its config and tensors.
fn faults_of(from: &Made, change: impl FnOnce(&mut Value, &mut Vec<(TensorSpec, Vec<u8>)>)) -> Vec<Fault> {
    let c = &from.checkpoint;
    let tensors = c.index().tensors().iter();
    let mut tensors: Vec<_> = tensors.map(|t| (t.spec.clone(), c.read(&t.spec.name).unwrap())).collect();
    let mut config = c.config().value().clone();
    change(&mut config, &mut tensors);
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &config, &tensors);
    check(&Checkpoint::open(dir.path()).unwrap(), &Silent).unwrap()
}

/// The one fault of a result after a change.
fn fault_of(from: &Made, change: impl FnOnce(&mut Value, &mut Vec<(TensorSpec, Vec<u8>)>)) -> String {
    let faults = faults_of(from, change);
    assert_eq!(faults.len(), 1, "{faults:#?}");
    faults[0].to_string()
}

fn tensor<'a>(tensors: &'a mut [(TensorSpec, Vec<u8>)], name: &str) -> &'a mut (TensorSpec, Vec<u8>) {
    tensors.iter_mut().find(|(t, _)| t.name == name).unwrap()
}

fn skip_list(config: &mut Value) -> &mut Vec<Value> {
    config["quantization_config"]["modules_to_not_convert"].as_array_mut().unwrap()
}

#[test]
fn what_is_written_here_has_no_fault() {
    for scheme in [Scheme::Block, Scheme::CompressedBlock, Scheme::Channel, Scheme::Tensor] {
        for case in ["qwen3-edge", "qwen3-tail", "qwen3_moe", "qwen3_5_moe-cut"] {
            let made = made(case, scheme);
            assert_eq!(check(&made.checkpoint, &Silent).unwrap(), [], "{case} {scheme:?}");
        }
    }
}

#[test]
fn bad_values_are_found_with_their_place() {
    let made = made("qwen3_moe", Scheme::Block);
    let weight = "model.layers.1.self_attn.q_proj.weight";
    let scale = "model.layers.1.self_attn.q_proj.weight_scale_inv";
    let said = fault_of(&made, |_, t| tensor(t, weight).1[256 * 3 + 5] = 0xff);
    assert!(said.contains(weight) && said.contains("0xff") && said.contains("[3, 5]"), "{said}");
    for (value, word) in
        [(0.0f32, "zero"), (-1.0, "negative"), (f32::NAN, "not finite"), (f32::INFINITY, "not finite")]
    {
        let said = fault_of(&made, |_, t| tensor(t, scale).1[12..16].copy_from_slice(&value.to_le_bytes()));
        assert!(said.contains(scale) && said.contains(word) && said.contains("[1, 1]"), "{said}");
    }
}

#[test]
fn scales_must_be_there_with_the_right_name_shape_and_dtype() {
    let made = made("qwen3_moe", Scheme::Block);
    let scale = "model.layers.0.self_attn.o_proj.weight_scale_inv";
    let said = fault_of(&made, |_, t| t.retain(|(t, _)| t.name != scale));
    assert!(said.contains("o_proj.weight` has no scales"), "{said}");
    let said = fault_of(&made, |_, t| {
        tensor(t, scale).0.name = "model.layers.0.self_attn.o_proj.weight_scale".into();
    });
    assert!(said.contains("under `weight_scale`"), "{said}");
    let said = fault_of(&made, |_, t| tensor(t, scale).0.shape = vec![4, 1]);
    assert!(said.contains("[4, 1]") && said.contains("[2, 2]"), "{said}");
    let said = fault_of(&made, |_, t| {
        *tensor(t, scale) = (TensorSpec::new(scale, Dtype::F16, [2, 2]), vec![0, 60, 0, 60, 0, 60, 0, 60]);
    });
    assert!(said.contains("F16"), "{said}");
    let faults = faults_of(&made, |_, t| {
        let (spec, bytes) = tensor(t, "model.layers.0.self_attn.o_proj.weight");
        (spec.dtype, *bytes) = (Dtype::BF16, vec![0; spec.elements() * 2]);
    });
    assert!(faults.iter().any(|f| f.subject == scale && f.sentence.contains("no FP8 weight")), "{faults:?}");
}

#[test]
fn half_quantized_unit_is_found() {
    let made = made("qwen3_moe", Scheme::Block);
    let module = "model.layers.0.mlp.experts.3.up_proj";
    let said = fault_of(&made, |config, t| {
        t.retain(|(t, _)| t.name != format!("{module}.weight_scale_inv"));
        let (spec, bytes) = tensor(t, &format!("{module}.weight"));
        (spec.dtype, *bytes) = (Dtype::BF16, vec![0; spec.elements() * 2]);
        skip_list(config).push(json!(module));
    });
    assert!(
        said.contains("model.layers.0.mlp.experts` is half quantized") && said.contains(module),
        "{said}"
    );
}

#[test]
fn experts_left_in_one_tensor_are_found() {
    let made = made("qwen3_5_moe-cut", Scheme::Block);
    let block = "model.language_model.layers.1.mlp.experts";
    let faults = faults_of(&made, |config, t| {
        t.retain(|(t, _)| !t.name.starts_with(block));
        for (leaf, shape) in [("gate_up_proj", [2, 256, 256]), ("down_proj", [2, 256, 128])] {
            let spec = TensorSpec::new(format!("{block}.{leaf}"), Dtype::BF16, shape);
            let bytes = support::random(&spec);
            t.push((spec, bytes));
        }
        skip_list(config).push(json!(block));
    });
    let subjects: Vec<_> = faults.iter().map(|f| f.subject.as_str()).collect();
    assert_eq!(subjects, [format!("{block}.gate_up_proj"), format!("{block}.down_proj")]);
    assert!(faults[0].sentence.contains("one matrix per expert"));
}

#[test]
fn missing_mtp_is_found() {
    let made = made("qwen3_5_moe-cut", Scheme::Block);
    let said = fault_of(&made, |config, t| {
        t.retain(|(t, _)| !t.name.starts_with("mtp."));
        skip_list(config).retain(|e| !e.as_str().unwrap().starts_with("mtp."));
    });
    assert!(said.contains("`mtp` is missing"), "{said}");
}

#[test]
fn skip_list_must_say_what_is_stored() {
    let made = made("qwen3_5_moe-cut", Scheme::Block);
    let said = fault_of(&made, |c, _| skip_list(c).push(json!("model.layers.7.mlp.gate")));
    assert!(said.contains("model.layers.7.mlp.gate") && said.contains("matches no module"), "{said}");
    let said = fault_of(&made, |c, _| skip_list(c).retain(|e| e != "mtp.fc"));
    assert!(said.contains("`mtp.fc` is in 16 bit and not in the skip list"), "{said}");
    let said = fault_of(&made, |c, _| {
        skip_list(c).push(json!("model.language_model.layers.1.self_attn.o_proj"));
    });
    assert!(said.contains("o_proj` is FP8, but the skip list says"), "{said}");
    // A name for a whole block is enough for transformers and nothing to vLLM.
    let faults = faults_of(&made, |c, _| {
        skip_list(c).retain(|e| !e.as_str().unwrap().starts_with("model.visual"));
        skip_list(c).push(json!("model.visual"));
    });
    assert_eq!(faults.len(), 6);
    assert!(faults.iter().all(|f| f.sentence.contains("only through `model.visual`")), "{faults:?}");
}

#[test]
fn expressions_of_compressed_tensors_count() {
    let made = made("qwen3_moe", Scheme::Channel);
    let ignore = |config: &mut Value, list: Value| config["quantization_config"]["ignore"] = list;
    assert_eq!(faults_of(&made, |c, _| ignore(c, json!(["lm_head", r"re:.*mlp\.gate$"]))), []);
    let faults = faults_of(&made, |c, _| ignore(c, json!(["lm_head", "re:.*mlp.gate.*"])));
    assert!(faults.is_empty(), "{faults:?}");
    let faults = faults_of(&made, |c, _| ignore(c, json!(["lm_head", "re:.*gate.*"])));
    assert_eq!(faults.len(), 16, "gate_proj of every expert is hit: {faults:?}");
}

#[test]
fn what_servers_never_quantize_must_be_plain() {
    let made = made("qwen3_moe", Scheme::Block);
    let faults = faults_of(&made, |_, t| {
        let (spec, bytes) = tensor(t, "model.layers.0.mlp.gate.weight");
        (spec.dtype, *bytes) = (Dtype::F8_E4M3, vec![0; spec.elements()]);
    });
    assert!(faults.iter().any(|f| f.sentence.contains("servers build the router in 16 bit")), "{faults:?}");
}

#[test]
fn codes_without_a_config_and_unknown_tensors_are_found() {
    let made = made("qwen3_moe", Scheme::Block);
    let faults = faults_of(&made, |c, _| {
        c.as_object_mut().unwrap().remove("quantization_config");
    });
    assert_eq!(faults.len(), 56);
    let faults = faults_of(&made, |_, t| {
        tensor(t, "model.layers.0.self_attn.q_norm.weight").0.name =
            "model.layers.0.self_attn.norm_q.weight".into();
    });
    assert!(faults[0].to_string().contains("norm_q.weight` is no tensor of a qwen3_moe model"), "{faults:?}");
}

#[test]
fn ragged_parts_of_fused_layers_are_found() {
    // What the plain reference writes for sides that are no multiples of 128: vLLM refuses it.
    let made = made("qwen3-tail", Scheme::Block);
    let faults = faults_of(&made, |config, tensors| {
        *skip_list(config) = vec![json!("lm_head")];
        let linears: Vec<_> = tensors.iter().filter(|(t, _)| t.name.contains("_proj")).cloned().collect();
        for (spec, _) in linears {
            let [rows, cols] = spec.shape[..] else { panic!("no matrix") };
            let grid = [rows.div_ceil(128), cols.div_ceil(128)];
            *tensor(tensors, &spec.name) =
                (TensorSpec::new(spec.name.clone(), Dtype::F8_E4M3, [rows, cols]), vec![0; rows * cols]);
            let scales = 1f32.to_le_bytes().repeat(grid[0] * grid[1]);
            tensors.push((TensorSpec::new(format!("{}_scale_inv", spec.name), Dtype::F32, grid), scales));
        }
    });
    let subjects: Vec<_> = faults.iter().map(|f| f.subject.as_str()).collect();
    assert_eq!(faults.len(), 4, "{faults:?}");
    assert!(subjects.contains(&"model.layers.1.mlp.gate_proj"), "{subjects:?}");
}

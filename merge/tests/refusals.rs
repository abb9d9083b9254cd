//! What is refused, and that every message names the thing.
#![allow(clippy::unwrap_used)]

mod support;

use merge::{Options, Unused};
use serde_json::json;
use support::{Lab, merge, tensors};
use verify::Dtype;

const Q: &str = "model.layers.0.self_attn.q_proj";

fn linear() -> Lab {
    let mut lab = Lab::new();
    lab.base(&format!("{Q}.weight"), &[4, 6])
        .base("lm_head.weight", &[6, 6])
        .base("model.embed_tokens.weight", &[6, 6]);
    lab.adapter(&format!("{Q}.lora_A.weight"), &[2, 6]).adapter(&format!("{Q}.lora_B.weight"), &[4, 2]);
    lab
}

#[test]
fn tensor_without_a_target_is_refused_or_with_leave_only_reported() {
    let mut lab = linear();
    let wrong = "model.layers.0.self_attn.qq_proj";
    lab.adapter(&format!("{wrong}.lora_A.weight"), &[2, 6])
        .adapter(&format!("{wrong}.lora_B.weight"), &[4, 2]);
    assert!(lab.refusal().contains("qq_proj"));
    let report = lab.merge_with(Options { unused: Unused::Warn }).unwrap();
    assert!(report.warnings.iter().any(|w| w.contains("qq_proj")));
    assert_ne!(
        tensors(&lab.path("out"))[&format!("{Q}.weight")],
        tensors(&lab.path("base"))[&format!("{Q}.weight")]
    );
}

#[test]
fn half_pairs_are_refused() {
    for part in ["lora_A.weight", "lora_B.weight", "lora_magnitude_vector"] {
        let mut lab = linear();
        lab.base("model.k_proj.weight", &[4, 6]).adapter(&format!("model.k_proj.{part}"), &[2, 6]);
        let text = lab.refusal();
        assert!(text.contains("half a pair") && text.contains("model.k_proj"), "{text}");
    }
}

#[test]
fn factors_that_do_not_multiply_or_do_not_fit_are_refused_with_the_shapes() {
    for (a, b) in [([2, 6], [4, 3]), ([2, 5], [4, 2]), ([2, 6], [5, 2])] {
        let mut lab = linear();
        lab.base("model.k_proj.weight", &[4, 6]);
        lab.adapter("model.k_proj.lora_A.weight", &a).adapter("model.k_proj.lora_B.weight", &b);
        let text = lab.refusal();
        assert!(text.contains(&format!("{a:?}")) && text.contains(&format!("{b:?}")), "{text}");
    }
}

#[test]
fn empty_and_flat_factors_point_to_the_sharded_trainer() {
    for shape in [&[0][..], &[12][..], &[0, 6][..]] {
        let mut lab = linear();
        lab.base("model.k_proj.weight", &[4, 6]);
        lab.adapter("model.k_proj.lora_A.weight", shape).adapter("model.k_proj.lora_B.weight", &[4, 2]);
        assert!(lab.refusal().contains("ZeRO-3"));
    }
}

#[test]
fn convolution_factors_are_refused_with_the_layer() {
    let mut lab = linear();
    lab.base("model.layers.0.linear_attn.conv1d.weight", &[8, 1, 4]);
    lab.adapter("model.layers.0.linear_attn.conv1d.lora_A.weight", &[2, 1, 4]);
    lab.adapter("model.layers.0.linear_attn.conv1d.lora_B.weight", &[8, 2, 1]);
    assert!(lab.refusal().contains("layers.0.linear_attn.conv1d"));
}

#[test]
fn nan_and_infinity_in_an_adapter_are_refused() {
    for bad in [f32::NAN, f32::INFINITY] {
        let mut lab = linear();
        lab.base("model.k_proj.weight", &[4, 6]).adapter("model.k_proj.lora_B.weight", &[4, 2]);
        let mut values = [0.5; 12];
        values[5] = bad;
        lab.adapter_values("model.k_proj.lora_A.weight", Dtype::F32, &[2, 6], &values);
        assert!(lab.refusal().contains("model.k_proj.lora_A.weight"));
    }
}

#[test]
fn other_dtypes_than_plain_floats_are_refused() {
    let mut lab = linear();
    lab.base("model.k_proj.weight", &[4, 6]).adapter("model.k_proj.lora_B.weight", &[4, 2]);
    lab.adapter_values("model.k_proj.lora_A.weight", Dtype::I32, &[2, 6], &[0.0; 12]);
    assert!(lab.refusal().contains("I32"));
}

#[test]
fn pickles_are_never_the_adapter() {
    let lab = linear();
    lab.write();
    std::fs::rename(lab.path("adapter/adapter_model.safetensors"), lab.path("adapter/adapter_model.bin"))
        .unwrap();
    let e = merge(&lab.path("base"), &[(lab.path("adapter"), 1.0)], &lab.path("out"), Options::default())
        .unwrap_err();
    assert!(e.to_string().contains("adapter_model.bin") && e.class().exit_code() == 3);
}

#[test]
fn weights_trained_outside_the_adapter_are_refused() {
    for name in ["non_lora_state_dict.bin", "non_lora_trainables.bin"] {
        let mut lab = linear();
        lab.file(&format!("adapter/{name}"), "x");
        assert!(lab.refusal().contains(name));
    }
}

#[test]
fn quantized_bases_are_refused() {
    let mut lab = linear();
    lab.model(json!({"quantization_config": {"quant_method": "awq"}}));
    let text = lab.refusal();
    assert!(text.contains("merge into the 16-bit checkpoint") && text.contains("awq"), "{text}");
    let mut lab = linear();
    lab.base_values("model.k_proj.qweight", Dtype::I32, &[4, 6], &[0.0; 24]);
    assert!(lab.refusal().contains("model.k_proj.qweight"));
}

#[test]
fn classification_adapters_are_refused() {
    for key in ["score.weight", "score.modules_to_save.default.weight", "classifier.dense.weight"] {
        let mut lab = linear();
        lab.config(json!({"modules_to_save": ["score", "classifier"]})).adapter(key, &[3, 6]);
        assert!(lab.refusal().contains("classif"));
    }
}

#[test]
fn whole_tensors_that_nobody_declared_are_refused_unless_they_are_the_base() {
    let mut lab = linear();
    lab.adapter("lm_head.weight", &[6, 6]);
    let text = lab.refusal();
    assert!(text.contains("lm_head.weight") && text.contains("modules_to_save"), "{text}");

    let mut lab = linear();
    let same: Vec<f32> = lab.of_base("lm_head.weight").iter().map(|v| *v as f32).collect();
    lab.adapter_values("lm_head.weight", Dtype::F32, &[6, 6], &same);
    assert_eq!(lab.merged().tensors["lm_head.weight"], tensors(&lab.path("base"))["lm_head.weight"]);
}

#[test]
fn target_hit_twice_is_refused() {
    // By two path forms of one layer.
    let mut lab = linear();
    let other = Q.replacen("model.", "model.language_model.", 1);
    lab.adapter(&format!("{other}.lora_A.weight"), &[2, 6])
        .adapter(&format!("{other}.lora_B.weight"), &[4, 2]);
    assert!(lab.refusal().contains("changed twice"));
    // By a fused and a per-expert pair.
    let mut lab = linear();
    let experts = "model.layers.0.mlp.experts";
    for e in 0..2 {
        for part in ["gate_proj", "up_proj", "down_proj"] {
            lab.base(&format!("{experts}.{e}.{part}.weight"), &[4, 6]);
        }
    }
    lab.config(json!({"target_parameters": ["mlp.experts.gate_up_proj"]}));
    lab.adapter(&format!("{experts}.lora_A.weight"), &[4, 6])
        .adapter(&format!("{experts}.lora_B.weight"), &[8, 4]);
    lab.adapter(&format!("{experts}.1.up_proj.lora_A.weight"), &[2, 6]);
    lab.adapter(&format!("{experts}.1.up_proj.lora_B.weight"), &[4, 2]);
    assert!(lab.refusal().contains("experts.1.up_proj"));
}

#[test]
fn two_adapters_that_replace_one_tensor_are_refused() {
    let mut lab = linear();
    lab.config(json!({"modules_to_save": ["norm"]}))
        .base("model.norm.weight", &[6])
        .adapter("model.norm.weight", &[6]);
    lab.write();
    let mut other = linear();
    other
        .config(json!({"modules_to_save": ["norm"]}))
        .adapter("lm_head.x", &[1])
        .adapter("model.norm.weight", &[6]);
    let mut third = linear();
    third.config(json!({"modules_to_save": ["norm"]}));
    third.adapter_values("model.norm.weight", Dtype::F32, &[6], &[9.0; 6]).write();
    let adapters = [(lab.path("adapter"), 1.0), (third.path("adapter"), 1.0)];
    let e = merge(&lab.path("base"), &adapters, &lab.path("out"), Options::default()).unwrap_err();
    assert!(e.to_string().contains("replaced twice") && e.to_string().contains("model.norm.weight"), "{e}");
}

#[test]
fn factor_lost_to_zeros_is_refused() {
    let mut lab = linear();
    lab.base("model.k_proj.weight", &[4, 6]).adapter("model.k_proj.lora_B.weight", &[4, 2]);
    lab.adapter_values("model.k_proj.lora_A.weight", Dtype::F32, &[2, 6], &[0.0; 12]);
    assert!(lab.refusal().contains("no effect"));
}

#[test]
fn partial_upload_and_another_base_are_warned_of() {
    let mut lab = linear();
    lab.base("model.layers.1.self_attn.q_proj.weight", &[4, 6]);
    lab.config(json!({"target_modules": ["q_proj"], "base_model_name_or_path": "org/other-base-bnb-4bit"}));
    let report = lab.merge().unwrap();
    let has = |text: &str| report.warnings.iter().any(|w| w.contains(text));
    assert!(
        has("layers.1.self_attn.q_proj") && has("other-base") && has("quantized"),
        "{:?}",
        report.warnings
    );
}

#[test]
fn adapter_of_the_named_base_gives_no_warning() {
    let mut lab = linear();
    lab.config(json!({"target_modules": ["q_proj"], "base_model_name_or_path": "some/where/base"}));
    assert_eq!(lab.merge().unwrap().warnings, Vec::<String>::new());
}

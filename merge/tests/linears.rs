//! Linear layers, biases, Conv1D, DoRA, dtypes and several adapters: each rule against a plain f64 product.
#![allow(clippy::unwrap_used)]

mod support;

use merge::Options;
use serde_json::json;
use support::{Lab, merge, plus_product, tensors, transpose};
use verify::Dtype;

const Q: &str = "model.layers.0.self_attn.q_proj";

/// A base with one 4 x 6 linear, and a pair of rank 2 for it.
fn linear() -> Lab {
    let mut lab = Lab::new();
    lab.base(&format!("{Q}.weight"), &[4, 6]).base("model.norm.weight", &[6]);
    lab.adapter(&format!("{Q}.lora_A.weight"), &[2, 6]).adapter(&format!("{Q}.lora_B.weight"), &[4, 2]);
    lab
}

fn expected(lab: &Lab, scale: f64) -> Vec<f64> {
    let w = lab.of_base(&format!("{Q}.weight"));
    let a = lab.of_adapter(&format!("{Q}.lora_A.weight"));
    plus_product(&w, scale, &lab.of_adapter(&format!("{Q}.lora_B.weight")), &a, 2)
}

#[test]
fn scale_is_alpha_over_rank() {
    let lab = linear();
    lab.merged().assert_is(&format!("{Q}.weight"), &expected(&lab, 2.0));
}

#[test]
fn rslora_scale_is_alpha_over_root_of_rank() {
    let mut lab = linear();
    lab.config(json!({"use_rslora": true}));
    lab.merged().assert_is(&format!("{Q}.weight"), &expected(&lab, 4.0 / 2f64.sqrt()));
}

#[test]
fn untouched_tensors_are_copied_byte_for_byte() {
    let mut lab = linear();
    lab.base_values("mtp.odd", Dtype::BF16, &[2], &[f32::NAN, -0.0]).base_values(
        "x",
        Dtype::F32,
        &[1],
        &[1e-40],
    );
    let merged = lab.merged();
    let base = tensors(&lab.path("base"));
    for name in ["mtp.odd", "x", "model.norm.weight"] {
        assert_eq!(merged.tensors[name], base[name]);
    }
}

#[test]
fn output_keeps_the_bases_dtype_with_one_rounding() {
    for dtype in [Dtype::F32, Dtype::F16, Dtype::BF16] {
        let mut lab = Lab::new();
        let values: Vec<f32> = (0..4000).map(|i| (i as f32 * 0.37).sin()).collect();
        lab.base_values(&format!("{Q}.weight"), dtype, &[40, 100], &values);
        lab.adapter(&format!("{Q}.lora_A.weight"), &[2, 100])
            .adapter(&format!("{Q}.lora_B.weight"), &[40, 2]);
        let merged = lab.merged();
        assert_eq!(merged.tensors[&format!("{Q}.weight")].0, dtype);
        merged.assert_is(&format!("{Q}.weight"), &expected(&lab, 2.0));
    }
}

#[test]
fn factors_of_any_float_dtype_are_used_as_stored() {
    for dtype in [Dtype::F16, Dtype::BF16] {
        let mut lab = Lab::new();
        lab.base(&format!("{Q}.weight"), &[4, 6]);
        let v = [0.5, -1.25, 3.0, 0.125, 2.0, -0.75, 1.0, 0.25, -0.5, 1.5, 0.75, 0.0];
        lab.adapter_values(&format!("{Q}.lora_A.weight"), dtype, &[2, 6], &v);
        lab.adapter_values(&format!("{Q}.lora_B.weight"), dtype, &[4, 2], &v[..8]);
        lab.merged().assert_is(&format!("{Q}.weight"), &expected(&lab, 2.0));
    }
}

#[test]
fn adapter_name_in_the_keys_is_read_and_two_names_are_refused() {
    let mut lab = Lab::new();
    lab.base(&format!("{Q}.weight"), &[4, 6]).base("model.layers.1.self_attn.q_proj.weight", &[4, 6]);
    lab.adapter(&format!("{Q}.lora_A.default.weight"), &[2, 6])
        .adapter(&format!("{Q}.lora_B.default.weight"), &[4, 2]);
    lab.merge().unwrap();
    let other = "model.layers.1.self_attn.q_proj";
    lab.adapter(&format!("{other}.lora_A.style.weight"), &[2, 6]);
    lab.adapter(&format!("{other}.lora_B.style.weight"), &[4, 2]);
    std::fs::remove_dir_all(lab.path("out")).unwrap();
    let text = lab.refusal();
    assert!(text.contains("default") && text.contains("style"), "{text}");
}

#[test]
fn lora_bias_is_added_with_the_scale() {
    let mut lab = linear();
    lab.config(json!({"lora_bias": true}))
        .base(&format!("{Q}.bias"), &[4])
        .adapter(&format!("{Q}.lora_B.bias"), &[4]);
    let (b, d) = (lab.of_base(&format!("{Q}.bias")), lab.of_adapter(&format!("{Q}.lora_B.bias")));
    let want: Vec<f64> = b.iter().zip(d).map(|(b, d)| b + 2.0 * d).collect();
    lab.merged().assert_is(&format!("{Q}.bias"), &want);
}

#[test]
fn lora_bias_without_a_bias_in_the_base_is_refused() {
    let mut lab = linear();
    lab.config(json!({"lora_bias": true})).adapter(&format!("{Q}.lora_B.bias"), &[4]);
    assert!(lab.refusal().contains("has no bias in the base"));
}

#[test]
fn conv1d_is_transposed_whatever_the_config_says() {
    for says in [true, false] {
        let mut lab = Lab::new();
        lab.model(json!({"model_type": "gpt2"})).config(json!({"fan_in_fan_out": says}));
        // Square, so that the shape does not tell.
        lab.base("transformer.h.0.attn.c_proj.weight", &[4, 4]);
        lab.adapter("transformer.h.0.attn.c_proj.lora_A.weight", &[2, 4]);
        lab.adapter("transformer.h.0.attn.c_proj.lora_B.weight", &[4, 2]);
        let a = lab.of_adapter("transformer.h.0.attn.c_proj.lora_A.weight");
        let b = lab.of_adapter("transformer.h.0.attn.c_proj.lora_B.weight");
        let delta = transpose(&plus_product(&[0.0; 16], 2.0, &b, &a, 2), 4);
        let w = lab.of_base("transformer.h.0.attn.c_proj.weight");
        let want: Vec<f64> = w.iter().zip(delta).map(|(w, d)| w + d).collect();
        lab.merged().assert_is("transformer.h.0.attn.c_proj.weight", &want);
    }
}

#[test]
fn fan_in_fan_out_on_an_ordinary_linear_is_ignored() {
    let mut lab = linear();
    lab.config(json!({"fan_in_fan_out": true}));
    lab.merged().assert_is(&format!("{Q}.weight"), &expected(&lab, 2.0));
}

fn dora(lab: &mut Lab, count: usize) -> Vec<f64> {
    let magnitude: Vec<f32> = (0..count).map(|i| 0.5 + i as f32 * 0.25).collect();
    lab.config(json!({"use_dora": true}));
    lab.adapter_values(&format!("{Q}.lora_magnitude_vector"), Dtype::F32, &[count], &magnitude);
    magnitude.into_iter().map(f64::from).collect()
}

#[test]
fn dora_scales_each_output_row_to_its_magnitude() {
    let mut lab = linear();
    let magnitude = dora(&mut lab, 4);
    let mut want = expected(&lab, 2.0);
    for (row, m) in want.chunks_mut(6).zip(magnitude) {
        let norm = row.iter().map(|v| v * v).sum::<f64>().sqrt();
        row.iter_mut().for_each(|v| *v *= m / norm);
    }
    lab.merged().assert_is(&format!("{Q}.weight"), &want);
}

#[test]
fn dora_of_conv1d_scales_columns_by_a_pass_over_the_tensor() {
    let mut lab = Lab::new();
    let name = "h.0.mlp.c_fc";
    lab.model(json!({"model_type": "gpt2"})).config(json!({"use_dora": true}));
    // Several chunks: rows of 2 KiB bf16, 5000 of them.
    let (rows, cols) = (5000, 1024);
    let values: Vec<f32> = (0..rows * cols).map(|i| ((i % 8191) as f32 * 0.11).sin()).collect();
    lab.base_values(&format!("{name}.weight"), Dtype::BF16, &[rows, cols], &values);
    lab.adapter(&format!("{name}.lora_A.weight"), &[2, rows])
        .adapter(&format!("{name}.lora_B.weight"), &[cols, 2]);
    lab.adapter(&format!("{name}.lora_magnitude_vector"), &[cols]);
    let a = lab.of_adapter(&format!("{name}.lora_A.weight"));
    let b = lab.of_adapter(&format!("{name}.lora_B.weight"));
    let m = lab.of_adapter(&format!("{name}.lora_magnitude_vector"));
    let mut v = plus_product(
        &lab.of_base(&format!("{name}.weight")),
        2.0,
        &transpose(&a, 2),
        &transpose(&b, cols),
        2,
    );
    for c in 0..cols {
        let norm = (0..rows).map(|r| v[r * cols + c] * v[r * cols + c]).sum::<f64>().sqrt();
        (0..rows).for_each(|r| v[r * cols + c] *= m[c] / norm);
    }
    lab.merged().assert_is(&format!("{name}.weight"), &v);
}

#[test]
fn dora_without_magnitude_or_with_a_zero_norm_is_refused() {
    let mut lab = linear();
    lab.config(json!({"use_dora": true}));
    assert!(lab.refusal().contains("no magnitude"));
    let mut lab = Lab::new();
    lab.base_values(&format!("{Q}.weight"), Dtype::BF16, &[4, 6], &[0.0; 24]);
    lab.adapter(&format!("{Q}.lora_A.weight"), &[2, 6]);
    lab.adapter_values(&format!("{Q}.lora_B.weight"), Dtype::F32, &[4, 2], &[0.0; 8]);
    dora(&mut lab, 4);
    assert!(lab.refusal().contains("norm 0"));
}

#[test]
fn magnitude_without_use_dora_is_refused() {
    let mut lab = linear();
    dora(&mut lab, 4);
    lab.config(json!({"use_dora": false}));
    assert!(lab.refusal().contains("use_dora"));
}

#[test]
fn rank_and_alpha_patterns_are_used_and_the_tensors_decide_between_overlapping_ranks() {
    let mut lab = linear();
    lab.config(json!({"r": 8, "rank_pattern": {"self_attn.*": 4, "q_proj": 2}, "alpha_pattern": {"q_proj": 6, ".*q_proj": 7}}));
    let merged = lab.merged();
    merged.assert_is(&format!("{Q}.weight"), &expected(&lab, 3.0));
    assert!(
        merged.report.warnings.iter().any(|w| w.contains("alpha_pattern")),
        "{:?}",
        merged.report.warnings
    );
}

#[test]
fn rank_that_no_entry_names_is_refused_with_the_shapes() {
    let mut lab = linear();
    lab.config(json!({"r": 8, "rank_pattern": {"q_proj": 4}}));
    let text = lab.refusal();
    assert!(text.contains("rank 2") && text.contains("[4.0]") && text.contains("[2, 6]"), "{text}");
}

#[test]
fn several_adapters_are_an_exact_weighted_sum() {
    let (first, mut second) = (linear(), linear());
    second.config(json!({"lora_alpha": 1}));
    first.write();
    second.write();
    let adapters = [(first.path("adapter"), 0.5), (second.path("adapter"), -1.5)];
    merge(&first.path("base"), &adapters, &first.path("out"), Options::default()).unwrap();
    let a = second.of_adapter(&format!("{Q}.lora_A.weight"));
    let b = second.of_adapter(&format!("{Q}.lora_B.weight"));
    let want = plus_product(&expected(&first, 1.0), -0.75, &b, &a, 2);
    let got = tensors(&first.path("out"));
    let (dtype, _, bytes) = &got[&format!("{Q}.weight")];
    let want: Vec<f32> = want.iter().map(|v| *v as f32).collect();
    assert_eq!(support::difference(*dtype, &support::encode(*dtype, &want), bytes).0, 0);
}

#[test]
fn dora_beside_another_adapter_on_one_module_is_refused() {
    let (mut first, second) = (linear(), linear());
    dora(&mut first, 4);
    first.write();
    second.write();
    for order in [[0, 1], [1, 0]] {
        let dirs = order.map(|i| ([&first, &second][i].path("adapter"), 1.0));
        let e = merge(&first.path("base"), &dirs, &first.path("out"), Options::default()).unwrap_err();
        assert!(e.to_string().contains("DoRA and by another adapter"), "{e}");
    }
}

#[test]
fn weights_that_make_no_sense_are_refused() {
    let mut lab = linear();
    lab.write();
    for weight in [0.0, f64::NAN, f64::INFINITY] {
        let e =
            merge(&lab.path("base"), &[(lab.path("adapter"), weight)], &lab.path("out"), Options::default());
        assert_eq!(e.unwrap_err().class().exit_code(), 2);
    }
    dora(&mut lab, 4);
    lab.write();
    let e = merge(&lab.path("base"), &[(lab.path("adapter"), 0.5)], &lab.path("out"), Options::default());
    assert!(e.unwrap_err().to_string().contains("DoRA"));
}

#[test]
fn overflow_is_refused_by_name_and_nan_of_the_base_is_reported() {
    let mut lab = Lab::new();
    lab.base_values(&format!("{Q}.weight"), Dtype::F16, &[4, 6], &[60000.0; 24]);
    lab.adapter_values(&format!("{Q}.lora_A.weight"), Dtype::F32, &[2, 6], &[100.0; 12]);
    lab.adapter_values(&format!("{Q}.lora_B.weight"), Dtype::F32, &[4, 2], &[100.0; 8]);
    let text = lab.merge().unwrap_err().to_string();
    assert!(text.contains(Q) && text.contains("overflows"), "{text}");

    for dtype in [Dtype::BF16, Dtype::F32] {
        let mut lab = Lab::new();
        let mut values = [1.0; 24];
        values[7] = f32::NAN;
        lab.base_values(&format!("{Q}.weight"), dtype, &[4, 6], &values);
        lab.adapter(&format!("{Q}.lora_A.weight"), &[2, 6]).adapter(&format!("{Q}.lora_B.weight"), &[4, 2]);
        let merged = lab.merged();
        assert!(merged.values(&format!("{Q}.weight"))[7].is_nan());
        assert!(merged.report.warnings.iter().any(|w| w.contains("NaN")), "{:?}", merged.report.warnings);
    }
}

#[test]
fn untrained_adapter_warns_loudly_and_changes_nothing() {
    let mut lab = Lab::new();
    lab.base(&format!("{Q}.weight"), &[4, 6]).adapter(&format!("{Q}.lora_A.weight"), &[2, 6]);
    lab.adapter_values(&format!("{Q}.lora_B.weight"), Dtype::F32, &[4, 2], &[0.0; 8]);
    let merged = lab.merged();
    assert_eq!(merged.tensors, tensors(&lab.path("base")));
    assert!(
        merged.report.warnings.iter().any(|w| w.contains("CHANGED NOTHING")),
        "{:?}",
        merged.report.warnings
    );
}

#[test]
fn changes_that_round_away_are_warned_of_with_their_share() {
    let mut lab = linear();
    let big = "model.layers.0.self_attn.k_proj";
    lab.base_values(&format!("{big}.weight"), Dtype::BF16, &[4, 6], &[1e6; 24]);
    lab.adapter(&format!("{big}.lora_A.weight"), &[2, 6]).adapter(&format!("{big}.lora_B.weight"), &[4, 2]);
    let merged = lab.merged();
    let warning = merged.report.warnings.iter().find(|w| w.contains("less than 1 %")).unwrap();
    assert!(warning.contains("k_proj") && !warning.contains("q_proj"));
    let targets = merged.report.stages[0].details["targets"].as_array().unwrap().clone();
    let of =
        |name: &str| targets.iter().find(|t| t["tensor"].as_str().unwrap().contains(name)).unwrap().clone();
    assert_eq!(of("k_proj")["changed"], 0.0);
    assert!(
        of("q_proj")["changed"].as_f64().unwrap() > 0.9
            && of("q_proj")["relative_change"].as_f64().unwrap() > 0.1
    );
}

#[test]
fn scale_of_zero_is_refused() {
    let mut lab = linear();
    lab.config(json!({"lora_alpha": 0}));
    assert!(lab.refusal().contains("scale"));
}

const BLOCK: &str = r#"{"quant_method": "fp8", "weight_block_size": [128, 128]}"#;
const CHANNEL: &str = r#"{"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups":
    {"group_0": {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}}}"#;

/// An FP8 base: one weight of 130 x 200 with its scales, another that no adapter touches.
fn fp8(format: &str) -> Lab {
    let mut lab = Lab::new();
    lab.model(json!({"quantization_config": serde_json::from_str::<serde_json::Value>(format).unwrap()}));
    for name in ["a_proj", "b_proj"] {
        lab.base_bytes(&format!("model.{name}.weight"), Dtype::F8_E4M3, &[130, 200], codes());
        let (leaf, shape) =
            if format == BLOCK { ("weight_scale_inv", [2, 2]) } else { ("weight_scale", [130, 1]) };
        let scales: Vec<f32> = (0..shape[0] * shape[1]).map(|i| 0.001 * (i + 1) as f32).collect();
        lab.base_values(&format!("model.{name}.{leaf}"), Dtype::F32, &shape, &scales);
        lab.base_values(&format!("model.{name}.input_scale"), Dtype::F32, &[1], &[1.0]);
    }
    lab.adapter("model.a_proj.lora_A.weight", &[2, 200]).adapter("model.a_proj.lora_B.weight", &[130, 2]);
    lab
}

fn codes() -> Vec<u8> {
    (0..130 * 200u32).map(|i| (i.wrapping_mul(37) % 0x78) as u8).collect()
}

fn dequantized(format: &str) -> Vec<f64> {
    let value = |(i, code): (usize, u8)| {
        let (e, m) = (i32::from(code >> 3), f64::from(code & 7));
        let v = if e == 0 { m / 8.0 * 2f64.powi(-6) } else { (1.0 + m / 8.0) * 2f64.powi(e - 7) };
        let (row, col) = (i / 200, i % 200);
        let scale = if format == BLOCK { row / 128 * 2 + col / 128 } else { row };
        v * f64::from(0.001 * (scale + 1) as f32)
    };
    codes().into_iter().enumerate().map(value).collect()
}

#[test]
fn fp8_base_is_dequantized_to_bf16_on_the_way() {
    for format in [BLOCK, CHANNEL] {
        let lab = fp8(format);
        let merged = lab.merged();
        let (a, b) =
            (lab.of_adapter("model.a_proj.lora_A.weight"), lab.of_adapter("model.a_proj.lora_B.weight"));
        merged.assert_is("model.a_proj.weight", &plus_product(&dequantized(format), 2.0, &b, &a, 2));
        merged.assert_is("model.b_proj.weight", &dequantized(format));
        assert_eq!(merged.tensors.len(), 2);
        assert!(merged.tensors.values().all(|t| t.0 == Dtype::BF16));
        assert!(merged.config().get("quantization_config").is_none());
        assert!(merged.report.stages[0].decisions.iter().any(|d| d.what == "quantization"));
        assert_eq!(merged.report.stages[0].details["summary"]["tensors_changed"], 1);
    }
}

#[test]
fn fp8_weight_without_fitting_scales_is_refused() {
    let mut lab = fp8(BLOCK);
    lab.base_bytes("model.c_proj.weight", Dtype::F8_E4M3, &[1, 1], vec![0]);
    assert!(lab.refusal().contains("model.c_proj.weight"));
}

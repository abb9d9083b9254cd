//! Experts: fused and per-expert adapters on bases of every layout give the same weights.
#![allow(clippy::unwrap_used)]

mod support;

use serde_json::{Value, json};
use support::{Lab, plus_product, transpose};

const X: &str = "model.layers.0.mlp.experts";
const E: usize = 3;
const R: usize = 2;

/// Hidden 6, inner 4, three experts.
struct Shape {
    hidden: usize,
    inner: usize,
}

const SMALL: Shape = Shape { hidden: 6, inner: 4 };
const SQUARE: Shape = Shape { hidden: 8, inner: 4 };

fn per_expert_base(lab: &mut Lab, s: &Shape) {
    for e in 0..E {
        lab.base(&format!("{X}.{e}.gate_proj.weight"), &[s.inner, s.hidden]);
        lab.base(&format!("{X}.{e}.up_proj.weight"), &[s.inner, s.hidden]);
        lab.base(&format!("{X}.{e}.down_proj.weight"), &[s.hidden, s.inner]);
    }
}

fn fused_base(lab: &mut Lab, s: &Shape) {
    lab.base(&format!("{X}.gate_up_proj"), &[E, 2 * s.inner, s.hidden]);
    lab.base(&format!("{X}.down_proj"), &[E, s.hidden, s.inner]);
}

/// gpt_oss and Qwen3-VL-MoE files: (in, out).
fn turned_base(lab: &mut Lab, s: &Shape) {
    lab.base(&format!("{X}.gate_up_proj"), &[E, s.hidden, 2 * s.inner]);
    lab.base(&format!("{X}.down_proj"), &[E, s.inner, s.hidden]);
}

/// A fused pair with product (out, in) per expert; both parameters, so one is nested.
fn fused_adapter(lab: &mut Lab, (gate_up, down): ((usize, usize), (usize, usize))) {
    lab.config(json!({"target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]}));
    lab.adapter(&format!("{X}.base_layer.lora_A.weight"), &[E * R, gate_up.1]);
    lab.adapter(&format!("{X}.base_layer.lora_B.weight"), &[gate_up.0, E * R]);
    lab.adapter(&format!("{X}.lora_A.weight"), &[E * R, down.1]);
    lab.adapter(&format!("{X}.lora_B.weight"), &[down.0, E * R]);
}

/// P[e] by the formula: A row e·r + j, B column j·E + e.
fn product(lab: &Lab, pair: &str, e: usize, (out, inp): (usize, usize)) -> Vec<f64> {
    let a = lab.of_adapter(&format!("{X}.{pair}lora_A.weight"));
    let b = lab.of_adapter(&format!("{X}.{pair}lora_B.weight"));
    let mut p = vec![0.0; out * inp];
    for j in 0..R {
        for o in 0..out {
            for i in 0..inp {
                p[o * inp + i] += b[o * E * R + j * E + e] * a[(e * R + j) * inp + i];
            }
        }
    }
    p
}

fn sum(w: &[f64], p: &[f64], scale: f64) -> Vec<f64> {
    w.iter().zip(p).map(|(w, p)| w + scale * p).collect()
}

fn versions(lab: &mut Lab, version: Value) {
    lab.config(json!({"peft_version": version}));
}

#[test]
fn fused_adapter_on_a_per_expert_base_is_split_into_gate_and_up() {
    let (mut lab, s) = (Lab::new(), SMALL);
    per_expert_base(&mut lab, &s);
    fused_adapter(&mut lab, ((2 * s.inner, s.hidden), (s.hidden, s.inner)));
    let merged = lab.merged();
    for e in 0..E {
        let p = product(&lab, "base_layer.", e, (2 * s.inner, s.hidden));
        let (gate, up) = p.split_at(s.inner * s.hidden);
        let down = product(&lab, "", e, (s.hidden, s.inner));
        for (part, p) in [("gate_proj", gate), ("up_proj", up), ("down_proj", &down)] {
            let name = format!("{X}.{e}.{part}.weight");
            merged.assert_is(&name, &sum(&lab.of_base(&name), p, 2.0));
        }
    }
}

#[test]
fn fused_adapter_on_a_fused_base_keeps_the_layout() {
    let (mut lab, s) = (Lab::new(), SMALL);
    fused_base(&mut lab, &s);
    fused_adapter(&mut lab, ((2 * s.inner, s.hidden), (s.hidden, s.inner)));
    let merged = lab.merged();
    let all = |pair: &str, shape| (0..E).flat_map(|e| product(&lab, pair, e, shape)).collect::<Vec<_>>();
    let name = format!("{X}.gate_up_proj");
    let p = all("base_layer.", (2 * s.inner, s.hidden));
    merged.assert_is(&name, &sum(&lab.of_base(&name), &p, 2.0));
    let name = format!("{X}.down_proj");
    merged.assert_is(&name, &sum(&lab.of_base(&name), &all("", (s.hidden, s.inner)), 2.0));
}

#[test]
fn factors_of_older_peft_are_transposed_where_the_shape_says_so() {
    // Up to 0.18 in and out were swapped: the product is (in, out).
    let (mut lab, s) = (Lab::new(), SMALL);
    versions(&mut lab, json!("0.18.0"));
    fused_base(&mut lab, &s);
    fused_adapter(&mut lab, ((s.hidden, 2 * s.inner), (s.inner, s.hidden)));
    let p: Vec<f64> = (0..E)
        .flat_map(|e| transpose(&product(&lab, "base_layer.", e, (s.hidden, 2 * s.inner)), s.hidden))
        .collect();
    let name = format!("{X}.gate_up_proj");
    lab.merged().assert_is(&name, &sum(&lab.of_base(&name), &p, 2.0));
}

#[test]
fn square_experts_follow_the_version_of_peft() {
    let s = SQUARE;
    for (model, version, straight) in [
        ("qwen3_moe", "0.21.2", true),
        ("qwen3_moe", "0.19.1", true),
        ("qwen3_moe", "0.19.0", false),
        ("qwen3_moe", "0.18.1", false),
        ("gpt_oss", "0.19.0", true),
        ("gpt_oss", "0.19.1", false),
        ("qwen3_vl_moe", "0.18.0", false),
    ] {
        for per_expert in [true, false] {
            if per_expert && model != "qwen3_moe" {
                continue;
            }
            let mut lab = Lab::new();
            lab.model(json!({"model_type": model}));
            versions(&mut lab, json!(version));
            let out = 2 * s.inner;
            if per_expert {
                per_expert_base(&mut lab, &s)
            } else {
                fused_base(&mut lab, &s)
            }
            lab.config(json!({"target_parameters": ["gate_up_proj"]}));
            lab.adapter(&format!("{X}.lora_A.weight"), &[E * R, s.hidden]);
            lab.adapter(&format!("{X}.lora_B.weight"), &[out, E * R]);
            let merged = lab.merged();
            for e in 0..E {
                let p = product(&lab, "", e, (out, s.hidden));
                let p = if straight { p } else { transpose(&p, out) };
                if per_expert {
                    let name = format!("{X}.{e}.up_proj.weight");
                    merged.assert_is(&name, &sum(&lab.of_base(&name), &p[s.inner * s.hidden..], 2.0));
                } else {
                    let name = format!("{X}.gate_up_proj");
                    let (from, to) = (e * p.len(), (e + 1) * p.len());
                    let want = sum(&lab.of_base(&name)[from..to], &p, 2.0);
                    let got = &merged.values(&name)[from..to];
                    assert!(
                        want.iter().zip(got).all(|(w, g)| (w - g).abs() < 0.02 * w.abs() + 1e-2),
                        "{model} {version}"
                    );
                }
            }
        }
    }
}

#[test]
fn square_experts_without_a_version_are_refused() {
    let (mut lab, s) = (Lab::new(), SQUARE);
    versions(&mut lab, Value::Null);
    fused_base(&mut lab, &s);
    lab.config(json!({"target_parameters": ["gate_up_proj"]}));
    lab.adapter(&format!("{X}.lora_A.weight"), &[E * R, s.hidden]);
    lab.adapter(&format!("{X}.lora_B.weight"), &[2 * s.inner, E * R]);
    let text = lab.refusal();
    assert!(text.contains("ambiguous") && text.contains("peft_version"), "{text}");
}

#[test]
fn single_wrapper_is_the_parameter_that_the_config_names() {
    let (mut lab, s) = (Lab::new(), SMALL);
    fused_base(&mut lab, &s);
    lab.config(json!({"target_parameters": ["experts.down_proj"]}));
    lab.adapter(&format!("{X}.lora_A.weight"), &[E * R, s.inner])
        .adapter(&format!("{X}.lora_B.weight"), &[s.hidden, E * R]);
    let p: Vec<f64> = (0..E).flat_map(|e| product(&lab, "", e, (s.hidden, s.inner))).collect();
    let name = format!("{X}.down_proj");
    lab.merged().assert_is(&name, &sum(&lab.of_base(&name), &p, 2.0));
}

#[test]
fn wrappers_that_the_config_does_not_explain_are_refused() {
    let (mut lab, s) = (Lab::new(), SMALL);
    fused_base(&mut lab, &s);
    lab.adapter(&format!("{X}.lora_A.weight"), &[E * R, s.inner])
        .adapter(&format!("{X}.lora_B.weight"), &[s.hidden, E * R]);
    assert!(lab.refusal().contains("target_parameters"));
}

fn per_expert_pair(lab: &mut Lab, e: usize, name: &str, (out, inp): (usize, usize)) -> Vec<f64> {
    lab.adapter(&format!("{X}.{e}.{name}.lora_A.weight"), &[R, inp]);
    lab.adapter(&format!("{X}.{e}.{name}.lora_B.weight"), &[out, R]);
    let a = lab.of_adapter(&format!("{X}.{e}.{name}.lora_A.weight"));
    let b = lab.of_adapter(&format!("{X}.{e}.{name}.lora_B.weight"));
    plus_product(&vec![0.0; out * inp], 2.0, &b, &a, R)
}

#[test]
fn per_expert_adapter_on_a_fused_base_goes_to_its_slice() {
    for names in [["gate_proj", "up_proj", "down_proj"], ["w1", "w3", "w2"]] {
        let (mut lab, s) = (Lab::new(), SMALL);
        fused_base(&mut lab, &s);
        let mut gate_up = lab.of_base(&format!("{X}.gate_up_proj"));
        let mut down = lab.of_base(&format!("{X}.down_proj"));
        let half = s.inner * s.hidden;
        let mut add = |lab: &mut Lab, e: usize, name: &str, first: usize| {
            let p = per_expert_pair(lab, e, name, (s.inner, s.hidden));
            gate_up[first..first + half].iter_mut().zip(p).for_each(|(w, p)| *w += p);
        };
        // Expert 0: gate only; expert 2: up only and down.
        add(&mut lab, 0, names[0], 0);
        add(&mut lab, 2, names[1], 2 * 2 * half + half);
        let p = per_expert_pair(&mut lab, 2, names[2], (s.hidden, s.inner));
        down[2 * half..].iter_mut().zip(p).for_each(|(w, p)| *w += p);
        let merged = lab.merged();
        merged.assert_is(&format!("{X}.gate_up_proj"), &gate_up);
        merged.assert_is(&format!("{X}.down_proj"), &down);
    }
}

#[test]
fn per_expert_adapter_under_other_names_finds_the_base() {
    let (mut lab, s) = (Lab::new(), SMALL);
    per_expert_base(&mut lab, &s);
    let p = per_expert_pair(&mut lab, 1, "w3", (s.inner, s.hidden));
    let name = format!("{X}.1.up_proj.weight");
    lab.merged().assert_is(&name, &sum(&lab.of_base(&name), &p, 1.0));
}

#[test]
fn per_expert_adapter_on_a_transposed_base_goes_to_columns() {
    for (model, interleaved) in [("gpt_oss", true), ("qwen3_vl_moe", false)] {
        let (mut lab, s) = (Lab::new(), SMALL);
        lab.model(json!({"model_type": model}));
        turned_base(&mut lab, &s);
        let up = per_expert_pair(&mut lab, 1, "up_proj", (s.inner, s.hidden));
        let mut want = lab.of_base(&format!("{X}.gate_up_proj"));
        for h in 0..s.hidden {
            for i in 0..s.inner {
                let col = if interleaved { 2 * i + 1 } else { s.inner + i };
                want[(s.hidden + h) * 2 * s.inner + col] += up[i * s.hidden + h];
            }
        }
        lab.merged().assert_is(&format!("{X}.gate_up_proj"), &want);
    }
}

#[test]
fn expert_beyond_the_base_is_refused() {
    for fused in [true, false] {
        let (mut lab, s) = (Lab::new(), SMALL);
        if fused {
            fused_base(&mut lab, &s)
        } else {
            per_expert_base(&mut lab, &s)
        }
        per_expert_pair(&mut lab, E, "up_proj", (s.inner, s.hidden));
        assert!(lab.refusal().contains("experts.3.up_proj"));
    }
}

#[test]
fn rank_pattern_sees_the_parameter_and_the_rank_is_per_expert() {
    let (mut lab, s) = (Lab::new(), SMALL);
    fused_base(&mut lab, &s);
    lab.config(json!({"target_parameters": ["down_proj"], "r": 7, "rank_pattern": {"experts.down_proj": 2}, "alpha_pattern": {"down_proj": 6}}));
    lab.adapter(&format!("{X}.lora_A.weight"), &[E * R, s.inner])
        .adapter(&format!("{X}.lora_B.weight"), &[s.hidden, E * R]);
    let p: Vec<f64> = (0..E).flat_map(|e| product(&lab, "", e, (s.hidden, s.inner))).collect();
    let name = format!("{X}.down_proj");
    lab.merged().assert_is(&name, &sum(&lab.of_base(&name), &p, 3.0));
}

#[test]
fn router_as_a_parameter_is_plain_lora() {
    let mut lab = Lab::new();
    lab.config(json!({"target_parameters": ["mlp.gate.weight"]}))
        .base("model.layers.0.mlp.gate.weight", &[E, 6]);
    lab.adapter("model.layers.0.mlp.gate.lora_A.weight", &[R, 6])
        .adapter("model.layers.0.mlp.gate.lora_B.weight", &[E, R]);
    let a = lab.of_adapter("model.layers.0.mlp.gate.lora_A.weight");
    let b = lab.of_adapter("model.layers.0.mlp.gate.lora_B.weight");
    let w = lab.of_base("model.layers.0.mlp.gate.weight");
    lab.merged().assert_is("model.layers.0.mlp.gate.weight", &plus_product(&w, 2.0, &b, &a, R));
}

#[test]
fn dora_on_experts_is_refused() {
    let (mut lab, s) = (Lab::new(), SMALL);
    per_expert_base(&mut lab, &s);
    lab.config(json!({"use_dora": true}));
    per_expert_pair(&mut lab, 0, "up_proj", (s.inner, s.hidden));
    lab.adapter(&format!("{X}.0.up_proj.lora_magnitude_vector"), &[s.inner]);
    assert!(lab.refusal().contains("DoRA on experts"));
}

#[test]
fn factors_of_another_number_of_experts_are_refused() {
    let (mut lab, s) = (Lab::new(), SMALL);
    fused_base(&mut lab, &s);
    lab.config(json!({"target_parameters": ["down_proj"]}));
    lab.adapter(&format!("{X}.lora_A.weight"), &[8, s.inner])
        .adapter(&format!("{X}.lora_B.weight"), &[s.hidden, 8]);
    assert!(lab.refusal().contains("3 experts"));
}

#[test]
fn prefixes_are_rewritten_for_experts_as_well() {
    let (mut lab, s) = (Lab::new(), SMALL);
    lab.base("model.language_model.layers.0.mlp.experts.gate_up_proj", &[E, 2 * s.inner, s.hidden]);
    lab.base("model.language_model.layers.0.mlp.experts.down_proj", &[E, s.hidden, s.inner]);
    per_expert_pair(&mut lab, 1, "down_proj", (s.hidden, s.inner));
    let report = lab.merge().unwrap();
    let rewrites = report.stages[0].details["prefix_rewrites"].clone();
    assert_eq!(rewrites[0]["rewrite"], "model.* → model.language_model.*");
    assert_eq!(rewrites[0]["tensors"], 2);
}

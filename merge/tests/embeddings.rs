//! Embeddings: factors, whole tensors, new rows, new sizes, and what becomes of tied ones.
#![allow(clippy::unwrap_used)]

mod support;

use serde_json::{Value, json};
use support::{Lab, Merged, plus_product, tensors, transpose};
use verify::Dtype;

const EMBED: &str = "model.embed_tokens";
const VOCAB: usize = 6;
const DIM: usize = 4;

fn untied() -> Lab {
    let mut lab = Lab::new();
    lab.base(&format!("{EMBED}.weight"), &[VOCAB, DIM]).base("lm_head.weight", &[VOCAB, DIM]);
    lab
}

fn tied() -> Lab {
    let mut lab = Lab::new();
    lab.model(json!({"tie_word_embeddings": true}));
    lab.base(&format!("{EMBED}.weight"), &[VOCAB, DIM]).base("model.norm.weight", &[DIM]);
    lab
}

fn embed_pair(lab: &mut Lab) -> Vec<f64> {
    lab.adapter(&format!("{EMBED}.lora_embedding_A"), &[2, VOCAB])
        .adapter(&format!("{EMBED}.lora_embedding_B"), &[DIM, 2]);
    let a = lab.of_adapter(&format!("{EMBED}.lora_embedding_A"));
    let b = lab.of_adapter(&format!("{EMBED}.lora_embedding_B"));
    let w = lab.of_base(&format!("{EMBED}.weight"));
    plus_product(&w, 2.0, &transpose(&a, 2), &transpose(&b, DIM), 2)
}

fn head_pair(lab: &mut Lab) -> Vec<f64> {
    lab.adapter("lm_head.lora_A.weight", &[2, DIM]).adapter("lm_head.lora_B.weight", &[VOCAB, 2]);
    let (a, b) = (lab.of_adapter("lm_head.lora_A.weight"), lab.of_adapter("lm_head.lora_B.weight"));
    plus_product(&lab.of_base(&format!("{EMBED}.weight")), 2.0, &b, &a, 2)
}

fn assert_tied(m: &Merged) {
    assert_eq!(m.config()["tie_word_embeddings"], true);
    assert!(!m.tensors.contains_key("lm_head.weight"));
}

fn assert_untied(m: &Merged) {
    assert_eq!(m.config()["tie_word_embeddings"], false);
    let said = m.report.stages[0].decisions.iter().any(|d| d.choice.contains("untied"));
    assert!(said && m.report.stages[0].details["embeddings"] == "untied");
}

#[test]
fn embedding_factors_are_transposed() {
    let mut lab = untied();
    let want = embed_pair(&mut lab);
    lab.merged().assert_is(&format!("{EMBED}.weight"), &want);
}

#[test]
fn dora_of_an_embedding_scales_columns_over_the_vocabulary() {
    let mut lab = untied();
    lab.config(json!({"use_dora": true}));
    let mut want = embed_pair(&mut lab);
    lab.adapter(&format!("{EMBED}.lora_magnitude_vector"), &[DIM]);
    let m = lab.of_adapter(&format!("{EMBED}.lora_magnitude_vector"));
    for c in 0..DIM {
        let norm = (0..VOCAB).map(|r| want[r * DIM + c].powi(2)).sum::<f64>().sqrt();
        (0..VOCAB).for_each(|r| want[r * DIM + c] *= m[c] / norm);
    }
    lab.merged().assert_is(&format!("{EMBED}.weight"), &want);
}

#[test]
fn tied_model_untouched_stays_tied() {
    let mut lab = tied();
    lab.base("model.q_proj.weight", &[4, 4]);
    lab.adapter("model.q_proj.lora_A.weight", &[2, 4]).adapter("model.q_proj.lora_B.weight", &[4, 2]);
    assert_tied(&lab.merged());
}

#[test]
fn factors_on_the_input_side_of_a_tied_model_untie_with_the_old_head() {
    let mut lab = tied();
    let want = embed_pair(&mut lab);
    let merged = lab.merged();
    assert_untied(&merged);
    merged.assert_is(&format!("{EMBED}.weight"), &want);
    assert_eq!(merged.tensors["lm_head.weight"], tensors(&lab.path("base"))[&format!("{EMBED}.weight")]);
}

#[test]
fn factors_on_the_head_of_a_tied_model_untie_with_the_old_embedding() {
    let mut lab = tied();
    let want = head_pair(&mut lab);
    let merged = lab.merged();
    assert_untied(&merged);
    merged.assert_is("lm_head.weight", &want);
    let name = format!("{EMBED}.weight");
    assert_eq!(merged.tensors[&name], tensors(&lab.path("base"))[&name]);
}

#[test]
fn different_factors_on_both_sides_untie() {
    let mut lab = tied();
    let (embed, head) = (embed_pair(&mut lab), head_pair(&mut lab));
    let merged = lab.merged();
    assert_untied(&merged);
    merged.assert_is(&format!("{EMBED}.weight"), &embed);
    merged.assert_is("lm_head.weight", &head);
}

/// Head factors that are the transposed twins of the embedding's.
fn twins(lab: &mut Lab) {
    let f32s = |v: Vec<f64>| v.into_iter().map(|v| v as f32).collect::<Vec<f32>>();
    let a = f32s(transpose(&lab.of_adapter(&format!("{EMBED}.lora_embedding_B")), DIM));
    let b = f32s(transpose(&lab.of_adapter(&format!("{EMBED}.lora_embedding_A")), 2));
    lab.adapter_values("lm_head.lora_A.weight", Dtype::F32, &[2, DIM], &a);
    lab.adapter_values("lm_head.lora_B.weight", Dtype::F32, &[VOCAB, 2], &b);
}

#[test]
fn equal_results_on_both_sides_stay_tied() {
    for keeps in [false, true] {
        let mut lab = tied();
        lab.config(json!({"ensure_weight_tying": keeps}));
        let want = embed_pair(&mut lab);
        twins(&mut lab);
        let merged = lab.merged();
        assert_tied(&merged);
        merged.assert_is(&format!("{EMBED}.weight"), &want);
    }
}

#[test]
fn ensure_weight_tying_puts_one_delta_on_the_shared_matrix() {
    let mut lab = tied();
    lab.config(json!({"ensure_weight_tying": true}));
    let want = embed_pair(&mut lab);
    let merged = lab.merged();
    assert_tied(&merged);
    merged.assert_is(&format!("{EMBED}.weight"), &want);

    let mut lab = tied();
    lab.config(json!({"ensure_weight_tying": true}));
    embed_pair(&mut lab);
    head_pair(&mut lab);
    assert_untied(&lab.merged());
}

#[test]
fn ensure_weight_tying_declares_both_sides_of_a_saved_embedding() {
    let mut lab = tied();
    lab.config(json!({"ensure_weight_tying": true, "modules_to_save": ["embed_tokens"]}));
    lab.adapter(&format!("{EMBED}.weight"), &[VOCAB, DIM]);
    let same: Vec<f32> = lab.of_adapter(&format!("{EMBED}.weight")).iter().map(|v| *v as f32).collect();
    lab.adapter_values("lm_head.weight", Dtype::F32, &[VOCAB, DIM], &same);
    let merged = lab.merged();
    assert_tied(&merged);
    merged.assert_is(&format!("{EMBED}.weight"), &lab.of_adapter(&format!("{EMBED}.weight")));
}

#[test]
fn equal_copy_of_the_head_in_a_tied_base_follows_the_same_rules() {
    let with_copy = || {
        let mut lab = tied();
        let same: Vec<f32> = lab.of_base(&format!("{EMBED}.weight")).iter().map(|v| *v as f32).collect();
        lab.base_values("lm_head.weight", Dtype::BF16, &[VOCAB, DIM], &same);
        lab
    };
    let mut lab = with_copy();
    embed_pair(&mut lab);
    let merged = lab.merged();
    assert_untied(&merged);
    assert_eq!(merged.tensors["lm_head.weight"], tensors(&lab.path("base"))["lm_head.weight"]);

    let mut lab = with_copy();
    embed_pair(&mut lab);
    twins(&mut lab);
    let merged = lab.merged();
    assert_eq!(merged.config()["tie_word_embeddings"], true);
    assert_eq!(merged.tensors["lm_head.weight"], merged.tensors[&format!("{EMBED}.weight")]);
}

#[test]
fn head_that_is_not_a_copy_was_never_tied() {
    let mut lab = tied();
    lab.base("lm_head.weight", &[VOCAB, DIM]);
    let want = embed_pair(&mut lab);
    let merged = lab.merged();
    merged.assert_is(&format!("{EMBED}.weight"), &want);
    assert_eq!(merged.tensors["lm_head.weight"], tensors(&lab.path("base"))["lm_head.weight"]);
    assert_eq!(merged.config()["tie_word_embeddings"], true);
    assert!(merged.report.warnings.iter().any(|w| w.contains("another matrix")));
}

#[test]
fn untying_edits_the_text_config_too_where_it_says_it() {
    for (inner, want) in
        [(json!({"tie_word_embeddings": true}), json!(false)), (json!({"x": 1}), Value::Null)]
    {
        let mut lab = tied();
        lab.model(json!({"text_config": inner}));
        head_pair(&mut lab);
        let config = lab.merged().config();
        assert_eq!(
            (&config["tie_word_embeddings"], &config["text_config"]["tie_word_embeddings"]),
            (&json!(false), &want)
        );
    }
}

#[test]
fn new_head_of_a_sharded_model_goes_to_the_last_shard() {
    let mut lab = tied();
    head_pair(&mut lab);
    lab.write();
    let base = lab.path("base");
    std::fs::remove_file(base.join("model.safetensors")).unwrap();
    let spec = |n: &str, s: &[usize]| verify::checkpoint::TensorSpec::new(n, Dtype::BF16, s);
    let embed: Vec<f32> = lab.of_base(&format!("{EMBED}.weight")).iter().map(|v| *v as f32).collect();
    let files = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    let name = format!("{EMBED}.weight");
    support::write_safetensors(
        &base.join(files[0]),
        &[(spec(&name, &[VOCAB, DIM]), support::encode(Dtype::BF16, &embed))],
    );
    support::write_safetensors(
        &base.join(files[1]),
        &[(spec("model.norm.weight", &[DIM]), vec![0; 2 * DIM])],
    );
    let index = json!({"metadata": {}, "weight_map": {name: files[0], "model.norm.weight": files[1]}});
    std::fs::write(base.join("model.safetensors.index.json"), index.to_string()).unwrap();
    support::merge(&base, &[(lab.path("adapter"), 1.0)], &lab.path("out"), Default::default()).unwrap();
    let text = std::fs::read_to_string(lab.path("out/model.safetensors.index.json")).unwrap();
    let index: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(index["weight_map"]["lm_head.weight"], files[1]);
    assert_eq!(index["metadata"]["total_size"], 2 * 2 * VOCAB * DIM + 2 * DIM);
}

#[test]
fn saved_module_replaces_with_one_rounding() {
    let mut lab = untied();
    lab.base("model.final_layernorm.weight", &[DIM]).config(json!({"modules_to_save": ["norm", "lm_head"]}));
    lab.adapter("model.final_layernorm.weight", &[DIM])
        .adapter("lm_head.modules_to_save.default.weight", &[VOCAB, DIM]);
    lab.adapter("lm_head.original_module.weight", &[VOCAB, DIM]);
    let merged = lab.merged();
    merged.assert_is("model.final_layernorm.weight", &lab.of_adapter("model.final_layernorm.weight"));
    merged.assert_is("lm_head.weight", &lab.of_adapter("lm_head.modules_to_save.default.weight"));
}

#[test]
fn bias_tensors_replace_where_the_config_trains_them() {
    let mut lab = untied();
    lab.base("model.q.weight", &[4, 4]).base("model.q.bias", &[4]).base("model.k.bias", &[4]);
    lab.adapter("model.q.lora_A.weight", &[2, 4]).adapter("model.q.lora_B.weight", &[4, 2]);
    lab.adapter("model.q.base_layer.bias", &[4]).adapter("model.k.bias", &[4]);
    assert!(lab.refusal().contains("model.k.bias"));
    lab.config(json!({"bias": "all"}));
    let merged = lab.merged();
    merged.assert_is("model.q.bias", &lab.of_adapter("model.q.base_layer.bias"));
    merged.assert_is("model.k.bias", &lab.of_adapter("model.k.bias"));
}

#[test]
fn base_layer_replaces_before_the_delta() {
    let mut lab = untied();
    lab.base("model.q.weight", &[4, 4]).adapter("model.q.base_layer.weight", &[4, 4]);
    lab.adapter("model.q.lora_A.weight", &[2, 4]).adapter("model.q.lora_B.weight", &[4, 2]);
    let (a, b) = (lab.of_adapter("model.q.lora_A.weight"), lab.of_adapter("model.q.lora_B.weight"));
    let want = plus_product(&lab.of_adapter("model.q.base_layer.weight"), 2.0, &b, &a, 2);
    lab.merged().assert_is("model.q.weight", &want);
}

#[test]
fn whole_tensor_of_another_shape_is_refused() {
    let mut lab = untied();
    lab.base("model.norm.weight", &[DIM])
        .config(json!({"modules_to_save": ["norm"]}))
        .adapter("model.norm.weight", &[DIM + 1]);
    assert!(lab.refusal().contains("model.norm.weight"));
}

fn resized(lab: &mut Lab, rows: usize) {
    lab.config(json!({"modules_to_save": ["embed_tokens", "lm_head"]}));
    lab.adapter(&format!("{EMBED}.weight"), &[rows, DIM]).adapter("lm_head.weight", &[rows, DIM]);
}

#[test]
fn resized_vocabulary_is_set_wherever_it_stands() {
    for (config, want) in [
        (json!({"vocab_size": 6}), json!([8, null])),
        (json!({"vocab_size": null, "text_config": {"vocab_size": 6}}), json!([8, 8])),
    ] {
        let mut lab = untied();
        lab.model(config);
        if lab.base_config["vocab_size"].is_null() {
            lab.base_config.as_object_mut().unwrap().remove("vocab_size");
        }
        resized(&mut lab, 8);
        let merged = lab.merged();
        let c = merged.config();
        assert_eq!(c["text_config"]["vocab_size"], want[1]);
        assert_eq!(c.get("vocab_size").cloned(), if want[1].is_null() { Some(json!(8)) } else { None });
        merged.assert_is("lm_head.weight", &lab.of_adapter("lm_head.weight"));
    }
}

#[test]
fn sides_of_different_size_are_refused() {
    let mut lab = untied();
    lab.config(json!({"modules_to_save": ["embed_tokens"]})).adapter(&format!("{EMBED}.weight"), &[8, DIM]);
    assert!(lab.refusal().contains("lm_head.weight"));
    let mut lab = tied();
    lab.config(json!({"modules_to_save": ["embed_tokens"]})).adapter(&format!("{EMBED}.weight"), &[8, DIM]);
    assert!(lab.refusal().contains("one size"));
}

#[test]
fn resized_tied_model_with_equal_sides_stays_tied() {
    let mut lab = tied();
    lab.config(json!({"modules_to_save": ["embed_tokens", "lm_head"]}));
    lab.adapter(&format!("{EMBED}.weight"), &[8, DIM]);
    let same: Vec<f32> = lab.of_adapter(&format!("{EMBED}.weight")).iter().map(|v| *v as f32).collect();
    lab.adapter_values("lm_head.weight", Dtype::F32, &[8, DIM], &same);
    let merged = lab.merged();
    assert_tied(&merged);
    assert_eq!(merged.config()["vocab_size"], 8);
    merged.assert_is(&format!("{EMBED}.weight"), &lab.of_adapter(&format!("{EMBED}.weight")));
}

#[test]
fn factors_on_a_resized_head_have_the_new_size() {
    let mut lab = untied();
    resized(&mut lab, 8);
    lab.adapter("lm_head.lora_A.weight", &[2, DIM]).adapter("lm_head.lora_B.weight", &[8, 2]);
    let (a, b) = (lab.of_adapter("lm_head.lora_A.weight"), lab.of_adapter("lm_head.lora_B.weight"));
    let want = plus_product(&lab.of_adapter("lm_head.weight"), 2.0, &b, &a, 2);
    lab.merged().assert_is("lm_head.weight", &want);
}

fn tokenizer(highest: usize) -> String {
    json!({"model": {"type": "BPE", "vocab": {"a": 0}}, "added_tokens": [{"id": highest, "content": "<x>"}]})
        .to_string()
}

#[test]
fn token_ids_beyond_the_vocabulary_are_refused() {
    for (rows, highest, fine) in [(8, 7, true), (8, 8, false)] {
        let mut lab = untied();
        resized(&mut lab, rows);
        lab.file("adapter/tokenizer.json", &tokenizer(highest));
        assert_eq!(lab.merge().is_ok(), fine);
    }
    // New tokens whose rows were never saved.
    let mut lab = untied();
    embed_pair(&mut lab);
    lab.file("base/tokenizer.json", &tokenizer(5)).file("adapter/tokenizer.json", &tokenizer(6));
    assert!(lab.refusal().contains("token id 6"));
    // A base that ships it like that.
    let mut lab = untied();
    embed_pair(&mut lab);
    lab.file("base/tokenizer.json", &tokenizer(6));
    assert!(lab.merge().unwrap().warnings.iter().any(|w| w.contains("token id 6")));
}

fn token_rows(lab: &mut Lab, indices: Value, rows: usize) -> Vec<f64> {
    lab.config(json!({"trainable_token_indices": indices}));
    lab.adapter(&format!("{EMBED}.token_adapter.trainable_tokens_delta"), &[rows, DIM]);
    lab.of_adapter(&format!("{EMBED}.token_adapter.trainable_tokens_delta"))
}

#[test]
fn token_rows_replace_their_rows() {
    for indices in [json!([4, 1]), json!({"embed_tokens": [4, 1]})] {
        let mut lab = untied();
        let rows = token_rows(&mut lab, indices, 2);
        let mut want = lab.of_base(&format!("{EMBED}.weight"));
        want[4 * DIM..5 * DIM].copy_from_slice(&rows[..DIM]);
        want[DIM..2 * DIM].copy_from_slice(&rows[DIM..]);
        let merged = lab.merged();
        merged.assert_is(&format!("{EMBED}.weight"), &want);
        assert_eq!(merged.tensors["lm_head.weight"], tensors(&lab.path("base"))["lm_head.weight"]);
    }
}

#[test]
fn token_rows_come_after_factors_and_stay_tied() {
    let mut lab = tied();
    token_rows(&mut lab, json!([0]), 1);
    assert_tied(&lab.merged());

    let mut lab = untied();
    let mut want = embed_pair(&mut lab);
    let rows = token_rows(&mut lab, json!([3]), 1);
    want[3 * DIM..4 * DIM].copy_from_slice(&rows);
    lab.merged().assert_is(&format!("{EMBED}.weight"), &want);
}

#[test]
fn token_rows_that_do_not_fit_are_refused() {
    for (indices, rows) in [(json!([1]), 2), (json!([6]), 1), (json!([2, 2]), 2), (Value::Null, 1)] {
        let mut lab = untied();
        token_rows(&mut lab, indices, rows);
        lab.refusal();
    }
}

#[test]
fn head_under_a_multimodal_prefix_is_found() {
    let mut lab = untied();
    lab.adapter("language_model.lm_head.lora_A.weight", &[2, DIM])
        .adapter("language_model.lm_head.lora_B.weight", &[VOCAB, 2]);
    assert_ne!(lab.merged().tensors["lm_head.weight"], tensors(&lab.path("base"))["lm_head.weight"]);
}

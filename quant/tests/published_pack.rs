//! A stand-in of Qwen3.6-35B-A3B, names and shapes without data: what is planned for it has the counts of
//! the publisher's own FP8 pack.

#![allow(clippy::unwrap_used)]

use std::ops::Range;
use std::path::Path;

use quant::Fp8;
use serde_json::json;
use verify::Dtype;
use verify::checkpoint::{Config, TensorIndex, TensorMeta, TensorReader, TensorSpec};
use verify::error::{Error, Result};
use verify::names::FileName;
use verify::rewrite::{ModelView, Rewrite, Stage};

/// Gives no bytes: planning must do without.
struct NoData(TensorIndex);

impl TensorReader for NoData {
    fn index(&self) -> &TensorIndex {
        &self.0
    }

    fn read_rows(&self, name: &str, _: Range<usize>) -> Result<Vec<u8>> {
        Err(Error::input(format!("{name} was read while planning")))
    }
}

struct StandIn(Vec<TensorSpec>);

impl StandIn {
    fn add(&mut self, name: String, shape: &[usize]) {
        self.0.push(TensorSpec::new(name, Dtype::BF16, shape));
    }

    fn weights(&mut self, path: &str, list: &[(&str, &[usize])]) {
        list.iter().for_each(|(name, shape)| self.add(format!("{path}.{name}.weight"), shape));
    }

    fn attention(&mut self, layer: &str) {
        let list: [(&str, &[usize]); 6] = [
            ("q_proj", &[8192, 2048]),
            ("k_proj", &[512, 2048]),
            ("v_proj", &[512, 2048]),
            ("o_proj", &[2048, 4096]),
            ("q_norm", &[256]),
            ("k_norm", &[256]),
        ];
        self.weights(&format!("{layer}.self_attn"), &list);
    }

    fn delta_net(&mut self, layer: &str) {
        let list: [(&str, &[usize]); 7] = [
            ("in_proj_qkv", &[8192, 2048]),
            ("in_proj_z", &[4096, 2048]),
            ("in_proj_b", &[32, 2048]),
            ("in_proj_a", &[32, 2048]),
            ("out_proj", &[2048, 4096]),
            ("conv1d", &[8192, 1, 4]),
            ("norm", &[128]),
        ];
        self.weights(&format!("{layer}.linear_attn"), &list);
        self.add(format!("{layer}.linear_attn.A_log"), &[32]);
        self.add(format!("{layer}.linear_attn.dt_bias"), &[32]);
    }

    fn experts(&mut self, layer: &str) {
        let list: [(&str, &[usize]); 7] = [
            ("input_layernorm", &[2048]),
            ("post_attention_layernorm", &[2048]),
            ("mlp.gate", &[256, 2048]),
            ("mlp.shared_expert_gate", &[1, 2048]),
            ("mlp.shared_expert.gate_proj", &[512, 2048]),
            ("mlp.shared_expert.up_proj", &[512, 2048]),
            ("mlp.shared_expert.down_proj", &[2048, 512]),
        ];
        self.weights(layer, &list);
        self.add(format!("{layer}.mlp.experts.gate_up_proj"), &[256, 1024, 2048]);
        self.add(format!("{layer}.mlp.experts.down_proj"), &[256, 2048, 512]);
    }

    fn vision(&mut self) {
        let mut pair = |name: &str, shape: &[usize]| {
            self.add(format!("model.visual.{name}.weight"), shape);
            self.add(format!("model.visual.{name}.bias"), &shape[..1]);
        };
        for n in 0..27 {
            pair(&format!("blocks.{n}.norm1"), &[1152]);
            pair(&format!("blocks.{n}.norm2"), &[1152]);
            pair(&format!("blocks.{n}.attn.qkv"), &[3456, 1152]);
            pair(&format!("blocks.{n}.attn.proj"), &[1152, 1152]);
            pair(&format!("blocks.{n}.mlp.linear_fc1"), &[4304, 1152]);
            pair(&format!("blocks.{n}.mlp.linear_fc2"), &[1152, 4304]);
        }
        pair("merger.norm", &[1152]);
        pair("merger.linear_fc1", &[4608, 4608]);
        pair("merger.linear_fc2", &[2048, 4608]);
        pair("patch_embed.proj", &[1152, 3, 2, 16, 16]);
        self.add("model.visual.pos_embed.weight".into(), &[2304, 1152]);
    }
}

fn stand_in() -> ModelView {
    let mut model = StandIn(Vec::new());
    model.add("lm_head.weight".into(), &[248320, 2048]);
    model.add("model.language_model.embed_tokens.weight".into(), &[248320, 2048]);
    model.add("model.language_model.norm.weight".into(), &[2048]);
    for n in 0..40 {
        let layer = format!("model.language_model.layers.{n}");
        model.experts(&layer);
        if n % 4 == 3 { model.attention(&layer) } else { model.delta_net(&layer) }
    }
    model.vision();
    model.experts("mtp.layers.0");
    model.attention("mtp.layers.0");
    model.add("mtp.fc.weight".into(), &[2048, 4096]);
    for norm in ["norm", "pre_fc_norm_hidden", "pre_fc_norm_embedding"] {
        model.add(format!("mtp.{norm}.weight"), &[2048]);
    }
    let config = json!({"model_type": "qwen3_5_moe", "tie_word_embeddings": false, "text_config": {
        "num_hidden_layers": 40, "num_experts": 256, "num_attention_heads": 16, "num_key_value_heads": 2,
        "linear_num_key_heads": 16, "linear_key_head_dim": 128, "mtp_num_hidden_layers": 1,
    }});
    let shards = 26;
    let name =
        |i| FileName::parse(&format!("model.safetensors-{:05}-of-{shards:05}.safetensors", i + 1)).unwrap();
    let each = model.0.len().div_ceil(shards);
    let metas =
        model.0.into_iter().enumerate().map(|(i, spec)| TensorMeta { spec, shard: i / each }).collect();
    ModelView {
        config: Config::parse(config.to_string(), Path::new("config.json")).unwrap(),
        tensors: TensorIndex::new((0..shards).map(name).collect(), metas).unwrap(),
        files: Vec::new(),
        left_out: Vec::new(),
    }
}

fn planned() -> (ModelView, Stage) {
    let view = stand_in();
    let stage = Fp8::default().plan(&view, &NoData(view.tensors.clone())).unwrap();
    (view, stage)
}

#[test]
fn names_and_counts_equal_the_published_pack() {
    let (_, stage) = planned();
    let names: Vec<&str> = stage.output.tensors.tensors().iter().map(|t| t.spec.name.as_str()).collect();
    let count = |is: &dyn Fn(&str) -> bool| names.iter().filter(|n| is(n)).count();
    assert_eq!(names.len(), 64_196);
    assert_eq!(count(&|n| n.starts_with("mtp.")), 1_560);
    assert_eq!(count(&|n| n.starts_with("model.visual.")), 333);
    let body_scale = |n: &str| n.starts_with("model.language_model.") && n.ends_with("weight_scale_inv");
    assert_eq!(count(&|n| body_scale(n) && n.contains(".experts.")), 30_720);
    assert_eq!(count(&|n| body_scale(n) && !n.contains(".experts.")), 250);
}

#[test]
fn all_else_is_listed_as_16_bit_once() {
    let (_, stage) = planned();
    let config = stage.output.config.quantization().unwrap();
    let list = config["modules_to_not_convert"].as_array().unwrap();
    // lm_head, mtp.fc; router and shared gate of 41 layers; b and a of 30; 4 linears of 27 vision blocks, 2 of the merger.
    assert_eq!(list.len(), 2 + 2 * 41 + 2 * 30 + 4 * 27 + 2);
}

#[test]
fn shards_keep_their_names_and_stay_within_the_limit() {
    let (view, stage) = planned();
    assert_eq!(stage.output.tensors.shards(), view.tensors.shards());
    for shard in 0..view.tensors.shards().len() {
        let of_shard = stage.output.tensors.tensors().iter().filter(|t| t.shard == shard);
        assert!(of_shard.map(|t| t.spec.byte_len()).sum::<u64>() <= 5_000_000_000);
    }
}

#[test]
fn four_gpus_can_share_it_in_whole_blocks() {
    let (_, stage) = planned();
    let sizes = stage.decisions.iter().find(|d| d.what.contains("tensor-parallel")).unwrap();
    // 512 rows of an expert are four blocks.
    assert_eq!(sizes.choice, "1, 2, 4");
}

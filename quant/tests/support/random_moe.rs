//! A Qwen3 MoE of random weights, of any size.
#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use serde_json::json;
use verify::Dtype;
use verify::checkpoint::{TensorSpec, header};

/// Its shape.
#[derive(Clone, Copy)]
pub struct Sizes {
    pub hidden: usize,
    pub experts: usize,
    pub chosen: usize,
    pub inter: usize,
    pub queries: usize,
    pub pairs: usize,
    pub dim: usize,
    pub vocab: usize,
    pub layers: usize,
}

impl Sizes {
    /// Writes the model into the folder `dir`.
    pub fn write(&self, dir: &Path) {
        let Sizes { hidden, experts, chosen, inter, queries, pairs, dim, vocab, layers } = *self;
        let mut specs = Vec::new();
        let mut add = |name: String, shape: &[usize]| {
            specs.push(TensorSpec::new(format!("{name}.weight"), Dtype::BF16, shape));
        };
        add("model.embed_tokens".into(), &[vocab, hidden]);
        for n in 0..layers {
            let at = format!("model.layers.{n}");
            add(format!("{at}.self_attn.q_proj"), &[queries * dim, hidden]);
            add(format!("{at}.self_attn.k_proj"), &[pairs * dim, hidden]);
            add(format!("{at}.self_attn.v_proj"), &[pairs * dim, hidden]);
            add(format!("{at}.self_attn.o_proj"), &[hidden, queries * dim]);
            add(format!("{at}.self_attn.q_norm"), &[dim]);
            add(format!("{at}.self_attn.k_norm"), &[dim]);
            add(format!("{at}.input_layernorm"), &[hidden]);
            add(format!("{at}.post_attention_layernorm"), &[hidden]);
            add(format!("{at}.mlp.gate"), &[experts, hidden]);
            for e in 0..experts {
                add(format!("{at}.mlp.experts.{e}.gate_proj"), &[inter, hidden]);
                add(format!("{at}.mlp.experts.{e}.up_proj"), &[inter, hidden]);
                add(format!("{at}.mlp.experts.{e}.down_proj"), &[hidden, inter]);
            }
        }
        add("model.norm".into(), &[hidden]);
        add("lm_head".into(), &[vocab, hidden]);
        let config = json!({
            "model_type": "qwen3_moe", "hidden_act": "silu", "rms_norm_eps": 1e-6, "vocab_size": vocab,
            "hidden_size": hidden, "num_hidden_layers": layers, "num_experts": experts,
            "num_experts_per_tok": chosen, "moe_intermediate_size": inter, "norm_topk_prob": true,
            "num_attention_heads": queries, "num_key_value_heads": pairs, "head_dim": dim,
            "rope_theta": 1e6, "max_position_embeddings": 4096, "tie_word_embeddings": false,
        });
        std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
        let file = File::create(dir.join("model.safetensors")).unwrap();
        let mut file = BufWriter::with_capacity(1 << 20, file);
        file.write_all(&header::encode(specs.iter())).unwrap();
        let mut state = 1u64;
        for spec in &specs {
            for _ in 0..spec.elements() {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let bits = (state >> 40) as u32;
                // Sign and mantissa at random, exponent of 2^-6 .. 2^-5; norms near 1.
                let number =
                    if spec.shape.len() == 2 { bits & 0x807f | 0x3c80 } else { 0x3f40 | bits & 0x7f };
                file.write_all(&(number as u16).to_le_bytes()).unwrap();
            }
        }
        file.flush().unwrap();
    }
}

//! Stand-ins of published checkpoints: names, shapes, element types and configs of the real ones, no data. On
//! disk the weights are sparse files, so that 70 GB take a few MB.
//!
//! Shared by the tests of several crates through `#[path]`. Sources: config files and model cards of the
//! publishers. The vision tower of Qwen3.5-4B and the widths that no card tells are those of its family.

#![allow(dead_code)]

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use verify::Dtype;
use verify::checkpoint::header::encode;
use verify::checkpoint::{Config, TensorIndex, TensorMeta, TensorSpec, index_json};
use verify::names::FileName;
use verify::rewrite::ModelView;

/// Published checkpoints are cut at this many bytes.
const SHARD: u64 = 5_000_000_000;

/// A model without data.
pub struct StandIn {
    pub config: Value,
    pub tensors: Vec<TensorSpec>,
    template: &'static str,
    /// Texts and ids of the added tokens: end of text, start and end of a turn.
    tokens: [(&'static str, u64); 3],
}

/// Shapes of a decoder.
struct Shape {
    prefix: &'static str,
    hidden: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    vocabulary: usize,
    tied: bool,
}

const QWEN: [(&str, u64); 3] =
    [("<|endoftext|>", 151_643), ("<|im_start|>", 151_644), ("<|im_end|>", 151_645)];
const QWEN35: [(&str, u64); 3] =
    [("<|endoftext|>", 248_044), ("<|im_start|>", 248_045), ("<|im_end|>", 248_046)];
const LLAMA: [(&str, u64); 3] =
    [("<|end_of_text|>", 128_001), ("<|start_header_id|>", 128_006), ("<|eot_id|>", 128_009)];

/// Every stand-in by the name of its folder.
pub fn all() -> Vec<(&'static str, StandIn)> {
    vec![
        ("Qwen3-30B-A3B", qwen3_30b_a3b()),
        ("Qwen3-Coder-30B-A3B-Instruct", qwen3_coder_30b_a3b()),
        ("Qwen3-32B", qwen3_32b()),
        ("Qwen3.5-4B", qwen3_5_4b()),
        ("Qwen3.6-35B-A3B", qwen3_6_35b_a3b()),
        ("Llama-3.1-8B-Instruct", llama_3_1_8b()),
        ("Llama-3.2-1B-Instruct", llama_3_2_1b()),
    ]
}

pub fn qwen3_30b_a3b() -> StandIn {
    let mut model = StandIn::qwen3_moe(6144);
    model.config["rope_theta"] = json!(1_000_000.0);
    model.config["max_position_embeddings"] = json!(40_960);
    model
}

pub fn qwen3_coder_30b_a3b() -> StandIn {
    let mut model = StandIn { template: "tiny_tools.jinja", ..StandIn::qwen3_moe(5472) };
    model.config["rope_theta"] = json!(10_000_000.0);
    model.config["max_position_embeddings"] = json!(262_144);
    model
}

pub fn qwen3_32b() -> StandIn {
    let shape = Shape {
        prefix: "model.",
        hidden: 5120,
        layers: 64,
        heads: 64,
        kv_heads: 8,
        head_dim: 128,
        vocabulary: 151_936,
        tied: false,
    };
    let config = json!({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "intermediate_size": 25_600,
        "rope_theta": 1_000_000.0, "max_position_embeddings": 40_960, "eos_token_id": 151_645, "bos_token_id": 151_643,
        "rope_scaling": null, "use_sliding_window": false});
    let mut model = StandIn::new(shape.described(config), "qwen3_like.jinja", QWEN);
    model.dense(&shape, 25_600, true);
    model
}

pub fn llama_3_1_8b() -> StandIn {
    let shape = Shape {
        prefix: "model.",
        hidden: 4096,
        layers: 32,
        heads: 32,
        kv_heads: 8,
        head_dim: 128,
        vocabulary: 128_256,
        tied: false,
    };
    StandIn::llama(&shape, 14_336, 8.0)
}

pub fn llama_3_2_1b() -> StandIn {
    let shape = Shape {
        prefix: "model.",
        hidden: 2048,
        layers: 16,
        heads: 32,
        kv_heads: 8,
        head_dim: 64,
        vocabulary: 128_256,
        tied: true,
    };
    StandIn::llama(&shape, 8192, 32.0)
}

pub fn qwen3_5_4b() -> StandIn {
    let shape = Shape {
        prefix: "model.language_model.",
        hidden: 2560,
        layers: 32,
        heads: 16,
        kv_heads: 4,
        head_dim: 256,
        vocabulary: 248_320,
        tied: true,
    };
    let mut model = StandIn::hybrid(&shape, "qwen3_5", json!({"intermediate_size": 9216}));
    model.frame(&shape);
    for n in 0..shape.layers {
        let layer = shape.layer(n);
        model.layer_norms(&layer, shape.hidden);
        model.swiglu(&format!("{layer}.mlp"), shape.hidden, 9216);
        if n % 4 == 3 { model.attention(&layer, &shape, 2) } else { model.delta_net(&layer, shape.hidden) }
    }
    model.vision(24, 1024, 4096, shape.hidden);
    model.layer_norms("mtp.layers.0", shape.hidden);
    model.swiglu("mtp.layers.0.mlp", shape.hidden, 9216);
    model.mtp(&shape);
    model
}

pub fn qwen3_6_35b_a3b() -> StandIn {
    let shape = Shape {
        prefix: "model.language_model.",
        hidden: 2048,
        layers: 40,
        heads: 16,
        kv_heads: 2,
        head_dim: 256,
        vocabulary: 248_320,
        tied: false,
    };
    let more = json!({"num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512});
    let mut model = StandIn::hybrid(&shape, "qwen3_5_moe", more);
    model.frame(&shape);
    for n in 0..shape.layers {
        let layer = shape.layer(n);
        model.stacked_experts(&layer, shape.hidden);
        if n % 4 == 3 { model.attention(&layer, &shape, 2) } else { model.delta_net(&layer, shape.hidden) }
    }
    model.vision(27, 1152, 4304, shape.hidden);
    model.stacked_experts("mtp.layers.0", shape.hidden);
    model.mtp(&shape);
    model
}

impl Shape {
    /// `config` with the keys of these shapes.
    fn described(&self, mut config: Value) -> Value {
        let keys = json!({"hidden_size": self.hidden, "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads, "head_dim": self.head_dim,
            "vocab_size": self.vocabulary, "tie_word_embeddings": self.tied, "torch_dtype": "bfloat16",
            "rms_norm_eps": 1e-6, "hidden_act": "silu"});
        for (key, value) in keys.as_object().unwrap() {
            config[key] = value.clone();
        }
        config
    }

    fn layer(&self, n: usize) -> String {
        format!("{}layers.{n}", self.prefix)
    }
}

impl StandIn {
    fn new(config: Value, template: &'static str, tokens: [(&'static str, u64); 3]) -> Self {
        StandIn { config, tensors: Vec::new(), template, tokens }
    }

    fn qwen3_moe(intermediate: usize) -> Self {
        let shape = Shape {
            prefix: "model.",
            hidden: 2048,
            layers: 48,
            heads: 32,
            kv_heads: 4,
            head_dim: 128,
            vocabulary: 151_936,
            tied: false,
        };
        let config = json!({"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
            "intermediate_size": intermediate, "moe_intermediate_size": 768, "num_experts": 128,
            "num_experts_per_tok": 8, "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": [],
            "eos_token_id": 151_645, "bos_token_id": 151_643, "rope_scaling": null, "use_sliding_window": false});
        let mut model = StandIn::new(shape.described(config), "qwen3_like.jinja", QWEN);
        model.frame(&shape);
        for n in 0..shape.layers {
            let layer = shape.layer(n);
            model.layer_norms(&layer, shape.hidden);
            model.attention(&layer, &shape, 1);
            model.weights(&layer, &[("mlp.gate", &[128, 2048])]);
            for e in 0..128 {
                model.swiglu(&format!("{layer}.mlp.experts.{e}"), shape.hidden, 768);
            }
        }
        model
    }

    fn llama(shape: &Shape, intermediate: usize, factor: f64) -> Self {
        let config = json!({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
            "intermediate_size": intermediate, "rope_theta": 500_000.0, "max_position_embeddings": 131_072,
            "eos_token_id": [128_001, 128_008, 128_009], "bos_token_id": 128_000, "attention_bias": false,
            "rope_scaling": {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}});
        let mut model = StandIn::new(shape.described(config), "llama3_like.jinja", LLAMA);
        model.dense(shape, intermediate, false);
        model
    }

    fn hybrid(shape: &Shape, model_type: &str, more: Value) -> Self {
        let types = (0..shape.layers).map(|n| match n % 4 {
            3 => "full_attention",
            _ => "linear_attention",
        });
        let mut text = shape.described(json!({"model_type": format!("{model_type}_text"),
            "layer_types": types.collect::<Vec<_>>(), "full_attention_interval": 4, "attn_output_gate": true,
            "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
            "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "mamba_ssm_dtype": "float32",
            "mtp_num_hidden_layers": 1, "max_position_embeddings": 262_144, "eos_token_id": 248_044,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10_000_000.0,
                "partial_rotary_factor": 0.25, "mrope_section": [11, 11, 10], "mrope_interleaved": true}}));
        for (key, value) in more.as_object().unwrap() {
            text[key] = value.clone();
        }
        let class = match model_type {
            "qwen3_5_moe" => "Qwen3_5MoeForConditionalGeneration",
            _ => "Qwen3_5ForConditionalGeneration",
        };
        let config = json!({"architectures": [class], "model_type": model_type, "text_config": text,
            "tie_word_embeddings": shape.tied, "torch_dtype": "bfloat16", "image_token_id": 248_056,
            "vision_config": {"patch_size": 16}});
        StandIn::new(config, "qwen3_5_like.jinja", QWEN35)
    }

    fn add(&mut self, name: String, shape: &[usize]) {
        self.tensors.push(TensorSpec::new(name, Dtype::BF16, shape));
    }

    fn weights(&mut self, path: &str, list: &[(&str, &[usize])]) {
        list.iter().for_each(|(name, shape)| self.add(format!("{path}.{name}.weight"), shape));
    }

    fn frame(&mut self, s: &Shape) {
        if !s.tied {
            self.add("lm_head.weight".into(), &[s.vocabulary, s.hidden]);
        }
        self.add(format!("{}embed_tokens.weight", s.prefix), &[s.vocabulary, s.hidden]);
        self.add(format!("{}norm.weight", s.prefix), &[s.hidden]);
    }

    fn dense(&mut self, s: &Shape, intermediate: usize, head_norms: bool) {
        self.frame(s);
        for n in 0..s.layers {
            let layer = s.layer(n);
            self.layer_norms(&layer, s.hidden);
            self.swiglu(&format!("{layer}.mlp"), s.hidden, intermediate);
            self.attention(&layer, s, 1);
            if !head_norms {
                self.tensors.truncate(self.tensors.len() - 2);
            }
        }
    }

    fn layer_norms(&mut self, layer: &str, hidden: usize) {
        self.weights(layer, &[("input_layernorm", &[hidden]), ("post_attention_layernorm", &[hidden])]);
    }

    fn swiglu(&mut self, path: &str, hidden: usize, width: usize) {
        let list: [(&str, &[usize]); 3] =
            [("gate_proj", &[width, hidden]), ("up_proj", &[width, hidden]), ("down_proj", &[hidden, width])];
        self.weights(path, &list);
    }

    /// `per_query` is 2 where the query rows hold a gate too.
    fn attention(&mut self, layer: &str, s: &Shape, per_query: usize) {
        let (q, kv, h, d) = (s.heads * s.head_dim, s.kv_heads * s.head_dim, s.hidden, s.head_dim);
        let list: [(&str, &[usize]); 6] = [
            ("q_proj", &[per_query * q, h]),
            ("k_proj", &[kv, h]),
            ("v_proj", &[kv, h]),
            ("o_proj", &[h, q]),
            ("q_norm", &[d]),
            ("k_norm", &[d]),
        ];
        self.weights(&format!("{layer}.self_attn"), &list);
    }

    fn delta_net(&mut self, layer: &str, hidden: usize) {
        let list: [(&str, &[usize]); 7] = [
            ("in_proj_qkv", &[8192, hidden]),
            ("in_proj_z", &[4096, hidden]),
            ("in_proj_b", &[32, hidden]),
            ("in_proj_a", &[32, hidden]),
            ("out_proj", &[hidden, 4096]),
            ("conv1d", &[8192, 1, 4]),
            ("norm", &[128]),
        ];
        self.weights(&format!("{layer}.linear_attn"), &list);
        self.add(format!("{layer}.linear_attn.A_log"), &[32]);
        self.add(format!("{layer}.linear_attn.dt_bias"), &[32]);
    }

    fn stacked_experts(&mut self, layer: &str, hidden: usize) {
        self.layer_norms(layer, hidden);
        self.weights(layer, &[("mlp.gate", &[256, hidden]), ("mlp.shared_expert_gate", &[1, hidden])]);
        self.swiglu(&format!("{layer}.mlp.shared_expert"), hidden, 512);
        self.add(format!("{layer}.mlp.experts.gate_up_proj"), &[256, 1024, hidden]);
        self.add(format!("{layer}.mlp.experts.down_proj"), &[256, hidden, 512]);
    }

    fn mtp(&mut self, s: &Shape) {
        self.attention("mtp.layers.0", s, 2);
        self.add("mtp.fc.weight".into(), &[s.hidden, 2 * s.hidden]);
        for norm in ["norm", "pre_fc_norm_hidden", "pre_fc_norm_embedding"] {
            self.add(format!("mtp.{norm}.weight"), &[s.hidden]);
        }
    }

    fn vision(&mut self, depth: usize, width: usize, inner: usize, out: usize) {
        let mut pair = |name: &str, shape: &[usize]| {
            self.add(format!("model.visual.{name}.weight"), shape);
            self.add(format!("model.visual.{name}.bias"), &shape[..1]);
        };
        for n in 0..depth {
            pair(&format!("blocks.{n}.norm1"), &[width]);
            pair(&format!("blocks.{n}.norm2"), &[width]);
            pair(&format!("blocks.{n}.attn.qkv"), &[3 * width, width]);
            pair(&format!("blocks.{n}.attn.proj"), &[width, width]);
            pair(&format!("blocks.{n}.mlp.linear_fc1"), &[inner, width]);
            pair(&format!("blocks.{n}.mlp.linear_fc2"), &[width, inner]);
        }
        pair("merger.norm", &[width]);
        pair("merger.linear_fc1", &[4 * width, 4 * width]);
        pair("merger.linear_fc2", &[out, 4 * width]);
        pair("patch_embed.proj", &[width, 3, 2, 16, 16]);
        self.add("model.visual.pos_embed.weight".into(), &[2304, width]);
    }

    /// Tensors with their shard, and the shards' names.
    fn shards(&self) -> (Vec<TensorMeta>, Vec<FileName>) {
        let (mut metas, mut shard, mut filled) = (Vec::new(), 0, 0);
        for spec in &self.tensors {
            if filled > 0 && filled + spec.byte_len() > SHARD {
                (shard, filled) = (shard + 1, 0);
            }
            filled += spec.byte_len();
            metas.push(TensorMeta { spec: spec.clone(), shard });
        }
        let count = shard + 1;
        let name = |i| FileName::parse(&format!("model-{:05}-of-{count:05}.safetensors", i + 1)).unwrap();
        (metas, (0..count).map(name).collect())
    }

    /// The model as the library sees it, without any file.
    pub fn view(&self) -> ModelView {
        let (metas, names) = self.shards();
        ModelView {
            config: Config::parse(self.config.to_string(), Path::new("config.json")).unwrap(),
            tensors: TensorIndex::new(names, metas).unwrap(),
            files: Vec::new(),
            templates: Vec::new(),
            left_out: Vec::new(),
        }
    }

    /// A folder with sparse shards, tokenizer files and template; it must not exist.
    pub fn write(&self, dir: &Path) -> PathBuf {
        std::fs::create_dir_all(dir).unwrap();
        let (metas, names) = self.shards();
        for (i, name) in names.iter().enumerate() {
            let of_shard = || metas.iter().filter(|m| m.shard == i).map(|m| &m.spec);
            write_sparse(&dir.join(name), of_shard().collect::<Vec<_>>().as_slice());
        }
        let index = TensorIndex::new(names, metas).unwrap();
        let text = |name: &str, text: String| std::fs::write(dir.join(name), text).unwrap();
        text("model.safetensors.index.json", index_json::encode(&index));
        text("config.json", format!("{:#}", self.config));
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/templates");
        let template = std::fs::read_to_string(fixtures.join(self.template)).unwrap();
        text("chat_template.jinja", template.clone());
        let [end_of_text, _, end_of_turn] = self.tokens;
        let added = self.tokens.map(|(content, id)| json!({"id": id, "content": content, "special": true}));
        let tokenizer = json!({"version": "1.0", "added_tokens": added, "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}});
        text("tokenizer.json", tokenizer.to_string());
        let config =
            json!({"eos_token": end_of_turn.0, "pad_token": end_of_text.0, "chat_template": template});
        text("tokenizer_config.json", format!("{config:#}"));
        let generation = json!({"do_sample": true, "temperature": 0.6, "top_p": 0.95,
            "eos_token_id": [end_of_turn.1, end_of_text.1]});
        text("generation_config.json", format!("{generation:#}"));
        text("LICENSE", "Apache License\nVersion 2.0, January 2004\n".into());
        if self.config.get("vision_config").is_some() {
            text("preprocessor_config.json", "{}".into());
        }
        dir.to_path_buf()
    }

    /// A LoRA adapter of rank 16 on the attention's linears, as PEFT writes it; zeros.
    pub fn write_adapter(&self, dir: &Path) -> PathBuf {
        std::fs::create_dir_all(dir).unwrap();
        let targets = ["q_proj", "k_proj", "v_proj", "o_proj"];
        let module = |t: &TensorSpec| -> Option<String> {
            let module = t.name.strip_suffix(".weight")?;
            let leaf = module.rsplit_once('.')?.1;
            (targets.contains(&leaf) && module.contains(".layers.") && !module.starts_with("mtp."))
                .then(|| module.to_string())
        };
        let mut factors = Vec::new();
        for t in &self.tensors {
            let Some(module) = module(t) else { continue };
            for (leaf, shape) in [("lora_A", [16, t.shape[1]]), ("lora_B", [t.shape[0], 16])] {
                factors.push(TensorSpec::new(
                    format!("base_model.model.{module}.{leaf}.weight"),
                    Dtype::F32,
                    shape,
                ));
            }
        }
        write_sparse(&dir.join("adapter_model.safetensors"), &factors.iter().collect::<Vec<_>>());
        let config = json!({"peft_type": "LORA", "r": 16, "lora_alpha": 32, "lora_dropout": 0.0, "bias": "none",
            "target_modules": targets, "task_type": "CAUSAL_LM", "base_model_name_or_path": "base",
            "fan_in_fan_out": false, "use_rslora": false, "use_dora": false, "modules_to_save": null});
        std::fs::write(dir.join("adapter_config.json"), format!("{config:#}")).unwrap();
        dir.to_path_buf()
    }
}

/// A header, and as many zeros as it promises, which take no place.
fn write_sparse(path: &Path, specs: &[&TensorSpec]) {
    let header = encode(specs.iter().copied());
    let mut file = File::create(path).unwrap();
    file.write_all(&header).unwrap();
    let data: u64 = specs.iter().map(|s| s.byte_len()).sum();
    file.set_len(header.len() as u64 + data).unwrap();
}

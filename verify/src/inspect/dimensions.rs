//! The sizes that decide what a model needs: read from config.json, never built in.

use serde::Serialize;
use serde_json::Value;

use crate::architecture::Family;
use crate::checkpoint::Config;
use crate::error::{Error, Result};
use crate::names::Shown;

/// Counts of a language model. Vision and mtp are not among them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Dimensions {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Entries of the embedding.
    pub vocabulary: usize,
    /// Layers with attention over all tokens, which keep keys and values.
    pub attention_layers: usize,
    /// Layers with a recurrent state of fixed size.
    pub linear_layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Width of a dense MLP; 0 where every layer has experts.
    pub intermediate: usize,
    /// Routed experts, where there are any.
    pub experts: Option<Experts>,
    /// Sizes of the recurrent layers, where there are any.
    pub linear: Option<Linear>,
    /// Longest context that the config allows.
    pub context: Option<usize>,
    /// Rotary embedding.
    pub rope: Rope,
    /// Query rows hold a gate too.
    pub gated_attention: bool,
}

/// Routed and shared experts of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Experts {
    /// Routed experts.
    pub count: usize,
    /// How many of them a token passes.
    pub per_token: usize,
    /// Width of one.
    pub intermediate: usize,
    /// Width of the shared expert, 0 for none.
    pub shared: usize,
    /// Whether the weights of the chosen experts are divided by their sum.
    pub renormalised: bool,
}

/// Gated DeltaNet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Linear {
    /// Key heads.
    pub key_heads: usize,
    /// Value heads.
    pub value_heads: usize,
    /// Width of a key head.
    pub key_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
    /// Taps of the short convolution.
    pub kernel: usize,
    /// Bytes of one element of the state (`mamba_ssm_dtype`; 4 where it is not told).
    pub state_bytes: usize,
}

impl Linear {
    /// Channels of the short convolution: query, key and value.
    pub fn channels(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }
}

/// Rotary embedding.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Rope {
    /// `default`, `yarn`, `llama3` ...
    pub kind: String,
    /// Base of the frequencies.
    pub theta: f64,
    /// Rotated part of a head.
    pub dims: usize,
    /// Context that the model was trained with, and by how much it is stretched.
    pub stretched: Option<(usize, f64)>,
}

impl Dimensions {
    /// Reads the config of a model of `family`.
    ///
    /// # Errors
    /// Exit 3 for a key that is missing, is no count, or is 0 where it must not be.
    pub fn of(config: &Config, family: Family) -> Result<Self> {
        let need = |key: &str| need(config, key);
        let or = |key: &str, default: usize| Ok::<_, Error>(config.count(key)?.unwrap_or(default));
        let (hidden, layers, heads) =
            (need("hidden_size")?, need("num_hidden_layers")?, need("num_attention_heads")?);
        let linear_layers = linear_layers(config, family, layers)?;
        let head_dim = match (config.count("head_dim")?, family) {
            (Some(n), _) => n,
            (None, Family::Qwen3) => 128,
            (None, f) if f.is_hybrid() => 256,
            (None, _) => hidden / heads,
        };
        let experts = experts(config, family)?;
        let all_experts = matches!(family, Family::Mixtral | Family::Olmoe | Family::Qwen35Moe);
        let intermediate = match all_experts || experts.is_some() && !has_dense_layers(config, layers)? {
            true => 0,
            false => need("intermediate_size")?,
        };
        Ok(Dimensions {
            hidden,
            vocabulary: need("vocab_size")?,
            attention_layers: layers - linear_layers,
            linear_layers,
            heads,
            kv_heads: or("num_key_value_heads", heads)?.max(1),
            head_dim,
            intermediate,
            experts,
            linear: (linear_layers > 0).then(|| linear(config)).transpose()?,
            context: config.count("max_position_embeddings")?,
            rope: rope(config, family, head_dim),
            gated_attention: family.is_hybrid()
                && config.get("attn_output_gate").and_then(Value::as_bool) != Some(false),
        })
    }

    /// Tokens that the model takes at most, where its config tells.
    pub fn longest_context(&self) -> Option<u64> {
        self.context.map(|tokens| tokens as u64)
    }

    /// Layers of the body.
    pub fn layers(&self) -> usize {
        self.attention_layers + self.linear_layers
    }
}

/// Larger counts are no model's; products of four of them still fit.
const MOST: usize = 1 << 24;

fn need(config: &Config, key: &str) -> Result<usize> {
    let wrong = || Error::input(format!("{}: `{key}` cannot be used", Shown::path(config.path())));
    match config.count(key)? {
        Some(n) if n > 0 && n <= MOST => Ok(n),
        Some(n) => Err(wrong().found(n.to_string()).expected(format!("a count from 1 to {MOST}"))),
        None => Err(wrong().found("nothing").expected("a positive count").hint("fetch config.json again")),
    }
}

fn linear_layers(config: &Config, family: Family, layers: usize) -> Result<usize> {
    if !family.is_hybrid() {
        return Ok(0);
    }
    if let Some(types) = config.get("layer_types").and_then(Value::as_array) {
        let linear = types.iter().filter(|t| t.as_str() == Some("linear_attention")).count();
        return match types.len() == layers {
            true => Ok(linear),
            false => Err(Error::input(format!(
                "{}: `layer_types` does not fit `num_hidden_layers`",
                Shown::path(config.path())
            ))
            .found(format!("{} types", types.len()))
            .expected(layers.to_string())),
        };
    }
    let interval = config.count("full_attention_interval")?.unwrap_or(4).max(1);
    Ok(layers - layers / interval)
}

fn experts(config: &Config, family: Family) -> Result<Option<Experts>> {
    if !family.has_experts() {
        return Ok(None);
    }
    let count = match config.count("num_experts")? {
        Some(n) => n,
        None => config.count("num_local_experts")?.unwrap_or(0),
    };
    if count == 0 {
        return Ok(None);
    }
    let width = match config.count("moe_intermediate_size")? {
        Some(n) => n,
        None => need(config, "intermediate_size")?,
    };
    let shared = match family.has_shared_expert() {
        true => config.count("shared_expert_intermediate_size")?.unwrap_or(512),
        false => 0,
    };
    let told = config.get("norm_topk_prob").and_then(Value::as_bool);
    let renormalised = match family {
        Family::Mixtral | Family::Qwen35Moe => true,
        Family::Qwen3Next => told.unwrap_or(true),
        _ => told.unwrap_or(false),
    };
    let per_token = need(config, "num_experts_per_tok")?.min(count);
    Ok(Some(Experts { count, per_token, intermediate: width, shared, renormalised }))
}

/// qwen3_moe and qwen3_next: layer N has experts unless it is listed, or by the step.
fn has_dense_layers(config: &Config, layers: usize) -> Result<bool> {
    let listed = config.get("mlp_only_layers").and_then(Value::as_array).is_some_and(|l| !l.is_empty());
    let step = config.count("decoder_sparse_step")?.unwrap_or(1);
    Ok(listed || step != 1 && layers > 0)
}

fn linear(config: &Config) -> Result<Linear> {
    let or = |key: &str, default: usize| -> Result<usize> {
        match config.count(key)? {
            Some(n) if n > 0 && n <= MOST => Ok(n),
            None => Ok(default),
            Some(_) => need(config, key),
        }
    };
    let state = config.get("mamba_ssm_dtype").and_then(Value::as_str).unwrap_or("float32");
    Ok(Linear {
        key_heads: or("linear_num_key_heads", 16)?,
        value_heads: or("linear_num_value_heads", 32)?,
        key_dim: or("linear_key_head_dim", 128)?,
        value_dim: or("linear_value_head_dim", 128)?,
        kernel: or("linear_conv_kernel_dim", 4)?,
        state_bytes: if matches!(state, "bfloat16" | "float16") { 2 } else { 4 },
    })
}

fn rope(config: &Config, family: Family, head_dim: usize) -> Rope {
    let object = |key: &str| config.get(key).filter(|v| v.is_object());
    let place = object("rope_parameters").or_else(|| object("rope_scaling"));
    let number = |key: &str| place.and_then(|p| p.get(key)).or_else(|| config.get(key))?.as_f64();
    let default = if family == Family::Mixtral { 1e6 } else { 10_000.0 };
    let text = |key: &str| place.and_then(|p| p.get(key))?.as_str();
    // `mrope` of older files is the plain one for text.
    let kind = text("rope_type").or_else(|| text("type")).unwrap_or("default");
    let kind = if kind == "mrope" { "default" } else { kind };
    let part = number("partial_rotary_factor").unwrap_or(if family.is_hybrid() { 0.25 } else { 1.0 });
    let trained = number("original_max_position_embeddings").map(|n| n as usize);
    Rope {
        kind: Shown(kind).to_string(),
        theta: number("rope_theta").unwrap_or(default),
        dims: (head_dim as f64 * part.clamp(0.0, 1.0)) as usize,
        stretched: trained.zip(number("factor")),
    }
}

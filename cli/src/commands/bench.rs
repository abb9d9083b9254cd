//! `prep bench`: how fast this machine reads prompts, decodes and quantizes, beside what it can do at best.

use std::path::Path;
use std::time::Instant;

use rayon::prelude::*;
use runner::decoder::{Part, Sequence, Want};
use runner::weights::{Invented, InventedFormat, Made};
use runner::{Machine, Model, Options, Wish};
use serde_json::{Value, json};
use verify::checkpoint::Config;
use verify::codec::Float;
use verify::codec::fp8::{Grid, Rows, ScaleValues};
use verify::progress::Progress;
use verify::{Error, Result, Shown};

use crate::args::{Bench, Global, Stored};
use crate::console::Console;
use crate::machine::{self, Work};
use crate::output::{Output, table};

/// Tokens of a prompt that are fed at once.
const PIECE: usize = 256;
/// Weights of a chunk that is quantized, and chunks.
const CHUNK: [usize; 2] = [1024, 4096];
const CHUNKS: usize = 32;

pub fn run(args: &Bench, global: &Global, output: &Output) -> Result<u8> {
    let console = Console::new(global.quiet, global.verbose);
    let config = config(args)?;
    let result =
        machine::run(args.on.wish(), &console, &Measurement { args, global, config, console: &console })?;
    console.clear();
    output.text(&table(&rows(&result)));
    output.result(0, result);
    Ok(0)
}

struct Measurement<'a> {
    args: &'a Bench,
    global: &'a Global,
    config: Config,
    console: &'a Console,
}

impl Work for Measurement<'_> {
    type Out = Value;

    fn on<M: Machine>(&self) -> Result<Value> {
        measure::<M>(self)
    }
}

/// The config that is measured, cut to `--layers`.
fn config(args: &Bench) -> Result<Config> {
    let config = match &args.config {
        None => Config::parse(SMALL.into(), Path::new("the built-in config"))?,
        Some(path) if path.is_dir() => Config::read(&path.join("config.json"))?,
        Some(path) => Config::read(path)?,
    };
    let Some(layers) = args.layers else { return Ok(config) };
    let mut value = config.value().clone();
    for at in ["", "/text_config"] {
        if let Some(part) = value.pointer_mut(at).and_then(Value::as_object_mut)
            && part.contains_key("num_hidden_layers")
        {
            part.insert("num_hidden_layers".into(), layers.into());
            if let Some(types) = part.get_mut("layer_types").and_then(Value::as_array_mut) {
                types.truncate(layers as usize);
            }
        }
    }
    Config::parse(value.to_string(), config.path())
}

/// A qwen3_moe of half a billion weights.
const SMALL: &str = r#"{"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "vocab_size": 32000,
"hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128,
"num_experts": 32, "num_experts_per_tok": 4, "moe_intermediate_size": 512, "intermediate_size": 2048,
"norm_topk_prob": true, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "max_position_embeddings": 40960,
"tie_word_embeddings": false, "hidden_act": "silu"}"#;

fn measure<M: Machine>(work: &Measurement<'_>) -> Result<Value> {
    let Measurement { args, global, config, console } = work;
    let format = match args.format {
        Stored::Bf16 => InventedFormat::Bf16,
        Stored::Fp8 => InventedFormat::Fp8,
        Stored::Int4 => InventedFormat::Int4,
    };
    let machine = M::open()?;
    let copy = machine.copy_rate()?;
    console.note("making weights up");
    let made = Invented::new(format, M::READS_HOST);
    let model = Model::invented(machine, config, &made, &Options { threads: Some(global.threads()) })?;
    let made = made.made();
    let share = share_of_experts(config);
    let prefill = prefill(work, &model, &made, share)?;
    let decode = decode(work, &model, &made, (share, copy))?;
    console.note("quantizing");
    let quantize = model.install(|| quantize(M::WISH))?;
    let upload = model.backend().upload_rate()?;
    let limit = upload.unwrap_or(copy / 2.0);
    Ok(json!({
        "device": M::WISH.place()?.to_string(),
        "model_type": config.model_type(),
        "format": format!("{:?}", args.format).to_lowercase(),
        "copy_bytes_per_sec": copy,
        "upload_bytes_per_sec": upload,
        "weights_bytes": made.experts + made.others + made.table,
        "prefill": prefill,
        "decode": decode,
        "quantize": {"source_bytes_per_sec": quantize, "of": if upload.is_some() { "upload" } else { "copy" },
            "share": quantize / limit},
    }))
}

/// Of the routed experts' weights the share that a token reads.
fn share_of_experts(config: &Config) -> f64 {
    let text = config.value().get("text_config").unwrap_or(config.value());
    let number = |key: &str| text.get(key).and_then(Value::as_f64);
    let experts = number("num_experts").or(number("num_local_experts"));
    number("num_experts_per_tok").zip(experts).map_or(1.0, |(chosen, all)| (chosen / all.max(1.0)).min(1.0))
}

fn prefill<M: Machine>(work: &Measurement<'_>, model: &Model<M>, made: &Made, share: f64) -> Result<Value> {
    let prompt: Vec<u32> = (0..work.args.prompt).map(|t| t % model.vocab() as u32).collect();
    check_context(model.context(), prompt.len() + work.args.steps as usize)?;
    work.console.note("reading a prompt");
    // Once for what is only done the first time.
    feed(model, &mut model.sequence()?, &prompt[..prompt.len().min(PIECE)])?;
    let began = Instant::now();
    feed(model, &mut model.sequence()?, &prompt)?;
    let secs = began.elapsed().as_secs_f64().max(1e-9);
    let each = 2.0 * (made.other_numbers as f64 + share * made.expert_numbers as f64);
    let rate = prompt.len() as f64 / secs;
    Ok(json!({"tokens": prompt.len(), "tokens_per_sec": rate, "flop_per_sec": rate * each}))
}

fn feed<M: Machine>(model: &Model<M>, sequence: &mut Sequence<M>, tokens: &[u32]) -> Result<()> {
    for piece in tokens.chunks(PIECE) {
        model.forward(&mut [Part { sequence, tokens: piece, want: Want::Last }])?;
    }
    Ok(())
}

fn decode<M: Machine>(
    work: &Measurement<'_>,
    model: &Model<M>,
    made: &Made,
    (share, copy): (f64, f64),
) -> Result<Value> {
    let (batch, steps, prompt) = (work.args.batch, work.args.steps, work.args.prompt);
    work.console.note("decoding");
    let mut sequences = Vec::new();
    for n in 0..batch {
        let mut sequence = model.sequence()?;
        let tokens: Vec<u32> = (0..prompt).map(|t| (t + n) % model.vocab() as u32).collect();
        feed(model, &mut sequence, &tokens)?;
        sequences.push(sequence);
    }
    // The first steps record what the others repeat.
    const WARM: u32 = 3;
    let mut began = Instant::now();
    for step in 0..WARM + steps {
        if step == WARM {
            began = Instant::now();
        }
        let token = [step % model.vocab() as u32];
        let parts = sequences.iter_mut().map(|sequence| Part { sequence, tokens: &token, want: Want::Last });
        model.forward(&mut parts.collect::<Vec<_>>())?;
    }
    let secs = began.elapsed().as_secs_f64().max(1e-9) / f64::from(steps);
    // Tokens that choose by chance have some experts in common.
    let experts = made.experts as f64 * (1.0 - (1.0 - share).powi(batch as i32));
    let kept = model.needs();
    let context = u64::from(prompt + WARM + steps / 2);
    let memory = u64::from(batch) * (kept.each_token * context + 2 * kept.each_sequence);
    let bytes = made.others as f64 + experts + memory as f64;
    Ok(json!({
        "batch": batch, "context": context, "tokens_per_sec": f64::from(batch) / secs,
        "bytes_per_token": bytes / f64::from(batch), "bytes_per_sec": bytes / secs, "share_of_copy": bytes / secs / copy,
    }))
}

fn check_context(context: usize, tokens: usize) -> Result<()> {
    match tokens < context {
        true => Ok(()),
        false => Err(Error::usage("prompt and steps do not fit the model's context")
            .found(format!("{tokens} tokens"))
            .expected(format!("fewer than {context}"))
            .hint("lower --prompt or --steps")),
    }
}

/// Bytes of bf16 weights that become FP8 blocks in a second, every thread at work.
fn quantize(wish: Wish) -> Result<f64> {
    let coder = super::quantize::coder(wish, false)?;
    let [rows, cols] = CHUNK;
    let values: Vec<f32> = (0..rows * cols).map(|i| (i % 1009) as f32 / 1009.0 - 0.5).collect();
    let bytes = Float::BF16.to_bytes(&values);
    let source = Rows { bytes: &bytes, float: Float::BF16, cols };
    let all = |chunks: usize| {
        (0..chunks)
            .into_par_iter()
            .try_for_each(|_| coder.rows(source, Grid::Block, ScaleValues::F32).map(drop))
    };
    all(rayon::current_num_threads())?;
    let began = Instant::now();
    all(CHUNKS)?;
    Ok((CHUNKS * bytes.len()) as f64 / began.elapsed().as_secs_f64().max(1e-9))
}

fn rows(result: &Value) -> Vec<Vec<String>> {
    let number = |pointer: &str| result.pointer(pointer).and_then(Value::as_f64).unwrap_or_default();
    let text =
        |pointer: &str| result.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_string();
    let gb = |pointer: &str| format!("{:.1} GB/s", number(pointer) / 1e9);
    let share = |pointer: &str, of: &str| format!("{:.0} % of the {of}", 100.0 * number(pointer));
    let row = |cells: [String; 3]| cells.to_vec();
    vec![
        row(["device".into(), Shown(&text("/device")).to_string(), String::new()]),
        row([
            "weights".into(),
            format!("{:.2} GB, {}, {}", number("/weights_bytes") / 1e9, text("/model_type"), text("/format")),
            String::new(),
        ]),
        row(["copy".into(), gb("/copy_bytes_per_sec"), "read and written, its own memory".into()]),
        row([
            "prefill".into(),
            format!("{:.0} tokens/s", number("/prefill/tokens_per_sec")),
            format!("{:.2} TFLOP/s", number("/prefill/flop_per_sec") / 1e12),
        ]),
        row([
            "decode".into(),
            format!("{:.1} tokens/s", number("/decode/tokens_per_sec")),
            format!(
                "{:.1} MB a token, {}",
                number("/decode/bytes_per_token") / 1e6,
                share("/decode/share_of_copy", "copy")
            ),
        ]),
        row([
            "quantize".into(),
            gb("/quantize/source_bytes_per_sec"),
            share("/quantize/share", &text("/quantize/of")),
        ]),
    ]
}

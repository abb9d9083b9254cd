//! What is odd about a folder, each with what to do.

use serde_json::{Value, json};

use super::{Looked, Part, Stop, Tokens};
use crate::dtype::Dtype;
use crate::names::Shown;
use crate::rewrite::ModelView;
use crate::template::{Finding, Level, Renderer, Request, embed};
use crate::{diagnose, parsers};

/// All findings, errors first.
pub(super) fn all(view: &ModelView, looked: &Looked<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    found.extend(looked.failures.iter().map(|e| {
        let advice = e.advice().unwrap_or("fetch the folder again");
        Finding::new(Level::Error, e.to_string().lines().next().unwrap_or_default(), advice)
    }));
    found.extend(template(looked));
    found.extend(stop_tokens(view, looked));
    found.extend(vocabulary(looked));
    found.extend(head(view, looked));
    found.extend(mtp(view, looked));
    found.extend(quantization(view, looked));
    found.extend(files(view, looked));
    found.sort_by_key(|f| std::cmp::Reverse(f.level));
    found
}

fn template(looked: &Looked<'_>) -> Vec<Finding> {
    let mut found = embed::check(&looked.places, None);
    let Some(taught) = &looked.taught else { return found };
    found.extend(diagnose::teaches_nothing(taught));
    if looked.thinking.switch && looked.thinking.by_default == Some(false) {
        found.push(Finding::new(
            Level::Note,
            "this model answers without thinking unless asked to, but vLLM's reasoning parser expects thoughts \
             unless told otherwise: whole answers would arrive as reasoning",
            "serve with --default-chat-template-kwargs '{\"enable_thinking\": false}', as `prep serve-command` writes it",
        ));
    }
    if let Some(name) = looked.parsers.vllm
        && parsers::find(name).is_ok_and(|p| !p.native)
    {
        found.push(Finding::new(
            Level::Note,
            format!("vLLM's native front end has no parser `{name}`"),
            "serve with the Python front end, which is the default of `vllm serve`",
        ));
    }
    found
}

/// Stop ids, and whether the token that ends the assistant's turn in the template is one of them.
fn stop_tokens(view: &ModelView, looked: &Looked<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    let tokens = &looked.tokens;
    if view.file("generation_config.json").is_none() {
        found.push(Finding::new(
            Level::Warning,
            "generation_config.json is missing: servers stop only at `eos_token_id` of config.json and sample with their own defaults",
            "copy it from the base model",
        ));
    }
    if tokens.stop.is_empty() {
        found.push(Finding::new(
            Level::Error,
            "no `eos_token_id` in generation_config.json or config.json: answers only end at the length limit",
            "set `eos_token_id` in generation_config.json to the id of the token that ends a turn",
        ));
        return found;
    }
    let end = looked.renderer.as_ref().and_then(|r| end_of_turn(r, tokens));
    if let Some((text, id)) = end.filter(|(_, id)| !stops_at(&tokens.stop, *id)) {
        let list = tokens.stop.iter().map(|s| s.id.to_string()).collect::<Vec<_>>().join(", ");
        found.push(Finding::new(
            Level::Error,
            format!(
                "the template ends a turn with `{}` (id {id}), which is no stop token ({list}): answers run on",
                Shown(&text)
            ),
            format!("add {id} to `eos_token_id` in generation_config.json"),
        ));
    }
    if let Some(beyond) = tokens.stop.iter().find(|s| looked.vocabulary.is_some_and(|v| s.id >= v as u64)) {
        found.push(Finding::new(
            Level::Error,
            format!("stop token {} is beyond the vocabulary: the model can never write it", beyond.id),
            "config.json or generation_config.json is of another model: fetch it again",
        ));
    }
    found
}

fn stops_at(stop: &[Stop], id: u64) -> bool {
    stop.iter().any(|s| s.id == id)
}

/// The added token that follows an assistant's answer in the template.
fn end_of_turn(renderer: &Renderer, tokens: &Tokens) -> Option<(String, u64)> {
    const ANSWER: &str = "probe answer";
    let turn = |role: &str, text: &str| json!({"role": role, "content": text});
    let messages = [turn("user", "probe question"), turn("assistant", ANSWER)];
    let request = Request { add_generation_prompt: false, ..Request::new(&messages, &[]) };
    let prompt = renderer.render(&request).ok()?;
    let after = prompt.split_once(ANSWER)?.1;
    let first = tokens.added.iter().filter_map(|(text, id)| Some((after.find(text.as_str())?, text, *id)));
    first.min_by_key(|(at, text, _)| (*at, usize::MAX - text.len())).map(|(_, text, id)| (text.clone(), id))
}

fn vocabulary(looked: &Looked<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    let Some(vocabulary) = looked.vocabulary else { return found };
    match looked.tokens.tokenizer_size {
        Some(size) if size > vocabulary => found.push(Finding::new(
            Level::Error,
            format!("the tokenizer has {size} tokens, the model {vocabulary}: the others have no embedding, and servers fail on them"),
            "tokenizer and weights are of two models: fetch the tokenizer files of this model",
        )),
        Some(_) => {}
        None => found.push(Finding::new(
            Level::Warning,
            "tokenizer.json is missing: servers need the slow tokenizer's files, and prep cannot run the model",
            "copy tokenizer.json from the base model",
        )),
    }
    if let Some(rows) = looked.embedding_rows.filter(|rows| *rows != vocabulary) {
        found.push(Finding::new(
            Level::Error,
            format!("the embedding has {rows} rows, `vocab_size` is {vocabulary}: servers refuse the shape"),
            "set `vocab_size` to the number of rows, or fetch config.json again",
        ));
    }
    found
}

fn head(view: &ModelView, looked: &Looked<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    let flag = |v: &Value| v.get("tie_word_embeddings").and_then(Value::as_bool);
    let (top, inner) = (flag(view.config.value()), flag(view.config.language()));
    let tied = top.or(inner) == Some(true);
    if tied && view.tensors.get("lm_head.weight").is_some() {
        found.push(Finding::new(
            Level::Warning,
            "`tie_word_embeddings` is true and `lm_head.weight` is stored: servers ignore the stored head",
            "if the head was trained, set the flag to false; else remove the tensor",
        ));
    }
    if let (Some(top), Some(inner)) = (top, inner)
        && top != inner
    {
        found.push(Finding::new(
            Level::Warning,
            format!("`tie_word_embeddings` is {top} at the top of config.json and {inner} in `text_config`: libraries differ in which one they read"),
            "give both the same value",
        ));
    }
    let stored = looked.storage.dtypes.iter().any(|d| d.dtype == Dtype::F32.name());
    let wide = looked.storage.dtypes.first().is_some_and(|d| d.dtype == Dtype::F32.name());
    if stored && wide {
        found.push(Finding::new(
            Level::Note,
            "most weights are F32: twice the download and disk, and servers round them to 16 bit when they load",
            "store bf16: `prep merge-lora` and `prep quantize` write 16 bit or less",
        ));
    }
    found
}

fn mtp(view: &ModelView, looked: &Looked<'_>) -> Option<Finding> {
    let layers = view.config.count("mtp_num_hidden_layers").ok().flatten().unwrap_or(0);
    (layers > 0 && looked.parameters.of(Part::Mtp).tensors == 0).then(|| {
        Finding::new(
            Level::Warning,
            format!("config.json counts {layers} mtp layer(s) and no `mtp.` tensor is there: speculative decoding cannot load"),
            "a converter built on transformers dropped them: make the folder again with prep from the publisher's checkpoint",
        )
    })
}

fn quantization(view: &ModelView, looked: &Looked<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    let codes = |dtype: Dtype| looked.storage.dtypes.iter().any(|d| d.dtype == dtype.name());
    let packed = view
        .tensors
        .tensors()
        .iter()
        .any(|t| [".weight_packed", ".qweight"].iter().any(|leaf| t.spec.name.ends_with(leaf)));
    match &looked.storage.quantization {
        None if codes(Dtype::F8_E4M3) || packed => found.push(Finding::new(
            Level::Error,
            "the weights are quantized and config.json has no `quantization_config`: servers would read codes as numbers",
            "take config.json of the quantized folder, or make the folder again",
        )),
        Some(q) if !codes(Dtype::F8_E4M3) && !packed && q.format != crate::serving::WeightFormat::Other => {
            found.push(Finding::new(
                Level::Error,
                format!("config.json says {}, but no quantized weight is there: servers look for scales in vain", q.description),
                "remove `quantization_config`, or fetch the quantized shards",
            ));
        }
        _ => {}
    }
    found
}

fn files(view: &ModelView, looked: &Looked<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    if looked.lacks_image_processor {
        found.push(Finding::new(
            Level::Warning,
            "the model has a vision tower and no preprocessor_config.json: servers fail when they load the image processor",
            "copy preprocessor_config.json (and video_preprocessor_config.json) from the base model, or serve text only",
        ));
    }
    for left in view.left_out.iter().filter(|l| l.name.starts_with("adapter_")) {
        found.push(Finding::new(
            Level::Warning,
            format!("{} lies in the folder: {}", left.name, left.reason),
            "remove it, or merge it with `prep merge-lora`",
        ));
    }
    if view.config.value().get("auto_map").is_some() {
        found.push(Finding::new(
            Level::Warning,
            "config.json names code of its own (`auto_map`): servers would need --trust-remote-code",
            "remove `auto_map` where the server knows the model_type",
        ));
    }
    if let Some((trained, factor)) = looked.dimensions.as_ref().and_then(|d| d.rope.stretched) {
        found.push(Finding::new(
            Level::Note,
            format!("the context is stretched by {factor} from {trained} tokens; servers apply it to short texts too"),
            "remove the scaling where the longer context is not needed",
        ));
    }
    if looked.licence.is_none() {
        found.push(Finding::new(
            Level::Note,
            "no licence file and no `license:` in README.md",
            "copy the licence of the base model",
        ));
    }
    found
}

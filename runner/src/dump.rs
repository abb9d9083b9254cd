//! Logits at every position of some prompts, and the greedy continuations, as a safetensors file.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use serde_json::{Map, json};
use verify::progress::Progress;
use verify::{Error, Result};

use crate::backend::Backend;
use crate::decoder::{Part, Want};
use crate::engine::{PIECE, Stop};
use crate::model::Model;
use crate::sampling::largest;

/// What one prompt gave.
#[derive(Debug, Clone)]
pub struct Dumped {
    /// Tokens of the prompt.
    pub prompt: usize,
    /// f32 `[prompt, vocab]`.
    pub logits: Vec<f32>,
    /// The greedy continuation.
    pub continuation: Vec<u32>,
}

/// Feeds `prompt` and keeps all its logits; then decodes up to `max_new` greedy tokens.
///
/// # Errors
/// Exit 3 where the prompt is empty or leaves the context; and the backend's errors.
pub fn dump<B: Backend>(model: &Model<B>, prompt: &[u32], max_new: usize, stop: &Stop) -> Result<Dumped> {
    if prompt.is_empty() || prompt.len().saturating_add(max_new) > model.context() {
        return Err(Error::input("the prompt does not fit the model's context")
            .found(format!("{} tokens and {max_new} new ones", prompt.len()))
            .expected(format!("1 to {} (`max_position_embeddings`)", model.context())));
    }
    let mut sequence = model.sequence()?;
    let mut feed = |tokens: &[u32]| -> Result<Vec<f32>> {
        model.forward(&mut [Part { sequence: &mut sequence, tokens, want: Want::All }])
    };
    let mut out = Dumped { prompt: prompt.len(), logits: Vec::new(), continuation: Vec::new() };
    for piece in prompt.chunks(PIECE) {
        out.logits.extend(feed(piece)?);
    }
    let mut last = out.logits[out.logits.len() - model.vocab()..].to_vec();
    while out.continuation.len() < max_new {
        let next = largest(&last);
        out.continuation.push(next);
        let stopped = *stop == Stop::Model && model.stop_tokens().contains(&next);
        if stopped || out.continuation.len() == max_new {
            break;
        }
        last = feed(&[next])?;
    }
    Ok(out)
}

/// Dumps every prompt into `path`: `prompt.N.logits` f32 `[prompt, vocab]`, and the greedy continuation as
/// `prompt.N.tokens` i64 (`prompt.N.greedy` is the same under the name that reference dumps use).
///
/// # Errors
/// As [`dump`]; exit 5 where the file cannot be written.
pub fn dump_to_file<B: Backend>(
    model: &Model<B>,
    prompts: &[Vec<u32>],
    (max_new, stop): (usize, Stop),
    path: &Path,
    progress: &dyn Progress,
) -> Result<Vec<Dumped>> {
    progress.begin_steps("prompts", prompts.len() as u64);
    let mut dumped = Vec::with_capacity(prompts.len());
    for prompt in prompts {
        progress.check()?;
        dumped.push(dump(model, prompt, max_new, &stop)?);
        progress.advance(1);
    }
    write(&dumped, model.vocab(), path).map_err(|e| Error::io("write", path, &e))?;
    Ok(dumped)
}

fn write(dumped: &[Dumped], vocab: usize, path: &Path) -> std::io::Result<()> {
    let mut header = Map::new();
    let mut end = 0;
    let mut entry = |name: String, dtype: &str, shape: Vec<usize>, width: usize| {
        let begin = end;
        end += shape.iter().product::<usize>() * width;
        header.insert(name, json!({"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}));
    };
    for (n, d) in dumped.iter().enumerate() {
        entry(format!("prompt.{n}.tokens"), "I64", vec![d.continuation.len()], 8);
        entry(format!("prompt.{n}.greedy"), "I64", vec![d.continuation.len()], 8);
        entry(format!("prompt.{n}.logits"), "F32", vec![d.prompt, vocab], 4);
    }
    let mut head = serde_json::Value::Object(header).to_string();
    head.push_str(&" ".repeat(head.len().next_multiple_of(8) - head.len()));
    let mut file = BufWriter::new(File::create(path)?);
    file.write_all(&(head.len() as u64).to_le_bytes())?;
    file.write_all(head.as_bytes())?;
    for d in dumped {
        for id in d.continuation.iter().chain(&d.continuation) {
            file.write_all(&i64::from(*id).to_le_bytes())?;
        }
        for x in &d.logits {
            file.write_all(&x.to_le_bytes())?;
        }
    }
    file.flush()
}

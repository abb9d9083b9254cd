//! `prep generate`: text, conversations or token ids in; text or logits out.

use std::cell::Cell;
use std::path::Path;

use runner::engine::{Completion, Request, Stop};
use runner::{Engine, Machine, Model, Options, Sampling, Tokenizer, dump};
use serde_json::json;
use verify::checkpoint::json as files;
use verify::generate::Finish;
use verify::template::Renderer;
use verify::{Error, Result, Shown};

use super::folder_of;
use super::template::conversation;
use crate::args::{Generate, Global};
use crate::console::Console;
use crate::machine::{self, Work};
use crate::output::Output;

pub fn run(args: &Generate, global: &Global, output: &Output) -> Result<u8> {
    folder_of(&args.model)?;
    check_input(args)?;
    let console = Console::new(global.quiet, global.verbose);
    let begun = Cell::new(false);
    machine::run(args.on.wish(), &console, &Generation { args, global, output, console: &console, begun })
}

struct Generation<'a> {
    args: &'a Generate,
    global: &'a Global,
    output: &'a Output,
    console: &'a Console,
    /// Whether some of an answer was printed.
    begun: Cell<bool>,
}

impl Work for Generation<'_> {
    type Out = u8;

    fn is_out(&self) -> bool {
        self.begun.get()
    }

    fn on<M: Machine>(&self) -> Result<u8> {
        let Generation { args, global, output, console, begun } = self;
        let options = Options { threads: Some(global.threads()) };
        let stop = || if args.ignore_eos { Stop::Never } else { Stop::Model };
        if let Some(path) = &args.logits {
            super::verify::outside(path, &args.model)?;
            let model = Model::<M>::load(&args.model, &options)?;
            let prompts = prompts(args, model.vocab(), |text| Tokenizer::open(&args.model)?.encode(text))?;
            let done = dump::dump_to_file(&model, &prompts, (args.max_new, stop()), path, *console)?;
            console.clear();
            let ids: Vec<_> = done.iter().map(|d| &d.continuation).collect();
            if let Some(n) = done.iter().position(|d| d.logits.iter().any(|x| !x.is_finite())) {
                output
                    .warning(&format!("the logits of prompt {n} hold NaN or infinity: the model is broken"));
            }
            output.text(&format!("logits of {} prompts written to {}", done.len(), Shown::path(path)));
            output.result(0, json!({"tokens": ids}));
            return Ok(0);
        }
        let sampling = Sampling {
            temperature: args.temperature,
            top_k: args.top_k,
            top_p: args.top_p,
            min_p: args.min_p,
            repetition_penalty: args.repetition_penalty,
            seed: args.seed,
        };
        let engine = Engine::<M>::load(&args.model, &options)?.with_sampling(sampling)?;
        let request = |tokens| Request { tokens, max_new: args.max_new, stop: stop() };
        let requests: Vec<Request> =
            prompts(args, engine.model().vocab(), |text| engine.tokenizer().encode(text))?
                .into_iter()
                .map(request)
                .collect();
        let completions = match requests.len() {
            1 if !output.is_json() => stream(&engine, &requests, output, begun)?,
            _ => engine.complete(&requests, *console)?,
        };
        console.clear();
        print(&engine, &requests, &completions, output)?;
        Ok(0)
    }
}

/// Prints the one answer as it comes; `begun` once there is something.
fn stream<M: Machine>(
    engine: &Engine<M>,
    requests: &[Request],
    output: &Output,
    begun: &Cell<bool>,
) -> Result<Vec<Completion>> {
    let stop = engine.model().stop_tokens();
    let mut text = engine.tokenizer().stream();
    // No bar here: it would be drawn over the text. Ctrl-C still ends it.
    let quiet = Console::new(true, false);
    let done = engine.complete_telling(requests, &quiet, &mut |_, token| {
        if requests[0].stop == Stop::Never || !stop.contains(&token) {
            begun.set(true);
            output.raw(&text.push(token)?);
        }
        Ok(())
    })?;
    output.raw(&format!("{}\n", text.finish()?));
    Ok(done)
}

/// Options that mean something beside a conversation only. (clap's `requires` gives way to the group of inputs.)
fn check_input(args: &Generate) -> Result<()> {
    let given = [("--tools", args.tools.is_some()), ("--kwargs", args.kwargs.is_some())];
    match given.into_iter().find(|(_, given)| *given && args.input.messages.is_none()) {
        None => Ok(()),
        Some((flag, _)) => Err(Error::usage(format!("{flag} is for the chat template"))
            .found("no conversation")
            .expected("--messages FILE")
            .hint(format!("leave {flag} out, or give the prompt as a message"))),
    }
}

/// The prompts in token ids below `vocab`.
fn prompts(
    args: &Generate,
    vocab: usize,
    encode: impl Fn(&str) -> Result<Vec<u32>>,
) -> Result<Vec<Vec<u32>>> {
    if let Some(path) = &args.input.tokens {
        return read_tokens(path, vocab);
    }
    let text = match (&args.input.messages, &args.input.prompt) {
        (Some(messages), _) => {
            let renderer = Renderer::open(&args.model)?;
            let request = conversation(messages, args.tools.as_deref(), args.kwargs.as_deref())?;
            renderer.render(&request).map_err(|f| f.into_error(renderer.template()))?
        }
        (None, prompt) => prompt.clone().unwrap_or_default(),
    };
    Ok(vec![encode(&text)?])
}

fn read_tokens(path: &Path, vocab: usize) -> Result<Vec<Vec<u32>>> {
    let wrong = |found: String| {
        Error::input(format!("{} holds no token ids", Shown::path(path)))
            .found(found)
            .expected(format!("a JSON list of lists of ids below {vocab}"))
    };
    let value = files::read(path)?;
    let prompts: Vec<Vec<u32>> = serde_json::from_value(value).map_err(|e| wrong(e.to_string()))?;
    match prompts.iter().flatten().find(|id| **id as usize >= vocab) {
        Some(id) => Err(wrong(id.to_string())),
        None => Ok(prompts),
    }
}

fn print<M: Machine>(
    engine: &Engine<M>,
    requests: &[Request],
    completions: &[Completion],
    output: &Output,
) -> Result<()> {
    let mut answers = Vec::new();
    for (r, c) in requests.iter().zip(completions) {
        let written = match c.finish {
            Finish::Stop => &c.tokens[..c.tokens.len() - 1],
            Finish::Length => &c.tokens[..],
        };
        let text = engine.tokenizer().decode(written)?;
        if requests.len() > 1 {
            output.text(&text);
        }
        answers.push(json!({
            "text": text,
            "tokens": c.tokens,
            "prompt_tokens": r.tokens.len(),
            "finish": c.finish,
            "first_token_secs": c.first_token.as_secs_f64(),
            "secs": c.latency.as_secs_f64(),
        }));
    }
    if let [c] = completions {
        let secs = c.latency.as_secs_f64().max(1e-9);
        output.remark(&format!("{} tokens, {:.0} tokens/s", c.tokens.len(), c.tokens.len() as f64 / secs));
    }
    output.result(0, json!({"answers": answers}));
    Ok(())
}

//! `prep serve-command`: the launch line that fits a folder, or a unit, compose file or manifest of it.

use serde_json::json;
use verify::inspect::Inspection;
use verify::serving::{self, Launch, Wish};
use verify::{Error, Result, Shown};

use super::inspect::look;
use crate::args::{Engine, Form, ServeCommand};
use crate::output::Output;

pub fn run(args: &ServeCommand, output: &Output) -> Result<u8> {
    let engine = match args.engine {
        Engine::Vllm => serving::Engine::Vllm,
        Engine::Sglang => serving::Engine::Sglang,
    };
    engine.check(&args.extra)?;
    let view = look(&args.model)?;
    let found = Inspection::of(&view)?;
    let folder = args.model.canonicalize().map_err(|e| Error::io("read", &args.model, &e))?;
    let name = folder.file_name().map_or("model".into(), |n| n.to_string_lossy().into_owned());
    let folder = folder.to_str().ok_or_else(|| {
        Error::input(format!("the path {} is not UTF-8", Shown::path(&folder))).hint("rename the folder")
    })?;
    let contained = matches!(args.form, Form::Compose | Form::K8s);
    let launch = Launch::of(
        &found,
        &view.tensors,
        &Wish {
            engine,
            model: if contained { format!("/models/{name}") } else { folder.to_string() },
            served_name: args.served_name.clone().unwrap_or(name),
            vram: args.hardware.vram,
            gpus: args.hardware.gpus,
            context: args.context,
            concurrency: args.concurrency,
            template: args.template.clone(),
            port: args.port,
            contained,
            extra: args.extra.clone(),
        },
    )?;
    let text = match args.form {
        Form::Line => serving::line(&launch),
        Form::Systemd => serving::unit(&launch),
        Form::Compose => serving::compose(&launch, folder),
        Form::K8s => serving::kubernetes(&launch),
    };
    for note in &launch.notes {
        output.warning(&format!("{}\n  hint: {}", note.what, note.advice));
    }
    match output.is_json() {
        true => output.result(0, json!({"launch": launch, "words": launch.words(), "text": text})),
        false => output.raw(&text),
    }
    Ok(0)
}

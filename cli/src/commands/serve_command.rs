//! `prep serve-command`: the launch line that fits a model, or a unit, compose file or manifest of its folder.

use std::path::{Path, PathBuf};

use serde_json::json;
use verify::serving::{self, Launch, Wish};
use verify::{Error, Result, Shown};

use super::model::{Model, Place};
use crate::args::{Engine, Form, Global, Hub, ServeCommand};
use crate::output::Output;

pub fn run(args: &ServeCommand, global: &Global, output: &Output) -> Result<u8> {
    let engine = match args.engine {
        Engine::Vllm => serving::Engine::Vllm,
        Engine::Sglang => serving::Engine::Sglang,
    };
    engine.check(&args.extra)?;
    let model = Model::look(&args.model, global, output)?;
    let found = model.inspect()?;
    let name = model.place.name();
    let contained = matches!(args.form, Form::Compose | Form::K8s);
    let served = Served::of(&model.place, args.form)?;
    let launch = Launch::of(
        &found,
        &model.view.tensors,
        &Wish {
            engine,
            model: if contained { format!("/models/{name}") } else { served.model.clone() },
            revision: served.revision,
            served_name: args.served_name.clone().unwrap_or(name),
            vram: args.hardware.vram,
            gpus: args.hardware.gpus,
            context: args.context,
            concurrency: args.concurrency,
            template: template(args, contained)?,
            port: args.port,
            contained,
            extra: args.extra.clone(),
        },
    )?;
    let text = match args.form {
        Form::Line => serving::line(&launch),
        Form::Systemd => serving::unit(&launch),
        Form::Compose => serving::compose(&launch, &served.model),
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

/// What a server is given as its model.
struct Served {
    /// An absolute path, or `OWNER/NAME`.
    model: String,
    /// The commit of the latter.
    revision: Option<String>,
}

impl Served {
    fn of(place: &Place, form: Form) -> Result<Self> {
        match place {
            Place::Folder(dir) => {
                let folder = dir.canonicalize().map_err(|e| Error::io("read", dir, &e))?;
                Ok(Served { model: utf8(&folder)?, revision: None })
            }
            Place::Hub { request, commit, .. } if form == Form::Line && request.hub == Hub::Hf => {
                Ok(Served { model: request.repo.to_string(), revision: Some(commit.clone()) })
            }
            Place::Hub { request, .. } => {
                let what = match form {
                    Form::Line => "servers fetch models of Hugging Face themselves, not those of other hubs",
                    _ => "units, compose files and manifests serve a folder",
                };
                let source = request.hub.name();
                let out = request.repo.split().1;
                Err(Error::usage(what).found(place.shown()).hint(format!(
                    "download it first: prep download {} --source {source} --out {out}",
                    request.repo
                )))
            }
        }
    }
}

/// The template that was asked for, as a server can open it from anywhere.
fn template(args: &ServeCommand, contained: bool) -> Result<Option<PathBuf>> {
    match &args.template {
        Some(path) if contained => Err(Error::usage("a container does not see the file of --template")
            .found(Shown::path(path))
            .hint("write it into the folder: prep template embed MODEL --from FILE")),
        Some(path) => {
            let path = std::path::absolute(path).map_err(|e| Error::io("read", path, &e))?;
            utf8(&path).map(|_| Some(path))
        }
        None => Ok(None),
    }
}

fn utf8(path: &Path) -> Result<String> {
    path.to_str()
        .map(str::to_string)
        .ok_or_else(|| Error::input(format!("the path {} is not UTF-8", Shown::path(path))).hint("rename it"))
}

//! The launch line of a folder: only flags that it needs, each with its reason.

use std::path::PathBuf;

use serde::Serialize;

use super::card::Vram;
use super::engine::Engine;
use super::fit::{Deployment, Fit, Verdict};
use super::format::{CacheFormat, WeightFormat};
use super::memory::Load;
use super::parallel;
use super::weights::Weights;
use crate::checkpoint::TensorIndex;
use crate::error::{Error, Result};
use crate::inspect::{Inspection, Part};
use crate::names::Shown;
use crate::template::{Finding, Level};

/// A flag of a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Flag {
    /// Its name.
    pub name: &'static str,
    /// Its value.
    pub value: Option<String>,
    /// Why it is there.
    pub reason: String,
}

/// What is to be launched.
#[derive(Debug, Clone)]
pub struct Wish {
    /// The server.
    pub engine: Engine,
    /// The model's folder as the server sees it, or `OWNER/NAME` where the server fetches it itself.
    pub model: String,
    /// The commit of such a model.
    pub revision: Option<String>,
    /// The name that clients ask for.
    pub served_name: String,
    /// The cards, where they are told.
    pub vram: Option<Vram>,
    /// How many.
    pub gpus: u64,
    /// Longest conversation; that of [`Load::asked`], or what fits, where it is not told.
    pub context: Option<u64>,
    /// Conversations at once; the server's default where it is not told.
    pub concurrency: Option<u64>,
    /// A template to serve with instead of the folder's.
    pub template: Option<PathBuf>,
    /// Port; the server's own by default.
    pub port: Option<u16>,
    /// True where the server runs in a container: it must listen on all addresses.
    pub contained: bool,
    /// Further arguments, already checked.
    pub extra: Vec<String>,
}

impl Wish {
    /// Names go into units and manifests line by line, and into paths of containers.
    fn check(&self) -> Result<()> {
        for (what, text) in [("the folder's path", &self.model), ("the served name", &self.served_name)] {
            if text.is_empty() || text.chars().any(char::is_control) {
                return Err(Error::usage(format!("{what} cannot stand in a launch line"))
                    .found(Shown(text).to_string())
                    .expected("at least one character, no line breaks or other control characters")
                    .hint("give another --served-name, or rename the folder"));
            }
        }
        match &self.template {
            Some(path) if !path.is_file() => {
                Err(Error::input(format!("{} is not a file", Shown::path(path))).hint("check --template"))
            }
            _ => Ok(()),
        }
    }
}

/// A flag that the line has already would be given twice, and probes would not know which one holds.
fn refuse_repeated(flags: &[Flag], extra: &[String]) -> Result<()> {
    let given = |word: &String| word.split('=').next().unwrap_or_default().to_string();
    let twice = extra.iter().map(given).find(|w| flags.iter().any(|f| f.name == w) || w == "--port");
    match twice {
        None => Ok(()),
        Some(flag) => Err(Error::usage(format!("{flag} after `--` would be given twice"))
            .expected("arguments that prep does not set")
            .hint("prep's own options stand before `--`: see `prep serve-command --help`")),
    }
}

/// A launch line.
#[derive(Debug, Clone, Serialize)]
pub struct Launch {
    /// The server.
    pub engine: Engine,
    /// The name that clients ask for.
    pub served_name: String,
    /// The model's folder as the server sees it.
    pub model: String,
    /// Port.
    pub port: u16,
    /// GPUs.
    pub gpus: u64,
    /// Flags, in the order of the line.
    pub flags: Vec<Flag>,
    /// Further arguments of the user.
    pub extra: Vec<String>,
    /// True where tool calls are parsed.
    pub tools: bool,
    /// What to know before starting it.
    pub notes: Vec<Finding>,
}

impl Launch {
    /// The line for a model.
    ///
    /// # Errors
    /// Exit 1 where the model does not fit the cards; exit 2 where its shapes cannot be cut for so many GPUs, the
    /// context asked for is longer than the model's, or a name or argument cannot stand in a launch line; exit 3 for a
    /// folder whose sizes cannot be told.
    pub fn of(found: &Inspection, index: &TensorIndex, wish: &Wish) -> Result<Self> {
        wish.check()?;
        let fault = found.findings.iter().find(|f| f.level == Level::Error);
        // Without its sizes nothing that the line says of context or memory would be true.
        if let Some(fault) = fault.filter(|_| found.dimensions.is_none()) {
            return Err(Error::input("no server should be started with this folder")
                .found(fault.what.clone())
                .hint(fault.advice.clone()));
        }
        let mut line = Line { wish, flags: Vec::new(), notes: Vec::new() };
        let fit = fit(found, index, wish)?;
        line.names();
        line.parallel(found)?;
        line.sizes(found, fit.as_ref())?;
        line.card(found);
        line.cache(found);
        line.tools(found);
        line.template(found);
        line.vision(found);
        line.notes.extend(found.findings.iter().filter(|f| f.level == Level::Error).cloned());
        refuse_repeated(&line.flags, &wish.extra)?;
        let tools = line.flags.iter().any(|f| f.name == "--tool-call-parser");
        Ok(Launch {
            engine: wish.engine,
            served_name: wish.served_name.clone(),
            model: wish.model.clone(),
            port: wish.port.unwrap_or(wish.engine.default_port()),
            gpus: wish.gpus,
            flags: line.flags,
            extra: wish.extra.clone(),
            tools,
            notes: line.notes,
        })
    }

    /// All words of the command.
    pub fn words(&self) -> Vec<String> {
        let flags =
            self.flags.iter().flat_map(|f| std::iter::once(f.name.to_string()).chain(f.value.clone()));
        self.engine.program(&self.model).into_iter().chain(flags).chain(self.extra.iter().cloned()).collect()
    }
}

/// How the folder fits the cards; `None` where no card is told or the sizes are not known.
fn fit(found: &Inspection, index: &TensorIndex, wish: &Wish) -> Result<Option<Fit>> {
    let (Some(vram), Some(d)) = (wish.vram, found.dimensions.as_ref()) else { return Ok(None) };
    let format = found.weight_format();
    let weights = Weights::as_found(format, index, found.architecture.as_ref());
    let load = Load::asked(wish.context, wish.concurrency, d.longest_context());
    let fit = Fit::of(d, &weights, cache_format(found), &Deployment { vram, gpus: wish.gpus, load });
    if let Verdict::No { lacks } = fit.verdict {
        let gib = |b: u64| format!("{:.1} GiB", b as f64 / (1u64 << 30) as f64);
        return Err(Error::check(format!("the model does not fit {} GPU(s) of this size", wish.gpus))
            .found(format!("{} of weights on each, {} usable", gib(fit.weight_bytes), gib(fit.usable_bytes)))
            .expected(format!("{} more", gib(lacks)))
            .hint("`prep inspect MODEL --vram ..` shows which formats and how many GPUs would do"));
    }
    Ok(Some(fit))
}

fn cache_format(found: &Inspection) -> CacheFormat {
    match &found.storage.quantization {
        Some(q) if q.kv_cache_scales => CacheFormat::Fp8,
        _ => CacheFormat::Bf16,
    }
}

/// A line being written.
struct Line<'a> {
    wish: &'a Wish,
    flags: Vec<Flag>,
    notes: Vec<Finding>,
}

impl Line<'_> {
    fn add(&mut self, name: &'static str, value: Option<String>, reason: impl Into<String>) {
        self.flags.push(Flag { name, value, reason: reason.into() });
    }

    /// What the engine at hand calls a thing.
    fn called(&self, vllm: &'static str, sglang: &'static str) -> &'static str {
        match self.wish.engine {
            Engine::Vllm => vllm,
            Engine::Sglang => sglang,
        }
    }

    fn names(&mut self) {
        let name = self.wish.served_name.clone();
        if let Some(revision) = self.wish.revision.clone() {
            self.add("--revision", Some(revision), "the commit that was looked at: a branch moves on");
        }
        self.add("--served-model-name", Some(name), "the name that clients send as `model`");
        if self.wish.contained {
            self.add("--host", Some("0.0.0.0".into()), "reachable from outside of the container");
        }
        if self.wish.contained || self.wish.port.is_some() {
            let port = self.wish.port.unwrap_or(self.wish.engine.default_port());
            self.add("--port", Some(port.to_string()), "the port that probes and clients use");
        }
    }

    fn parallel(&mut self, found: &Inspection) -> Result<()> {
        let gpus = self.wish.gpus;
        if gpus <= 1 {
            return Ok(());
        }
        let obstacle = found.dimensions.as_ref().and_then(|d| {
            let sizes = parallel::sizes(d, found.weight_format(), Some(gpus));
            sizes.into_iter().find(|s| s.gpus == gpus)?.obstacle
        });
        let n = gpus.to_string();
        self.add("--tensor-parallel-size", Some(n.clone()), "each GPU holds its share of every layer");
        let Some(obstacle) = obstacle else { return Ok(()) };
        if !obstacle.ends_with("use expert parallelism") {
            return Err(Error::usage(format!("the model cannot be cut into {gpus} GPUs"))
                .found(obstacle)
                .expected("a size that `prep inspect` lists")
                .hint("choose another --gpus"));
        }
        match self.wish.engine {
            Engine::Vllm => self.add("--enable-expert-parallel", None, obstacle),
            Engine::Sglang => self.add("--expert-parallel-size", Some(n), obstacle),
        }
        Ok(())
    }

    fn sizes(&mut self, found: &Inspection, fit: Option<&Fit>) -> Result<()> {
        let own = found.dimensions.as_ref().and_then(|d| d.longest_context());
        let load = Load::asked(self.wish.context, self.wish.concurrency, own);
        if let (Some(asked), Some(own)) = (self.wish.context, own)
            && asked > own
        {
            return Err(Error::usage(format!("--context {asked} is longer than the model's"))
                .expected(format!("at most {own} tokens, `max_position_embeddings` of config.json"))
                .hint("a longer one needs rope scaling in config.json, as the model's card describes"));
        }
        let limit = fit.and_then(|f| match f.verdict {
            Verdict::UpTo { context } => Some(context),
            _ => None,
        });
        let names = self.called("--max-model-len", "--context-length");
        let context = limit.unwrap_or(load.context);
        let reason = match (limit, self.wish.context, own) {
            (Some(_), ..) => Some(format!(
                "as much as the cards hold for {} conversations at once (of {})",
                load.concurrency, load.context
            )),
            (None, Some(_), _) => Some("the context that was asked for".to_string()),
            (None, None, Some(own)) if own > context => Some(format!(
                "prep's default, which `prep inspect` reckons with too: --context asks for up to {own}"
            )),
            _ => None,
        };
        if let Some(reason) = reason {
            self.add(names, Some(context.to_string()), reason);
        }
        if let Some(n) = self.wish.concurrency {
            let names = self.called("--max-num-seqs", "--max-running-requests");
            self.add(names, Some(n.to_string()), "conversations at once, as asked for");
        }
        if let (Some(fit), Some(vram)) = (fit, self.wish.vram) {
            self.share(fit, vram);
        }
        Ok(())
    }

    fn share(&mut self, fit: &Fit, vram: Vram) {
        match self.wish.engine {
            Engine::Vllm => {
                let value = format!("{}", Deployment::share());
                let reason = "the share of each card that the context above was reckoned with";
                self.add("--gpu-memory-utilization", Some(value), reason);
            }
            Engine::Sglang => {
                let left = fit.usable_bytes.saturating_sub(fit.rest.bytes());
                let value = (left as f64 / vram.bytes() as f64 * 1000.0).floor() / 1000.0;
                let reason = "weights and cache; the rest is for activations and graphs";
                self.add("--mem-fraction-static", Some(value.to_string()), reason);
            }
        }
    }

    fn card(&mut self, found: &Inspection) {
        let Some(card) = self.wish.vram.and_then(|v| v.card()) else { return };
        if !card.has_bf16() {
            self.add("--dtype", Some("half".into()), format!("the {} has no bf16 arithmetic", card.name));
        }
        if !card.runs(found.weight_format()) {
            self.notes.push(Finding::new(
                Level::Error,
                format!("servers have no kernels for these weights on the {}", card.name),
                "choose a card of compute capability 7.5 or newer, or serve the 16-bit model",
            ));
        } else if matches!(found.weight_format(), WeightFormat::Fp8 { .. }) && !card.has_fp8() {
            self.notes.push(Finding::new(
                Level::Note,
                format!("the {} has no FP8 tensor cores: weights stay small, but are unpacked to 16 bit for every product", card.name),
                "expect the speed of 16 bit, or choose a card of compute capability 8.9 or newer",
            ));
        }
    }

    fn cache(&mut self, found: &Inspection) {
        if cache_format(found) == CacheFormat::Fp8 {
            let reason = "the folder holds calibrated scales for keys and values";
            self.add("--kv-cache-dtype", Some("fp8_e4m3".into()), reason);
        }
    }

    fn tools(&mut self, found: &Inspection) {
        let p = &found.parsers;
        let (tool, reasoning) = match self.wish.engine {
            Engine::Vllm => (p.vllm, p.vllm_reasoning),
            Engine::Sglang => (p.sglang, p.sglang_reasoning),
        };
        match tool {
            Some(name) => {
                if self.wish.engine == Engine::Vllm {
                    let reason = "without it the server never parses calls";
                    self.add("--enable-auto-tool-choice", None, reason);
                }
                self.add("--tool-call-parser", Some(name.into()), p.reason.clone());
            }
            None => {
                let what = match p.vllm {
                    Some(name) => format!("SGLang has no parser for what vLLM calls `{name}`"),
                    None => format!("no tool-call parser: {}", p.reason),
                };
                self.notes.push(Finding::new(
                    Level::Warning,
                    what,
                    "tool calls arrive as text: embed the right template, or choose the other server",
                ));
            }
        }
        if let Some(name) = reasoning {
            self.add("--reasoning-parser", Some(name.into()), p.reasoning_reason.clone());
        }
        let off = found.template.as_ref().is_some_and(|t| t.thinking.by_default == Some(false));
        if off && reasoning.is_some() && self.wish.engine == Engine::Vllm {
            self.add(
                "--default-chat-template-kwargs",
                Some("{\"enable_thinking\": false}".into()),
                "the template does not think by default, and the reasoning parser must be told so",
            );
        }
    }

    fn template(&mut self, found: &Inspection) {
        if let Some(path) = &self.wish.template {
            let path = path.to_string_lossy().into_owned();
            return self.add("--chat-template", Some(path), "the template that was asked for");
        }
        let only_processor = found.template.as_ref().is_some_and(|t| t.only_in_processor);
        if !only_processor || found.parameters.of(Part::Vision).tensors > 0 {
            return;
        }
        let advice = match self.wish.revision {
            Some(_) => "download the model, then `prep template embed MODEL`, and serve the folder",
            None => {
                let path = format!("{}/chat_template.jinja", self.wish.model.trim_end_matches('/'));
                let reason = "servers of text models do not look into chat_template.json";
                self.add("--chat-template", Some(path), reason);
                "write the file that the line names first: `prep template embed MODEL`"
            }
        };
        let what = "the template stands in chat_template.json alone: servers of text models do not find it";
        self.notes.push(Finding::new(Level::Warning, what, advice));
    }

    fn vision(&mut self, found: &Inspection) {
        if found.lacks_image_processor {
            let reason = "the folder has no preprocessor_config.json, without which images cannot be taken";
            self.add("--language-model-only", None, reason);
        }
    }
}

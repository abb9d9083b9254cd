//! What a model of a hub is, without its weights: its configs, tokenizer and template, and of every shard only the
//! header. Nothing is written anywhere.
//!
//! ```text
//!   Plan ──▶ small files (whole, by digest) ──▶ config, index ──▶ shards ──▶ their first bytes ──▶ ModelView
//!                    └── or from the hub cache, where they lie already ──┘
//! ```

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use verify::checkpoint::folder::{TEMPLATES, choose_shards, reason_to_leave_out, unnamed};
use verify::checkpoint::header::{Header, json_len};
use verify::checkpoint::index_json::{INDEX, IndexJson};
use verify::checkpoint::{Config, LeftOut, TensorIndex, json, list_some};
use verify::progress::Progress;
use verify::rewrite::{Content, ModelView, ViewFile};
use verify::{Class, Error, FileName, Result, Shown, inspect};

use super::cache::cached;
use super::digest::Hasher;
use super::environment::Environment;
use super::failure::Failure;
use super::http::Http;
use super::plan::{Plan, Request, plan};
use super::source::{RemoteFile, Source, check_named, source};
use crate::console::{Console, size};

/// More shards than any model has.
const MAX_SHARDS: usize = 4096;
/// Most bytes of all headers together: a million tensors take about a tenth of it.
const MAX_HEADERS: u64 = 1 << 30;
/// First range of a shard that no index tells of.
const GUESS: u64 = 256 << 10;
/// An index that promises more is not believed.
const MAX_GUESS: u64 = 16 << 20;
/// A header's bytes for a tensor, beside its name: quotes, dtype, three axes, two offsets of twelve digits.
const ENTRY: u64 = 96;
/// Connections at a time.
const STREAMS: usize = 8;

/// A model of a hub, seen by its headers.
pub struct Remote {
    /// Config, tensors and the side files that tell what it is.
    pub view: ModelView,
    /// The commit that was looked at, and its files.
    pub plan: Plan,
    /// Bytes that came over the network, listings not counted.
    pub fetched: u64,
}

/// Looks at the model that `request` names.
///
/// # Errors
/// Exit 3 for what is no sound model, or larger than any; exit 4 where the hub refuses or cannot be reached.
pub fn remote(request: &Request, environment: &Environment, console: &Console) -> Result<Remote> {
    let plan = plan(request, environment, console)?;
    let source = source(request.hub, environment);
    let fetched = AtomicU64::new(0);
    let fetch = Fetch { plan: &plan, environment, source: &*source, console, fetched: &fetched };
    let view = fetch.view()?;
    let fetched = fetched.into_inner();
    Ok(Remote { view, plan, fetched })
}

struct Fetch<'a> {
    plan: &'a Plan,
    environment: &'a Environment,
    source: &'a dyn Source,
    console: &'a Console,
    fetched: &'a AtomicU64,
}

impl Fetch<'_> {
    fn view(&self) -> Result<ModelView> {
        let place = PathBuf::from(self.plan.pinned());
        let names: Vec<FileName> = self.plan.files.iter().filter_map(|f| f.path.top()).collect();
        let mut left_out = Vec::new();
        let (mut shards, mut others) = (Vec::new(), Vec::new());
        for name in names {
            match reason_to_leave_out(name.as_str()) {
                Some(reason) => {
                    left_out.push(LeftOut { name: Shown(name.as_str()).to_string(), reason: reason.into() })
                }
                None if name.as_str().ends_with(".safetensors") => shards.push(name),
                None => others.push(name),
            }
        }
        if !others.iter().any(|n| n.as_str() == "config.json") {
            return Err(no_config(self.plan, &left_out));
        }
        let mut small = self.small(&others)?;
        let mut text = |name: &str| -> Result<Option<String>> {
            let at = small.iter().position(|f| f.name.as_str() == name);
            at.map(|at| small.remove(at).text()).transpose()
        };
        let config = text("config.json")?.unwrap_or_default();
        let index = text(INDEX)?.map(|t| IndexJson::parse(&t, &place.join(INDEX))).transpose()?;
        let config = Config::parse(config, &place.join("config.json"))?;
        let chosen = choose_shards(&place, &shards, index.as_ref(), &left_out)?;
        left_out.extend(unnamed(&shards, &chosen));
        let headers = self.headers(&chosen, index.as_ref())?;
        Ok(ModelView {
            config,
            tensors: TensorIndex::of_headers(chosen, headers, index.as_ref())?,
            files: small,
            templates: self.templates()?,
            left_out,
        })
    }

    /// The files that tell what a model is, sorted by name.
    fn small(&self, names: &[FileName]) -> Result<Vec<ViewFile>> {
        let told: Vec<&str> = names.iter().map(FileName::as_str).collect();
        let mut wanted = inspect::needed(&told);
        wanted.extend(told.iter().filter(|n| ["config.json", INDEX].contains(n)));
        wanted.sort_unstable();
        let files: Vec<_> = wanted.iter().filter_map(|n| self.listed(n)).collect();
        self.whole_files(&files, FileName::parse)
    }

    /// Named templates, sorted by name.
    fn templates(&self) -> Result<Vec<ViewFile>> {
        let inner =
            |f: &RemoteFile| f.path.as_str().strip_prefix(TEMPLATES)?.strip_prefix('/').map(str::to_string);
        let mut files: Vec<_> =
            self.plan.files.iter().filter(|f| inner(f).is_some_and(|n| n.ends_with(".jinja"))).collect();
        files.sort_by(|a, b| a.path.cmp(&b.path));
        self.whole_files(&files, |path| FileName::parse(path.rsplit('/').next().unwrap_or_default()))
    }

    fn whole_files(
        &self,
        files: &[&RemoteFile],
        name: impl Fn(&str) -> Result<FileName> + Sync,
    ) -> Result<Vec<ViewFile>> {
        self.each("small files", files, |http, file| {
            let content = Content::Bytes(self.whole(http, file)?.into());
            Ok(ViewFile { name: name(file.path.as_str())?, content, origin: self.plan.pinned() })
        })
    }

    fn listed(&self, name: &str) -> Option<&RemoteFile> {
        self.plan.files.iter().find(|f| f.path.as_str() == name)
    }

    /// All bytes of a file, which are those that the hub listed.
    fn whole(&self, http: &Http, file: &RemoteFile) -> Result<Vec<u8>> {
        let what = file.path.as_str();
        let most =
            if what == INDEX || what == "tokenizer.json" { json::MAX_TOKENIZER } else { json::MAX_CONFIG };
        if file.size > most {
            return Err(Error::input(format!("{what} is too large"))
                .found(size(file.size))
                .expected(format!("at most {}", size(most)))
                .hint("the repository is broken or hostile: tell its owner"));
        }
        let right = |bytes: &[u8]| {
            let mut hasher = Hasher::new(file.size, file.digest);
            hasher.update(bytes);
            hasher.finish().as_expected == file.digest
        };
        let here = cached(self.plan, file).and_then(|path| json::read_bytes(&path, most).ok());
        if let Some(bytes) = here.filter(|b| right(b)) {
            return Ok(bytes);
        }
        http.persist(what, || {
            let bytes = self.first_bytes(http, file, file.size)?;
            match right(&bytes) {
                true => Ok(bytes),
                false => Err(damaged(file)),
            }
        })
    }

    /// The headers of `shards`, in their order.
    fn headers(&self, shards: &[FileName], index: Option<&IndexJson>) -> Result<Vec<Header>> {
        if shards.len() > MAX_SHARDS {
            return Err(Error::input(format!("{INDEX} names too many shards"))
                .found(shards.len().to_string())
                .expected(format!("at most {MAX_SHARDS}"))
                .hint("the repository is broken or hostile: tell its owner"));
        }
        let missing: Vec<_> = shards.iter().filter(|s| self.listed(s.as_str()).is_none()).collect();
        if !missing.is_empty() {
            let names: Vec<_> = missing.iter().map(|s| Shown(s.as_str()).to_string()).collect();
            return Err(Error::input(format!(
                "{INDEX} names shards that {} does not have",
                self.plan.pinned()
            ))
            .found(list_some(&names))
            .hint("the upload is not complete: ask the owner, or take another revision"));
        }
        let mut guesses: HashMap<&str, u64> = HashMap::new();
        for (tensor, shard) in index.iter().flat_map(|i| i.entries()) {
            *guesses.entry(shard.as_str()).or_insert(ENTRY) += tensor.len() as u64 + ENTRY;
        }
        let files: Vec<_> = shards.iter().filter_map(|s| self.listed(s.as_str())).collect();
        let total = AtomicU64::new(0);
        self.each("headers", &files, |http, file| {
            self.header(http, file, *guesses.get(file.path.as_str()).unwrap_or(&GUESS), &total)
        })
    }

    /// The header of a shard; one request where `guess` is long enough.
    fn header(&self, http: &Http, file: &RemoteFile, guess: u64, total: &AtomicU64) -> Result<Header> {
        let what = file.path.as_str();
        let length = |first: &[u8]| -> Result<u64> {
            let len = 8 + json_len(first, file.size, what)?;
            match total.fetch_add(len, Ordering::Relaxed) + len <= MAX_HEADERS {
                true => Ok(len),
                false => Err(Error::input("the headers of all shards are too large together")
                    .expected(format!("at most {}", size(MAX_HEADERS)))
                    .hint("the repository is broken or hostile: tell its owner")),
            }
        };
        if let Some(header) = cached(self.plan, file).and_then(|path| stored_header(&path, file)) {
            return Ok(header);
        }
        let guess = guess.min(MAX_GUESS).min(file.size);
        let mut bytes = http.persist(what, || self.first_bytes(http, file, guess))?;
        let len = length(&bytes)?;
        if (bytes.len() as u64) < len {
            bytes = http.persist(what, || self.first_bytes(http, file, len))?;
        }
        Header::parse(&bytes[8..len as usize], file.size - len, what)
    }

    /// The first `n` bytes of a file. Of a server that sends the whole all the same, no more is read.
    fn first_bytes(&self, http: &Http, file: &RemoteFile, n: u64) -> Result<Vec<u8>, Failure> {
        if n == 0 {
            return Ok(Vec::new());
        }
        let what = file.path.as_str();
        let url = self.source.url(&self.plan.repo, &self.plan.commit, &file.path)?;
        let mut reply = http.get(&url, Some(0..n), what)?;
        check_named(&reply, &self.plan.commit, &file.digest)?;
        let (start, whole) = reply.range.map_or((0, reply.length), |(start, total)| (start, total));
        if start != 0 || whole.is_some_and(|w| w != file.size) {
            return Err(Failure::Changed(format!("{} bytes from {start} on", whole.unwrap_or_default())));
        }
        let bytes = http.take(&mut reply, n as usize, what)?;
        self.fetched.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        match bytes.len() as u64 == n {
            true => Ok(bytes),
            false => {
                Err(Failure::connection(what, format!("the body ended after {} of {n} bytes", bytes.len())))
            }
        }
    }

    /// `get` of every file, several at a time; results in the order of `files`.
    fn each<T: Send>(
        &self,
        what: &str,
        files: &[&RemoteFile],
        get: impl Fn(&Http, &RemoteFile) -> Result<T> + Sync,
    ) -> Result<Vec<T>> {
        self.console.begin_steps(what, files.len() as u64);
        let next = AtomicUsize::new(0);
        let done: Mutex<Vec<Option<Result<T>>>> = Mutex::new(files.iter().map(|_| None).collect());
        let work = || {
            let names = (self.plan.repo.as_str(), self.plan.revision.as_str());
            let http = Http::new(self.environment, self.plan.hub(), names, self.console);
            while let Some((at, file)) =
                Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|at| Some((at, *files.get(at)?)))
            {
                let result = match &http {
                    Ok(http) => get(http, file),
                    Err(e) => Err(e.clone()),
                };
                if result.is_err() {
                    // The others end with what they are doing.
                    next.store(files.len(), Ordering::Relaxed);
                }
                done.lock().unwrap_or_else(|p| p.into_inner())[at] = Some(result);
                self.console.advance(1);
            }
        };
        std::thread::scope(|scope| {
            (0..STREAMS.min(files.len())).for_each(|_| drop(scope.spawn(work)));
        });
        done.into_inner().unwrap_or_else(|p| p.into_inner()).into_iter().flatten().collect()
    }
}

/// The header of a shard that lies in the cache; none where it is not sound, for the hub to tell more.
fn stored_header(path: &Path, file: &RemoteFile) -> Option<Header> {
    use std::io::Read;
    let mut shard = std::fs::File::open(path).ok()?;
    let mut first = [0; 8];
    shard.read_exact(&mut first).ok()?;
    let len = json_len(&first, file.size, file.path.as_str()).ok()?;
    let mut json = Vec::new();
    shard.take(len).read_to_end(&mut json).ok()?;
    Header::parse(&json, file.size - 8 - len, file.path.as_str()).ok()
}

fn damaged(file: &RemoteFile) -> Failure {
    let error = Error::new(Class::Network, format!("{} arrives damaged", file.path))
        .expected(format!("{} {}", file.digest.kind(), file.digest))
        .hint("the hub, or something in between, sends wrong bytes: try again later, or another mirror");
    Failure::Again { what: "it arrived damaged".into(), wait: None, error }
}

fn no_config(plan: &Plan, left_out: &[LeftOut]) -> Error {
    let error = Error::input(format!("{} has no config.json", plan.pinned()))
        .expected("the config.json and safetensors files of a transformers model");
    match left_out.iter().any(|l| l.name == "adapter_config.json") {
        true => error.hint("it is an adapter: merge it into its base with `prep merge-lora`"),
        false => error.hint(
            "files for llama.cpp, MLX or diffusers are no model folder: look for the original repository",
        ),
    }
}

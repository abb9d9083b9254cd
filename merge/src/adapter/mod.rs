//! A PEFT adapter folder, read strictly: every tensor has a meaning, every pair is whole, every value finite.

pub mod config;
mod file;
pub mod key;
pub mod pattern;
pub mod stored;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use verify::checkpoint::{TensorSpec, list_some};
use verify::rewrite::InputFile;
use verify::{Error, FileName, Result, Shown};

use self::config::AdapterConfig;
use self::key::{Key, Role, Whole};
use self::stored::{Stored, shown};

/// A LoRA adapter that can be merged, whatever base it belongs to.
#[derive(Debug)]
pub struct Adapter {
    /// The folder.
    pub dir: PathBuf,
    /// The folder's name, for messages and the report.
    pub name: String,
    /// What it is multiplied by.
    pub weight: f64,
    /// Its settings.
    pub config: AdapterConfig,
    /// Pairs of factors, sorted by module.
    pub factors: Vec<Factors>,
    /// Whole tensors that replace tensors of the base.
    pub wholes: Vec<WholeTensor>,
    /// New rows of embeddings: module and rows.
    pub token_rows: Vec<(String, Arc<Stored>)>,
    /// Tensors that are copies of the base, and why they are not used.
    pub copies: Vec<String>,
    /// Number of tensors in the file.
    pub tensors: usize,
    /// The files that were read.
    pub inputs: Vec<InputFile>,
}

/// The factors of one module, shapes checked against each other.
#[derive(Debug)]
pub struct Factors {
    /// The module in the trained model.
    pub module: String,
    /// Which of several wrappers of the module: 0 is the outermost.
    pub depth: usize,
    /// Linear or embedding.
    pub kind: Kind,
    /// `lora_A`, (r, in); of an embedding (r, vocab).
    pub a: Arc<Stored>,
    /// `lora_B`, (out, r); of an embedding (dim, r).
    pub b: Arc<Stored>,
    /// Bias of `lora_B`, (out).
    pub bias: Option<Arc<Stored>>,
    /// Magnitude of DoRA, (out); of an embedding (dim).
    pub magnitude: Option<Arc<Stored>>,
}

/// What kind of module a pair belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `lora_A`, `lora_B`.
    Linear,
    /// `lora_embedding_A`, `lora_embedding_B`.
    Embedding,
}

/// A whole tensor of the adapter.
#[derive(Debug)]
pub struct WholeTensor {
    /// Full name in the trained model.
    pub path: String,
    /// How it came to be in the file.
    pub how: Whole,
    /// The tensor.
    pub tensor: Arc<Stored>,
}

impl Factors {
    /// The rank of the tensors (for experts in one pair: of all experts together).
    pub fn rank(&self) -> usize {
        self.a.spec.shape[0]
    }

    /// Number of tensors.
    pub fn tensors(&self) -> usize {
        2 + usize::from(self.bias.is_some()) + usize::from(self.magnitude.is_some())
    }
}

impl Adapter {
    /// Opens the adapter in `dir`.
    ///
    /// # Errors
    /// Exit 3 for anything that is not a whole LoRA or DoRA adapter with finite values.
    pub fn open(dir: &Path, weight: f64) -> Result<Self> {
        if !dir.is_dir() {
            return Err(Error::input(format!("{} is not a folder", Shown::path(dir)))
                .expected("an adapter folder with adapter_config.json and adapter_model.safetensors")
                .hint("check the path"));
        }
        let config = AdapterConfig::read(&dir.join("adapter_config.json"))?;
        check_neighbours(dir)?;
        let file = file::read(dir, &FileName::parse("adapter_model.safetensors")?)?;
        let mut adapter = Adapter {
            dir: dir.to_path_buf(),
            name: folder_name(dir),
            weight,
            config,
            factors: Vec::new(),
            wholes: Vec::new(),
            token_rows: Vec::new(),
            copies: Vec::new(),
            tensors: file.tensors.len(),
            inputs: file.inputs,
        };
        adapter.sort_in(file.tensors)?;
        adapter.check_dora()?;
        Ok(adapter)
    }

    fn sort_in(&mut self, mut tensors: Vec<(Key, Arc<Stored>)>) -> Result<()> {
        let names: Vec<String> = tensors.iter().filter_map(|(k, _)| k.adapter.clone()).collect();
        tensors.iter_mut().for_each(|(k, _)| k.drop_name(&names));
        check_one_adapter(&tensors)?;
        let mut modules: BTreeMap<(String, usize), Parts> = BTreeMap::new();
        for (key, tensor) in tensors {
            match key.role {
                Role::Copy => self.copies.push(tensor.spec.name.clone()),
                Role::Whole(how) => self.wholes.push(WholeTensor { path: key.path, how, tensor }),
                Role::TokenRows => self.token_rows.push((key.path, tensor)),
                role => modules.entry((key.path, key.depth)).or_default().put(role, tensor)?,
            }
        }
        self.factors = modules
            .into_iter()
            .map(|((module, depth), parts)| parts.pair_up(module, depth, self.config.lora_bias))
            .collect::<Result<_>>()?;
        self.wholes.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(())
    }

    fn check_dora(&self) -> Result<()> {
        for f in &self.factors {
            match (self.config.dora, &f.magnitude) {
                (true, None) => {
                    return Err(Error::input(format!("DoRA module `{}` has no magnitude", Shown(&f.module)))
                        .found("`use_dora` true and no lora_magnitude_vector")
                        .expected(format!("a vector of {} values", f.b.spec.shape[0]))
                        .hint("the file is not whole: save the adapter again"));
                }
                (false, Some(m)) => {
                    return Err(Error::input(format!("{} is a DoRA magnitude", shown(m)))
                        .found("`use_dora` false in adapter_config.json")
                        .hint("config and weights are of two adapters: fetch both again"));
                }
                (true, Some(_)) if self.weight != 1.0 => {
                    return Err(Error::usage(format!(
                        "adapter {} uses DoRA and cannot be weighted",
                        self.name
                    ))
                    .found(format!("weight {}", self.weight))
                    .expected("weight 1"));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// The last part of the folder's real path; for a snapshot of the Hub cache the repository's name.
pub fn folder_name(dir: &Path) -> String {
    let real = std::fs::canonicalize(dir).unwrap_or_else(|_| dir.to_path_buf());
    let part = |p: Option<&Path>| {
        p.and_then(Path::file_name).map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
    };
    let name = part(Some(&real));
    let repo = part(real.parent().and_then(Path::parent));
    match repo.strip_prefix("models--") {
        Some(repo) if name.len() == 40 => repo.rsplit("--").next().unwrap_or(repo).to_string(),
        _ => name,
    }
}

/// Files beside the adapter that mean that the safetensors file is not all of it.
fn check_neighbours(dir: &Path) -> Result<()> {
    for name in ["non_lora_state_dict.bin", "non_lora_trainables.bin"] {
        if dir.join(name).exists() {
            return Err(Error::input(format!(
                "{} holds trained weights outside the adapter",
                Shown::path(dir)
            ))
            .found(name)
            .expected("all trained weights in adapter_model.safetensors")
            .hint("pickles are never opened: save these weights as safetensors with `modules_to_save`"));
        }
    }
    if dir.join("adapter_model.safetensors").exists() {
        return Ok(());
    }
    let refusal = Error::input(format!("{} has no adapter_model.safetensors", Shown::path(dir)));
    Err(match dir.join("adapter_model.bin").exists() {
        true => refusal.found("adapter_model.bin, a pickle").expected("safetensors").hint(
            "pickles can run code and are never opened: save the adapter again with safe_serialization",
        ),
        false => refusal.hint("give the folder that the trainer saved the adapter to"),
    })
}

fn check_one_adapter(tensors: &[(Key, Arc<Stored>)]) -> Result<()> {
    let mut names: Vec<&str> = tensors.iter().filter_map(|(k, _)| k.adapter.as_deref()).collect();
    names.sort_unstable();
    names.dedup();
    if names.len() < 2 {
        return Ok(());
    }
    let names: Vec<_> = names.iter().map(|n| Shown(n).to_string()).collect();
    Err(Error::input("adapter_model.safetensors holds several adapters")
        .found(list_some(&names))
        .expected("one adapter")
        .hint("save the one to merge by itself (`save_pretrained(selected_adapters=[..])`)"))
}

/// The tensors of one module while they are collected.
#[derive(Default)]
struct Parts {
    a: Option<(Kind, Arc<Stored>)>,
    b: Option<(Kind, Arc<Stored>)>,
    bias: Option<Arc<Stored>>,
    magnitude: Option<Arc<Stored>>,
}

impl Parts {
    fn put(&mut self, role: Role, tensor: Arc<Stored>) -> Result<()> {
        let name = tensor.spec.name.clone();
        let before = match role {
            Role::A => self.a.replace((Kind::Linear, tensor)).map(|(_, t)| t),
            Role::EmbeddingA => self.a.replace((Kind::Embedding, tensor)).map(|(_, t)| t),
            Role::B => self.b.replace((Kind::Linear, tensor)).map(|(_, t)| t),
            Role::EmbeddingB => self.b.replace((Kind::Embedding, tensor)).map(|(_, t)| t),
            Role::BiasB => self.bias.replace(tensor),
            _ => self.magnitude.replace(tensor),
        };
        match before {
            None => Ok(()),
            Some(other) => Err(Error::input("two adapter tensors are the same part of one module")
                .found(format!("`{}` and `{}`", Shown(&other.spec.name), Shown(&name)))
                .hint("the file mixes two adapters: save the one to merge by itself")),
        }
    }

    fn pair_up(self, module: String, depth: usize, lora_bias: bool) -> Result<Factors> {
        let (kind, a, b) = match (self.a, self.b) {
            (Some((kind, a)), Some((other, b))) if kind == other => (kind, a, b),
            (a, b) => {
                let of =
                    |t: &Option<(Kind, Arc<Stored>)>| t.as_ref().map_or("nothing".into(), |t| shown(&t.1));
                return Err(Error::input(format!("adapter module `{}` has half a pair", Shown(&module)))
                    .found(format!("A: {}, B: {}", of(&a), of(&b)))
                    .expected("lora_A and lora_B")
                    .hint("the file is not whole: save the adapter again"));
            }
        };
        check_matrix(&a.spec, &module)?;
        check_matrix(&b.spec, &module)?;
        if a.spec.shape[0] != b.spec.shape[1] {
            return Err(Error::input(format!("the factors of `{}` do not multiply", Shown(&module)))
                .found(format!("{}, {}", shown(&a), shown(&b)))
                .expected("the rows of A to be the columns of B")
                .hint("the file is corrupt or of two adapters: save the adapter again"));
        }
        let vector = |t: &Arc<Stored>, what: &str| match t.spec.shape[..] == b.spec.shape[..1] {
            true => Ok(()),
            false => {
                Err(Error::input(format!("the {what} of `{}` does not fit its factors", Shown(&module)))
                    .found(format!("{}, {}", shown(t), shown(&b)))
                    .expected(format!("{} values", b.spec.shape[0])))
            }
        };
        if let Some(bias) = &self.bias {
            vector(bias, "bias")?;
            if !lora_bias {
                return Err(Error::input(format!("{} is a bias of a factor", shown(bias)))
                    .found("`lora_bias` false in adapter_config.json")
                    .hint("config and weights are of two adapters: fetch both again"));
            }
        }
        if let Some(magnitude) = &self.magnitude {
            vector(magnitude, "magnitude")?;
        }
        Ok(Factors { module, depth, kind, a, b, bias: self.bias, magnitude: self.magnitude })
    }
}

fn check_matrix(spec: &TensorSpec, module: &str) -> Result<()> {
    let what = format!("factor `{}`", Shown(&spec.name));
    if spec.shape.len() < 2 || spec.elements() == 0 {
        return Err(Error::input(format!("{what} is empty or flat"))
            .found(format!("shape {:?}", spec.shape))
            .expected("a matrix")
            .hint("a sharded trainer (ZeRO-3, FSDP) saved it before gathering its parts: save the adapter again"));
    }
    if spec.shape.len() > 2 {
        return Err(Error::input(format!("{what} is a convolution's (layer `{}`)", Shown(module)))
            .found(format!("shape {:?}", spec.shape))
            .expected("a matrix: adapters of linear layers, embeddings and experts are merged")
            .hint("train without adapting this layer, or merge with PEFT"));
    }
    Ok(())
}

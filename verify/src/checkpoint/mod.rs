//! A model folder that passed every check: nothing later checks it again.

pub mod config;
pub mod folder;
pub mod header;
pub mod index_json;
pub mod json;
pub mod map;
pub mod read;
pub mod tensor;

use std::ops::Range;
use std::path::{Path, PathBuf};

pub use config::Config;
pub use folder::{LeftOut, SideFile};
use header::HeaderTensor;
pub use map::MappedCheckpoint;
pub use read::{Location, ShardFile};
pub use tensor::{TensorIndex, TensorMeta, TensorReader, TensorSpec, list_some, no_tensor};

use crate::error::{Error, Result};
use crate::names::{FileName, Shown};

/// A folder with a config, whole safetensors shards and side files.
#[derive(Debug)]
pub struct Checkpoint {
    dir: PathBuf,
    config: Config,
    index: TensorIndex,
    locations: Vec<Location>,
    shards: read::ShardPool,
    files: Vec<SideFile>,
    templates: Vec<SideFile>,
    left_out: Vec<LeftOut>,
}

impl Checkpoint {
    /// Opens `dir` and checks it: config, index, every shard's header, file names, sizes. Reads no weights.
    ///
    /// # Errors
    /// Exit 3 for anything that is not a sound checkpoint, unfinished `prep` results included.
    pub fn open(dir: &Path) -> Result<Self> {
        let listing = folder::list(dir)?;
        let config = Config::read(&dir.join("config.json"))?;
        let mut shards = Vec::with_capacity(listing.shards.len());
        let mut headers = Vec::with_capacity(listing.shards.len());
        let mut locations = Vec::new();
        for name in &listing.shards {
            let (shard, header) = ShardFile::open(dir, name)?;
            let location = |t: &HeaderTensor| Location { offset: shard.data_start + t.begin, len: t.len };
            locations.extend(header.tensors.iter().map(location));
            headers.push(header);
            shards.push(shard);
        }
        let index = TensorIndex::of_headers(listing.shards, headers, listing.index.as_ref())?;
        let shards = read::ShardPool::new(shards);
        Ok(Checkpoint {
            dir: dir.to_path_buf(),
            config,
            index,
            locations,
            shards,
            files: listing.files,
            templates: listing.templates,
            left_out: listing.left_out,
        })
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Its `config.json`.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Files beside the weights that belong to the model (tokenizer, template, licence ...), `config.json` not among them.
    pub fn files(&self) -> &[SideFile] {
        &self.files
    }

    /// Named chat templates beside the default.
    pub fn templates(&self) -> &[SideFile] {
        &self.templates
    }

    /// Files that are not part of a model folder and are never copied, with the reason.
    pub fn left_out(&self) -> &[LeftOut] {
        &self.left_out
    }

    /// The shard files, in order.
    pub fn shard_files(&self) -> &[ShardFile] {
        self.shards.files()
    }

    /// Where the bytes of tensor number `position` lie.
    pub fn location(&self, position: usize) -> Location {
        self.locations[position]
    }

    /// The path of a file of this folder.
    pub fn path(&self, name: &FileName) -> PathBuf {
        self.dir.join(name)
    }

    /// Maps all shards into memory, for running the model in place.
    ///
    /// # Errors
    /// When a shard cannot be mapped or changed since it was opened.
    pub fn map(&self) -> Result<MappedCheckpoint> {
        MappedCheckpoint::new(self)
    }

    /// Confirms that no shard changed since it was opened.
    ///
    /// # Errors
    /// Exit 3 naming the file that changed.
    pub fn unchanged(&self) -> Result<()> {
        self.shards.files().iter().try_for_each(ShardFile::unchanged)
    }
}

impl TensorReader for Checkpoint {
    fn index(&self) -> &TensorIndex {
        &self.index
    }

    fn read_rows(&self, name: &str, rows: Range<usize>) -> Result<Vec<u8>> {
        let at = self.index.position(name).ok_or_else(|| no_tensor(name))?;
        let t = &self.index.tensors()[at];
        let row = t.spec.row_bytes() as u64;
        if rows.start > rows.end || rows.end > t.spec.rows() {
            return Err(Error::input(format!("tensor `{}` has no rows {rows:?}", Shown(name)))
                .found(format!("{} rows", t.spec.rows())));
        }
        let offset = self.locations[at].offset + rows.start as u64 * row;
        self.shards.read(t.shard, offset, (rows.len() as u64 * row) as usize)
    }
}

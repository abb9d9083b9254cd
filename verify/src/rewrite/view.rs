//! A model folder without its bytes, real or still to be written: what one stage hands to the next.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::checkpoint::{Checkpoint, Config, LeftOut, SideFile, TensorIndex, TensorReader, json};
use crate::error::{Error, Result};
use crate::names::{Digest, FileName};

/// Config, tensors and side files of a model.
#[derive(Debug, Clone)]
pub struct ModelView {
    /// `config.json`.
    pub config: Config,
    /// All tensors in file order.
    pub tensors: TensorIndex,
    /// Side files, sorted by name.
    pub files: Vec<ViewFile>,
    /// Named chat templates beside the default, sorted by name; no stage carries them over.
    pub templates: Vec<ViewFile>,
    /// Files of the inputs that are not carried over.
    pub left_out: Vec<LeftOut>,
}

/// A side file and where it comes from.
#[derive(Debug, Clone)]
pub struct ViewFile {
    /// Its name in the folder.
    pub name: FileName,
    /// Its bytes.
    pub content: Content,
    /// Where it comes from, for the report: `base`, `adapter NAME`, `prep`.
    pub origin: String,
}

impl ViewFile {
    /// Its text.
    ///
    /// # Errors
    /// When it cannot be read; exit 3 where it is no text.
    pub fn text(&self) -> Result<String> {
        let bytes = self.content.read()?;
        let text = std::str::from_utf8(&bytes).map(str::to_string);
        text.map_err(|_| Error::input(format!("{} is not UTF-8 text", self.name)).hint("fetch it again"))
    }
}

/// Bytes that lie in a file or in memory.
#[derive(Debug, Clone)]
pub enum Content {
    /// A file of an input folder.
    File(PathBuf),
    /// Bytes made by a stage.
    Bytes(Arc<[u8]>),
}

impl Content {
    /// The bytes. Side files are small; tokenizers may be some tens of MB.
    ///
    /// # Errors
    /// When the file cannot be read; exit 3 for one that is larger than any tokenizer.
    pub fn read(&self) -> Result<Arc<[u8]>> {
        match self {
            Content::Bytes(b) => Ok(b.clone()),
            Content::File(path) => json::read_bytes(path, json::MAX_TOKENIZER).map(Into::into),
        }
    }

    /// sha256 of the bytes.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn digest(&self) -> Result<Digest> {
        match self {
            Content::Bytes(b) => Ok(Digest::of(b)),
            Content::File(path) => crate::checksum::of_file(path),
        }
    }
}

impl ModelView {
    /// The view of a real folder.
    pub fn of(checkpoint: &Checkpoint) -> Self {
        let file = |f: &SideFile| ViewFile {
            name: f.name.clone(),
            content: Content::File(f.path.clone()),
            origin: "base".to_string(),
        };
        ModelView {
            config: checkpoint.config().clone(),
            tensors: checkpoint.index().clone(),
            files: checkpoint.files().iter().map(file).collect(),
            templates: checkpoint.templates().iter().map(file).collect(),
            left_out: checkpoint.left_out().to_vec(),
        }
    }

    /// The folder, as messages call it.
    pub fn folder(&self) -> &Path {
        self.config.path().parent().unwrap_or(Path::new(""))
    }

    /// The text of the side file called `name`; `None` where there is no such file.
    ///
    /// # Errors
    /// As [`ViewFile::text`].
    pub fn text(&self, name: &str) -> Result<Option<String>> {
        self.file(name).map(ViewFile::text).transpose()
    }

    /// The side file called `name`.
    pub fn file(&self, name: &str) -> Option<&ViewFile> {
        self.files.iter().find(|f| f.name.as_str() == name)
    }

    /// Adds a side file, in place of one of the same name.
    pub fn put_file(&mut self, file: ViewFile) {
        self.files.retain(|f| f.name != file.name);
        let at = self.files.partition_point(|f| f.name < file.name);
        self.files.insert(at, file);
    }

    /// Removes a side file.
    pub fn remove_file(&mut self, name: &str) {
        self.files.retain(|f| f.name.as_str() != name);
    }
}

//! Tensors by name: what they are and in which shard they lie, without their bytes.

use std::collections::HashMap;
use std::ops::Range;

use serde::Serialize;

use super::header::Header;
use super::index_json::IndexJson;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::names::{FileName, Shown};

/// Name, element type and shape of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// Full name, such as `model.layers.0.mlp.gate.weight`.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Row-major shape; empty for a scalar.
    pub shape: Vec<usize>,
}

impl TensorSpec {
    /// A spec.
    pub fn new(name: impl Into<String>, dtype: Dtype, shape: impl Into<Vec<usize>>) -> Self {
        TensorSpec { name: name.into(), dtype, shape: shape.into() }
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Length in bytes. (Specs come from a checked header or from a plan that was checked alike.)
    pub fn byte_len(&self) -> u64 {
        (self.elements() as u64 * self.dtype.bits() as u64).div_ceil(8)
    }

    /// The tensor seen as a matrix: all axes but the last are rows (vectors and scalars are one row).
    pub fn rows(&self) -> usize {
        match self.shape.len() {
            0 | 1 => 1,
            n => self.shape[..n - 1].iter().product(),
        }
    }

    /// Elements of one such row.
    pub fn cols(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Bytes of one such row. (F4 rows of odd length do not exist in practice and would round up.)
    pub fn row_bytes(&self) -> usize {
        (self.cols() * self.dtype.bits()).div_ceil(8)
    }
}

/// A tensor and the shard it lies in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorMeta {
    /// What it is.
    pub spec: TensorSpec,
    /// Index into [`TensorIndex::shards`].
    pub shard: usize,
}

/// All tensors of a model in file order (shard by shard), real or planned.
#[derive(Debug, Clone, Default)]
pub struct TensorIndex {
    shards: Vec<FileName>,
    tensors: Vec<TensorMeta>,
    by_name: HashMap<String, usize>,
}

impl TensorIndex {
    /// Builds the index; `tensors` must be ordered by shard.
    ///
    /// # Errors
    /// Refuses a name that two shards hold.
    pub fn new(shards: Vec<FileName>, tensors: Vec<TensorMeta>) -> Result<Self> {
        let mut by_name = HashMap::with_capacity(tensors.len());
        let mut twice = Vec::new();
        for (i, t) in tensors.iter().enumerate() {
            if by_name.insert(t.spec.name.clone(), i).is_some() {
                twice.push(format!("{}", Shown(&t.spec.name)));
            }
        }
        match twice.is_empty() {
            true => Ok(TensorIndex { shards, tensors, by_name }),
            false => Err(Error::input("tensors lie in more than one shard")
                .found(list_some(&twice))
                .expected("each name once")
                .hint("shards of two checkpoints are mixed in this folder: fetch it again")),
        }
    }

    /// The index of `shards` by their `headers`, which hold what the index file `told` says, where there is one.
    ///
    /// # Errors
    /// As [`Self::new`] and [`IndexJson::check_against`].
    pub fn of_headers(shards: Vec<FileName>, headers: Vec<Header>, told: Option<&IndexJson>) -> Result<Self> {
        let of_shard = |(shard, h): (usize, Header)| {
            h.tensors.into_iter().map(move |t| TensorMeta { spec: t.spec, shard })
        };
        let index = TensorIndex::new(shards, headers.into_iter().enumerate().flat_map(of_shard).collect())?;
        told.map_or(Ok(()), |told| told.check_against(&index))?;
        Ok(index)
    }

    /// Shard file names, in order.
    pub fn shards(&self) -> &[FileName] {
        &self.shards
    }

    /// All tensors, in file order.
    pub fn tensors(&self) -> &[TensorMeta] {
        &self.tensors
    }

    /// Where `name` stands in [`Self::tensors`].
    pub fn position(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// The tensor called `name`.
    pub fn get(&self, name: &str) -> Option<&TensorMeta> {
        self.position(name).map(|i| &self.tensors[i])
    }

    /// True where a tensor is called `name`.
    pub fn contains(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// Sum of all tensors' bytes.
    pub fn total_bytes(&self) -> u64 {
        self.tensors.iter().map(|t| t.spec.byte_len()).sum()
    }
}

/// Reads rows of tensors: from files, or computed on the way from another reader.
pub trait TensorReader: Sync {
    /// What can be read.
    fn index(&self) -> &TensorIndex;

    /// The bytes of rows `rows` (see [`TensorSpec::rows`]) of tensor `name`, row-major.
    ///
    /// # Errors
    /// When the tensor does not exist, cannot be read, or cannot be computed.
    fn read_rows(&self, name: &str, rows: Range<usize>) -> Result<Vec<u8>>;

    /// The whole tensor. Only for tensors known to be small.
    ///
    /// # Errors
    /// As [`Self::read_rows`].
    fn read(&self, name: &str) -> Result<Vec<u8>> {
        let rows = self.index().get(name).map_or(0, |t| t.spec.rows());
        self.read_rows(name, 0..rows)
    }
}

/// The error for a tensor that is not there.
pub fn no_tensor(name: &str) -> Error {
    Error::input(format!("tensor `{}` does not exist in the checkpoint", Shown(name)))
}

/// Up to ten of `items` and how many more there are.
pub fn list_some<S: AsRef<str>>(items: &[S]) -> String {
    let shown = items.iter().take(10).map(|s| s.as_ref().to_string()).collect::<Vec<_>>().join(", ");
    match items.len() {
        0..=10 => shown,
        n => format!("{shown} and {} more ({n} in all)", n - 10),
    }
}

impl Serialize for TensorSpec {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut out = s.serialize_struct("TensorSpec", 3)?;
        out.serialize_field("name", &self.name)?;
        out.serialize_field("dtype", self.dtype.name())?;
        out.serialize_field("shape", &self.shape)?;
        out.end()
    }
}

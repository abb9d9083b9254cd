//! Where a model's tensors lie: in mapped files, or wherever a reader computes them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use verify::checkpoint::TensorReader;
use verify::{MappedCheckpoint, Result, TensorIndex};

use super::Bytes;

/// Tensors by number.
pub trait Store: Send + Sync {
    /// Names, dtypes and shapes.
    fn index(&self) -> &TensorIndex;
    /// The bytes of tensor number `tensor`.
    ///
    /// # Errors
    /// Where they cannot be read or computed.
    fn bytes(&self, tensor: usize) -> Result<Bytes>;
}

impl Store for Arc<MappedCheckpoint> {
    fn index(&self) -> &TensorIndex {
        MappedCheckpoint::index(self)
    }

    fn bytes(&self, tensor: usize) -> Result<Bytes> {
        Ok(Bytes::mapped(Arc::clone(self), tensor))
    }
}

/// Reads every tensor into memory when it is asked for: what holds its bytes decides how long they stay.
pub struct ReadStore<'a> {
    reader: &'a dyn TensorReader,
    /// Fused tensors are asked for once for each of their parts.
    held: Mutex<HashMap<usize, Weak<Vec<u8>>>>,
}

impl<'a> ReadStore<'a> {
    /// The tensors of `reader`.
    pub fn new(reader: &'a dyn TensorReader) -> Self {
        ReadStore { reader, held: Mutex::default() }
    }
}

impl Store for ReadStore<'_> {
    fn index(&self) -> &TensorIndex {
        self.reader.index()
    }

    fn bytes(&self, tensor: usize) -> Result<Bytes> {
        let mut held = self.held.lock().unwrap_or_else(|p| p.into_inner());
        if let Some(bytes) = held.get(&tensor).and_then(Weak::upgrade) {
            return Ok(Bytes::shared(bytes));
        }
        let name = &self.reader.index().tensors()[tensor].spec.name;
        let bytes: Arc<Vec<u8>> = self.reader.read(name)?.into();
        held.insert(tensor, Arc::downgrade(&bytes));
        Ok(Bytes::shared(bytes))
    }
}
